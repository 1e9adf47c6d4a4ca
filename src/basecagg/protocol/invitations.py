"""What an invitation's secret token is good for: it admits one key, through a server that never sees it."""

from __future__ import annotations

import hashlib
import hmac

from basecagg.protocol.messages import admission_statement


def admission(token: bytes) -> bytes:
    """What the server may know of a token."""
    return hmac.digest(token, b"basecagg/admission", "sha256")


def admission_hash(token: bytes) -> bytes:
    """How the server recognises an admission before it has seen it."""
    return hashlib.sha256(admission(token)).digest()


def proof(token: bytes, federation: str, name: str, signing_key: bytes) -> bytes:
    """What ties a key to the invitation, for the operator: a server in between cannot make it."""
    return hmac.digest(token, admission_statement(federation, name, signing_key), "sha256")


def proves(evidence: bytes, token: bytes, federation: str, name: str, signing_key: bytes) -> bool:
    """Whether the key came from who has the token."""
    return hmac.compare_digest(evidence, proof(token, federation, name, signing_key))
