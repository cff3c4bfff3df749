"""Addresses of remote objects, such as `s3://bucket/key`; and the secrets some bring along, which are kept apart."""

import os
import posixpath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from tokenfeed.errors import ArgumentError

__all__ = ["Address", "Secret", "clean", "is_remote", "join", "local_path", "parse", "refer", "resolve", "secret_of"]

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https", "memory")
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
    """What must be sent to a server and shown to nobody."""

    login: str = ""
    """`user:password`, percent-encoded."""
    query: str = ""
    """Such as the signature of a signed address."""


_NO_SECRET = Secret()
_secrets: dict[tuple[str, str], dict[str, Secret]] = {}


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an address with a scheme, of another than `file://`. Raises where the scheme is not known."""
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
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ArgumentError(f"{text} lies on another machine, {parts.netloc}; file:// reads local files alone")
    return url2pathname(parts.path)


def clean(uri: str) -> str:
    """The address without user, password and query. For it and all that lies under it they are remembered here.

    What is opened by `https://user:password@host/a?signature` is known everywhere as `https://host/a`: in messages,
    in manifests, in run files. A process that has not been told the secret cannot read it.
    """
    is_remote(uri)
    scheme, _, rest = uri.partition("://")
    if scheme not in _HTTP:
        return f"{scheme}://{rest.rstrip('/')}"
    parts = urlsplit(uri)
    login, _, host = parts.netloc.rpartition("@")
    path = parts.path.rstrip("/")
    if login or parts.query:
        _secrets.setdefault((scheme, host), {})[path] = Secret(login, parts.query)
    return f"{scheme}://{host}{path}"


def secret_of(uri: str) -> Secret:
    """What was remembered for a clean address, or for the closest folder it lies in."""
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    known = _secrets.get((scheme, host))
    if not known:
        return _NO_SECRET
    path = slash + path
    while path and path not in known:
        path = path.rpartition("/")[0]
    return known.get(path, _NO_SECRET)


def parse(uri: str) -> Address:
    """The parts of a clean address."""
    scheme, _, rest = uri.partition("://")
    host, _, key = rest.partition("/")
    if scheme in _HTTP:
        key = unquote(key)
    if not host:
        raise ArgumentError(
            f"{uri} names no {'server' if scheme in _HTTP else 'bucket'}; {scheme}://NAME/… is expected"
        )
    if any(part in ("", ".", "..") for part in key.split("/")) and key:
        raise ArgumentError(f"{uri} has an empty part, '.' or '..' in its path; write it without")
    return Address(scheme, host, key)


def join(folder: str, name: str) -> str:
    """The address of what is called `name` in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def resolve(folder: str, reference: str) -> str:
    """The clean address that a reference in a folder stands for: itself, or relative to the folder.

    resolve("s3://b/all", "../a") == "s3://b/a";  resolve("s3://b/all", "gs://c/d") == "gs://c/d"
    """
    if "://" in reference:
        return clean(reference) if is_remote(reference) else reference
    scheme, _, rest = folder.partition("://")
    host, _, path = rest.partition("/")
    found = posixpath.normpath(posixpath.join("/", path, reference)).lstrip("/")
    uri = f"{scheme}://{host}/{found}" if found else f"{scheme}://{host}"
    secret = secret_of(folder)
    if secret != _NO_SECRET:
        _secrets[scheme, host].setdefault(f"/{found}", secret)
    return uri


def refer(folder: str, uri: str) -> str:
    """How a folder refers to a clean address: relative where both lie in one bucket, so that they may move together.

    refer("s3://b/all", "s3://b/a") == "../a"
    """
    here, there = folder.partition("://"), uri.partition("://")
    host, _, path = here[2].partition("/")
    other_host, _, other_path = there[2].partition("/")
    if (here[0], host) != (there[0], other_host):
        return uri
    return posixpath.relpath(f"/{other_path}", f"/{path}")
