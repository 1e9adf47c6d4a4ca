"""The operator's page: read-only, no secrets, nothing from elsewhere, behind a login."""

import hashlib
import hmac
import re
from functools import partial
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from basecagg.service.page import figures
from basecagg.service.problems import Problem
from basecagg.service.server.app import Routes
from basecagg.service.server.core import Service
from basecagg.service.server.limits import RateLimit, declared, read_body

_COOKIE = "basecagg-page"
_LOOPBACK = ("127.0.0.1", "::1")
_OWN_NAMES = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
"""This machine's names for itself. A page from elsewhere can make its own name lead here, but not these."""
_BEARER = "Bearer "
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOGIN_BYTES = 1024
_SAFE = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


class Page:
    """The page and its figures, as JSON and for Prometheus, behind one token."""

    def __init__(self, service: Service, token: str, *, open_here: bool = False) -> None:
        """A caller with the token may look; with `open_here`, so may every caller on this machine."""
        self._service = service
        self._session = hmac.new(token.encode(), b"basecagg/page", hashlib.sha256).hexdigest()
        self._open_here = open_here
        self._attempts = RateLimit(0.5, 10)

    def routes(self) -> Routes:
        """The page's addresses. How it looks and what fills it is no secret."""
        return {
            ("GET", "/"): self.page,
            ("GET", "/page.css"): partial(_file, "page.css"),
            ("GET", "/page.js"): partial(_file, "page.js"),
            ("GET", "/status"): self.status,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/login"): partial(_file, "login.html"),
            ("POST", "/login"): self.login,
        }

    async def page(self, request: Request) -> Response:
        """The page itself."""
        if not self._may_look(request):
            return RedirectResponse("/login", 303, _SAFE)
        return await _file("page.html", request)

    async def status(self, request: Request) -> Response:
        """The figures, as JSON."""
        self._require_login(request)
        return JSONResponse(figures.view(self._service), headers=_SAFE)

    async def metrics(self, request: Request) -> Response:
        """The figures, for Prometheus."""
        self._require_login(request)
        text = figures.metrics(self._service)
        return Response(text, media_type="text/plain; version=0.0.4", headers=_SAFE)

    async def login(self, request: Request) -> Response:
        """Take the token, give a cookie."""
        if not self._is_token(request, await _form_value(request)):
            raise Problem(403, "WrongToken", "that is not the token")
        reply = RedirectResponse("/", 303, _SAFE)
        reply.set_cookie(
            _COOKIE, self._session, max_age=43_200, httponly=True, secure=True, samesite="strict"
        )
        return reply

    def _require_login(self, request: Request) -> None:
        if not self._may_look(request):
            raise Problem(401, "NoLogin", "log in at /login, or send the token as a bearer")

    def _may_look(self, request: Request) -> bool:
        return self._is_local(request) or self._has_session(request)

    def _is_local(self, request: Request) -> bool:
        """Whether the caller is on this machine, and no proxy that speaks for somebody elsewhere."""
        forwarded = any(header in request.headers for header in _FORWARDED)
        host = request.client.host if request.client else ""
        called = request.headers.getlist("host")
        named = len(called) == 1 and _OWN_NAMES.fullmatch(called[0]) is not None
        return self._open_here and not forwarded and named and host in _LOOPBACK

    def _has_session(self, request: Request) -> bool:
        cookie, said = request.cookies.get(_COOKIE, ""), request.headers.get("authorization", "")
        if hmac.compare_digest(cookie.encode(), self._session.encode()):
            return True
        bearer = said.removeprefix(_BEARER).encode()
        return said.startswith(_BEARER) and self._is_token(request, bearer)

    def _is_token(self, request: Request, token: bytes) -> bool:
        """Whether the token is right. Only wrong tokens count; a caller with too many of them gets 429."""
        address = request.client.host if request.client else ""
        self._attempts.require(address)
        session = hmac.new(token, b"basecagg/page", hashlib.sha256).hexdigest()
        is_right = hmac.compare_digest(session, self._session)
        if is_right:
            self._attempts.give_back(address)
        return is_right


async def _form_value(request: Request) -> bytes:
    """The one field of the login form."""
    length = declared(request.headers.get("content-length"), _LOGIN_BYTES)
    body, _ = await read_body(request.stream(), length, lambda count: None)
    return body.removeprefix(b"token=")


async def _file(name: str, request: Request) -> Response:
    content = files("basecagg.service.page").joinpath("static", name).read_bytes()
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=_SAFE)
