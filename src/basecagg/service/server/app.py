"""The service over HTTP: authenticate and authorise callers, keep them within limits, and ask the core.

Everything but `/healthz`, `/readyz` and enrolment needs an enrolled key, and the page needs a login. Bodies of
the protocol are frames, all others are JSON; an error is JSON with a code and a reason.
"""

import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from basecagg.channels.wire import pack
from basecagg.errors import BASecAggError, DataError
from basecagg.protocol.operator import OPERATOR
from basecagg.protocol.questions import MAX_RECIPE
from basecagg.service import documents, framing
from basecagg.service.documents import MAX_KEY_BYTES, Enrolment, Order, Stance, from_json, to_json
from basecagg.service.logs import Log
from basecagg.service.problems import Problem
from basecagg.service.server.core import Service
from basecagg.service.server.limits import (
    ByteBudget,
    Limits,
    Pieces,
    RateLimit,
    declared,
    read_body,
)
from basecagg.service.server.open_connections import GIVE, OpenConnections
from basecagg.service.signing import TIME_HEADER, Claim, Guard, steady_ms

_LOG = Log("basecagg.service")
_LONGEST_WAIT = 60.0
_MAIL_BYTES = 2**19
"""Bytes of letters that are fetched together: few round trips, little memory even for all holders at once."""
_PARTS = 25
"""A member may ask for the parts of a version, which are large, this many times less often than for others."""
_JSON_BYTES = 64 * 2**10
_OPERATOR_BYTES = 64 * 2**20
_MODEL_BYTES = 2**30
_QUESTION_BYTES = MAX_RECIPE + 2**10
_BYTES = "application/octet-stream"
_CALLER = "basecagg-caller"
"""In a request's scope: the name of the caller, as soon as it is known."""
_STRANGER = ""
"""All strangers share one account."""
_KEY_HEADER = "basecagg-holder-key"
_NOTHING = hashlib.sha256(b"").digest()
"""The hash of an empty body."""
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
_Who: TypeAlias = Literal["member", "operator", "either"]
_Answer: TypeAlias = Callable[[Request, str, bytes], Awaitable[Response]]
"""Answers a request, given the caller's name and the body."""
Routes: TypeAlias = Mapping[tuple[str, str], Handler]
"""Handlers by method and path; a star at the end of a path stands for a number."""


class Api:
    """The handlers, with the limits they share."""

    def __init__(
        self, service: Service, limits: Limits, connections: OpenConnections | None = None
    ) -> None:
        self._service = service
        self._connections = connections or OpenConnections(limits)
        self._guard = Guard(service.folder.federation, self._key_of)
        self._budget = ByteBudget(limits.memory)
        self._members = RateLimit(limits.member_rate)
        self._parts = RateLimit(limits.member_rate / _PARTS)
        self._strangers = RateLimit(limits.stranger_rate)
        self._grace = limits.body_grace
        self._boot = os.urandom(8).hex()
        """Letters are numbered anew by every process: a number counts only together with this word."""
        self._compare_memory()

    def routes(self) -> Routes:
        """Every address of the service but those of the page, who may call there, and the longest body."""
        return {
            ("GET", "/healthz"): self.health,
            ("GET", "/readyz"): self.readiness,
            ("POST", "/v1/enrolment"): self.enrolment,
            ("GET", "/v1/epoch"): self._for("member", self.epoch),
            ("GET", "/v1/model"): self._for("either", self.model),
            ("PUT", "/v1/model"): self._for("operator", self.set_model, _MODEL_BYTES),
            ("GET", "/v1/pedigree"): self._for("either", self.pedigree),
            ("GET", "/v1/releases/*"): self._for("member", self.release),
            ("GET", "/v1/parts/*"): self._for("either", self.parts),
            ("PUT", "/v1/holder-key"): self._for("member", self.holder_key, MAX_KEY_BYTES),
            ("POST", "/v1/messages"): self._for("member", self.messages, None),
            ("GET", "/v1/mailbox"): self._for("member", self.mailbox),
            ("GET", "/v1/study"): self._for("member", self.study),
            ("GET", "/v1/questions/*"): self._for("member", self.question),
            ("POST", "/v1/questions"): self._for("member", self.ask, _QUESTION_BYTES),
            ("POST", "/v1/consents"): self._for("member", self.consent, _JSON_BYTES),
            ("GET", "/v1/operator"): self._for("operator", self.overview),
            ("POST", "/v1/operator"): self._for("operator", self.order, _OPERATOR_BYTES),
            ("GET", "/v1/audit"): self._for("operator", self.audit),
        }

    # --- for everybody ----------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """200 while the process can go on by itself, even if it waits for its store; else 503."""
        if not self._service.worker.can_go_on:
            return Response("the machine's thread has ended\n", 503)
        return Response("ok\n")

    async def readiness(self, request: Request) -> Response:
        """200 if the store can be written to and an epoch is open. An epoch in trouble counts."""
        self._strangers.require(_address(request))
        fault, host = await self._service.find_fault(), self._service.epochs.host
        ready = not fault and self._service.epochs.phase == "open"
        said = {
            "phase": self._service.epochs.phase,
            "fault": fault,
            "trouble": host.trouble if host else "",
        }
        return JSONResponse(said, 200 if ready else 503)

    async def enrolment(self, request: Request) -> Response:
        """An invited person hands in its keys."""
        self._strangers.require(_address(request))
        with self._budget.account(_STRANGER, _JSON_BYTES) as take:
            body = await self._read(request, _JSON_BYTES, take)
        enrolment: Enrolment = _document(body, Enrolment)
        await self._service.enrol(enrolment)
        return JSONResponse({"enrolment": "received"}, 202)

    # --- for members ------------------------------------------------------------------------------

    async def epoch(self, request: Request, name: str, body: bytes) -> Response:
        """The end of the epoch that the caller knows, and the present one with the caller's credential."""
        known, wait = _query(request).get("known", ""), _seconds(request)
        frames = await self._service.wait_for_epoch(name, known, wait)
        wanted = self._service.epochs.registry.lacks_key(name)
        headers = {_KEY_HEADER: "wanted"} if wanted else {}
        if not frames:
            return Response(status_code=204, headers=headers)
        return Pieces(list(framing.join(frames)), headers)

    async def model(self, request: Request, name: str, body: bytes) -> Response:
        """The present model as little-endian numbers; waits for one newer than the caller's, if asked to."""
        newer_than = _integer(request, "newer_than", -1)
        model = await self._service.wait_for_model(newer_than, _seconds(request))
        tag = f'"{model.version}-{model.head.hex()}"'
        headers = {
            "etag": tag,
            "basecagg-version": str(model.version),
            "basecagg-dtype": model.dtype,
        }
        if _header(request, b"if-none-match") == tag or model.version <= newer_than:
            return Response(status_code=304, headers=headers)
        await self._service.ask(lambda host: host.server.begun(name, model.version))
        return Pieces([model.data], headers)

    async def pedigree(self, request: Request, name: str, body: bytes) -> Response:
        """What leads from the operator's key to the present model, for a caller that hands the model on."""
        key = self._service.folder.operator_key
        return Pieces([pack(await self._service.ask(lambda host: host.pedigree(key)))], {})

    async def release(self, request: Request, name: str, body: bytes) -> Response:
        """The server's signed word on a version: which model it is, and what it was made from."""
        version = _version(request)
        return Pieces([await self._service.ask(lambda host: host.release(version))], {})

    async def parts(self, request: Request, name: str, body: bytes) -> Response:
        """All that a version was made from, for members who want to make it again."""
        self._parts.require(name)
        version = _version(request)
        return Pieces([await self._service.ask(lambda host: host.parts(version))], {})

    async def holder_key(self, request: Request, name: str, body: bytes) -> Response:
        """A member's sealing key for the next epoch."""
        await self._service.worker.do(lambda: self._service.epochs.registry.publish_key(name, body))
        return Response(status_code=204)

    async def messages(self, request: Request, name: str, body: bytes) -> Response:
        """One message of the protocol."""
        await self._service.receive(name, body)
        return Response(status_code=204)

    async def mailbox(self, request: Request, name: str, body: bytes) -> Response:
        """The caller's next letters. `done` is the last one it has dealt with, as boot and number."""
        asked, wait = _query(request), _seconds(request)
        done = self._number(asked.get("done", ""))
        epoch = asked.get("epoch", "")
        letters = await self._service.collect(name, epoch, done, wait, _MAIL_BYTES)
        return Pieces(list(framing.join(letters)), {"basecagg-boot": self._boot})

    def _number(self, done: str) -> int | None:
        boot, _, number = done.partition(".")
        return _whole("the number of `done`", number) if done and boot == self._boot else None

    # --- for a study's analyst and centres --------------------------------------------------------

    async def study(self, request: Request, name: str, body: bytes) -> Response:
        """The terms of the study that the present epoch is."""
        return Response(await self._service.terms(), media_type=_BYTES)

    async def question(self, request: Request, name: str, body: bytes) -> Response:
        """The newest question for a version; waits for another than the one in the state that is `known`."""
        known, wait = _query(request).get("known", ""), _seconds(request)
        shown = await self._service.wait_for_question(_version(request), known, wait)
        return Response(to_json(shown), media_type="application/json")

    async def ask(self, request: Request, name: str, body: bytes) -> Response:
        """A question, which the study's analyst signed."""
        await self._service.ask_centres(name, body)
        return Response(status_code=204)

    async def consent(self, request: Request, name: str, body: bytes) -> Response:
        """Whether the caller answers a question."""
        said: Stance = _document(body, Stance)
        await self._service.hear_centre(name, said)
        return Response(status_code=204)

    # --- for the operator -------------------------------------------------------------------------

    async def overview(self, request: Request, name: str, body: bytes) -> Response:
        """What the operator needs to know to go on."""
        return Response(to_json(await self._service.overview()), media_type="application/json")

    async def order(self, request: Request, name: str, body: bytes) -> Response:
        """The operator's word."""
        order: Order = _document(body, Order)
        await self._service.obey(order)
        match order:
            case documents.Revoke():
                self._connections.cut(order.name)
            case documents.Admit():  # lines of a key that was replaced
                self._connections.cut(order.member.name)
            case documents.StartEpoch():
                self._compare_memory()
        return Response(status_code=204)

    async def audit(self, request: Request, name: str, body: bytes) -> Response:
        """The server's audit log, some entries at a time."""
        start = _integer(request, "start", 0)
        page = await self._service.worker.do(lambda: self._service.epochs.audit_page(start))
        return Response(to_json(page), media_type="application/json")

    async def set_model(self, request: Request, name: str, body: bytes) -> Response:
        """The initial model of the next epoch."""
        await self._service.worker.do(lambda: self._service.epochs.set_model(body))
        return Response(status_code=204)

    def _compare_memory(self) -> None:
        """Warn if the messages of one member could leave no room for another's, or find no room themselves."""
        if self._service.epochs.host is None:
            return
        largest, room = self._service.message_limit(), self._budget.room
        if 2 * largest > room:
            _LOG.warning(
                "little memory",
                message=largest,
                room=room,
                advice=f"--memory {self._budget.memory_for(2 * largest)}",
            )

    # --- who calls --------------------------------------------------------------------------------

    def _check(self, request: Request) -> Claim:
        query = request.scope["query_string"].decode("latin-1")
        target = request.scope["path"] + (f"?{query}" if query else "")
        try:
            claim = self._guard.check(request.method, target, _header(request, b"authorization"))
        except Problem:
            self._strangers.require(_address(request))
            raise
        self._members.require(claim.name)
        return claim

    def _key_of(self, name: str) -> bytes | None:
        """The key that signs a caller's requests. After a failure of the store the registry is another one."""
        return self._service.epochs.registry.key_of(name)

    def _for(self, who: _Who, answer: _Answer, limit: int | None = 0) -> Handler:
        """For these callers, with a body of at most `limit` bytes; None: as long as the epoch's messages."""

        async def handle(request: Request) -> Response:
            claim = self._check(request)
            self._require(who, claim.name)
            # The caller is active and within its rate: from here on the connection is its own.
            request.scope.get("state", {}).get(GIVE, _nothing)(claim.name)
            request.scope[_CALLER] = claim.name
            self._service.activity.begin(claim.name)
            most = self._service.message_limit() if limit is None else limit
            with self._budget.account(claim.name, most) as take:
                body = await self._read(request, most, take, claim)
                return await answer(request, claim.name, body)

        return handle

    def _require(self, who: _Who, name: str) -> None:
        if who == "operator" and name != OPERATOR:
            raise Problem(403, "NotOperator", "only the operator may do that")
        if who == "member" or name != OPERATOR:
            self._service.epochs.registry.require_active(name)

    async def _read(
        self, request: Request, limit: int, take: Callable[[int], None], claim: Claim | None = None
    ) -> bytes:
        length, body, digest = _header(request, b"content-length"), b"", _NOTHING
        if limit == 0 and length is None:
            length = "0"
        if length != "0" or _header(request, b"transfer-encoding") is not None:
            expected = declared(length, limit)
            self._budget.require_possible(claim.name if claim else _STRANGER, expected)
            body, digest = await read_body(request.stream(), expected, take, self._grace)
            self._service.activity.bytes_in += len(body)
        if claim is not None and digest != claim.body_hash:
            raise Problem(401, "WrongBody", "the signature is for another body")
        return body


class App:
    """The application: every error is an answer, requests and bytes are counted, and callers learn the time."""

    def __init__(self, service: Service, routes: Routes) -> None:
        self._service = service
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        activity, began, status, sent = self._service.activity, time.perf_counter(), 0, 0

        async def observe(message: Any) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                now = str(steady_ms()).encode()
                message["headers"] = [*message["headers"], (TIME_HEADER.encode(), now)]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            response = await self._answer(Request(scope, receive))
            await response(scope, receive, observe)
        finally:
            if _CALLER in scope:
                activity.end(scope[_CALLER])
            activity.requests[f"{status}"] += 1
            activity.bytes_out += sent
            _LOG.debug(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=round(time.perf_counter() - began, 4),
                sent=sent,
            )

    async def _answer(self, request: Request) -> Response:
        method, path = request.method.replace("HEAD", "GET"), request.scope["path"]
        handler = self._routes.get((method, path))
        if handler is None:
            handler = self._routes.get((method, f"{path.rpartition('/')[0]}/*"))
        try:
            if handler is None:
                raise Problem(404, "Http", f"there is nothing to {method} here")
            return await handler(request)
        except Problem as problem:
            return _answer_problem(problem)
        except BASecAggError as error:
            # The store or the machine failed; it was rebuilt from what is durable, so trying again may help.
            _LOG.error("failure", path=path, error=str(error))
            said = Problem(503, "Failure", "the service could not do that now", retry_after=2.0)
            return _answer_problem(said)
        except ClientDisconnect:
            return Response(status_code=400)


def _answer_problem(problem: Problem) -> Response:
    headers = {"connection": "close"} if problem.status in (408, 413) else {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after)))
    said = {"code": problem.code, "reason": problem.reason}
    return JSONResponse(said, problem.status, headers)


def _document(body: bytes, kind: Any) -> Any:
    try:
        return from_json(body, kind)
    except DataError as error:
        raise Problem(400, "Malformed", str(error)) from None


def _nothing(name: str) -> None:
    """Without a connection there is nothing to give."""


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _header(request: Request, name: bytes) -> str | None:
    """Starlette's own mapping decodes all headers anew for each that it is asked for."""
    found = (value for key, value in request.scope["headers"] if key == name)
    value = next(found, None)
    return None if value is None else value.decode("latin-1")


def _query(request: Request) -> dict[str, str]:
    """Starlette's own mapping does much more, for every request."""
    query = request.scope["query_string"].decode("latin-1")
    return dict(parse_qsl(query, keep_blank_values=True))


def _seconds(request: Request) -> float:
    return min(float(_integer(request, "wait", 0)), _LONGEST_WAIT)


def _version(request: Request) -> int:
    return _whole("version", request.scope["path"].rpartition("/")[2])


def _integer(request: Request, name: str, default: int) -> int:
    text = _query(request).get(name)
    return default if text is None else _whole(name, text)


def _whole(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        raise Problem(400, "Malformed", f"{name} is a whole number")
    return int(text)
