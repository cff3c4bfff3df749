"""Access control: a request must be a GET and name this machine as its host; a question must carry the token.

A page of another origin can make a browser send requests here, and DNS rebinding even lets it read the answers under
its own name. So `Host` must be loopback. The token is in the address that `tokenfeed serve` prints; the page keeps it
in the storage of its own origin (scheme, host and port) and sends it in a header, which no other page can do. A cookie
would go to every port of the host. The files of the page itself hold no data and need no token.
"""

import hmac
import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADER", "MOST_HEADER_BYTES", "Guard"]

HEADER = "X-Tokenfeed-Token"
MOST_HEADER_BYTES = 16 << 10
_HOSTS = ("127.0.0.1", "localhost")

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Wraps an application: passes allowed requests on, refuses the others, adds security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.token = secrets.token_urlsafe(24)
        self._tickets: set[str] = set()

    def make_ticket(self) -> str:
        """A token that works once, for places where others may see it, such as the command line of a browser."""
        ticket = secrets.token_urlsafe(24)
        self._tickets.add(ticket)
        return ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refuse_or_enter(scope["path"], scope["method"], Headers(scope=scope))
        await (answer or self._app)(scope, receive, send_protected)

    def _refuse_or_enter(self, path: str, method: str, headers: Headers) -> JSONResponse | None:
        if sum(len(name) + len(value) for name, value in headers.raw) > MOST_HEADER_BYTES:
            return _refuse(f"The headers of a request may have {MOST_HEADER_BYTES:,} bytes.", 431)
        if _host_name(headers.get("host", "")) not in _HOSTS:
            return _refuse("This server only answers to 127.0.0.1 and localhost.")
        if method != "GET":
            return _refuse("This server is read-only and answers GET only.", 405, {"Allow": "GET"})
        given = headers.get(HEADER, "").encode("utf8", "surrogateescape")
        if path == "/api/enter":  # the page gives the token or ticket of its address for the token
            ticket = next((one for one in self._tickets if hmac.compare_digest(given, one.encode())), None)
            self._tickets.discard(ticket or "")
            if ticket is not None or hmac.compare_digest(given, self.token.encode()):
                return JSONResponse({"token": self.token})
        elif not path.startswith("/api/") or hmac.compare_digest(given, self.token.encode()):
            return None
        return _refuse("Open the address `tokenfeed serve` printed: it holds the token.")


def _refuse(message: str, status: int = 403, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": "Refused", "message": message}, status, headers)


def _host_name(host: str) -> str:
    """The host without its port, which differs when the port is forwarded."""
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
