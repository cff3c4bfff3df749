"""The one loop that tries a request again. Ranges, whole objects, uploads and downloads all go through `persist`.

obstore would try again by itself after 5xx, 429 and lost connections, but not after a body that ends early or stalls,
and it does not count. So its own retries are off, except for the parts of a large upload. `failures.py` says what is
worth another try, and `patience.py` how long that may go on.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tokenfeed.errors import TokenfeedError
from tokenfeed.storage.address import parse
from tokenfeed.storage.credentials import learn_region
from tokenfeed.storage.failures import Failed, Failure, Kind, classify, explain
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.runtime import runtime

__all__ = ["Counters", "Tries", "persist"]

Result = TypeVar("Result")


@dataclass
class Counters:
    """Counts of what was asked of servers. Only the thread of an event loop changes it."""

    requests: int = 0
    """Requests, every try counted."""
    bytes_fetched: int = 0
    retries: int = 0


class Tries:
    """The tries that one request has had, and the time it has left."""

    def __init__(
        self, uri: str, *, doing: str, patience: Patience, counters: Counters, most: int = 1000, limited: bool = True
    ) -> None:
        """`doing` is the verb for messages. Without `limited`, one try may take as long as it likes: it has a body of
        any size, and says `restart` when it gets on."""
        self.counters = counters
        self._uri, self._doing, self._patience = uri, doing, patience
        self._most, self._limited = most, limited
        self._last = Failure(Kind.TIMEOUT, "it took too long")
        self.restart()

    def restart(self) -> None:
        """Count tries and time from now on."""
        self._began, self._count = time.monotonic(), 0

    def begin(self) -> float | None:
        """Count a try. Returns the time when it must be over, for `asyncio.timeout_at`."""
        self._count += 1
        self.counters.requests += 1
        left = self._began + self._patience.total - time.monotonic()
        return asyncio.get_running_loop().time() + left if self._limited else None

    def pause_after(self, failure: Failure | None) -> float:
        """Seconds to wait before the next try; None is for a try that took too long. Raises the user's error if there
        will be no other try."""
        failure = self._last = failure or self._last
        if failure.region and learn_region(parse(self._uri).host, failure.region):
            return 0.0
        seconds = time.monotonic() - self._began
        pause = self._patience.pause(max(1, self._count), at_least=failure.longer_pause)
        if (
            self._count < self._most
            and failure.may_pass(self._count, seconds, self._patience)
            and seconds + pause < self._patience.total
        ):
            self.counters.retries += 1
            return pause
        # `from None` where it is raised: obstore's error quotes addresses and answers in full.
        raise explain(failure, self._uri, doing=self._doing, tries=self._count, patience=self._patience) from None


async def persist(
    attempt: Callable[[], Awaitable[Result]], tries: Tries, *, expected: Callable[[Failure], bool] = lambda _: False
) -> Result:
    """The result of `attempt`, tried until it succeeds. An `expected` failure is raised at once, as `Failed`."""
    exceptions = runtime().obstore.exceptions
    while True:
        failure: Failure | None = None
        try:
            async with asyncio.timeout_at(tries.begin()):
                return await attempt()
        except TokenfeedError:
            raise
        except TimeoutError:
            pass
        except Failed as error:
            failure = error.failure
        except (exceptions.BaseError, OSError, ValueError, NotImplementedError) as error:
            failure = classify(error)
        if failure is not None and expected(failure):
            raise Failed(failure) from None
        await asyncio.sleep(tries.pause_after(failure))
