"""Access control: a request must be a GET, name this machine as its host, and carry the token.

A page of another origin can make a browser send requests here, and DNS rebinding even lets it read the answers under
its own name. So `Host` must be loopback, and every request must carry the token: the first one in the address that
`tokenfeed serve` prints, later ones in a cookie that the browser sends with this server's own pages only.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

_HOSTS = ("127.0.0.1", "localhost")

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Wraps an application: passes allowed requests on, refuses the others, adds security headers to every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        # Cookies ignore ports, so several servers on one host need cookies of different names.
        self._cookie = f"tokenfeed-{hashlib.sha256(token.encode()).hexdigest()[:12]}"
        self._tickets: set[str] = set()

    def make_ticket(self) -> str:
        """A token that works once, for places where others may see it, such as the command line of a browser."""
        ticket = secrets.token_urlsafe(24)
        self._tickets.add(ticket)
        return ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        admits = False

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                out.update(_HEADERS)
                if admits:
                    out.append("Set-Cookie", f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        refusal: PlainTextResponse | None = None
        if _host_name(headers.get("host", "")) not in _HOSTS:
            refusal = PlainTextResponse("This server only answers to 127.0.0.1 and localhost.\n", 403)
        elif scope["method"] != "GET":
            refusal = PlainTextResponse("This server is read-only and answers GET only.\n", 405, {"Allow": "GET"})
        elif not self._has_cookie(headers):
            admits = scope["path"] == "/" and self._has_token(scope)
            if not admits:
                refusal = PlainTextResponse("Open the address `tokenfeed serve` printed: it holds the token.\n", 403)
        await (refusal or self._app)(scope, receive, send_protected)

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and _equal(found.value, self._token)

    def _has_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin1")).get("token", [""])[0]
        ticket = next((one for one in self._tickets if _equal(given, one)), None)
        if ticket is not None:
            self._tickets.discard(ticket)
            return True
        return _equal(given, self._token)


def _host_name(host: str) -> str:
    """The host without its port, which differs when the port is forwarded."""
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf8", "surrogateescape"), secret.encode())
