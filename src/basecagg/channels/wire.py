"""Messages as bytes, strictly: one encoding for each message, and every other byte string is refused.

A frame is the magic, the protocol version, and the message as a MessagePack array, its name first. Unknown
names, unknown or missing fields, left-over bytes, non-minimal integers and oversize are all errors.
"""

import os
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from basecagg.errors import ChannelError
from basecagg.parameters import ProtocolParameters
from basecagg.protocol import messages
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.messages import PROTOCOL_VERSION, Message, encode
from basecagg.protocol.proofs import Account, Evidence, Pedigree

_NAME = b"BSAG"
MAGIC = _NAME + bytes([PROTOCOL_VERSION])
MAX_CONTROL_BYTES = 16 * 2**20
"""The most that a message without bulk data may take: N = 100,000 signatures and K tickets fit."""
_ENVELOPE_BYTES = 4096
"""Room for the names, keys and signatures around one bulk payload, sealing overhead included."""
_LARGE = 2**16
"""Bytes of a large field: from here on MessagePack has one way to write how long it is."""
_BIN_8, _BIN_32 = b"\xc4\x20", b"\xc6"
"""What MessagePack puts before 32 bytes, and before the length of a large field."""
_GAP = os.urandom(32)
"""Stands for a large field; nobody can know it, so it stands nowhere else in a message."""
_MASK_NAME_BYTES = 256
"""Room for one more mask's name: its contributor's name and a serial number."""

AnyMessage = (
    Epoch
    | messages.EpochEnd
    | messages.HolderKey
    | messages.Credential
    | messages.Shipment
    | messages.Parcel
    | messages.Receipt
    | messages.Upload
    | messages.Contribution
    | messages.PlainUpdate
    | messages.Verdict
    | messages.RecoveryRequest
    | messages.ShortRequest
    | messages.Certificate
    | messages.CannotFollow
    | messages.Endorsement
    | messages.CertifiedRequest
    | messages.Answer
    | messages.Closing
    | messages.Release
    | messages.Parts
    | messages.Inquiry
    | messages.Witness
    | messages.Refusal
)
_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)
Filed: TypeAlias = Evidence | Account | Pedigree
_FILE_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Filed)
MAX_FILE_BYTES = 2**31
"""Of a file with all the parts of a version: K + 3 models of 10⁷ numbers and more."""


def pieces(message: Message) -> tuple[bytes, bytes]:
    """A message as a frame in two pieces: to join them would copy a large one."""
    return MAGIC, encode(message)


def pack(message: Message) -> bytes:
    """A message as a frame."""
    return b"".join(pieces(message))


def unpack(frame: bytes, limit: int) -> Message:
    """The message in a frame, or `ChannelError`. `limit` is the most bytes the sender may use here."""
    message: Message = _unpack(frame, limit, _DECODER)
    return message


def is_of_another_version(frame: bytes) -> bool:
    """Whether it is a frame, but of a version of the protocol that is not spoken here."""
    return frame.startswith(_NAME) and not frame.startswith(MAGIC)


def unpack_file(frame: bytes, limit: int = MAX_FILE_BYTES) -> Filed:
    """What a file says that somebody hands on: it is a frame too, of kinds that no machine takes."""
    filed: Filed = _unpack(frame, limit, _FILE_DECODER)
    return filed


def _unpack(frame: bytes, limit: int, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    if len(frame) > limit:
        raise ChannelError(f"a frame of {len(frame)} bytes is over the limit of {limit}")
    if frame[: len(MAGIC)] != MAGIC:
        raise ChannelError(f"not a frame of protocol version {PROTOCOL_VERSION}")
    body = memoryview(frame)[len(MAGIC) :]
    try:
        message = decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ChannelError(f"the frame cannot be decoded: {error}") from None
    if not _is_canonical(frame, message):
        raise ChannelError("the frame is not in its canonical encoding")
    return message


def _is_canonical(frame: bytes, message: Struct) -> bool:
    """Whether the frame is the one encoding of its message. To see that, no large field is copied again.

    The bytes of such a field are those that were decoded from this frame: what is around them is compared.
    """
    fields = () if len(frame) < _LARGE else message.__struct_fields__
    large = next((name for name in fields if _is_large(getattr(message, name))), None)
    if large is None:
        canonical = encode(message)
        return len(MAGIC) + len(canonical) == len(frame) and frame.endswith(canonical)
    value: bytes = getattr(message, large)
    before, after = encode(replace(message, **{large: _GAP})).split(_BIN_8 + _GAP)
    before += _BIN_32 + len(value).to_bytes(4)
    size = len(MAGIC) + len(before) + len(value) + len(after)
    return size == len(frame) and frame.startswith(before, len(MAGIC)) and frame.endswith(after)


def _is_large(value: object) -> bool:
    return isinstance(value, bytes) and len(value) >= _LARGE


def limit_for(message_type: type[Message], parameters: ProtocolParameters) -> int:
    """The most bytes that a message of this type may take in an epoch with these parameters."""
    share = parameters.word_bytes * parameters.share_size
    # A dealing is for as many masks as its dealer may have ahead: one envelope has a share of each.
    masks = min(parameters.mask_quota, messages.MAX_MASKS)
    envelope = masks * (share + _MASK_NAME_BYTES) + _ENVELOPE_BYTES
    update = parameters.word_bytes * parameters.padded_size + _ENVELOPE_BYTES
    bulk = {
        messages.Shipment: parameters.num_holders * envelope + _ENVELOPE_BYTES,
        messages.Contribution: parameters.num_holders * envelope + update,
        messages.Parcel: envelope,
        messages.Answer: share + _ENVELOPE_BYTES,
        messages.Upload: update,
        messages.Parts: parameters.parts_bytes + 8 * parameters.model_size + 2 * MAX_CONTROL_BYTES,
        messages.PlainUpdate: update,
    }
    return bulk.get(message_type, MAX_CONTROL_BYTES)
