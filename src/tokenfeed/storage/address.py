"""Addresses of remote objects, such as `s3://bucket/key`, and the secrets that some bring along, kept apart."""

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import url2pathname

from tokenfeed.errors import ArgumentError

__all__ = [
    *("Address", "Secret", "clean", "is_remote", "join", "local_file", "local_path"),
    *("parse", "refer", "remember", "resolve", "secret_of"),
]

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https", "hf", "memory")
_HTTP = ("http", "https")


class Address(NamedTuple):
    """One object, or a folder of them."""

    scheme: str
    host: str
    """The bucket, container, or server with its port."""
    key: str
    """The path there, without a slash at either end."""

    @property
    def is_http(self) -> bool:
        return self.scheme in _HTTP


class Secret(NamedTuple):
    """Texts that are sent to a server and shown to nobody."""

    login: str = ""
    """`user:password`, percent-encoded."""
    query: str = ""
    """Query of the address, such as a signature."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of every request, such as one with a token."""
    ca: str = ""
    """File of certificates to trust."""


_secrets: dict[tuple[str, str], dict[str, Secret]] = {}


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an address with a scheme other than `file://`. ArgumentError if the scheme is unknown."""
    scheme, separator, _ = os.fspath(path).partition("://")
    if not separator or scheme == "file":
        return False
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ArgumentError(f"{scheme}:// cannot be opened; known are {known}, file:// and local paths")
    return True


def local_path(path: str | os.PathLike[str]) -> str:
    """A local path as the operating system knows it: `file:///a%20b` is `/a b`."""
    text = os.fspath(path)
    if not text.startswith("file://"):
        return text
    parts = _parts(text)
    if parts.netloc not in ("", "localhost"):
        raise ArgumentError(f"{text} is on another machine, {parts.netloc}; file:// reads only local files")
    return url2pathname(parts.path)


def local_file(path: str | os.PathLike[str]) -> Path:
    """The path of a run file or stats file; ArgumentError for an address, which as a Path has lost a slash."""
    if found := re.match(r"([A-Za-z][\w+.-]*):/", os.fspath(path)):
        raise ArgumentError(  # without the rest, which may hold a secret
            f"{found[1]}://… is an address, and run files and stats files are local for now: give a path on this "
            "machine, such as run.jsonl, and copy it to the address when the run has ended"
        )
    return Path(path)


def clean(uri: str) -> str:
    """The address without user, password and query, which are remembered here for it and for all that lies under it.

    `https://user:password@host/a?signature` is `https://host/a` everywhere: in messages, manifests and run files. A
    process that does not know the secret cannot read it.
    """
    is_remote(uri)
    scheme, _, rest = uri.partition("://")
    if scheme not in _HTTP:
        return f"{scheme}://{rest.rstrip('/')}"
    parts = _parts(uri)
    login, _, host = parts.netloc.rpartition("@")
    path = parts.path.rstrip("/")
    if login or parts.query:
        of_folder = secret_of(f"{scheme}://{host}{path}")
        _secrets.setdefault((scheme, host), {})[path] = of_folder._replace(login=login, query=parts.query)
    return f"{scheme}://{host}{path}"


def _parts(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise ArgumentError(f"{text[:200]!r} is not an address: {error}") from error


def remember(uri: str, headers: Mapping[str, str], ca: str = "") -> None:
    """Send headers with every request to a clean address or to what lies under it, and trust these certificates."""
    scheme, host, path = _split(uri)
    secret = secret_of(uri)
    both = {**dict(secret.headers), **headers}
    _secrets.setdefault((scheme, host), {})[path] = secret._replace(headers=tuple(both.items()), ca=ca or secret.ca)


def secret_of(uri: str) -> Secret:
    """The secret of a clean address, or of the closest folder it lies in that has one."""
    scheme, host, path = _split(uri)
    known = _secrets.get((scheme, host))
    while known and path and path not in known:
        path = path.rpartition("/")[0]
    return known.get(path, Secret()) if known else Secret()


def _split(uri: str) -> tuple[str, str, str]:
    """Scheme, host, and the path with its slash."""
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return scheme, host, slash + path


def parse(uri: str) -> Address:
    """The parts of a clean address."""
    scheme, host, path = _split(uri)
    key = unquote(path[1:]) if scheme in _HTTP else path[1:]
    if not host:
        kind = "server" if scheme in _HTTP else "bucket"
        raise ArgumentError(f"{uri} names no {kind}; {scheme}://NAME/… is expected")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        raise ArgumentError(f"{uri} has an empty part, '.' or '..' in its path; write it without")
    return Address(scheme, host, key)


def join(folder: str, name: str) -> str:
    """The address of what is called `name` in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def resolve(folder: str, reference: str) -> str:
    """The clean address that a reference in a folder stands for; it may be relative to the folder.

    resolve("s3://b/all", "../a") == "s3://b/a";  resolve("s3://b/all", "gs://c/d") == "gs://c/d"
    """
    if "://" in reference:
        return clean(reference) if is_remote(reference) else reference
    scheme, host, path = _split(folder)
    found = posixpath.normpath(posixpath.join("/", path, reference)).strip("/")
    if (secret := secret_of(folder)) != Secret():
        _secrets[scheme, host].setdefault(f"/{found}", secret)
    return f"{scheme}://{host}/{found}".rstrip("/")


def refer(folder: str, uri: str) -> str:
    """How a folder refers to a clean address: relative if both are in one bucket, so that they can move together.

    refer("s3://b/all", "s3://b/a") == "../a"
    """
    here, there = _split(folder), _split(uri)
    return posixpath.relpath(there[2] or "/", here[2] or "/") if here[:2] == there[:2] else uri
