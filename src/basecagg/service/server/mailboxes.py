"""What the server has to say to each participant, kept until the participant has dealt with it.

A letter is written in the same transaction as the machine's own records, so no crash loses it. A parcel is kept
by the machine already: its letter is only a reference, and the parcel is read when it is fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from basecagg.channels.wire import pack
from basecagg.protocol.effects import Forget, Persist, Store
from basecagg.protocol.mailroom import pending, stored_parcel
from basecagg.protocol.messages import (
    CertifiedRequest,
    Inquiry,
    Message,
    Parcel,
    RecoveryRequest,
    Verdict,
)
from basecagg.service.framing import Numbered

MAX_LETTERS = 4096
MAX_BYTES = 16 * 2**20
"""The quota of one mailbox. What does not fit is not lost for good: see `overflowed`."""
Notify: TypeAlias = Callable[[str, bool], None]
_REFERENCE, _FRAME = b"R", b"F"


class StoredLetter(NamedTuple):
    """One letter: a frame, or where the machine keeps it."""

    number: int
    content: bytes

    @property
    def key(self) -> str:
        """Its key in the store; keys sort like numbers."""
        return f"{self.number:016d}"


@dataclass
class Mailbox:
    """The letters of one participant, oldest first."""

    name: str
    letters: deque[StoredLetter] = field(default_factory=deque)
    size: int = 0
    next_number: int = 0

    @property
    def kind(self) -> str:
        """The kind of its records."""
        return f"mail:{self.name}"

    @property
    def is_full(self) -> bool:
        """Whether the quota is used up."""
        return len(self.letters) >= MAX_LETTERS or self.size >= MAX_BYTES

    def add(self, letter: StoredLetter) -> None:
        """Put a letter behind the others."""
        self.letters.append(letter)
        self.size += len(letter.content)
        self.next_number = letter.number + 1

    def remove_first(self) -> StoredLetter:
        """Take the oldest letter out."""
        letter = self.letters.popleft()
        self.size -= len(letter.content)
        return letter


class Mailboxes:
    """All mailboxes of an epoch, read from the store when they are first needed."""

    def __init__(self, store: Store, notify: Notify) -> None:
        """`notify` hears who has mail and whether it is urgent; it may be told before the mail is durable."""
        self._store = store
        self._notify = notify
        self._boxes: dict[str, Mailbox] = {}
        self._last: tuple[Message, bytes] | None = None

    def post(self, recipient: str, message: Message) -> None:
        """Put a message into the recipient's mailbox, or note that it did not fit."""
        box = self._box(recipient)
        if box.is_full:
            self._store.commit([Persist("overflow", recipient, b"")])
            return
        letter = StoredLetter(box.next_number, self._content(message))
        box.add(letter)
        self._store.commit([Persist(box.kind, letter.key, letter.content)])
        self._notify(recipient, _is_urgent(message))

    def collect(self, recipient: str, most_bytes: int, most_letters: int = 256) -> list[Numbered]:
        """The oldest letters, at least one if there is any. They stay until `acknowledge`."""
        found, size = list[Numbered](), 0
        for letter in self._box(recipient).letters:
            if len(found) == most_letters or (found and size >= most_bytes):
                break
            frame = self._frame(letter.content)
            if frame is not None:  # else its mask is over meanwhile
                found.append(Numbered(letter.number, frame))
                size += len(frame)
        return found

    def acknowledge(self, recipient: str, up_to: int) -> None:
        """The recipient has dealt with all letters up to this number."""
        box, gone = self._box(recipient), list[Forget]()
        while box.letters and box.letters[0].number <= up_to:
            gone.append(Forget(box.kind, box.remove_first().key))
        self._store.commit(gone)

    def overflowed(self, recipient: str) -> bool:
        """Whether letters did not fit and the box is empty now: time to ask the machine for them again."""
        if self._box(recipient).letters or self._store.read("overflow", recipient) is None:
            return False
        self._store.commit([Forget("overflow", recipient)])
        return True

    def letters_waiting(self, recipient: str) -> int:
        """How many letters the recipient has not dealt with."""
        return len(self._box(recipient).letters)

    def _box(self, recipient: str) -> Mailbox:
        if recipient not in self._boxes:
            box = self._boxes[recipient] = Mailbox(recipient)
            for key, content in self._store.scan(box.kind):
                box.add(StoredLetter(int(key), content))
        return self._boxes[recipient]

    def _content(self, message: Message) -> bytes:
        if isinstance(message, Parcel):
            holder, key = message.holder, message.dealing.key
            if self._store.read(pending(holder), key) is not None:  # else it comes again
                return _REFERENCE + f"{holder}\0{key}".encode()
        if self._last is None or self._last[0] is not message:
            self._last = (message, _FRAME + pack(message))  # the next holder gets the same bytes
        return self._last[1]

    def _frame(self, content: bytes) -> bytes | None:
        if content[:1] == _FRAME:
            return content[1:]
        holder, _, key = content[1:].decode().partition("\0")
        parcel = stored_parcel(self._store, int(holder), key)
        return None if parcel is None else pack(parcel)


def _is_urgent(message: Message) -> bool:
    """A sum or a user waits for this one. The others come in swarms, and are better fetched together."""
    if isinstance(message, Verdict):
        return message.outcome != "admitted"
    return isinstance(message, RecoveryRequest | CertifiedRequest | Inquiry)
