"""One request to a server, tried until it succeeds, fails for good, or takes too long. The only place that tries again.

obstore would try again by itself after 5xx, 429 and lost connections, but not after a body that ends early or stalls,
and it does not count. So its own retries are off and all are made here.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tokenfeed.errors import TokenfeedError
from tokenfeed.storage.failures import Failure, Kind, classify, explain
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.runtime import runtime

__all__ = ["Counters", "Failed", "persist"]

Result = TypeVar("Result")


class Failed(Exception):  # noqa: N818
    """How a failure travels to where it is decided about. Nobody outside of this folder sees one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


@dataclass
class Counters:
    """What was asked of servers. Threads may share it."""

    requests: int = 0
    """Tries included."""
    bytes_fetched: int = 0
    retries: int = 0
    failures: int = 0
    """Requests that were given up."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, requests: int = 0, bytes_fetched: int = 0, retries: int = 0, failures: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.bytes_fetched += bytes_fetched
            self.retries += retries
            self.failures += failures


async def persist(
    attempt: Callable[[], Awaitable[Result]],
    uri: str,
    *,
    doing: str,
    patience: Patience,
    counters: Counters,
    expected: Callable[[Failure], bool] | None = None,
    most_tries: int = 1000,
) -> Result:
    """What `attempt` gives at last. An `expected` failure is raised at once, as `Failed`; all others for the user."""
    exceptions = runtime().obstore.exceptions
    began = time.monotonic()
    tries = 0
    last: Failure | None = None
    while True:
        tries += 1
        counters.add(requests=1)
        try:
            async with asyncio.timeout(began + patience.total - time.monotonic()):
                return await attempt()
        except TokenfeedError:
            counters.add(failures=1)
            raise
        except TimeoutError:
            failure = last or Failure(Kind.TIMEOUT, "it took too long")
        except Failed as error:
            failure = error.failure
        except (exceptions.BaseError, OSError, ValueError) as error:
            failure = classify(error)
        if expected is not None and expected(failure):
            raise Failed(failure) from None
        last = failure
        seconds = time.monotonic() - began
        pause = patience.pause(tries, at_least=failure.longer_pause)
        may_pass = tries < most_tries and failure.may_pass(tries, seconds, patience)
        if may_pass and seconds + pause < patience.total:
            counters.add(retries=1)
            await asyncio.sleep(pause)
            continue
        counters.add(failures=failure.status != 404)  # that there is no such object is an answer
        # Not from the error itself, which quotes addresses and answers in full.
        raise explain(failure, uri, doing=doing, tries=tries, patience=patience) from None
