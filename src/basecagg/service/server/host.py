"""The server of one epoch with its mailboxes: letters wait until they are fetched, sums are written down.

Everything here runs in the worker's thread.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from basecagg.channels.wire import limit_for, pack
from basecagg.errors import REFUSAL_CODES, Retired
from basecagg.parties.epoch_server import EpochServer
from basecagg.protocol import messages
from basecagg.protocol.effects import Abandoned, News, Released, Send, Store
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.global_model import Model, model_bytes
from basecagg.protocol.messages import Message
from basecagg.protocol.ports import Signer
from basecagg.protocol.proofs import Pedigree
from basecagg.service.framing import Numbered
from basecagg.service.logs import Log
from basecagg.service.problems import Problem
from basecagg.service.server.buffer_log import BufferLog
from basecagg.service.server.group_commit import GroupCommit
from basecagg.service.server.mailboxes import Mailboxes
from basecagg.service.server.registry import Charter

_LOG = Log("basecagg.service")
CONTROL_BYTES = 2**20
"""The most that a message without bulk data may take here."""
_LEFT_OUT = (
    "a sum was given up, and its members are left out of the next one: it waits for others, until the"
    " server's patience ends and all may be in it again"
)
_IN_CLEAR = (messages.PlainUpdate,)
"""The kind of message that participants send where nothing is masked."""
_FOR_NEXT_SUM = (messages.Shipment, messages.Upload, messages.Contribution, *_IN_CLEAR)
_FOR_PRESENT_SUM = (
    messages.Endorsement,
    messages.Answer,
    messages.CannotFollow,
    messages.Witness,
)
_BULK = (*_FOR_NEXT_SUM, messages.Answer)
_MASKED = (
    *(messages.Shipment, messages.Upload, messages.Contribution),
    *(*_FOR_PRESENT_SUM, messages.Receipt, messages.Closing),
)
"""The kinds of message that participants send where updates are masked."""


@dataclass(frozen=True, eq=False)
class Published:
    """A version of the global model, ready to be sent."""

    version: int
    head: bytes
    dtype: str
    data: bytes


class EpochHost:
    """One epoch on the server."""

    def __init__(
        self,
        agreement: Agreement,
        signer: Signer,
        store: Store,
        initial_model: Model,
        charter: Charter,
        *,
        retries: int = 5,
        keep: int = 1,
    ) -> None:
        """Go on where the store says the epoch was, or begin it with the initial model.

        `retries` is at least 1: after a restart the first one asks again for the answers that were lost. What
        the last `keep` versions (R) were made from can be fetched. The charter says how far the epoch has come,
        and how far it goes.
        """
        self.agreement = agreement
        self.frame = pack(agreement.epoch)
        """The epoch, as the operator signed it."""
        taken = _MASKED if agreement.parameters.is_masked else _IN_CLEAR
        self.limits: dict[type[Message], int] = {
            kind: limit_for(kind, agreement.parameters) if kind in _BULK else CONTROL_BYTES
            for kind in (*taken, messages.Refusal)
        }
        """The kinds of message that are taken, and the most bytes of each."""
        self._store = GroupCommit(store)
        self._charter = charter
        made_of = agreement, signer, self._store, initial_model
        self._make_server = partial(
            EpochServer.of,
            *made_of,
            post=self._post,
            tell=self._note,
            retries=retries,
            keep=keep,
        )
        self._packed: tuple[int, bytes] | None = None
        """The parts that were asked for last: all members want the same ones at about the same time."""
        self.refusals: Counter[str] = Counter()
        """How many messages were refused since the start, by kind: here, and by holders who told us."""
        self.retired: set[str] = set()
        """Holders that have said since the start that they answer nothing more in this epoch."""
        self.trouble = ""
        """Why no sum is opened until the operator does something about it."""
        self._absent: Mapping[str, str] = {}
        """Holders that cannot answer at present, and why."""
        self._build()

    def _build(self) -> None:
        self.server = self._make_server()
        self.machine = self.server.machine
        """Read by the page and the clock; only `server` changes it."""
        self.machine.last_version = self._charter.last_version
        self.published = self._publication()
        relayed = self.server.recovery.mailroom if self.agreement.parameters.is_masked else None
        self.mailboxes = Mailboxes(self._store, relayed)
        self.buffer_log = BufferLog(self._store, self.agreement.holder_names)
        self._began = time.monotonic()
        self.server.start()
        self.flush()
        if (
            self.machine.is_opening
        ):  # what holders said before a restart is lost, so they are asked again
            self.server.deadline()
            self.flush()

    # --- the worker's owner -----------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable, then publish."""
        self._store.flush()
        self._look_for_trouble()
        if self.published.version != self.machine.version:
            self.published = self._publication()

    def _look_for_trouble(self) -> None:
        before = self.trouble
        self.trouble = self.server.opening.trouble(self.machine.version) or self._in_words()
        ends_by_itself = ("", _LEFT_OUT)
        if self.trouble not in ends_by_itself and before in ends_by_itself:
            _LOG.error("no sum is opened", reason=self.trouble)
        elif self.trouble and not before:
            _LOG.info("no sum is opened yet", reason=self.trouble)
        elif before and not self.trouble:
            _LOG.info("sums are opened again")

    @property
    def _has_too_few(self) -> bool:
        there = self.agreement.parameters.num_holders - len(self._absent)
        return there < self.agreement.holders_needed

    def _in_words(self) -> str:
        """What is missing, for a page that tells no names; `operator status` tells them."""
        if not self._has_too_few:
            return _LEFT_OUT if self.machine.waits_for_others else ""
        total, counts = self.agreement.parameters.num_holders, Counter(self._absent.values())
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        return (
            f"a sum needs {self.agreement.holders_needed} of the {total} holders, and"
            f" {total - len(self._absent)} can answer ({why}): bring the silent ones back, or begin an epoch"
            " with those who are there (basecagg operator rotate --without NAME)"
        )

    def hear_of_absence(
        self, absent: Mapping[str, str], gone: frozenset[str] = frozenset()
    ) -> None:
        """Take note of holders that cannot answer, each with the reason in a word, and who cannot upload."""
        self._absent = absent
        self.server.opening.gone = gone
        self._look_for_trouble()

    def recover(self, charter: Charter) -> None:
        """Build the machine again from what is durable, as the charter is."""
        self._charter = charter
        self._store.discard()
        self._store.prove()
        self._build()

    def _publication(self) -> Published:
        machine = self.machine
        dtype = machine.model.dtype.newbyteorder("<").str
        return Published(machine.version, machine.head, dtype, model_bytes(machine.model))

    # --- jobs -------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message) -> None:
        """Hand a participant's message to the machine. A refusal is a `Problem` with status 409."""
        if self._charter.phase != "open" and isinstance(message, _FOR_NEXT_SUM):
            raise Problem(503, "EpochClosing", "this epoch takes no more updates", retry_after=5.0)
        if self._charter.phase == "closed" and isinstance(message, _FOR_PRESENT_SUM):
            return  # its last version is signed
        self._began = time.monotonic()
        self.buffer_log.note_answer(message)
        if isinstance(message, messages.Refusal):
            if message.code == Retired.__name__:
                self.retired.add(sender)
            self.refusals[message.code if message.code in REFUSAL_CODES else "other"] += 1
            return
        refusal = self.server.receive(sender, message)
        if refusal is not None:
            self.refusals[refusal.code] += 1
            raise Problem(409, refusal.code, str(refusal))

    def collect(self, name: str, acknowledged: int | None, most_bytes: int) -> list[Numbered]:
        """Drop the letters that were dealt with, and return the next ones."""
        if acknowledged is not None:
            self.mailboxes.acknowledge(name, acknowledged)
        if self.mailboxes.overflowed(name):
            self.server.reconnect(name)
        holder = self.agreement.holder_index(name)
        return self.mailboxes.collect(name, holder, most_bytes)

    def tick(self, patience: float) -> None:
        """Ask holders again that have been silent for `patience` seconds."""
        self._began = time.monotonic()
        self.server.tick(self._began, patience)

    def pedigree(self, operator_key: bytes) -> Pedigree:
        """What leads from the operator's key to the present model."""
        return self.server.pedigree(operator_key, self.published.version)

    def release(self, version: int) -> bytes:
        """The server's signed word on a version, as a frame; 404 if it is not kept any more."""
        return pack(_kept(self.server.kept.release(version), version))

    def parts(self, version: int) -> bytes:
        """All that a version was made from, as a frame; 404 if it is not kept any more."""
        if self._packed is None or self._packed[0] != version:
            self._packed = version, pack(_kept(self.server.kept.parts(version), version))
        return self._packed[1]

    @property
    def waits(self) -> bool:
        """Whether the clock has to tell the machine how late it is: a rule of it ends by time."""
        is_open = self._charter.phase == "open"
        return self.machine.is_opening or (is_open and self.machine.waits_for_time)

    @property
    def may_end(self) -> bool:
        """Whether nothing is being opened, or what is being opened may never be."""
        return not self.machine.is_opening or self.server.opening.is_stuck or self._has_too_few

    # --- letters and news -------------------------------------------------------------------------

    def _post(self, sends: Sequence[Send]) -> None:
        """Put letters into mailboxes. A refusal is no letter: the answer to the request says it."""
        letters = [send for send in sends if not isinstance(send.message, messages.Refusal)]
        for letter in letters:
            self.buffer_log.note_question(letter.message)
        self.mailboxes.post(letters)

    def _note(self, news: News) -> None:
        """The entry in the log of buffers is in the same transaction as the step itself."""
        if isinstance(news, Released | Abandoned):
            self.buffer_log.record(news, self._began)


def _kept(message: Message | None, version: int) -> Message:
    if message is None:
        raise Problem(404, "NotKept", f"nothing of version {version} is kept here any more")
    return message
