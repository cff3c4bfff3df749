"""The server of the page: its static files, the questions it answers, and a socket on loopback."""

import secrets
import socket
import sys
from collections.abc import Callable
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tokenfeed.errors import TokenfeedError
from tokenfeed.observe.endpoint import explain_port
from tokenfeed.ui import live, order, overview, packing, runs, sample_bytes, samples, searching, text_flow
from tokenfeed.ui.guard import Guard
from tokenfeed.ui.query import Query
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json, without_paths

__all__ = ["Server"]

_ANSWERS: dict[str, Callable[[Subject, Query], Json]] = {
    "subject": lambda subject, query: subject.describe(),
    "store": overview.describe_store,
    "shards": overview.list_shards,
    "lengths": overview.count_lengths,
    "sample": samples.show_sample,
    "bytes": sample_bytes.show_bytes,
    "scatter": order.scatter,
    "rounds": order.show_rounds,
    "steps": order.show_steps,
    "packing": packing.show_rows,
    "text": text_flow.list_documents,
    "flow": text_flow.show_batch,
    "run": runs.describe_run,
    "ledger": runs.show_ledger,
    "trace": runs.trace_step,
    "find": runs.find_document,
    "search": searching.search_documents,
    "live": live.show_live,
}
"""The questions the page may ask. The work for each is bounded, whatever the size of the data."""

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Server:
    """A page about one subject, on a port of 127.0.0.1.

    The constructor opens the socket, so `address` is known before `run` starts to answer.
    """

    def __init__(self, subject: Subject, *, port: int = 0) -> None:
        """Port 0 takes any free port; a port that is in use raises AddressInUseError."""
        self._token = secrets.token_urlsafe(24)
        self._guard = Guard(_make_app(subject), self._token)
        try:
            self._socket = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise explain_port(port, error) from error
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._guard,
                log_config=None,
                log_level="critical",  # a log of requests would contain the token
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=1,
                ws="none",
            )
        )

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """Address of the page with its token, valid as long as the server runs."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    def address_once(self) -> str:
        """Address of the page with a token that works once."""
        return f"http://127.0.0.1:{self.port}/?token={self._guard.make_ticket()}"

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM, or `stop` from another thread."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True


def _make_app(subject: Subject) -> Starlette:
    routes = [Route(f"/api/{name}", _endpoint(subject, answer)) for name, answer in _ANSWERS.items()]
    for file in resources.files("tokenfeed.ui").joinpath("page").iterdir():
        name, kind = file.name, _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            path = "/" if name == "index.html" else f"/{name}"
            routes.append(Route(path, _static(file.read_bytes(), kind)))
    return Starlette(routes=routes)


def _static(content: bytes, kind: str) -> Callable[[Request], Any]:
    async def give(request: Request) -> Response:
        return Response(content, media_type=kind)

    return give


def _endpoint(subject: Subject, answer: Callable[[Subject, Query], Json]) -> Callable[[Request], Any]:
    async def ask(request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(answer, subject, Query(request.query_params)))
        except TokenfeedError as error:
            told = {"error": type(error).__name__, "message": without_paths(str(error), subject.homes)}
            return JSONResponse(told, 400)
        except Exception as error:  # noqa: BLE001 (the message may hold paths, which the page must not see)
            print(f"tokenfeed serve: {request.url.path}: {type(error).__name__}: {error}", file=sys.stderr)
            return JSONResponse({"error": "Error", "message": "This request failed. The terminal shows why."}, 500)

    return ask
