"""Dataset repositories of the Hugging Face hub: `hf://owner/name[@revision][/folder]`.

The package huggingface_hub lists them, and tells size and SHA-256 of a file. The bytes come as from any other server.
"""

import importlib
import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from tokenfeed.errors import ArgumentError, DependencyError, DownloadError
from tokenfeed.storage.address import remember_token
from tokenfeed.storage.failures import Failed, Failure, Kind
from tokenfeed.text.download.datasets import Dataset, RemoteFile, hub_folder, local_name

__all__ = ["list_repository", "look_up"]

_ADDRESS = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([^/]+))?((?:/[^/]+)*)/?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def list_repository(address: str) -> Dataset:
    """The parquet files of a repository, in the order of their paths; the last one is for validation.

    One request for every thousand files or so. They tell all sizes, and the SHA-256 of large files.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise ArgumentError(f"{address!r} is not of the form hf://owner/name[@revision][/folder]")
    repository, revision, folder = match[1], match[2] or "main", match[3].strip("/")
    library = _library()
    base = hub_folder(repository, revision)
    try:
        hub = library.HfApi(endpoint=_endpoint(base), token=_token(base))
        tree = hub.list_repo_tree(repository, folder or None, recursive=True, revision=revision, repo_type="dataset")
        found = [each for each in tree if isinstance(each, library.hf_api.RepoFile) and each.path.endswith(".parquet")]
    except library.errors.HTTPError as error:
        raise DownloadError(f"cannot list {address}: {_failure(library, error).what}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DownloadError(f"cannot list {address}: {_endpoint(base)} does not answer with a list of files") from None
    if len(found) < 2:
        raise DownloadError(
            f"{address} has {len(found)} parquet files; at least two are needed, one of them for validation"
        )
    files = [
        RemoteFile(
            local_name(each.path),
            f"{base}/{quote(each.path)}",
            each.size,
            each.lfs.sha256 if each.lfs is not None and _SHA256.fullmatch(each.lfs.sha256) else None,
        )
        for each in sorted(found, key=lambda each: each.path)
    ]
    name = local_name("/".join(filter(None, (repository, folder)))) + (f"@{revision}" if match[2] else "")
    return Dataset(local_name(name), tuple(files[:-1]), files[-1])


def look_up(file: RemoteFile) -> RemoteFile:
    """A file of the hub, with size and SHA-256. One request, tried once; raises `Failed`."""
    library = _library()
    try:
        found = library.get_hf_file_metadata(file.url, token=_token(file.url) or False, endpoint=_endpoint(file.url))
    except library.errors.HTTPError as error:
        raise Failed(_failure(library, error)) from None
    digest = found.etag if _SHA256.fullmatch(found.etag or "") else None
    return replace(file, size=found.size, sha256=digest)


def _library() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise DependencyError(
            f"datasets of the Hugging Face hub need the package huggingface_hub: pip install 'tokenfeed[hub]' ({error})"
        ) from error


def _endpoint(url: str) -> str:
    return url.partition("/datasets/")[0]


def _token(url: str) -> str | None:
    """The user's token, from HF_TOKEN or `hf auth login`. From now on it is sent with requests to this repository."""
    token: str | None = _library().get_token()
    if token:
        endpoint, _, path = url.partition("/datasets/")
        remember_token(f"{endpoint}/datasets/{'/'.join(path.split('/')[:2])}", token)
    return token


def _failure(library: Any, error: Exception) -> Failure:
    """What an error of huggingface_hub means. Its text may quote addresses, so none of it is shown."""
    if not isinstance(error, library.errors.HfHubHTTPError):
        return Failure(Kind.BROKEN, "the hub cannot be reached, or the connection broke")
    status = error.response.status_code
    hint = ". Put a token into HF_TOKEN if the repository is private or gated" if status in (401, 403, 404) else ""
    return Failure(Kind.STATUS, f"the hub answered {status}{hint}", status)
