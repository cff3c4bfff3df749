"""Requests that failed: what obstore's errors mean, which are tried again and for how long, and what the user is told.

The class of an error says most: not found, not allowed, exists, replaced, not supported. For all else obstore has one
class, whose only content is its text; `_read_text` is the one place that looks there. No text of obstore or of a server
reaches the user: it may quote addresses and signatures.

Ranges, whole objects, uploads and downloads all go through `persist`. obstore would try again by itself after 5xx, 429
and lost connections, but not after a body that ends early or stalls, and it does not count. So its own retries are off,
except for the parts of a large upload.
"""

import asyncio
import errno
import math
import os
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from tokenfeed.errors import (
    ArgumentError,
    CorruptionError,
    DownloadError,
    NotFoundError,
    ReadError,
    TokenfeedError,
    WriteError,
)
from tokenfeed.storage.address import parse
from tokenfeed.storage.credentials import learn_region
from tokenfeed.storage.runtime import runtime

__all__ = ["RETRIED", "Counters", "Failed", "Failure", "Kind", "Patience", "Tries", "classify", "explain", "persist"]

Result = TypeVar("Result")

RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529))
"""Statuses that are tried again, by everything that asks a server. 409 is how S3 answers when two write at once; those
from 520 on come from networks that stand before a server."""

_CHANCE = random.SystemRandom()  # the generator of `random` is the training script's: it may have seeded it
_FEW = 4
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_REGIONAL = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,64})</Region>")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w{1,64})")


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits in seconds. `TOKENFEED_TIMEOUT` in the environment sets `total`, and the others follow."""

    total: float = 120.0
    """Limit of a request, all its tries together. For a download, the limit without progress. Time in a queue does not
    count."""
    connect: float = 10.0
    """Limit for making a connection. A server whose name is unknown has failed after this."""
    stall: float = 30.0
    """Limit without a byte; then the request is tried again. A server that nobody can reach has failed after this."""
    first_pause: float = 0.1
    """Longest pause before the second try. It doubles with every try, up to `longest_pause`."""
    longest_pause: float = 10.0

    @classmethod
    def of(cls, total: float, *, name: str = "timeout") -> "Patience":
        """The limits that go with a total; `name` is what the user calls it."""
        if not 0 < total < math.inf:
            raise ArgumentError(f"{name} is {total:g}; it must be a number of seconds above 0")
        return cls(total, connect=min(10.0, total / 4), stall=min(30.0, total / 4))

    @classmethod
    def from_environment(cls) -> "Patience":
        given = os.environ.get("TOKENFEED_TIMEOUT")
        if not given:
            return _DEFAULT
        try:
            return cls.of(float(given), name="TOKENFEED_TIMEOUT")
        except ValueError:
            raise ArgumentError(f"TOKENFEED_TIMEOUT is {given!r}; it must be a number of seconds above 0") from None

    def pause(self, tries: int, *, at_least: float = 0.0) -> float:
        """Seconds to wait after so many tries. Half of it is random, so that many clients do not come back at once."""
        longest = min(self.longest_pause, self.first_pause * 2.0 ** min(tries - 1, 30))
        return max(at_least, longest) * _CHANCE.uniform(0.5, 1.0)


_DEFAULT = Patience()


class Kind(Enum):
    """What went wrong with a request."""

    STATUS = "the server answered with an error status"
    UNREACHABLE = "no connection"
    UNKNOWN_HOST = "the server's name is unknown"
    TIMEOUT = "nothing came for too long"
    BROKEN = "the connection ended early"
    WRONG_ANSWER = "the server sent something else than it was asked for"
    NO_RANGES = "the server does not give ranges"
    EXISTS = "the object exists already"
    CHANGED = "the object is no longer the one that was opened"
    UNSUPPORTED = "the server does not know this kind of request"
    REFUSED = "something about the request is wrong, and has a name"
    OTHER = "anything else"


class Failure(NamedTuple):
    """Why a request failed."""

    kind: Kind
    what: str
    """Text for the user."""
    status: int | None = None
    code: str | None = None
    """One word by which S3 and similar servers name an error."""
    advice: str = ""
    """What to do about it."""
    region: str = ""
    """Region of the bucket, where another was asked."""

    def may_pass(self, tries: int, seconds: float, patience: Patience) -> bool:
        """Whether to try once more, after so many tries and seconds."""
        if self.kind in (Kind.STATUS, Kind.EXISTS):
            return self.status in RETRIED
        if self.kind is Kind.UNREACHABLE:
            return seconds < patience.stall
        if self.kind is Kind.UNKNOWN_HOST:
            return seconds < patience.connect
        if self.kind is Kind.WRONG_ANSWER:
            return tries < _FEW
        return self.kind in (Kind.TIMEOUT, Kind.BROKEN)


class Failed(Exception):  # noqa: N818
    """A failure on its way to `persist`, which decides about it. Nobody outside of `storage` and downloads sees one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


_NO_RANGES = Failure(
    Kind.NO_RANGES,
    "the server answers with the whole object where a part was asked for",
    advice="A store cannot be read from there: download it, or serve it by another server",
)
_NO_TLS = Failure(
    Kind.REFUSED,
    "the server does not speak https",
    advice="Begin the address, or the endpoint, with http://",
)
_TEXTS = (
    ("InvalidMessage(", _NO_TLS),
    ("NotPartial", _NO_RANGES),
    ("UnexpectedRange", Failure(Kind.WRONG_ANSWER, "the server sent another range than it was asked for")),
    ("ContentRange", Failure(Kind.WRONG_ANSWER, "the server sent another range than it was asked for")),
    ("StartTooLarge", Failure(Kind.STATUS, "it ends before the bytes that were asked for", 416)),
    ("BareRedirect", Failure(Kind.REFUSED, "the bucket is in another region", advice="Set AWS_REGION to its region")),
    ("kind: Redirect", Failure(Kind.OTHER, "the server redirects without end")),
    ("dns error", Failure(Kind.UNKNOWN_HOST, "the name of the server is not known")),
    ("kind: Connect,", Failure(Kind.UNREACHABLE, "the server cannot be reached")),
    ("kind: Timeout,", Failure(Kind.TIMEOUT, "the server stalled")),
    ("HttpError {", Failure(Kind.BROKEN, "the connection broke")),
    ("MissingContentLength", Failure(Kind.OTHER, "the server does not say how long it is")),
    ("Header {", Failure(Kind.WRONG_ANSWER, "the server's answer lacks a header, or has a strange one")),
)


def classify(error: Exception) -> Failure:
    """What an error of obstore means."""
    known, found = runtime().obstore.exceptions, _read_text(str(error))
    if found.kind in (Kind.REFUSED, Kind.TIMEOUT):
        return found
    missing = "bucket" if found.code == "NoSuchBucket" else "object"
    for kind, failure in (
        (FileNotFoundError, Failure(Kind.STATUS, f"there is no such {missing} (404)", 404, found.code)),
        (known.UnauthenticatedError, Failure(Kind.STATUS, "the server asks for a login (401)", 401, found.code)),
        (known.PermissionDeniedError, Failure(Kind.STATUS, "the server does not allow it (403)", 403, found.code)),
        (known.AlreadyExistsError, Failure(Kind.EXISTS, "it exists, or another request changes it (409)", 409)),
        (known.PreconditionError, Failure(Kind.CHANGED, "it was replaced", 412)),
        (known.NotSupportedError, _NO_RANGES),
        (NotImplementedError, Failure(Kind.UNSUPPORTED, "the server does not support this")),
    ):
        if isinstance(error, kind):
            return failure
    return found


def _read_text(text: str) -> Failure:
    """What the text of obstore's errors says: a status, a word of S3, or what became of the connection."""
    if certificate := _CERTIFICATE.search(text):
        advice = "Set SSL_CERT_FILE (for s3:// also AWS_CA_BUNDLE) to a file with the certificate of its authority"
        return Failure(Kind.REFUSED, f"its certificate is not trusted ({certificate[1]})", advice=advice)
    if status := _STATUS.search(text):
        code, number = _CODE.search(text), int(status[1])
        word = code[1] if code else None
        if word == "RequestTimeout":
            return Failure(Kind.TIMEOUT, "the request came too slowly (RequestTimeout)", number, word)
        if word == "RequestTimeTooSkewed":
            what = "the clock of this machine is not that of the server"
            return Failure(Kind.REFUSED, f"{what} ({word})", number, word, "Set the clock")
        if word in _REGIONAL and (region := _REGION.search(text)):
            what, advice = "the bucket is in another region", f"Set AWS_REGION={region[1]}"
            return Failure(Kind.REFUSED, what, number, word, advice, region[1])
        kind = Kind.UNSUPPORTED if number == 501 else Kind.STATUS
        return Failure(kind, f"the server answered {number}{f' ({word})' if word else ''}", number, word)
    return next((failure for part, failure in _TEXTS if part in text), Failure(Kind.OTHER, "an error within obstore"))


def explain(failure: Failure, uri: str, *, doing: str, tries: int, patience: Patience) -> TokenfeedError:
    """The user's error: what, where, what to do."""
    message = f"cannot {doing} {uri}: {failure.what}"
    number, times = errno.EIO, "once" if tries == 1 else f"{tries} times"
    if failure.kind is Kind.CHANGED:
        return CorruptionError(
            f"{uri} was replaced while it was being read: it is no longer the object that was opened. Open it again."
        )
    if failure.advice:
        number = errno.ENOTSUP if failure.kind is Kind.NO_RANGES else errno.EACCES
        message += f". {failure.advice}"
    elif failure.status == 404:
        number = errno.ENOENT
    elif failure.status in (401, 403) or failure.code in ("UnsupportedAlgorithm", "InvalidToken", *_EXPIRED):
        number = errno.EACCES
        message += f". {_credentials_advice(uri, failure.code)}"
    elif failure.status == 416:
        message += ". It is shorter than when it was opened, or than its manifest says"
    elif failure.kind in (Kind.UNREACHABLE, Kind.UNKNOWN_HOST):
        number = errno.EHOSTUNREACH
        seconds = patience.stall if failure.kind is Kind.UNREACHABLE else patience.connect
        message += f", tried {times} within {seconds:g} s. Check the address and the endpoint"
    elif failure.may_pass(0, 0.0, patience):
        number = errno.ETIMEDOUT if failure.kind is Kind.TIMEOUT else number
        limit = f"{patience.stall:g} s without a byte and {patience.total:g} s in all"
        message += f", tried {times}. The limits are {limit}; TOKENFEED_TIMEOUT changes them"
    if doing == "download":
        may_pass = failure.may_pass(0, 0.0, patience)
        return DownloadError(message + (". Run the same download again to continue" if may_pass else ""))
    is_reading = doing in ("read", "list", "look up")
    if is_reading and number == errno.ENOENT:
        return NotFoundError(message, filename=uri, errno=number)
    return (ReadError if is_reading else WriteError)(message, filename=uri, errno=number)


def _credentials_advice(uri: str, code: str | None) -> str:
    expired = "They have expired: renew them. " if code in _EXPIRED else ""
    how = _CREDENTIALS.get(uri.partition("://")[0].removesuffix("a"), _CREDENTIALS["http"])
    return f"{expired}Credentials are missing, wrong, or not allowed to do this: {how}"


_AZURE = "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN with temporary ones) or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file of a key",
    **dict.fromkeys(("az", "abfs", "abfss"), _AZURE),
    "http": "give a signed address, https://user:password@host/…, or HF_TOKEN for files of the Hugging Face hub",
}


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
        # obstore does not show the header in which a busy server names a time.
        pause = self._patience.pause(max(1, self._count), at_least=1.0 if failure.status == 429 else 0.0)
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
