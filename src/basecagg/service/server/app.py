"""The service over HTTP: who calls, within which limits, and what goes to the core.

Everything but `/healthz`, `/readyz` and enrolment needs an enrolled key, and the page a login. Bodies of the
protocol are frames, the rest is JSON; an error is JSON with a code and a reason.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from basecagg.channels.wire import pack
from basecagg.errors import BASecAggError, DataError
from basecagg.protocol.operator import OPERATOR
from basecagg.service import framing
from basecagg.service.documents import MAX_KEY_BYTES, Enrolment, Order, from_json, to_json
from basecagg.service.logs import Log
from basecagg.service.problems import Problem
from basecagg.service.server.core import Service
from basecagg.service.server.limits import BodyReader, ByteBudget, RateLimit
from basecagg.service.server.streaming import Pieces
from basecagg.service.signing import TIME_HEADER, Claim, Guard, steady_ms

_LOG = Log("basecagg.service")
_LONGEST_WAIT = 60.0
_MAIL_BYTES = 2**18
"""Letters that are fetched together: enough to save round trips, little enough times all holders."""
_PARTS = 25
"""Other requests that a member may make for one of a version's parts, which are large."""
_JSON_BYTES = 64 * 2**10
_OPERATOR_BYTES = 64 * 2**20
_MODEL_BYTES = 2**30
KNOWN = "basecagg-known"
"""In a request's state: to be called when its caller has shown a key."""
_KEY_HEADER = "basecagg-holder-key"
_NOTHING = hashlib.sha256(b"").digest()
"""The hash of a body that is none."""
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class Api:
    """The handlers, with the limits they share."""

    def __init__(
        self,
        service: Service,
        *,
        memory: int = 512 * 2**20,
        member_rate: float = 50.0,
        stranger_rate: float = 5.0,
        reader: BodyReader | None = None,
    ) -> None:
        """Serve the core. `memory` bounds all bodies on their way in, rates are requests per second."""
        self._service = service
        self._guard = Guard(service.settings.federation, service.key_of)
        self._budget = ByteBudget(memory)
        self._members = RateLimit(member_rate, 10 * member_rate)
        self._parts = RateLimit(member_rate / _PARTS, 10 * member_rate / _PARTS)
        self._strangers = RateLimit(stranger_rate, 10 * stranger_rate)
        self._reader = reader or BodyReader()
        self._boot = os.urandom(8).hex()
        """Numbers of letters are worth something to this process only."""

    def routes(self) -> list[Route]:
        """Every address of the service but those of the page."""
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/healthz", self.health),
            ("GET", "/readyz", self.readiness),
            ("POST", "/v1/enrolment", self.enrolment),
            ("GET", "/v1/epoch", self.epoch),
            ("GET", "/v1/model", self.model),
            ("PUT", "/v1/model", self.set_model),
            ("GET", "/v1/pedigree", self.pedigree),
            ("GET", "/v1/releases/{version}", self.release),
            ("GET", "/v1/parts/{version}", self.parts),
            ("PUT", "/v1/holder-key", self.holder_key),
            ("POST", "/v1/messages", self.messages),
            ("GET", "/v1/mailbox", self.mailbox),
            ("GET", "/v1/operator", self.overview),
            ("POST", "/v1/operator", self.order),
            ("GET", "/v1/audit", self.audit),
        ]
        return [Route(path, handler, methods=[method]) for method, path, handler in table]

    def busy_routes(self) -> dict[tuple[str, str], Handler]:
        """The few addresses that nearly all requests are for, which need not go through a router."""
        return {
            ("POST", "/v1/messages"): self.messages,
            ("GET", "/v1/mailbox"): self.mailbox,
            ("GET", "/v1/model"): self.model,
        }

    # --- for everybody ----------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether the process can go on by itself, even if it waits for its store; else it is about to end."""
        if not self._service.worker.can_go_on:
            return Response("the machine's thread has ended\n", 503)
        return Response("ok\n")

    async def readiness(self, request: Request) -> Response:
        """The store can be written to, and an epoch is open. In trouble it still needs its callers."""
        self._strangers.require(_address(request))
        fault, host = await self._service.find_fault(), self._service.host
        ready = not fault and self._service.phase == "open"
        said = {
            "phase": self._service.phase,
            "fault": fault,
            "trouble": host.trouble if host else "",
        }
        return JSONResponse(said, 200 if ready else 503)

    async def enrolment(self, request: Request) -> Response:
        """Somebody invited hands in its keys."""
        self._strangers.require(_address(request))
        body = await self._read(request, _JSON_BYTES)
        enrolment: Enrolment = _document(body, Enrolment)
        await self._service.enrol(enrolment)
        return JSONResponse({"enrolment": "received"}, 202)

    # --- for members ------------------------------------------------------------------------------

    async def epoch(self, request: Request) -> Response:
        """The end of the epoch that the caller knows, and the present one with the caller's credential."""
        name = await self._member(request)
        known, wait = request.query_params.get("known", ""), _seconds(request)
        frames = await self._service.wait_for_epoch(name, known, wait)
        wanted = self._service.registry.lacks_key(name)
        headers = {_KEY_HEADER: "wanted"} if wanted else {}
        if not frames:
            return Response(status_code=204, headers=headers)
        return Pieces(list(framing.join(frames)), headers)

    async def model(self, request: Request) -> Response:
        """The present model as little-endian numbers; waits for one newer than the caller's, if asked to."""
        await self._caller(request)
        newer_than = _integer(request, "newer_than", -1)
        model = await self._service.wait_for_model(newer_than, _seconds(request))
        tag = f'"{model.version}-{model.head.hex()}"'
        headers = {
            "etag": tag,
            "basecagg-version": str(model.version),
            "basecagg-dtype": model.dtype,
        }
        if request.headers.get("if-none-match") == tag or model.version <= newer_than:
            return Response(status_code=304, headers=headers)
        return Pieces([model.data], headers)

    async def pedigree(self, request: Request) -> Response:
        """What leads from the operator's key to the present model, for whoever hands it on."""
        await self._caller(request)
        key = self._service.settings.operator_key
        return Pieces([pack(await self._service.ask(lambda host: host.pedigree(key)))], {})

    async def release(self, request: Request) -> Response:
        """The server's signed word on a version: which model it is, and what it was made from."""
        await self._member(request)
        version = _version(request)
        return Pieces([await self._service.ask(lambda host: host.release(version))], {})

    async def parts(self, request: Request) -> Response:
        """All that a version was made from, for a member who wants to make it again."""
        self._parts.require(await self._member(request))
        version = _version(request)
        return Pieces([await self._service.ask(lambda host: host.parts(version))], {})

    async def holder_key(self, request: Request) -> Response:
        """A member's sealing key for the next epoch."""
        name, body = await self._member_with_body(request, MAX_KEY_BYTES)
        await self._service.worker.do(lambda: self._service.registry.publish_key(name, body))
        return Response(status_code=204)

    async def messages(self, request: Request) -> Response:
        """One message of the protocol."""
        claim = self._check(request)
        self._service.registry.require_active(claim.name)
        limit = self._service.message_limit()
        with self._budget.account() as take:
            body = await self._read(request, limit, claim, take)
            await self._service.receive(claim.name, body)
        return Response(status_code=204)

    async def mailbox(self, request: Request) -> Response:
        """The caller's next letters. `done` is the last one it has dealt with, as boot and number."""
        name = await self._member(request)
        done = request.query_params.get("done", "")
        letters = await self._service.collect(
            name,
            request.query_params.get("epoch", ""),
            self._number(done),
            _seconds(request),
            _MAIL_BYTES,
        )
        return Pieces(list(framing.join(letters)), {"basecagg-boot": self._boot})

    def _number(self, done: str) -> int | None:
        boot, _, number = done.partition(".")
        if not done or boot != self._boot:
            return None
        if not (number.isascii() and number.isdigit()) or len(number) > 15:
            raise Problem(400, "Malformed", "done is the boot, a dot and a number")
        return int(number)

    # --- for the operator -------------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        """What the operator needs to know to go on."""
        await self._operator(request, 0)
        return Response(to_json(await self._service.overview()), media_type="application/json")

    async def order(self, request: Request) -> Response:
        """The operator's word."""
        body = await self._operator(request, _OPERATOR_BYTES)
        overview = await self._service.obey(_document(body, Order))
        return Response(to_json(overview), media_type="application/json")

    async def audit(self, request: Request) -> Response:
        """The server's audit log, some entries at a time."""
        await self._operator(request, 0)
        start = _integer(request, "start", 0)
        page = await self._service.worker.do(lambda: self._service.epochs.audit_page(start))
        return Response(to_json(page), media_type="application/json")

    async def set_model(self, request: Request) -> Response:
        """The initial model of the next epoch."""
        body = await self._operator(request, _MODEL_BYTES)
        await self._service.worker.do(lambda: self._service.epochs.set_model(body))
        return Response(status_code=204)

    # --- who calls --------------------------------------------------------------------------------

    def _check(self, request: Request) -> Claim:
        query = request.scope["query_string"].decode("latin-1")
        target = request.scope["path"] + (f"?{query}" if query else "")
        try:
            claim = self._guard.check(request.method, target, request.headers.get("authorization"))
        except Problem:
            self._strangers.require(_address(request))
            raise
        request.scope.get("state", {}).get(KNOWN, _nothing)()
        self._members.require(claim.name)
        self._service.activity.last_seen[claim.name] = time.time()
        return claim

    async def _caller(self, request: Request) -> str:
        """A member or the operator, without a body."""
        claim = self._check(request)
        if claim.name != OPERATOR:
            self._service.registry.require_active(claim.name)
        await self._read(request, 0, claim)
        return claim.name

    async def _member(self, request: Request) -> str:
        return (await self._member_with_body(request, 0))[0]

    async def _member_with_body(self, request: Request, limit: int) -> tuple[str, bytes]:
        claim = self._check(request)
        self._service.registry.require_active(claim.name)
        return claim.name, await self._read(request, limit, claim)

    async def _operator(self, request: Request, limit: int) -> bytes:
        claim = self._check(request)
        if claim.name != OPERATOR:
            raise Problem(403, "NotOperator", "only the operator may do that")
        return await self._read(request, limit, claim)

    async def _read(
        self,
        request: Request,
        limit: int,
        claim: Claim | None = None,
        take: Callable[[int], None] | None = None,
    ) -> bytes:
        length = request.headers.get("content-length")
        if limit == 0 and length is None:
            length = "0"
        if length == "0" and "transfer-encoding" not in request.headers:
            return _require_body(b"", _NOTHING, claim)
        with self._budget.account() as account:
            chunks = request.stream()
            body, digest = await self._reader.read(chunks, length, limit, take or account)
        self._service.activity.bytes_in += len(body)
        return _require_body(body, digest, claim)


def make_app(service: Service, page: Sequence[Route], api: Api | None = None) -> ASGIApp:
    """The application, every error of which is an answer."""
    api = api or Api(service)
    routes = [*api.routes(), *page]
    handlers: dict[Any, Any] = {
        Problem: _answer_problem,
        BASecAggError: _answer_failure,
        HTTPException: _answer_http,
        ClientDisconnect: _answer_nobody,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    return _Observed(_Shortcut(api.busy_routes(), handlers, app), service)


class _Shortcut:
    """Calls the handlers of busy addresses itself, and answers their errors alike; the rest is the app's."""

    def __init__(
        self, busy: dict[tuple[str, str], Handler], answers: dict[Any, Any], app: ASGIApp
    ) -> None:
        self._busy = busy
        self._answers = answers
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._busy.get((scope["method"], scope["path"]))
        if handler is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await handler(request)
        except Exception as error:
            response = self._answer(request, error)
        await response(scope, receive, send)

    def _answer(self, request: Request, error: Exception) -> Response:
        for kind in type(error).__mro__:
            if kind in self._answers:
                response: Response = self._answers[kind](request, error)
                return response
        raise error


class _Observed:
    """Counts requests and bytes, logs each, and tells every caller the time."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            await self._app(scope, receive, observe)
        finally:
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


def _answer_problem(request: Request, problem: Problem) -> Response:
    headers = {"connection": "close"} if problem.status in (408, 413) else {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after)))
    return _error(problem.status, problem.code, problem.reason, headers)


def _answer_failure(request: Request, error: BASecAggError) -> Response:
    """The store or the machine failed; it was rebuilt from what is durable, so trying again may help."""
    _LOG.error("failure", path=request.url.path, error=str(error))
    return _error(503, "Failure", "the service could not do that now", {"retry-after": "2"})


def _answer_http(request: Request, error: HTTPException) -> Response:
    return _error(error.status_code, "Http", str(error.detail), dict(error.headers or {}))


def _answer_nobody(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)


def _error(status: int, code: str, reason: str, headers: dict[str, str]) -> Response:
    return JSONResponse({"code": code, "reason": reason}, status, headers)


def _require_body(body: bytes, digest: bytes, claim: Claim | None) -> bytes:
    if claim is not None and digest != claim.body_hash:
        raise Problem(401, "WrongBody", "the signature is for another body")
    return body


def _document(body: bytes, kind: Any) -> Any:
    try:
        return from_json(body, kind)
    except DataError as error:
        raise Problem(400, "Malformed", str(error)) from None


def _nothing() -> None:
    """Without a connection there is nobody to tell."""


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _seconds(request: Request) -> float:
    return min(float(_integer(request, "wait", 0)), _LONGEST_WAIT)


def _version(request: Request) -> int:
    return _whole("version", request.path_params["version"])


def _integer(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else _whole(name, text)


def _whole(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        raise Problem(400, "Malformed", f"{name} is a whole number")
    return int(text)
