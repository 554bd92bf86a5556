"""Who may ask for what: checks the Host, Origin and token of every request, and sets the headers of every answer.

It stands before all routes, so that no page can forget it.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Nothing from other hosts, no inline script or style, no frames, no plug-ins. Pictures of test examples are `data:`
#: or `blob:`.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; manifest-src 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_NOT_STORED = (b"cache-control", b"no-store")
#: Carries the token of the page in requests that start or stop something. A form of another site cannot set it.
CSRF_HEADER = "X-Velodrome-CSRF"
#: With the port behind it: a browser sends the cookies of a host to all servers on it.
COOKIE = "velodrome_token"
_SAFE = frozenset({"GET", "HEAD"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
#: Bytes of a request's body by default; a route that takes uploads has a larger limit of its own.
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Security:
    """What a server accepts."""

    #: Names by which it may be called, without port: a page of another name would be a DNS rebinding attack.
    names: frozenset[str] = _LOOPBACK
    #: What every request must carry, if the server can be reached from other machines.
    token: str | None = None
    #: Proves that a request was made by a page of this server.
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    #: Paths that change nothing though they are posted to: they need no `csrf`, so that curl can call them.
    open_posts: frozenset[str] = frozenset()
    #: Bytes of a body, by path, where it may be larger than `MOST_BYTES`.
    uploads: tuple[tuple[str, int], ...] = ()
    #: Whether nothing may be started or stopped.
    read_only: bool = False

    @classmethod
    def for_address(
        cls, host: str, *, open_posts: Iterable[str] = (), uploads: Iterable[tuple[str, int]] = (),
        read_only: bool = False,
    ) -> Security:
        """For a server on this address: other machines need a token, and may call it by its address or host name."""
        own = {host.lower()}  # `127.0.0.2` is loopback, too
        token = None
        if not is_loopback(host):
            own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
            token = secrets.token_urlsafe(24)
        names = _LOOPBACK | own
        return cls(names, token, open_posts=frozenset(open_posts), uploads=tuple(uploads), read_only=read_only)

    def accepts(self, name: str) -> bool:
        """Whether the server may be called by this name, which a browser sent as Host."""
        return name in self.names or (self.token is not None and _is_address(name))

    def most_bytes(self, path: str) -> int:
        return next((size for upload_path, size in self.uploads if upload_path == path), MOST_BYTES)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def host_name(header: str) -> str:
    """The name in a Host header without its port; empty if there is none that can be trusted."""
    header = header.strip().lower()
    if header.startswith("["):
        name, closed, port = header[1:].partition("]")
        valid = bool(closed) and (not port or port[0] == ":") and _is_address(name)
    else:
        name, _, number = header.partition(":")
        port = f":{number}" if number else ""
        valid = bool(name)
    digits = port[1:]
    return name if valid and (not digits or (digits.isascii() and digits.isdigit())) else ""


class Guard:
    """Refuses requests that a page of this server would not make, before they reach any route."""

    def __init__(
        self, app: ASGIApp, security: Security, direct: Mapping[str, ASGIApp] | None = None,
        failed: Callable[[Request], Response] | None = None,
    ) -> None:
        """`failed` is the answer to a request whose handler raised; it gets our headers as every other one."""
        self.app, self.security, self.direct, self.failed = app, security, dict(direct or {}), failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NOT_STORED)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        limit = self.security.most_bytes(scope["path"])
        app = self.direct.get(scope["path"], self.app) if scope["method"] == "POST" else self.app
        try:
            await app(scope, _limited(receive, limit), answer)
        except Exception:
            if not started:
                await self._failure(scope)(scope, receive, answer)
            raise  # the server prints it

    def _failure(self, scope: Scope) -> Response:
        if self.failed is not None:
            with suppress(Exception):  # the page of an error may have the same one
                return self.failed(Request(scope))
        return _sentence(500, "Something unexpected happened: the terminal of the server has the details.")

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is refused; None if it may pass."""
        headers, security = Headers(scope=scope), self.security
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not security.accepts(host_name(hosts[0].decode("latin-1"))):
            return _sentence(421, "This server does not answer to that host name: open the address that the command "
                                  "printed.")
        if not _same_origin(headers, hosts[0].decode("latin-1")):
            return _sentence(403, "Requests from pages of other sites are refused.")
        if security.token is not None and (refusal := self._without_token(scope, headers)) is not None:
            return refusal
        if scope["method"] in _SAFE:
            return None
        if scope["method"] != "POST":
            return _sentence(405, f"{scope['method']} is not supported here.", {"Allow": "GET, HEAD, POST"})
        size = headers.get("content-length")
        if size is not None and not _at_most(size, security.most_bytes(scope["path"])):
            return _sentence(413, f"The request is larger than {security.most_bytes(scope['path'])} bytes.")
        if scope["path"] in security.open_posts:
            return None
        if security.read_only:
            return _sentence(403, "This server was started with --read-only: it shows everything but starts nothing.")
        given = headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(given.encode(), security.csrf.encode()):
            return _sentence(403, "The page is out of date or the request is not from it: reload the page.")
        return None

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request without the right token. An address with `?token=` becomes a cookie."""
        assert self.security.token is not None
        wanted = self.security.token.encode()
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        for name, value in query:
            if name == "token" and scope["method"] in _SAFE and hmac.compare_digest(value.encode(), wanted):
                rest = urlencode([(key, kept) for key, kept in query if key != "token"])
                path = "/" + scope["path"].lstrip("/\\")
                response = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303)
                response.set_cookie(_cookie_name(headers), value, httponly=True, samesite="strict", path="/")
                return response
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(bearer.strip().encode(), wanted):
            return None
        if hmac.compare_digest(_cookie(headers.get("cookie", ""), _cookie_name(headers)).encode(), wanted):
            return None
        return _sentence(
            401, "A token is needed: open the whole address that the command printed, with its ?token=…, or send it as "
            "Authorization: Bearer TOKEN.", {"WWW-Authenticate": "Bearer"},
        )


def _cookie_name(headers: Headers) -> str:
    """The name of the cookie with the token: of its own for each port by which a browser calls this host."""
    _, colon, port = headers["host"].rpartition(":")
    return f"{COOKIE}_{port}" if colon and port.isdigit() else COOKIE


def _cookie(header: str, name: str) -> str:
    try:
        cookie = SimpleCookie(header).get(name)
    except Exception:  # a cookie of another program may be anything
        return ""
    return cookie.value if cookie is not None else ""


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether a browser, if one asks, does so for a page of this server or because a person opened it."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return False
    site = headers.get("sec-fetch-site")
    if site in (None, "same-origin", "none"):
        return True
    # A link of another page may be followed, which only shows something.
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _limited(receive: Receive, limit: int) -> Receive:
    """The body of a request, of which no more than `limit` bytes are read."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit:
                return {"type": "http.disconnect"}
        return message

    return limited


def _sentence(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text + "\n", status, headers)


def _at_most(number: str, most: int) -> bool:
    """Whether a header's number is one, and at most that."""
    return number.isascii() and number.isdigit() and len(number) < 20 and int(number) <= most


def csrf_of(request: Request) -> str:
    """What the page of this request must send with everything that starts or stops something."""
    security: Security = request.app.state.security
    return security.csrf
