"""A node of the federation between two messages: its participant, and the training that goes on beside it."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.sealing import SealingKeys
from basecagg.channels.wire import pack, unpack
from basecagg.errors import BadSignature, LocalProtocolError, Refused
from basecagg.flower import detached
from basecagg.flower.node_folder import NodeFolder
from basecagg.flower.visits import NodeReport, bounded
from basecagg.parties.member import Member, Pins, evidence_in
from basecagg.protocol import effects
from basecagg.protocol.effects import Forget, News, Persist
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.global_model import Model
from basecagg.protocol.messages import Credential, Message, Refusal, Suite
from basecagg.protocol.stored import Stored, write
from basecagg.protocol.stored import parse as parse_record

_LOG = logging.getLogger("flwr")
_SUITE: Suite = "x25519"
_VERIFIER = Ed25519Verifier()


class BegunTraining(Stored):
    """Training that was begun: from which model."""

    version: int
    head: bytes
    """What the chain of models had come to with it."""
    began: float
    """When, by this machine's clock."""


class KeptMetrics(Stored):
    """Metrics of the model that this node is about to train; they leave inside its next update only."""

    values: dict[str, float]


class OpenNode(AbstractContextManager["OpenNode"]):
    """An open node: nobody else can open it until it is closed, so no machine runs twice.

    Its member is built anew for every visit, from its store: each message may meet another process.
    """

    def __init__(self, folder: NodeFolder) -> None:
        """Open the node's store; `wake` takes up the member, once the node was introduced."""
        self.folder = folder
        self._store = folder.open_store()
        self._member: Member | None = None
        self._declined = ""

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self._store.close()

    # --- joining ----------------------------------------------------------------------------------

    def introduce(self, name: str, operator_key: bytes) -> NodeReport:
        """Show this node's keys. They are made, and the operator's is pinned, when first asked for."""
        if self._store.read("name", "") is None:
            self._store.commit(
                [
                    Persist("name", "", name.encode()),
                    Persist("operator", "", operator_key),
                    Persist("key", "signing", Identity.create().secret_bytes()),
                ]
            )
        if self._read("operator") != operator_key:
            raise BadSignature(
                "this federation has another operator than the one that this node pinned"
            )
        self.wake()
        holder_key, signing_key = self.member.announce(), self.member.participant.pins.signing_key
        return replace(self.report(), signing_key=signing_key, holder_key=pack(holder_key))

    def report(self) -> NodeReport:
        """Who this is, and how it stands."""
        if self._member is None:
            return NodeReport()
        participant = self._member.participant
        contributor = participant.contributor
        return NodeReport(
            name=participant.pins.name,
            epoch=self._member.epoch,
            ready=contributor is not None and contributor.is_ready,
            declined=self._declined,
            spent=contributor is not None and not contributor.may_spend,
        )

    def wake(self, *, resume: bool = False) -> list[Message]:
        """Take up the participant if this node was introduced. Only after a loss is everything sent again."""
        if self._store.read("name", "") is None:
            return []
        identity = Identity.from_secret(self._read("key", "signing"))
        pins = Pins(
            federation=self.folder.path.name,
            name=self._read("name").decode(),
            signing_key=identity.public_key,
            operator_key=self._read("operator"),
        )
        self._member = Member(
            pins,
            identity,
            SealingKeys(_SUITE),
            _VERIFIER,
            self._store,
            floor=self.folder.floor,
            tell=self._tell,
            refused=_note_refusal,
            keeps_masks=True,  # it starts at every visit: its masks would never be ready
        )
        messages = self._member.start(int(time.time()))
        return messages if resume else []

    @property
    def member(self) -> Member:
        """The member of the federation that this node is."""
        if self._member is None:
            raise LocalProtocolError("this node has to be introduced first")
        return self._member

    # --- letters ----------------------------------------------------------------------------------

    def take(self, frames: Sequence[bytes]) -> list[Message]:
        """Deal with the letters of a visit. An epoch and a credential come first, until it has joined."""
        if self._member is None:
            return []
        messages = [message for frame in frames if (message := _parse(frame)) is not None]
        self._member.offer(messages)
        return self._member.take([m for m in messages if not isinstance(m, Epoch | Credential)])

    def deal(self) -> list[Message]:
        """Have a mask ready for the next update, if there may be one."""
        if self._member is None or self._declined:
            return []
        contributor = self._member.participant.contributor
        return self._member.deal() if contributor and contributor.may_spend else []

    def require_trust(self) -> None:
        """Take no more part in a federation whose server was caught."""
        if self._keep_evidence():
            raise LocalProtocolError(
                "the server of this federation contradicted itself: this node takes no more part in it."
                f" What convicts the server is in {self._evidence.name} of the node's state-dir"
            )

    # --- training ---------------------------------------------------------------------------------

    @property
    def is_private(self) -> bool:
        """Whether a budget covers what this node tells of its training."""
        agreement = self.member.participant.agreement
        return agreement is not None and agreement.parameters.privacy is not None

    def submit(self, update: Model, job: BegunTraining) -> list[Message]:
        """Mask an update and forget the evaluation that went with it."""
        messages = self.member.submit(update, job.version, job.head)
        self._store.commit([Forget("evaluation", ""), Forget("job", "")])
        return messages

    def note_job(self, job: BegunTraining) -> None:
        """Training in a process of its own begins."""
        self._store.commit([write("job", "", job)])

    @property
    def job(self) -> BegunTraining | None:
        """The training that was begun in a process of its own and has not been collected."""
        stored = self._store.read("job", "")
        return parse_record(stored, BegunTraining) if stored else None

    def drop_job(self) -> None:
        """The training process is over, or is ended now: forget it."""
        detached.stop(self.folder.path)
        detached.clear(self.folder.path)
        self._store.commit([Forget("job", "")])

    def note_evaluation(self, metrics: Mapping[str, object]) -> None:
        """Keep the metrics of an evaluation for the next update."""
        numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
        self._store.commit([write("evaluation", "", KeptMetrics(values=numbers))])

    @property
    def evaluation(self) -> Mapping[str, float] | None:
        """The metrics that wait for the next update."""
        stored = self._store.read("evaluation", "")
        return parse_record(stored, KeptMetrics).values if stored else None

    # --- the end ----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove what training left in a federation that this node has left itself; evidence stays."""
        if self.report().epoch:
            return
        detached.stop(self.folder.path)
        self._store.commit([Forget("evaluation", ""), Forget("job", "")])
        node = self.folder.path.parent
        temporary = self.folder.temporary and not self._evidence.exists()
        shutil.rmtree(node if temporary else self.folder.path, ignore_errors=True)
        if temporary:
            with suppress(OSError):  # other nodes of the run may still have something in it
                node.parent.rmdir()

    # --- records ----------------------------------------------------------------------------------

    @property
    def _evidence(self) -> Path:
        """Where the words of a server that was caught are kept, for others to judge."""
        return self.folder.path.parent / f"evidence-{self.folder.path.name}.bin"

    def _keep_evidence(self) -> bool:
        """Whether the server was caught; then its words are in a file, also if a crash came between."""
        found = evidence_in(self._store)
        if found and not self._evidence.exists():
            self._evidence.write_bytes(pack(found[0]))
        return bool(found)

    def _tell(self, news: News) -> None:
        match news:
            case effects.Joined(number, _, holds):
                _LOG.info(
                    "joined epoch %d%s", number, "" if holds else ": it holds no shares there"
                )
            case effects.Left(number, reason):
                _LOG.info("left epoch %d: %s", number, reason)
            case effects.BudgetEnded(reason):
                _LOG.warning("this node trains no more: %s", reason)
            case effects.Declined(code, reason):
                self._declined = code
                _LOG.error("an epoch was declined: %s (%s)", reason, code)
            case effects.StoreLost(reason):
                _LOG.error("this node holds no shares any more: %s", reason)
            case effects.Convicted(_, reason):
                self._keep_evidence()
                _LOG.error(
                    "%s. This node takes no more part; the evidence is in %s",
                    reason,
                    self._evidence,
                )

    def _read(self, kind: str, key: str = "") -> bytes:
        value = self._store.read(kind, key)
        if value is None:
            raise LocalProtocolError(f"this node has no {kind}: it has to be introduced first")
        return value


def _note_refusal(message: Message, refusal: Refused) -> None:
    _LOG.info("%s refused: %s", type(message).__name__, bounded(str(refusal)))


def _parse(frame: bytes) -> Message | None:
    """A letter, or None for one that only tells of a refusal."""
    message = unpack(frame, len(frame))  # Flower has it in memory already: no limit is left to keep
    if isinstance(message, Refusal):
        _LOG.warning("the server refused: %s (%s)", bounded(message.reason), bounded(message.code))
        return None
    return message
