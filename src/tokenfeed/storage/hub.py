"""Repositories of the Hugging Face hub: `hf://[datasets/|models/]owner/name[@revision][/path]`, datasets by default.

The package huggingface_hub lists repositories and says which commit a revision is; it knows the user's token.
The bytes are read as from any other server: an address of the hub becomes one of its https:// server, of one commit, so
that a run never reads two. `HF_ENDPOINT` names a mirror, `HF_TOKEN` a token.
"""

import contextlib
import importlib
import itertools
import os
import re
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from tokenfeed.errors import ArgumentError, DependencyError, DownloadError, NotFoundError, TokenfeedError
from tokenfeed.storage.address import clean, remember
from tokenfeed.storage.retries import Failure, Kind

__all__ = [
    *("Repository", "address_of", "endpoint", "failure_of", "library", "list_files", "pin", "repository_of"),
    *("server_address",),
]

_ADDRESS = re.compile(r"hf://(?:(datasets|models)/)?([\w.-]+/[\w.-]+)(?:@([^/]+))?((?:/[^/]+)*)/?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_PAGES = 2000
"""Most requests for a list of files; a page has a thousand of them or so."""

_pinned: dict[tuple[str, str], str] = {}


class Repository(NamedTuple):
    """A place in a repository."""

    kind: str
    """`"dataset"` or `"model"`."""
    name: str
    revision: str
    path: str

    def __str__(self) -> str:
        """The address by which it is found again, of the same kind and revision."""
        return f"hf://{self.kind}s/{self.name}@{self.revision}" + (f"/{self.path}" if self.path else "")


def repository_of(address: str) -> Repository:
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise ArgumentError(f"{address[:200]!r} is not of the form hf://owner/name[@revision][/path]")
    return Repository((match[1] or "datasets")[:-1], match[2], match[3] or "main", match[4].strip("/"))


def library() -> Any:
    try:
        found = importlib.import_module("huggingface_hub")
        importlib.import_module("huggingface_hub.errors")
        return found
    except ImportError as error:
        raise DependencyError(
            f"the Hugging Face hub needs the package huggingface_hub: pip install 'tokenfeed[hub]' ({error})"
        ) from error


def endpoint() -> str:
    return clean(os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co")


def _client() -> Any:
    hub = library()
    return hub.HfApi(endpoint=endpoint(), token=hub.get_token())


def address_of(uri: str) -> str:
    """The clean address of any remote file or folder; that of one on the hub, in one commit, is of its server."""
    return server_address(pin(uri)) if uri.startswith("hf://") else clean(uri)


def server_address(place: Repository) -> str:
    """The clean https:// address of a place. The user's token is sent with requests to its repository from now on."""
    prefix = "datasets/" if place.kind == "dataset" else ""
    base = f"{endpoint()}/{prefix}{place.name}"
    if token := library().get_token():
        remember(base, {"authorization": f"Bearer {token}"})
    folder = f"{base}/resolve/{quote(place.revision, safe='')}"
    return f"{folder}/{quote(place.path, errors='surrogatepass')}" if place.path else folder


def pin(address: str) -> Repository:
    """The place that an address names, in the commit that its revision is now. One request for each, in a process."""
    place = repository_of(address)
    if _COMMIT.fullmatch(place.revision):
        return place
    known = endpoint(), str(place._replace(path=""))
    if known not in _pinned:
        with _explaining("open", address):
            info = _client().repo_info(place.name, revision=place.revision, repo_type=place.kind)
            if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
                raise ValueError("no commit")
            _pinned[known] = info.sha
    return place._replace(revision=_pinned[known])


def list_files(address: str, place: Repository) -> list[Any]:
    """The files under a place, as huggingface_hub describes them, by their paths. A request for a thousand or so."""
    hub = library()
    with _explaining("list", address):
        server_address(place)  # so that the token goes along when they are read
        tree = _client().list_repo_tree(
            place.name, place.path or None, recursive=True, revision=place.revision, repo_type=place.kind
        )
        with _bounded(hub, address):
            found = [each for each in tree if isinstance(each, hub.hf_api.RepoFile)]
    return sorted(found, key=lambda each: each.path)


@contextlib.contextmanager
def _explaining(doing: str, address: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into an error of ours."""
    errors = library().errors
    try:
        yield
    except TokenfeedError:
        raise
    except errors.HFValidationError as error:
        raise ArgumentError(f"{address} names no repository: {error}") from None
    except errors.HTTPError as error:
        failure = failure_of(error)
        what = f"cannot {doing} {address}: {failure.what}"
        raise (NotFoundError if failure.status == 404 and doing == "open" else DownloadError)(what) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        answer = "a list of files" if doing == "list" else "what a hub says"
        what = f"cannot {doing} {address}: {endpoint()} does not answer with {answer}"
        raise DownloadError(what) from None


@contextlib.contextmanager
def _bounded(hub: Any, address: str) -> Iterator[None]:
    """Within it, this thread makes so many requests by the hub's package and no more: a list may have no end."""
    session, thread, counter = hub.get_session(), threading.get_ident(), itertools.count(1)
    before = session.event_hooks

    def check(_: Any) -> None:
        if threading.get_ident() == thread and next(counter) > _MOST_PAGES:
            raise DownloadError(f"cannot list {address}: after {_MOST_PAGES:,} pages its list has not ended")

    session.event_hooks = {**before, "request": [*before["request"], check]}
    try:
        yield
    finally:
        session.event_hooks = before


def failure_of(error: BaseException | None) -> Failure:
    """What an error of huggingface_hub means. Its text may quote addresses, so none of it is shown."""
    if not isinstance(error, library().errors.HfHubHTTPError):
        return Failure(Kind.BROKEN, "the hub cannot be reached, or the connection broke")
    status = error.response.status_code
    hint = ". Put a token into HF_TOKEN if the repository is private or gated" if status in (401, 403, 404) else ""
    return Failure(Kind.STATUS, f"the hub answered {status}{hint}", status)
