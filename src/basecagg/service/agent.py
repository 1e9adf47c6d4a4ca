"""A user's agent: contributor and holder in one, or only one of them.

Letters are answered while the user's function trains in its own process. After any failure the agent goes on
from its stores.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import numpy as np

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.errors import DataError, LocalProtocolError, WrongEpoch
from basecagg.protocol.epoch import Agreement, Epoch, LocalFloor, accept
from basecagg.protocol.global_model import model_hash
from basecagg.protocol.messages import Credential, Message
from basecagg.service import framing
from basecagg.service.connection import Connection, Patience
from basecagg.service.documents import to_json
from basecagg.service.problems import Problem
from basecagg.service.profile import Profile
from basecagg.service.seat import Seat
from basecagg.service.signing import Caller
from basecagg.service.training import RoundInfo, Training, Vector

_LOG = logging.getLogger("basecagg.agent")
_WAIT = 25
_WORRY = 60.0
"""Seconds without news of an update after which it is sent again."""
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What the user decides."""

    floor: LocalFloor = field(default_factory=lambda: LocalFloor(consistency="certified"))
    data: str = ""
    pause: float = 0.0
    """Seconds to rest between two updates."""
    after_failure: float = 30.0
    """Seconds to wait after the user's function failed."""
    patience: Patience = field(default_factory=Patience)
    anchor_folder: Path | None = None


class Downloaded(NamedTuple):
    """A model as it came from the server; its hash is computed here."""

    version: int
    model: Vector
    hash: bytes


class Agent:
    """One participant. `train` is None for a holder that does not contribute."""

    def __init__(
        self, profile: Profile, options: AgentOptions, train: Training | None = None
    ) -> None:
        """Prepare; `run` does everything else."""
        self._profile = profile
        self._options = options
        self._train = train
        invitation = profile.invitation
        caller = Caller(invitation.federation, profile.name, profile.identity)
        self._connection = Connection(invitation.url, invitation.ca, caller)
        self._persist = options.patience.persist
        self._thread = ThreadPoolExecutor(1, "machines")
        self._moved = asyncio.Event()
        self._rounds = 0

    async def run(self) -> None:
        """Enrol, then take part in one epoch after the other, until cancelled."""
        try:
            await self._enrol()
            known = ""
            while True:
                agreement, credential = await self._next_epoch(known)
                known = agreement.id.hex()
                await self._take_part(agreement, credential)
        finally:
            self._thread.shutdown()
            if self._train is not None:
                self._train.close()
            await self._connection.close()

    # --- joining ----------------------------------------------------------------------------------

    async def _enrol(self) -> None:
        body = to_json(self._profile.enrolment())
        await self._persist(lambda: self._connection.enrol(body))
        _LOG.info("enrolled", extra={"fields": {"name": self._profile.name}})

    async def _next_epoch(self, known: str) -> tuple[Agreement, Credential | None]:
        """Wait for the operator to admit us and for an epoch that we do not know yet."""
        while True:
            letters = await self._persist(lambda: self._ask_for_epoch(known))
            if letters:
                return self._agree(letters)

    async def _ask_for_epoch(self, known: str) -> list[framing.Numbered]:
        query: dict[str, str | int] = {"known": known, "wait": _WAIT}
        try:
            reply = await self._connection.call("GET", "/v1/epoch", query=query, patience=_WAIT)
        except Problem as problem:
            if problem.code != "BadSignature":
                raise
            # Not admitted yet, as far as anybody may tell from outside.
            reason = "the operator has not admitted this key"
            raise Problem(503, "NotAdmitted", reason, retry_after=1.0) from None
        return framing.split(reply.content)

    def _agree(self, letters: Sequence[framing.Numbered]) -> tuple[Agreement, Credential | None]:
        epoch, *own = (unpack(letter.frame, MAX_CONTROL_BYTES) for letter in letters)
        if not isinstance(epoch, Epoch):
            raise WrongEpoch("the server sent something else instead of an epoch")
        invitation = self._profile.invitation
        if epoch.federation != invitation.federation or epoch.suite != invitation.suite:
            raise WrongEpoch("the epoch is not the one that the invitation promised")
        agreement = accept(epoch, invitation.operator_key, Ed25519Verifier(), self._options.floor)
        credential = next((each for each in own if isinstance(each, Credential)), None)
        return agreement, credential if self._train is not None else None

    # --- one epoch --------------------------------------------------------------------------------

    async def _take_part(self, agreement: Agreement, credential: Credential | None) -> None:
        _LOG.info(
            "epoch",
            extra={"fields": {"number": agreement.epoch.number, "id": agreement.id.hex()[:12]}},
        )
        seat = await self._in_thread(lambda: self._sit_down(agreement, credential))
        try:
            unsent = await self._in_thread(seat.start)
            await self._publish_key(agreement)
            await _until_first(self._answer_letters(seat), self._contribute(seat, unsent))
        except BaseException:
            await asyncio.shield(self._in_thread(seat.close))
            raise
        await self._in_thread(seat.erase)

    def _sit_down(self, agreement: Agreement, credential: Credential | None) -> Seat:
        return Seat(agreement, credential, self._profile, self._options.anchor_folder)

    async def _publish_key(self, agreement: Agreement) -> None:
        """Erase the sealing keys of past epochs; hand in one for the next."""
        keys = {holder.name: holder.sealing_key for holder in agreement.epoch.holders}
        self._profile.begin_epoch(keys.get(self._profile.name))
        body = to_json(self._profile.next_holder_key())
        await self._persist(lambda: self._connection.call("PUT", "/v1/holder-key", body))

    async def _answer_letters(self, seat: Seat) -> None:
        done = ""
        while True:
            try:
                reply = await self._persist(partial(self._collect, seat.agreement.id.hex(), done))
            except Problem as problem:
                if problem.code == "WrongEpoch":
                    return
                raise
            letters = framing.split(reply.content)
            if letters:
                await self._send(await self._in_thread(partial(seat.take, letters)))
                done = f"{reply.headers.get('basecagg-boot', '')}.{letters[-1].number}"
                self._moved.set()

    async def _collect(self, epoch: str, done: str) -> httpx.Response:
        query: dict[str, str | int] = {"epoch": epoch, "wait": _WAIT, "done": done}
        return await self._connection.call("GET", "/v1/mailbox", query=query, patience=_WAIT)

    async def _contribute(self, seat: Seat, unsent: Sequence[Message]) -> None:
        """Send what a restart left unsent; then train, mask, upload, again and again."""
        await self._send(unsent)
        if self._train is None or seat.contributor is None:
            return
        while True:
            try:
                await self._prepare(seat)
                await self._one_update(seat, self._train)
            except DataError as error:  # the user's code failed; others still rely on our shares
                _LOG.error("training", extra={"fields": {"error": str(error)}})
                await asyncio.sleep(self._options.after_failure)
            except Problem as problem:
                if problem.code != "EpochClosing":
                    raise
                await asyncio.sleep(2.0)

    async def _prepare(self, seat: Seat) -> None:
        """Deal masks until one is ready and the last update is over."""
        while True:
            self._moved.clear()
            version = await self._version()
            while messages := await self._in_thread(partial(seat.deal, version)):
                await self._send(messages)
            if await self._in_thread(seat.may_train):
                return
            try:
                async with asyncio.timeout(_WORRY):
                    await self._moved.wait()
            except TimeoutError:
                await self._send(await self._in_thread(seat.reconnect))

    async def _one_update(self, seat: Seat, train: Training) -> None:
        start = await self._download()
        info = RoundInfo(
            federation=self._profile.invitation.federation,
            name=self._profile.name,
            version=start.version,
            round=self._rounds,
            data=self._options.data,
        )
        trained = await train(start.model, info)
        if trained.shape != start.model.shape:
            raise DataError(f"training returned {trained.size} numbers, not {start.model.size}")
        update = start.model - trained
        try:
            messages = await self._in_thread(lambda: seat.submit(update, start.version, start.hash))
        except (
            LocalProtocolError
        ) as error:  # its mask expired meanwhile, or it trained to no effect
            _LOG.warning("update", extra={"fields": {"outcome": "dropped", "reason": str(error)}})
            messages = []
        self._rounds += 1
        await self._send(messages)
        await asyncio.sleep(self._options.pause)

    async def _download(self) -> Downloaded:
        reply = await self._persist(lambda: self._connection.call("GET", "/v1/model"))
        version = int(reply.headers["basecagg-version"])
        model = np.frombuffer(reply.content, "<f4")
        return Downloaded(version, model, model_hash(version, model))

    async def _version(self) -> int:
        """The present version, without the model."""
        query = {"newer_than": 10**14}
        reply = await self._persist(lambda: self._connection.call("GET", "/v1/model", query=query))
        return int(reply.headers["basecagg-version"])

    async def _send(self, messages: Sequence[Message]) -> None:
        """Deliver, however long it takes. What the server refuses would be refused again: it is dropped."""
        for message in messages:
            try:
                await self._persist(
                    partial(self._connection.call, "POST", "/v1/messages", pack(message))
                )
            except Problem as problem:
                if problem.status != 409:
                    raise
                fields = {"kind": type(message).__name__, "code": problem.code}
                _LOG.warning("refused", extra={"fields": {**fields, "reason": problem.reason}})

    async def _in_thread(self, job: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)


async def _until_first(first: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Run both until the first ends or either fails."""
    main, side = asyncio.create_task(first), asyncio.create_task(other)
    pending = {main, side}
    try:
        while main in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
