"""The life of a mask, a sealing key, a participant and a person: one table each, and nothing outside them.

The diagrams in the documentation are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from basecagg.errors import LocalProtocolError

Table: TypeAlias = Mapping[str, Mapping[str, str]]

_ENDS = {"expire": "expired", "close epoch": "burned"}
_VERDICTS = {"opened": "opened", "refused": "refused", "burned": "burned"}
CONTRIBUTOR: Table = {
    "new": {"deal": "dealt", "contribute": "uploaded"},
    "dealt": {"enough receipts": "ready", "give up": "withdrawn", **_ENDS},
    "ready": {"upload": "uploaded", "give up": "withdrawn", **_ENDS},
    "withdrawn": {**_VERDICTS, **_ENDS},
    "uploaded": {
        **dict.fromkeys(("parked", "admitted", "returned"), "uploaded"),
        **_VERDICTS,
        **_ENDS,
    },
}
"""A dealer's own mask. It is used for one upload, ever; 'opened', 'refused', 'burned', 'expired' are final.
A mask from a key is dealt with its upload ('contribute'). Any other is dealt ahead; what was not used when its
process starts again is withdrawn, until the server has heard of it."""

HOLDER: Table = {
    "unknown": {"parcel": "held"},
    "held": {"endorse": "endorsed", "answer": "spent", "close": "closed", "expire": "expired"},
    "endorsed": {"endorse": "endorsed", "answer": "spent", "close": "closed", "expire": "expired"},
    "spent": {"close": "closed", "expire": "expired"},
    "closed": {"expire": "expired"},
}
"""One share. 'spent' and 'closed' are tombstones: the share is gone, its name is kept until it expires."""

SERVER: Table = {
    "unknown": {"shipment": "dealt", "contribute": "parked", "refuse": "refused"},
    "dealt": {"admit": "buffered", "refuse": "refused", "expire": "expired"},
    "parked": {"admit": "buffered", "return": "returned", "burn": "burned"},
    "returned": {"contribute": "parked", "refuse": "refused", "expire": "expired"},
    "buffered": {"request": "requested", "burn": "burned"},
    "requested": {"open": "opened", "burn": "burned"},
    "opened": {"expire": "expired"},
    "burned": {"expire": "expired"},
    "refused": {"expire": "expired"},
}
"""A mask whose update may join a buffer. An update that came with its mask is parked until enough holders have
confirmed their shares; returned, it may come again. 'opened', 'burned' and 'refused' are tombstones: the update
is gone, its name is kept until it expires, for a late copy of a message must not begin it anew."""

SEALING_KEY: Table = {
    "new": {"announce": "announced"},
    "announced": {"join": "joined", "destroy": "destroyed"},
    "joined": {"destroy": "destroyed"},
}
"""A participant's sealing key. It is born in the store and never leaves it: who forgets what it has answered
has lost the key as well. It serves one epoch."""

PARTICIPANT: Table = {
    "outside": {"join": "inside", "forget": "outside"},
    "inside": {"join": "inside", "forget": "inside", "end": "outside"},
}
"""A participant. Every 'join' has a higher number than the one before and destroys all earlier keys; 'forget'
(the store is an older copy, or a copy of it spoke) all of them; 'end' is signed by the operator, or the epoch's
time has passed. Nothing that a server says is in this table."""

_OUT = {"replace": "replaced", "revoke": "revoked"}
PERSON: Table = {
    "unknown": {"invite": "invited", "vouch": "admitted"},
    "invited": {"invite": "invited", "admit": "admitted", **_OUT},
    "admitted": {"admit": "admitted", "vouch": "admitted", **_OUT},
}
"""One person with one signing key. Who is replaced begins again, invited under the same name; the old key is
out from the next epoch on and never comes back. Who is revoked does not come back under this name."""


def after(table: Table, state: str, event: str) -> str:
    """The next state, or an error when the table has no such step."""
    try:
        return table[state][event]
    except KeyError:
        raise LocalProtocolError(f"'{event}' is not possible for what is {state}") from None


def allows(table: Table, state: str, event: str) -> bool:
    """Whether the table has this step."""
    return event in table.get(state, {})
