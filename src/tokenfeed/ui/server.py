"""The server of the page: its static files, the questions it answers, and a socket on loopback."""

import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from tokenfeed.errors import TokenfeedError
from tokenfeed.observe.metrics import explain_port
from tokenfeed.ui import live, order, overview, packing, runs, samples, text_flow
from tokenfeed.ui.guard import HEADER, MOST_HEADER_BYTES, Guard
from tokenfeed.ui.messages import Json, Query, without_paths
from tokenfeed.ui.subject import Subject

__all__ = ["Server"]

_ANSWERS: dict[str, Callable[[Subject, Query], Json]] = {
    "subject": lambda subject, query: subject.describe(),
    "store": overview.describe_store,
    "shards": overview.list_shards,
    "lengths": overview.count_lengths,
    "sample": samples.show_sample,
    "bytes": samples.show_bytes,
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
    "search": overview.search_documents,
    "live": live.show_live,
}
"""The questions the page may ask. The work for each is bounded, whatever the size of the data."""


class Server:
    """A page about one subject, on a port of 127.0.0.1.

    The constructor opens the socket, so `address` is known before `run` starts to answer.
    """

    header = HEADER

    def __init__(self, subject: Subject, *, port: int = 0) -> None:
        """Port 0 takes any free port; a port that is in use raises AddressInUseError."""
        self._guard = Guard(_make_app(subject))
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
                http="h11",
                h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            )
        )

    @property
    def token(self) -> str:
        """Questions carry it in the header `header`."""
        return self._guard.token

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """Address of the page with its token, valid as long as the server runs."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

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
    routes: list[BaseRoute] = [Route(f"/api/{name}", _endpoint(subject, answer)) for name, answer in _ANSWERS.items()]
    routes.append(Mount("/", StaticFiles(packages=[("tokenfeed.ui", "page")], html=True)))
    return Starlette(routes=routes)


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
