"""Addresses of remote objects, such as `s3://bucket/key`, and the secrets that some bring along, kept apart."""

import os
import posixpath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from tokenfeed.errors import ArgumentError

__all__ = [
    "Address",
    "Secret",
    "clean",
    "is_remote",
    "join",
    "local_path",
    "parse",
    "refer",
    "remember_token",
    "resolve",
    "secret_of",
]

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
    """Texts that are sent to a server and shown to nobody."""

    login: str = ""
    """`user:password`, percent-encoded."""
    query: str = ""
    """Query of the address, such as a signature."""
    token: str = ""
    """Bearer token."""


_NO_SECRET = Secret()
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
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ArgumentError(f"{text} is on another machine, {parts.netloc}; file:// reads only local files")
    return url2pathname(parts.path)


def clean(uri: str) -> str:
    """The address without user, password and query, which are remembered here for it and for all that lies under it.

    `https://user:password@host/a?signature` is `https://host/a` everywhere: in messages, manifests and run files. A
    process that does not know the secret cannot read it.
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


def remember_token(uri: str, token: str) -> None:
    """Send a bearer token with every request to a clean address or to what lies under it, but not to other hosts."""
    address = parse(uri)
    _secrets.setdefault((address.scheme, address.host), {})[f"/{address.key}"] = Secret(token=token)


def secret_of(uri: str) -> Secret:
    """The secret of a clean address, or of the closest folder it lies in that has one."""
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
    """The clean address that a reference in a folder stands for; it may be relative to the folder.

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
    """How a folder refers to a clean address: relative if both are in one bucket, so that they can move together.

    refer("s3://b/all", "s3://b/a") == "../a"
    """
    here, there = folder.partition("://"), uri.partition("://")
    host, _, path = here[2].partition("/")
    other_host, _, other_path = there[2].partition("/")
    if (here[0], host) != (there[0], other_host):
        return uri
    return posixpath.relpath(f"/{other_path}", f"/{path}")
