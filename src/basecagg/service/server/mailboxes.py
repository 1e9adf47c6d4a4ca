"""Mailboxes: letters to participants, kept until they are dealt with, and which of them are urgent.

A letter is stored in the same transaction as what the machine stores, so no crash loses it, and once for all
recipients. How far each recipient has come is stored too, so that no letter comes again. The machine keeps the
parcels of a shipment already: their letter only names the dealing.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from basecagg.channels.wire import pack
from basecagg.protocol import messages
from basecagg.protocol.effects import Forget, Persist, Send, Store, Write
from basecagg.protocol.mailroom import Mailroom
from basecagg.protocol.messages import Message, Parcel
from basecagg.protocol.short_letters import QUESTIONS
from basecagg.protocol.stored import Stored, load, write
from basecagg.service.framing import Numbered

MAX_LETTERS = 4096
MAX_BYTES = 16 * 2**20
"""The quota of one mailbox. Letters that do not fit are made again: see `overflowed`."""
_FRESH_BYTES = 32 * 2**20
"""Bytes of parcels that are kept in memory until their holders fetch them; most do so at once."""
_NAMED = 100
"""Bytes that a parcel counts as, because only its dealing's name is in the mailbox."""


class PostedLetter(Stored):
    """A letter as it is stored: a frame, or the name of the dealing whose parcels it stands for."""

    recipients: tuple[str, ...]
    frame: bytes = b""
    dealing: str = ""


@dataclass(eq=False)
class StoredLetter:
    """A letter, in the mailboxes of all its recipients."""

    number: int
    posted: PostedLetter
    waiting: int = 0
    """How many recipients have not dealt with it."""

    @property
    def key(self) -> str:
        """Its key in the store; keys sort like numbers."""
        return f"{self.number:016d}"

    @property
    def size(self) -> int:
        """The bytes that it counts as in a mailbox."""
        return len(self.posted.frame) or _NAMED


@dataclass
class Mailbox:
    """The letters of one participant, oldest first."""

    letters: deque[StoredLetter] = field(default_factory=deque)
    size: int = 0
    newest: int = -1
    """The number of the last letter that was put in."""

    @property
    def is_full(self) -> bool:
        """Whether the quota is used up."""
        return len(self.letters) >= MAX_LETTERS or self.size >= MAX_BYTES

    def add(self, letter: StoredLetter) -> None:
        """Put a letter behind the others."""
        self.letters.append(letter)
        self.size += letter.size
        self.newest = letter.number
        letter.waiting += 1

    def remove_first(self) -> StoredLetter:
        """Take the oldest letter out."""
        letter = self.letters.popleft()
        self.size -= letter.size
        letter.waiting -= 1
        return letter


class Mailboxes:
    """All mailboxes of an epoch. Numbers rise, and none is given twice, whatever is rebuilt."""

    def __init__(self, store: Store, mailroom: Mailroom | None) -> None:
        """Start with the letters that were not dealt with before a restart. In clear there is no mailroom."""
        self._store = store
        self._mailroom = mailroom
        self._boxes: defaultdict[str, Mailbox] = defaultdict(Mailbox)
        self._fresh: OrderedDict[str, dict[int, Parcel]] = OrderedDict()
        self._fresh_bytes = 0
        self._full = set(store.keys("overflow"))
        self._woken: dict[str, bool] = {}
        read = {name: int(number) for name, number in store.scan("read")}
        for key, posted in load(store, "letter", PostedLetter).items():
            letter = StoredLetter(int(key), posted)
            for name in posted.recipients:
                if letter.number > read.get(name, -1):
                    self._boxes[name].add(letter)
        newest = (box.newest for box in self._boxes.values())
        self._next = max((*newest, *read.values()), default=-1) + 1

    def post(self, sends: Iterable[Send]) -> None:
        """Put messages into mailboxes, or note that they did not fit. What goes to many is one letter."""
        writes: list[Write] = []
        for subject, group in groupby(sends, self._subject):
            writes += self._post_one(subject, list(group))
        if writes:
            self._store.commit(writes)

    def _subject(self, send: Send) -> str | int:
        """What messages have in common that become one letter: they are the same, or parcels of one dealing."""
        message = send.message
        if isinstance(message, Parcel) and self._lacks(message.holder, message.dealing.key):
            return message.dealing.key
        return id(message)

    def _lacks(self, holder: int, dealing: str) -> bool:
        return self._mailroom is not None and self._mailroom.lacks(holder, dealing)

    def _post_one(self, subject: str | int, sends: list[Send]) -> list[Write]:
        names = [send.recipient for send in sends]
        full = [name for name in names if self._boxes[name].is_full]
        self._full.update(full)
        writes: list[Write] = [Persist("overflow", name, b"") for name in full]
        reached = [name for name in names if name not in full]
        if not reached:
            return writes
        letter = StoredLetter(self._next, self._posted(subject, sends, tuple(reached)))
        self._next += 1
        urgent = _is_urgent(sends[0].message)
        for name in reached:
            self._boxes[name].add(letter)
            self._woken[name] = self._woken.get(name, False) or urgent
        return [*writes, write("letter", letter.key, letter.posted)]

    def _posted(
        self, subject: str | int, sends: list[Send], recipients: tuple[str, ...]
    ) -> PostedLetter:
        if isinstance(subject, int):
            return PostedLetter(recipients=recipients, frame=pack(sends[0].message))
        self._remember(subject, [send.message for send in sends])
        return PostedLetter(recipients=recipients, dealing=subject)

    def take_woken(self) -> dict[str, bool]:
        """Who got mail since the last call, and whether some of it is urgent. Wake them once it is durable."""
        woken, self._woken = self._woken, {}
        return woken

    def has_news(self, recipient: str, acknowledged: int | None) -> bool:
        """Whether there is more than the recipient has dealt with. Any thread may ask."""
        if acknowledged is None or recipient in self._full:
            return True
        box = self._boxes.get(recipient)
        return box is not None and box.newest > acknowledged

    def collect(
        self, recipient: str, holder: int | None, most_bytes: int, most_letters: int = 256
    ) -> list[Numbered]:
        """The oldest letters, at least one if there is any. They stay until `acknowledge`.

        `holder` is the recipient's number among the holders, if it is one.
        """
        found, size = list[Numbered](), 0
        for letter in self._boxes[recipient].letters:
            if len(found) == most_letters or (found and size >= most_bytes):
                break
            frame = self._frame(letter.posted, holder)
            if frame is not None:
                found.append(Numbered(letter.number, frame))
                size += len(frame)
        return found

    def acknowledge(self, recipient: str, up_to: int) -> None:
        """The recipient has dealt with all letters up to this number."""
        box, last = self._boxes[recipient], -1
        writes: list[Write] = []
        while box.letters and box.letters[0].number <= up_to:
            letter = box.remove_first()
            last = letter.number
            if not letter.waiting:
                writes.append(Forget("letter", letter.key))
        if last >= 0:
            self._store.commit([*writes, Persist("read", recipient, b"%d" % last)])

    def overflowed(self, recipient: str) -> bool:
        """Whether letters did not fit, and the box is empty now: time to ask the machine for them again."""
        if recipient not in self._full or self._boxes[recipient].letters:
            return False
        self._full.discard(recipient)
        self._store.commit([Forget("overflow", recipient)])
        return True

    # --- parcels ----------------------------------------------------------------------------------

    def _frame(self, posted: PostedLetter, holder: int | None) -> bytes | None:
        """The letter's frame; None for a parcel of no use any more: it is confirmed, or its masks are over."""
        if not posted.dealing:
            return posted.frame
        if self._mailroom is None or holder is None or not self._lacks(holder, posted.dealing):
            return None
        if holder not in self._fresh.get(posted.dealing, {}):
            self._remember(posted.dealing, self._mailroom.parcels(posted.dealing))
        return pack(self._fresh[posted.dealing][holder])

    def _remember(self, dealing: str, parcels: Sequence[Message]) -> None:
        """Keep parcels in memory that holders will fetch soon. The oldest of too many are read again."""
        new = {parcel.holder: parcel for parcel in parcels if isinstance(parcel, Parcel)}
        fresh = self._drop(dealing) | new
        self._fresh[dealing] = fresh
        self._fresh_bytes += _bytes_of(fresh)
        while self._fresh_bytes > _FRESH_BYTES and len(self._fresh) > 1:
            self._drop(next(iter(self._fresh)))

    def _drop(self, dealing: str) -> dict[int, Parcel]:
        dropped = self._fresh.pop(dealing, {})
        self._fresh_bytes -= _bytes_of(dropped)
        return dropped


def _bytes_of(parcels: dict[int, Parcel]) -> int:
    return sum(len(parcel.sealed) for parcel in parcels.values())


def _is_urgent(message: Message) -> bool:
    """Whether a sum or a user waits for this letter. Others come in swarms, and are better fetched together."""
    if isinstance(message, messages.Verdict):
        return message.outcome != "admitted"
    return isinstance(message, (*QUESTIONS, messages.Inquiry))
