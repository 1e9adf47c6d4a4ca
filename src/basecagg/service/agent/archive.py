"""What a running server has kept of its versions, for a member who wants to make them again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, unpack, unpack_file
from basecagg.errors import ChannelError
from basecagg.protocol.epoch import Agreement, accept
from basecagg.protocol.messages import Parts
from basecagg.protocol.proofs import Account, Pedigree
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Connection
from basecagg.service.problems import Problem

_GONE = 404


class Archive(NamedTuple):
    """The versions of the present epoch, as far as the server has them. See `opened`."""

    connection: Connection
    agreement: Agreement
    operator_key: bytes
    newest: int

    async def kept(self) -> list[int]:
        """All versions whose releases the server still has, oldest first."""
        first, found = self.agreement.epoch.first_version, list[int]()
        for version in range(self.newest, first, -1):
            try:
                await self.connection.call("GET", f"/v1/releases/{version}")
            except Problem as problem:
                if problem.status == _GONE:
                    break
                raise
            found.append(version)
        return found[::-1]

    async def account(self, version: int) -> Account:
        """What a version was made from. It is not checked here."""
        limit = limit_for(Parts, self.agreement.parameters)
        reply = await self.connection.call("GET", f"/v1/parts/{version}", limit=limit)
        parts = unpack(reply.content, limit)
        if not isinstance(parts, Parts) or parts.release.history.last != version:
            raise ChannelError(f"the server sent something else than the parts of {version}")
        return Account(self.agreement.epoch, parts, self.operator_key)


@asynccontextmanager
async def opened(profile: Profile, url: str | None = None) -> AsyncIterator[Archive]:
    """The archive of a member's server, or of the one at another address."""
    key = profile.invitation.operator_key
    connection = profile.connect(*([url] if url else ()))
    try:
        reply = await connection.call("GET", "/v1/pedigree")
        pedigree = unpack_file(reply.content, MAX_CONTROL_BYTES)
        if not isinstance(pedigree, Pedigree):
            raise ChannelError("the server sent something else than its present version")
        agreement = accept(pedigree.epoch, key, Ed25519Verifier())
        yield Archive(connection, agreement, key, pedigree.version)
    finally:
        await connection.close()
