"""What went wrong with a request: told from obstore's errors, and told to the user without any secret."""

import errno
import re
from enum import Enum
from typing import NamedTuple

from tokenfeed.errors import CorruptionError, ReadError, TokenfeedError, WriteError
from tokenfeed.storage.patience import Patience

__all__ = ["Failure", "Kind", "classify", "explain"]

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_TRANSPORT = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode|Unknown)\b")
_TEMPORARY = (408, 409, 425, 429, 500, 502, 503, 504)
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_FEW = 4


class Kind(Enum):
    STATUS = "the server answered with a status that is no success"
    UNREACHABLE = "no connection"
    UNKNOWN_HOST = "no such server, as far as is known here"
    TIMEOUT = "nothing came for too long"
    BROKEN = "the connection ended early"
    WRONG_ANSWER = "the server sent something else than was asked for"
    NO_RANGES = "the server does not give ranges"
    EXISTS = "there is such an object already"
    CHANGED = "the object is no longer the one that was opened"
    UNSUPPORTED = "the server does not know this kind of request"
    OTHER = "anything else"


class Failure(NamedTuple):
    kind: Kind
    what: str
    """Said to the user."""
    status: int | None = None
    code: str | None = None
    """The one word by which S3 and its likes name an error."""

    def may_pass(self, tries: int, seconds: float, patience: Patience) -> bool:
        """Whether to try once more."""
        if self.kind is Kind.STATUS:
            return self.status in _TEMPORARY
        if self.kind is Kind.UNREACHABLE:
            return seconds < patience.stall
        if self.kind is Kind.UNKNOWN_HOST:
            return seconds < patience.connect
        if self.kind is Kind.WRONG_ANSWER:
            return tries < _FEW
        return self.kind in (Kind.TIMEOUT, Kind.BROKEN)

    @property
    def longer_pause(self) -> float:
        """A server that is asked too often names a time to wait in a header that obstore does not show."""
        return 1.0 if self.status == 429 else 0.0


def classify(error: Exception) -> Failure:
    """What an error of obstore means. Of its text only a number and a word are shown: the rest may quote secrets."""
    name, text = type(error).__name__, str(error)
    status = _STATUS.search(text)
    if status:
        code = _CODE.search(text)
        number = int(status[1])
        word = code[1] if code else None
        kind = {412: Kind.CHANGED, 501: Kind.UNSUPPORTED}.get(number, Kind.STATUS)
        if name == "AlreadyExistsError":
            kind = Kind.EXISTS
        return Failure(kind, f"the server answered {number}{f' ({word})' if word else ''}", number, word)
    if name == "AlreadyExistsError":
        return Failure(Kind.EXISTS, "it exists already")
    if name == "PreconditionError":
        return Failure(Kind.CHANGED, "it was replaced")
    if isinstance(error, FileNotFoundError):
        return Failure(Kind.STATUS, "there is no such object", 404)
    if "NotPartial" in text or "RangeNotSupported" in text:
        return Failure(Kind.NO_RANGES, "the server answers with the whole object where a part was asked for")
    if "UnexpectedRange" in text or "ContentRange" in text:
        return Failure(Kind.WRONG_ANSWER, "the server sent another range than was asked for")
    if "BareRedirect" in text:
        return Failure(Kind.OTHER, "the server says that the bucket is in another region")
    if "StartTooLarge" in text:  # so says memory://
        return Failure(Kind.STATUS, "it ends before the bytes that were asked for", 416)
    if name in ("NotSupportedError", "NotImplementedError"):
        return Failure(Kind.UNSUPPORTED, "the server does not support this")
    transport = _TRANSPORT.search(text)
    if "dns error" in text.lower():
        return Failure(Kind.UNKNOWN_HOST, "the name of the server is not known")
    if transport and transport[1] == "Connect":
        return Failure(Kind.UNREACHABLE, "the server cannot be reached")
    if transport and transport[1] == "Timeout":
        return Failure(Kind.TIMEOUT, "the server stalled")
    if transport:
        return Failure(Kind.BROKEN, "the connection broke")
    if "Header" in text or "header" in text:
        return Failure(Kind.WRONG_ANSWER, "the server's answer lacks a header, its length or its date")
    return Failure(Kind.OTHER, f"{name} within obstore")


def explain(failure: Failure, uri: str, *, doing: str, tries: int, patience: Patience) -> TokenfeedError:
    """The error for the user: what, where, what to do."""
    message = f"cannot {doing} {uri}: {failure.what}"
    number: int | None = errno.EIO
    if failure.kind is Kind.CHANGED:
        return CorruptionError(
            f"{uri} was replaced while it was being read: it is no longer the object that was opened. Open it again."
        )
    if failure.status == 404:
        number = errno.ENOENT
        message += ". There is no such bucket" if failure.code == "NoSuchBucket" else ""
    elif failure.status in (401, 403) or failure.code in ("UnsupportedAlgorithm", "InvalidToken", *_EXPIRED):
        number = errno.EACCES
        message += f". {_credentials_advice(uri, failure.code)}"
    elif failure.status == 416:
        message += ". It is shorter than it was when it was opened, or than its manifest says"
    elif failure.kind is Kind.NO_RANGES:
        number = errno.ENOTSUP
        message += ". A store cannot be read from there; download it, or serve it by another server"
    elif failure.kind in (Kind.UNREACHABLE, Kind.UNKNOWN_HOST):
        number = errno.EHOSTUNREACH
        seconds = patience.stall if failure.kind is Kind.UNREACHABLE else patience.connect
        message += f", tried {tries} times within {seconds:g} s. Check the address and the endpoint"
    elif failure.what.endswith("in another region"):
        message += ". Set AWS_REGION to its region"
    elif failure.may_pass(0, 0.0, patience):
        timed_out = failure.kind is Kind.TIMEOUT
        number = errno.ETIMEDOUT if timed_out else number
        limit = f"{patience.stall:g} s without a byte and {patience.total:g} s in all"
        message += f", tried {tries} times. The limits are {limit}; TOKENFEED_TIMEOUT changes them"
    kind = ReadError if doing in ("read", "list", "look up") else WriteError
    return kind(message, filename=uri, errno=number)


def _credentials_advice(uri: str, code: str | None) -> str:
    expired = (
        "They have expired: renew them. " if code in ("ExpiredToken", "RequestExpired", "TokenRefreshRequired") else ""
    )
    scheme = uri.partition("://")[0]
    if scheme in ("s3", "s3a"):
        how = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN with temporary ones) or AWS_PROFILE"
    elif scheme == "gs":
        how = "set GOOGLE_APPLICATION_CREDENTIALS to the file of a key"
    elif scheme in ("az", "abfs", "abfss"):
        how = "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"
    else:
        how = "give a signed address, or https://user:password@host/…"
    return f"{expired}Credentials are missing, wrong, or not allowed to do this: {how}"
