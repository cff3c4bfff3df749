"""Dataset repositories of the Hugging Face hub: `hf://owner/name[@revision][/folder]`."""

import re
from urllib.parse import quote, urljoin

from tokenfeed.errors import ArgumentError, DownloadError
from tokenfeed.text.download.client import Client
from tokenfeed.text.download.datasets import Dataset, RemoteFile, hub_endpoint, local_name
from tokenfeed.text.download.secrets import origin, public_url

__all__ = ["list_repository"]

_ADDRESS = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([^/]+))?((?:/[^/]+)*)/?")
_NEXT = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')
_SHA256 = re.compile(r"[0-9a-f]{64}")


def list_repository(client: Client, address: str) -> Dataset:
    """The parquet files of a repository, in the order of their paths; the last one is for validation.

    One request for every thousand files or so. Sizes and the SHA-256 of large files come along.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise ArgumentError(f"{address!r} is not of the form hf://owner/name[@revision][/folder]")
    repository, revision, folder = match[1], match[2] or "main", match[3].strip("/")
    where = f"{hub_endpoint()}/api/datasets/{repository}/tree/{quote(revision, safe='')}"
    entries = _entries(client, f"{where}{quote('/' + folder if folder else '')}?recursive=true")
    base = f"{hub_endpoint()}/datasets/{repository}/resolve/{quote(revision, safe='')}"
    files = [_file(entry, base) for entry in entries if _path(entry).endswith(".parquet")]
    if len(files) < 2:
        raise DownloadError(
            f"{address}: {len(files)} parquet files there; at least two are needed, one of them for validation"
        )
    name = local_name("/".join(filter(None, (repository, folder)))) + (f"@{revision}" if match[2] else "")
    return Dataset(local_name(name), tuple(files[:-1]), files[-1])


def _entries(client: Client, url: str) -> list[dict[str, object]]:
    """All entries of a listing that comes in pages, sorted by path."""
    entries: list[dict[str, object]] = []
    seen: set[str] = set()
    while url not in seen:
        seen.add(url)
        page, headers = client.get_json(url)
        if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
            raise DownloadError(f"{public_url(url)}: expected a list of files, got {str(page)[:200]!r}")
        entries += page
        if not (match := _NEXT.search(headers.get("Link", ""))):
            return sorted(entries, key=_path)
        before, url = url, urljoin(url, match[1])
        if origin(url) != origin(before):
            raise DownloadError(f"{public_url(before)}: the next page would be on another host; not followed")
    raise DownloadError(f"{public_url(url)}: the pages of the list of files go in a circle")


def _path(entry: dict[str, object]) -> str:
    return str(entry.get("path", ""))


def _file(entry: dict[str, object], base: str) -> RemoteFile:
    path, size, large = _path(entry), entry.get("size"), entry.get("lfs")
    sha256 = str(large.get("oid", "")).removeprefix("sha256:") if isinstance(large, dict) else ""
    return RemoteFile(
        local_name(path),
        f"{base}/{quote(path)}",
        size if isinstance(size, int) else None,
        sha256 if _SHA256.fullmatch(sha256) else None,
    )
