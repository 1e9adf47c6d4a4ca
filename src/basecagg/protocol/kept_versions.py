"""What the server keeps of its last versions: all that each was made from, for members who make it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from basecagg.protocol.effects import Effect, Forget
from basecagg.protocol.mailroom import Uploads
from basecagg.protocol.messages import Answer, Certificate, MaskName, Parts, Release
from basecagg.protocol.opening import forget_model_before
from basecagg.protocol.ports import Records
from basecagg.protocol.stored import Made, parse, recall, require, version_key, write


class KeptVersions:
    """The last versions with their parts, and the updates that the server stores."""

    def __init__(self, records: Records, keep: int, waiting: Iterable[MaskName]) -> None:
        """Keep what the last `keep` versions (R) were made from; these updates wait to be summed."""
        self._records = records
        self._keep = keep
        self._versions = [int(key) for key in records.keys("made")]
        """The versions whose parts are kept, oldest first."""
        made = filter(None, map(self._made, self._versions))
        kept = [mask for each in made for mask in each.request.masks]
        self.uploads = Uploads(records, [*kept, *waiting])

    def add(self, made: Made, answers: Mapping[int, Answer]) -> list[Effect]:
        """A new version, and the answers that opened its sum."""
        version = made.release.history.last
        self._versions.append(version)
        key = version_key(version)
        inputs: list[Effect]
        if self._keep:
            inputs = [write("part", f"{key}/{h}", answer) for h, answer in answers.items()]
        else:  # nobody can make this version again
            updates = [self.uploads.forget(mask) for mask in made.request.masks]
            inputs = [*updates, *forget_model_before(version)]
        return [write("made", key, made), *inputs]

    def forget_outdated(self) -> list[Effect]:
        """Delete parts of old versions. Not while a version is published and everybody waits: it takes long."""
        effects = list[Effect]()
        while len(self._versions) > max(1, self._keep):
            version = self._versions.pop(0)
            if made := self._made(version):
                key = version_key(version)
                parts = [Forget("part", f"{key}/{holder}") for holder, _ in made.release.answers]
                effects += [Forget("made", key), *parts, *forget_model_before(version)]
                self.uploads.outdate(made.request.masks)
        return effects

    def parts(self, version: int) -> Parts | None:
        """All that a version was made from, if it is still there."""
        key, before = version_key(version), version_key(version - 1)
        made, model = self._made(version), self._records.read("model", before)
        if made is None or model is None or not self._keep:
            return None
        answers = (require(self._records, "part", f"{key}/{h}") for h, _ in made.release.answers)
        return Parts(
            made.release,
            made.request,
            made.certificate,
            tuple(map(self.uploads.read, made.request.masks)),
            tuple(parse(answer, Answer) for answer in answers),
            model,
            self._records.read("optimiser", before) or b"",
        )

    def release(self, version: int) -> Release | None:
        """The server's signed word on a version, while it is kept. An epoch's first version has none."""
        made = self._made(version)
        return made.release if made else None

    def certificate_of(self, version: int) -> Certificate | None:
        """The certificate of the sum that made a version, if it has one and is still there."""
        made = self._made(version)
        return made.certificate if made else None

    def _made(self, version: int) -> Made | None:
        return recall(self._records, "made", Made, version_key(version))
