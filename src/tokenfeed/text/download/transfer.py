"""One file from a server to a folder: continued after whatever interrupts it, and checked before it gets its name."""

import re
from collections.abc import Callable
from pathlib import Path

from tokenfeed.errors import DownloadError
from tokenfeed.text.download.client import Answer, Client
from tokenfeed.text.download.datasets import RemoteFile
from tokenfeed.text.download.digests import read_digests
from tokenfeed.text.download.partial import Partial, Version, claim, is_there
from tokenfeed.text.download.retries import Interrupted
from tokenfeed.text.download.secrets import public_url

__all__ = ["fetch"]

_PROGRESS_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PARQUET = b"PAR1"

Report = Callable[[int, int | None], None]
"""Called with how many bytes of the file are there, and how many it has (None: not known)."""


def fetch(client: Client, file: RemoteFile, folder: Path, report: Report) -> bool:
    """Bring a file into a folder. Returns whether it was this call that did; False if it was there already.

    The name appears when all bytes are on disk and were checked: the size against every size that is known, every
    checksum that the server or the list of files gave, and without one the magic bytes of parquet at both ends.

    What broke off is continued where it stopped, by this call or by a later one after a kill −9, but only if the server
    confirms that it still has the same version (ETag), or if a SHA-256 is there to tell in the end; else it begins
    anew. Once the file has come 1 MiB further than ever before, all retries are there again. Wrong bytes are fetched a
    second time, once. After that, when no retries are left, and for an answer that will not change (404, 403, a web
    page), DownloadError is raised; WriteError if the disk will not have it.
    """
    path = folder / file.name
    if is_there(path, file.size):
        return False
    patience = client.timeout * (client.retries + 1)
    with claim(path, size=file.size, patience=patience, stopping=client.stopping) as partial:
        if partial is None:
            return False
        if partial.version.contradicts(_listed(file)):
            partial.restart()
        attempts, furthest, spoiled = client.attempts(file.url), partial.size, False
        while True:
            try:
                if not partial.is_complete:
                    _receive(client, file, partial, report)
                problem = _problem(client, partial)
                if not problem:
                    partial.commit()
                    return True
                if spoiled:
                    partial.restart()
                    raise DownloadError(f"{public_url(file.url)}: {problem}, twice. Nothing of it is kept.")
                spoiled = True
                raise Interrupted(problem, anew=True)
            except Interrupted as interrupted:
                if partial.size >= furthest + _PROGRESS_BYTES:
                    furthest = partial.size
                    attempts.refill()
                if interrupted.anew or not partial.version.is_certain:
                    partial.restart()
                    report(0, None)
                attempts.again(interrupted)


def _receive(client: Client, file: RemoteFile, partial: Partial, report: Report) -> None:
    """One attempt at the bytes that are missing."""
    headers = {}
    if partial.size:
        headers["Range"] = f"bytes={partial.size}-"
        if partial.version.etag is not None:
            headers["If-Range"] = partial.version.etag
    with client.get(file.url, headers) as answer:
        _refuse_web_page(file, answer)
        version = _version(file, answer)
        if answer.status == 200:  # also from a server that has another version by now, or that knows no ranges
            if partial.size:
                partial.restart()
            partial.begin(version)
        elif not _continues(answer, partial) or version.contradicts(partial.version):
            raise Interrupted(f"the server answers {answer.status} with another part than the one asked for", anew=True)
        report(partial.size, partial.version.size)
        for chunk in answer.chunks():
            partial.append(chunk)
            report(partial.size, partial.version.size)
            if partial.version.size is not None and partial.size > partial.version.size:
                raise Interrupted(f"more than the {partial.version.size:,} bytes that were announced came", anew=True)
        if partial.version.size is None and (answer.ends_visibly or _is_parquet(partial.path) or version.digests):
            partial.end()
        if not partial.is_complete:
            size = partial.version.size
            if size is None:
                raise DownloadError(
                    f"{public_url(file.url)}: the server tells neither size nor checksum, so that nobody can know "
                    "whether the file is whole"
                )
            raise Interrupted(f"the connection ended after {partial.size:,} of {size:,} bytes")


def _refuse_web_page(file: RemoteFile, answer: Answer) -> None:
    kind = answer.headers.get("Content-Type", "")
    if answer.status != 416 and kind.lower().startswith("text/html") and not file.name.endswith((".html", ".htm")):
        raise DownloadError(
            f"{public_url(file.url)}: got a web page instead of a file ({kind}), which begins {answer.beginning()}"
        )
    encoding = answer.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise DownloadError(
            f"{public_url(file.url)}: the server sends it encoded as {encoding!r}, though plain bytes were asked for"
        )


def _listed(file: RemoteFile) -> Version:
    return Version(None, file.size, {} if file.sha256 is None else {"sha256": file.sha256})


def _version(file: RemoteFile, answer: Answer) -> Version:
    """What the server says it has; DownloadError if that is not what the list of files says."""
    whole = answer.status == 200
    etag = answer.headers.get("ETag", "")
    size = answer.length if whole else None
    if match := _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "")):
        size = size if match[3] == "*" else int(match[3])
    elif (linked := answer.linked.get("x-linked-size", "")).isdigit():
        size = int(linked) if size is None else size
    found = Version(
        etag if etag.startswith('"') else None,  # a weak one begins with W/
        size,
        read_digests(answer.headers, answer.linked, whole=whole),
    )
    listed = _listed(file)
    if answer.status != 416 and found.contradicts(listed):
        raise DownloadError(
            f"{public_url(file.url)}: the list of files says {_show(listed)}, the server {_show(found)}. "
            "The file was changed since it was listed; run the download again."
        )
    return Version(found.etag, listed.size if found.size is None else found.size, found.digests | listed.digests)


def _continues(answer: Answer, partial: Partial) -> bool:
    """Whether the body of a 206 begins at the byte that is missing next."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != 206 or not match:
        return False
    start, last = int(match[1]), int(match[2])
    return start == partial.size > 0 and answer.length in (None, last + 1 - start)


def _problem(client: Client, partial: Partial) -> str:
    """What is wrong with a file that has arrived; an empty string if nothing is."""
    for algorithm, expected in partial.version.digests.items():
        if (actual := partial.digest(algorithm)) != expected:
            return f"{algorithm} is {actual}, expected {expected}"
    if _is_parquet(partial.path):
        first, last = partial.ends(len(_PARQUET))
        if first != _PARQUET:
            return f"not a parquet file: it begins {client.quote(partial.ends(1000)[0])}"
        if last != _PARQUET or partial.size < 12:
            return (
                f"not a whole parquet file: it has {partial.size:,} bytes and ends with {last!r}, expected {_PARQUET!r}"
            )
    return ""


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet"


def _show(version: Version) -> str:
    parts = [] if version.size is None else [f"{version.size:,} bytes"]
    return ", ".join(parts + [f"{name} {digest}" for name, digest in version.digests.items()])
