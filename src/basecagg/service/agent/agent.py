"""A user's agent: contributor and holder in one, or only one of them.

It passes incoming letters to the participant machine and sends out what the machine wants sent. It keeps
answering letters while the user's function trains in its own process. It decides nothing about epochs, keys or
stores: whatever a server says can at most make it look again.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from basecagg import errors
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, pack, pieces
from basecagg.parties.member import Member
from basecagg.privacy import Privacy
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Message, Parts
from basecagg.service.agent.local_member import LocalMember
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience, Reply, Unreachable
from basecagg.service.documents import to_json
from basecagg.service.framing import Numbered, length_of
from basecagg.service.logs import Log
from basecagg.service.problems import Problem
from basecagg.service.training import RoundInfo, Training, Vector

_LOG = Log("basecagg.agent")
_WAIT = 25
_TICK = 60.0
"""Seconds between two looks at the clock."""
_DISK_PAUSE = 2.0
"""Seconds between two attempts to go on after this machine's disk failed."""
_AHEAD = 2
"""Masks that are kept ready, so that an update need not wait for receipts."""
_WORRY = 60.0
"""Seconds without news of an update after which it is sent again."""
_LOOK = 2.0
"""Seconds between two looks for a newer version: contributors get no letter about new versions."""
_LARGEST_MAIL = 256 * 2**20
"""Bytes of one reply with letters, at most."""
_LONGEST_BOOT = 64
"""Characters of the `basecagg-boot` header that are used, at most: they go into the next request's URL, and a
long value would make the URL unusable."""
_ELSEWHERE = ("WrongEpoch", "EpochClosing")
"""Error codes of a server that is not in this epoch, or will soon leave it."""
_STRICT = LocalFloor(consistency="certified", correctness="agreed", verify="auto")
Result = TypeVar("Result")
Given = TypeVarTuple("Given")


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What the user decides."""

    floor: LocalFloor = _STRICT
    data: str = ""
    urls: tuple[str, ...] = ()
    """Where the server is, if not where the invitation says."""
    pause: float = 0.0
    """Seconds to rest between two updates."""
    breath: float = 0.5
    """Seconds between two looks for an epoch that change nothing."""
    after_failure: float = 30.0
    """Seconds to wait after the user's function failed."""
    patience: Patience = field(default_factory=Patience)
    anchor_folder: Path | None = None


class Agent:
    """One participant. `train` is None for a holder that does not contribute."""

    def __init__(
        self, profile: Profile, options: AgentOptions, train: Training | None = None
    ) -> None:
        """Prepare; `run` does everything else."""
        self._profile = profile
        self._options = options
        self._train = train
        self._connection = profile.connect(*options.urls)
        self._persist = options.patience.persist
        self._thread = ThreadPoolExecutor(1, "machines")
        self._moved = asyncio.Event()
        self._wanted = asyncio.Event()
        self._rounds = 0

    async def run(self) -> None:
        """Take part in one epoch after the other, until cancelled."""
        try:
            while True:
                try:
                    await self._run_from_store()
                except errors.PassingFault as fault:
                    remedy = "this agent goes on by itself when the disk does"
                    _LOG.error("the disk fails", reason=str(fault), remedy=remedy)
                    await asyncio.sleep(_DISK_PAUSE)
        finally:
            self._thread.shutdown()
            if self._train is not None:
                self._train.close()
            await self._connection.close()

    async def _run_from_store(self) -> None:
        """A machine that could not write is ahead of its records: after every fault it is built anew."""
        member = await self._in_thread(self._open)
        try:
            await _until_first(self._live(member), self._keep_time(member))
        finally:
            await asyncio.shield(self._in_thread(member.close))

    def _open(self) -> LocalMember:
        floor, anchors = self._options.floor, self._options.anchor_folder
        return LocalMember(self._profile, floor, anchors, contributes=self._train is not None)

    async def _live(self, member: LocalMember) -> None:
        unsent = await self._in_thread(member.start, _now())
        if not member.epoch:
            await self._enrol(member)
        while True:
            if member.epoch:
                await self._take_part(member, unsent)
            unsent = []
            await self._look_for_epoch(member)

    async def _keep_time(self, member: LocalMember) -> None:
        """An epoch ends by this machine's clock also while no server answers."""
        while True:
            await asyncio.sleep(_TICK)
            await self._in_thread(member.tick, _now())

    # --- epochs -----------------------------------------------------------------------------------

    async def _enrol(self, member: LocalMember) -> None:
        key = pack(await self._in_thread(member.announce))
        body = to_json(self._profile.enrolment(key))
        name = self._profile.name
        try:
            await self._persist(lambda: self._connection.enrol(body), "AlreadyEnrolled")
            _LOG.info("enrolled", name=name)
        except Problem as problem:
            # Already enrolled with another key, perhaps by this agent before it lost its folder:
            # the operator will know.
            _LOG.error("enrolled", name=name, reason=problem.reason)

    async def _look_for_epoch(self, member: LocalMember) -> None:
        """Ask whether there is another epoch than the present one. The machine judges every answer."""
        frames, reply = await self._persist(
            partial(self._ask_for_epoch, member.epoch or member.declined)
        )
        before = member.epoch
        await self._in_thread(member.hear_of_epochs, frames)
        if member.epoch != before:
            await self._publish_key(member)
            return
        if reply.headers.get("basecagg-holder-key") == "wanted":
            await self._publish_key(member, another=True)
        await asyncio.sleep(self._options.breath)

    async def _ask_for_epoch(self, known: str) -> tuple[list[Numbered], Reply]:
        try:
            return await self._wait_for("/v1/epoch", known=known)
        except Problem as problem:
            if problem.code != "BadSignature":
                raise
            # The server answers this for keys that are unknown or not admitted yet; it does not say which.
            reason = "the operator has not admitted this key"
            raise Problem(503, "NotAdmitted", reason, retry_after=1.0) from None

    async def _wait_for(
        self, path: str, limit: int = MAX_CONTROL_BYTES, **query: str | int
    ) -> tuple[list[Numbered], Reply]:
        """The frames that the server has, sooner or later, and its reply. Torn frames are asked for again."""
        reply = await self._connection.call(
            "GET", path, query=query | {"wait": _WAIT}, patience=_WAIT, limit=limit
        )
        return reply.frames(), reply

    async def _publish_key(self, member: LocalMember, *, another: bool = False) -> None:
        """Hand in a sealing key for the next epoch."""
        key = pack(await self._in_thread(partial(member.announce, another=another)))
        try:
            await self._persist(
                lambda: self._connection.call("PUT", "/v1/holder-key", key), "KeyUsed"
            )
        except Problem:
            if not another:
                await self._publish_key(member, another=True)

    # --- one epoch --------------------------------------------------------------------------------

    async def _take_part(self, member: LocalMember, unsent: Sequence[Message]) -> None:
        """Answer letters and contribute, until somebody says that there is another epoch: to look again."""
        try:
            await _until_first(
                self._answer_letters(member),
                self._contribute(member, unsent),
                self._make_again(member),
            )
        except Problem as problem:
            if problem.code not in _ELSEWHERE:
                raise
            _LOG.info("look again", code=problem.code)

    async def _answer_letters(self, member: LocalMember) -> None:
        done, epoch = "", member.epoch
        while member.epoch == epoch:
            asked = time.monotonic()
            collect = partial(self._wait_for, "/v1/mailbox", _LARGEST_MAIL, epoch=epoch, done=done)
            letters, reply = await self._persist(collect, *_ELSEWHERE)
            await self._in_thread(member.tick, _now())
            if not letters and time.monotonic() - asked < self._options.breath:
                await asyncio.sleep(self._options.breath)  # it should have waited for some
            if letters:
                await self._take(member, letters)
                boot = reply.headers.get("basecagg-boot", "")[:_LONGEST_BOOT]
                done = f"{boot}.{letters[-1].number}"
                self._moved.set()

    async def _take(self, member: LocalMember, letters: Sequence[Numbered]) -> None:
        try:
            await self._send(await self._in_thread(member.open_letters, letters))
        except errors.TooLarge as fault:
            # The server will ask again, and others may answer in its place.
            _LOG.error("answer not sent", reason=str(fault))
        if member.wanted is not None:
            self._wanted.set()

    async def _make_again(self, member: LocalMember) -> None:
        """Questions may wait until a version has been made again: fetch what it was made from."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            version = await self._in_thread(member.take_wanted)
            if version is not None and not await self._make_one_again(member, version):
                _LOG.warning("parts are gone", version=version)

    async def _make_one_again(self, member: LocalMember, version: int) -> bool:
        """Parts that do not come, or are damaged, are asked for again; False if they are not kept any more."""
        agreement = member.participant.agreement
        limit = limit_for(Parts, agreement.parameters) if agreement else MAX_CONTROL_BYTES

        async def attempt() -> None:
            reply = await self._connection.call("GET", f"/v1/parts/{version}", limit=limit)
            await self._take(member, [Numbered(0, reply.content)])
            if await self._in_thread(member.is_due, version):
                raise Unreachable(f"the parts of version {version} are not what it was made from")

        return await self._while_kept(attempt)

    async def _while_kept(self, attempt: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Persist with what a server keeps of a few versions only; False if that is gone."""
        try:
            await self._persist(attempt, 404, *_ELSEWHERE)
        except Problem as problem:
            if problem.status != 404:
                raise
            return False
        return True

    async def _contribute(self, member: LocalMember, unsent: Sequence[Message]) -> None:
        """Send what a restart left unsent; then train, mask, upload, again and again.

        A holder whose own messages are too large for the line goes on holding for the others.
        """
        try:
            await self._send(unsent)
            await self._train_and_send(member)
        except errors.TooLarge as fault:
            if not await self._in_thread(lambda: member.participant.holder is not None):
                # The epoch may have changed to one with a smaller model. If so, this call raises
                # `WrongEpoch`, and that is the useful error: the agent looks for the new epoch.
                look = partial(self._wait_for, "/v1/mailbox", _LARGEST_MAIL, epoch=member.epoch)
                await self._persist(look, *_ELSEWHERE)
                raise
            _LOG.error("no updates in this epoch", reason=str(fault), holds="as before")

    async def _train_and_send(self, member: LocalMember) -> None:
        contributor = await self._in_thread(lambda: member.participant.contributor)
        if self._train is None or contributor is None:
            return
        while True:
            try:
                await self._prepare(member)
                await self._one_update(member, self._train)
            except (errors.DataError, errors.WrongModel, errors.LocalProtocolError) as error:
                _tell_of_failure(error)
                await asyncio.sleep(self._options.after_failure)
            except Problem as problem:
                if problem.code != "EpochClosing":
                    raise
                await asyncio.sleep(2.0)

    async def _prepare(self, member: LocalMember) -> None:
        """Deal masks until one is ready and the last update is over."""
        while True:
            self._moved.clear()
            await self._hear_of_newest(member)
            await self._send(await self._in_thread(member.deal, _AHEAD))
            if await self._in_thread(lambda: member.participant.may_train):
                return
            resting = await self._in_thread(lambda: member.participant.is_resting)
            try:
                async with asyncio.timeout(_LOOK if resting else _WORRY):
                    await self._moved.wait()
            except TimeoutError:
                if not resting:
                    await self._send(await self._in_thread(member.reconnect))

    async def _one_update(self, member: LocalMember, train: Training) -> None:
        version, model, head = await self._download(member)
        privacy = await self._in_thread(_privacy_of, member)
        info = RoundInfo(
            federation=self._profile.invitation.federation,
            name=self._profile.name,
            version=version,
            round=self._rounds,
            data=self._options.data,
            epoch=member.epoch,
            privacy=privacy,
        )
        trained = await train(model, info)
        if trained.shape != model.shape:
            raise errors.DataError(f"training returned {trained.size} numbers, not {model.size}")
        update = model - trained
        # An update is weighed by how far the model has come meanwhile.
        await self._hear_of_newest(member)
        try:
            messages = await self._in_thread(_submit, member, update, version, head, privacy)
        except errors.LocalProtocolError as error:  # its mask expired, or it trained to no effect
            _LOG.warning("update", outcome="dropped", reason=str(error))
            messages = []
        self._rounds += 1
        await self._send(messages)
        if messages:
            _LOG.info("update", outcome="sent", version=version)
        await asyncio.sleep(self._options.pause)

    async def _download(self, member: LocalMember) -> tuple[int, Vector, bytes]:
        """The present version, once the server has signed that it is this one, its model and its head."""
        pause = self._options.breath
        while True:
            # This raises if the epoch is over by now.
            agreement = (await self._in_thread(member.participant.working)).agreement
            await self._in_thread(member.begin)
            fetch = partial(self._fetch_model, 4 * agreement.parameters.model_size)
            version, model = await self._persist(fetch, *_ELSEWHERE)
            if version == agreement.epoch.first_version or await self._hear_of(member, version):
                # Letters about later versions may have come meanwhile, and the word on this one is forgotten.
                with suppress(errors.LocalProtocolError):
                    head = await self._in_thread(member.head_of, version, model)
                    return version, model, head
            await asyncio.sleep(pause)  # the server has moved on, perhaps faster than we can follow
            pause = min(2 * pause, self._options.after_failure)

    async def _fetch_model(self, size: int) -> tuple[int, Vector]:
        reply = await self._connection.call("GET", "/v1/model", limit=size)
        if len(reply.content) != size:
            raise Unreachable(f"the model has {size} bytes, the reply {len(reply.content)}")
        return reply.number("basecagg-version"), np.frombuffer(reply.content, "<f4")

    async def _hear_of(self, member: LocalMember, version: int) -> bool:
        """Hear what the server signs about a version, and make it again if that is due; False if it is gone."""

        async def attempt() -> None:
            reply = await self._connection.call("GET", f"/v1/releases/{version}")
            await self._take(member, [Numbered(0, reply.content)])

        is_heard = await self._while_kept(attempt)
        if is_heard and await self._in_thread(member.is_due, version):
            return await self._make_one_again(member, version)
        return is_heard

    async def _hear_of_newest(self, member: LocalMember) -> None:
        """Hear what the server signs about its present version. That it names one is only a hint to ask."""

        async def attempt() -> int:
            query = {"newer_than": 10**14}
            reply = await self._connection.call("GET", "/v1/model", query=query)
            return reply.number("basecagg-version")

        version = await self._persist(attempt, *_ELSEWHERE)
        if not await self._in_thread(member.has_heard_of, version):
            await self._hear_of(member, version)

    async def _send(self, messages: Sequence[Message]) -> None:
        """Deliver, however long it takes. What the server refuses would be refused again: it is dropped.

        `TooLarge` if nothing of this size can get through.
        """
        too_large = ""
        for message in messages:
            frame, kind = pieces(message), type(message).__name__
            send = partial(self._connection.call, "POST", "/v1/messages", frame)
            try:
                await self._persist(send, 400, 409, 413, *_ELSEWHERE)
            except Problem as problem:
                if problem.code in _ELSEWHERE:
                    raise
                if problem.status == 413:  # the others may be smaller
                    too_large = _too_large(kind, length_of(frame), problem)
                else:
                    _LOG.warning("refused", kind=kind, code=problem.code, reason=problem.reason)
        if too_large:
            raise errors.TooLarge(too_large)

    async def _in_thread(self, job: Callable[[*Given], Result], *given: *Given) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job, *given)


def _privacy_of(member: Member) -> Privacy | None:
    """What the epoch promises."""
    return member.participant.working().agreement.parameters.privacy


def _submit(
    member: Member, update: Vector, version: int, head: bytes, privacy: Privacy | None
) -> list[Message]:
    """Mask an update whose training was told of this privacy."""
    if _privacy_of(member) != privacy:  # its records were clipped for another epoch
        raise errors.LocalProtocolError("another epoch has begun meanwhile, with another privacy")
    return member.submit(update.astype(np.float32, copy=False), version, head)


def _too_large(kind: str, size: int, problem: Problem) -> str:
    return (
        f"a {kind} of {size / 1e6:.3g} MB is not let through ({problem.reason}; {problem.code}). If there is a"
        " proxy before the server, raise its limit for bodies; then start this agent again"
    )


def _tell_of_failure(error: errors.BASecAggError) -> None:
    match error:
        case errors.DataError():  # the user's code failed; others still rely on our shares
            _LOG.error("training", error=str(error))
        case errors.WrongModel():
            _LOG.error("wrong model, not trained", reason=str(error))
        case _:  # its time has passed, or its version is absurd
            _LOG.warning("contribution", error=str(error))


def _now() -> int:
    return int(time.time())


async def _until_first(
    first: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]
) -> None:
    """Run all until the first ends or any of them fails."""
    main = asyncio.create_task(first)
    pending = {main, *map(asyncio.create_task, others)}
    try:
        while main in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
