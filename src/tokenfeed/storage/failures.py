"""Failed requests: what obstore's errors mean, which are worth another try, and what the user is told.

The class of an error says most: not found, not allowed, exists, replaced, not supported. For all else obstore has one
class, whose only content is its text; `_read_text` is the one place that looks there. No text of obstore or of a server
reaches the user: it may quote addresses and signatures.
"""

import errno
import re
from enum import Enum
from typing import NamedTuple

from tokenfeed.errors import CorruptionError, DownloadError, NotFoundError, ReadError, TokenfeedError, WriteError
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.runtime import runtime

__all__ = ["RETRIED", "Failed", "Failure", "Kind", "classify", "explain"]

RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529))
"""Statuses that are tried again, by everything that asks a server. 409 is how S3 answers when two write at once; those
from 520 on come from networks that stand before a server."""

_FEW = 4
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_REGIONAL = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,64})</Region>")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w{1,64})")


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

    @property
    def longer_pause(self) -> float:
        """Seconds to pause at least: obstore does not show the header in which a busy server names a time."""
        return 1.0 if self.status == 429 else 0.0


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
_TEXTS = (
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
        missing = NotFoundError(message)
        missing.filename, missing.errno = uri, number
        return missing
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
