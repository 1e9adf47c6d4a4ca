"""The contributor in an epoch without protection: it sends its updates in clear, one at a time.

It exists only where the operator signed protection 'none' and this participant's floor allows it. An update is
stored before it is sent, so a retry sends identical bytes and is counted once.
"""

from __future__ import annotations

from collections.abc import Callable

from basecagg.errors import DataError, LocalProtocolError, Malformed, UnknownMask
from basecagg.maths.quantization import require_finite
from basecagg.maths.randomness import system_entropy
from basecagg.protocol.effects import Effect, Forget, MaskEnded, Persist, Send, Uploaded
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.global_model import Model
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.messages import (
    Closing,
    Credential,
    MaskName,
    Message,
    PlainUpdate,
    Ticket,
    Verdict,
    content_hash,
    signed,
)
from basecagg.protocol.ports import Records, Signer
from basecagg.protocol.stored import bind, load, require, write
from basecagg.protocol.weighing import Weighing

_SERIAL_BYTES = 16


class ClearContributor:
    """A contributor in clear. Rebuilt from its records after a restart, it goes on where it was."""

    may_spend = True
    """There is no budget of privacy to spend."""

    def __init__(
        self,
        agreement: Agreement,
        credential: Credential,
        signer: Signer,
        records: Records,
        *,
        entropy: Callable[[int], bytes] = system_entropy,
    ) -> None:
        """Take up the contributor that the credential names."""
        self.agreement = agreement
        self.name = credential.contributor
        self._credential = credential
        self._signer = signer
        self._records = records
        self._entropy = entropy
        self._sent = load(records, "ticket", Ticket)
        """The update whose end is not known yet."""
        self._next = self._fresh_name()
        self.ledger = PrivacyLedger(records)
        """What uploads have cost in other epochs."""

    def _fresh_name(self) -> MaskName:
        return MaskName(self.name, self._entropy(_SERIAL_BYTES))

    @property
    def ready(self) -> list[MaskName]:
        """The name of the next update; none while one is on its way."""
        return [] if self._sent else [self._next]

    @property
    def is_ready(self) -> bool:
        """Whether an update could be sent now: none is on its way."""
        return not self._sent

    @property
    def is_waiting(self) -> bool:
        """Whether it does not know yet what became of an update."""
        return bool(self._sent)

    def may_train_from(self, version: int) -> bool:
        """Any version: two updates from one version hide nothing, so they reveal nothing."""
        return True

    def start(self) -> list[Effect]:
        """Carry this out once after construction: what had no outcome is sent again."""
        return [*bind(self._records, self.agreement.id), *self.reconnect()]

    def reconnect(self) -> list[Effect]:
        """Send again, byte for byte, what has had no outcome yet."""
        updates = (
            PlainUpdate(ticket, require(self._records, "upload", key), self._credential)
            for key, ticket in self._sent.items()
        )
        return [Send(SERVER, update) for update in updates]

    def deal_ahead(self, version: int, ahead: int) -> list[Effect]:
        """Nothing hides an update here."""
        return []

    def submit(
        self, update: Model, base_version: int, head: bytes, version: int, model: bytes = b""
    ) -> list[Effect]:
        """Send an update Δ, the model before − after training, as it is. The model has come to `version`."""
        size = self.agreement.parameters.model_size
        if update.shape != (size,):
            raise DataError(f"an update has d = {size} elements, not {update.shape}")
        if self._sent:
            raise LocalProtocolError("an update is on its way: wait for what becomes of it")
        require_finite(update)
        told = Weighing.of(self.agreement.parameters).age_to_tell(version, base_version)
        values = update.astype("<f4", copy=False).tobytes()
        name, self._next = self._next, self._fresh_name()
        digest = content_hash(values)
        ticket = Ticket(self.agreement.id, name, base_version, head, digest, told)
        self._sent[name.key] = ticket = signed(ticket, self._signer)
        return [
            write("ticket", name.key, ticket),
            Persist("upload", name.key, values),
            Send(SERVER, PlainUpdate(ticket, values, self._credential)),
            Uploaded(name, 0),
        ]

    def receive(self, message: Message) -> list[Effect]:
        """The end of the update; anything else is refused."""
        match message:
            case Verdict():
                return self._take_verdict(message)
            case Closing():
                return []
        raise Malformed(f"a contributor in clear does not take a {type(message).__name__}")

    def _take_verdict(self, verdict: Verdict) -> list[Effect]:
        self.agreement.require_id(verdict.epoch)
        if verdict.mask.key not in self._sent:
            raise UnknownMask(f"{verdict.mask.key} is no update of ours that waits")
        if verdict.outcome == "admitted":
            return []
        return self._end(verdict.mask.key, verdict.outcome, verdict.reason)

    def close(self) -> list[Effect]:
        """The epoch ends: what was not summed is forgotten."""
        return [e for key in list(self._sent) for e in self._end(key, "burned", "close epoch")]

    def _end(self, key: str, outcome: str, reason: str) -> list[Effect]:
        name = self._sent.pop(key).mask
        return [Forget("ticket", key), Forget("upload", key), MaskEnded(name, outcome, reason)]
