"""The files that are prepared, and the slices they are cut into: one slice is one task, whoever works on it."""

import fnmatch
import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenfeed.errors import ArgumentError, CorruptionError, NotAStoreError
from tokenfeed.preparation.reading_files import CODECS, shown
from tokenfeed.storage.address import is_remote, join, local_path, parse
from tokenfeed.text.sources.finding import ENDINGS as _ENDINGS
from tokenfeed.text.sources.finding import check_split, common_names, find_files, of_split
from tokenfeed.text.sources.jsonl import JsonlText
from tokenfeed.text.sources.parquet import ParquetText

__all__ = ["ENDINGS", "InputFile", "Slice", "check_unchanged", "cut", "find_inputs"]

PathLike = str | os.PathLike[str]

TXT_ENDINGS = (".txt", ".txt.gz", ".txt.zst")
ENDINGS = (*_ENDINGS, *TXT_ENDINGS)
"""Of the names of files that are read: Parquet, JSONL, and plain text, of which each file is one document."""


@dataclass(frozen=True)
class InputFile:
    """A file as it was found. The path is not shown, since that of a remote file can hold a signature."""

    path: str = field(repr=False)
    name: str
    """The path relative to what all files have in common."""
    size: int
    digest: str
    """16 hexadecimal digits that stand for the content, wherever the file lies. Two small reads: an edit that keeps the
    size, and the first and last 64 KiB (of Parquet: the footer), goes unnoticed."""


@dataclass(frozen=True)
class Slice:
    """A part of a file: row groups [start, stop) of Parquet, bytes [start, stop) of plain JSONL, else all its bytes.

    A line belongs to the slice in which it begins.
    """

    file: int
    number: int
    start: int
    stop: int


def find_inputs(sources: PathLike | Sequence[PathLike], *, split: str | None = None) -> list[InputFile]:
    """The files of a folder, of a pattern, of a path, or of a list of these, in the order `tokenfeed.stream` has them.

    They are all local, or all remote (`s3://`, `gs://`, `https://`, …); patterns of remote ones may be in the last part
    of the path alone, and HTTP has neither patterns nor folders. Two small reads a file; of a remote one, one request
    for its size and version. `split="train"` takes all files but the last, `"val"` the last (or as a `files.json`
    says).
    """
    check_split(split)
    given = [os.fspath(one) for one in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    remote = [source for source in given if is_remote(source)]
    if not remote:
        found = find_files([local_path(source) for source in given], ENDINGS)
        names = common_names(found)
        chosen = range(len(found)) if split is None else of_split(found, split)
        return [_describe(str(found[number].path), names[number]) for number in chosen]
    if len(remote) < len(given):
        raise ArgumentError(f"local files and remote ones, such as {shown(remote[0])}, cannot be prepared together")
    paths = [path for source in remote for path in _expand_remote(source)]
    names = _remote_names(paths)
    known = [(shown(path), number == len(paths) - 1, False) for number, path in enumerate(paths)]
    chosen = range(len(paths)) if split is None else of_split(known, split)
    return [_describe(paths[number], names[number]) for number in chosen]


def cut(file_number: int, file: InputFile, *, slice_bytes: int = 64 << 20) -> list[Slice]:
    """The slices of a file, which depend on the file and `slice_bytes` alone. Parquet reads the footer.

    Plain JSONL is cut into equal parts of at most `slice_bytes`; Parquet into runs of row groups of at most that many
    bytes of columns, uncompressed, or of one row group; all else is one slice.
    """
    if slice_bytes < 1:
        raise ArgumentError(f"slice_bytes is {slice_bytes}; it must be at least 1")
    if kind_of(file.path) == "parquet":
        from tokenfeed.preparation.reading_parquet import group_bytes

        bounds = _cut_groups(group_bytes(file), slice_bytes)
    elif kind_of(file.path) == "jsonl" and not shown(file.path).endswith(tuple(CODECS)):
        count = -(-file.size // slice_bytes)
        bounds = [file.size * part // count for part in range(count + 1)] if count else [0]
    else:
        bounds = [0, file.size]
    return [Slice(file_number, number, *bounds[number : number + 2]) for number in range(len(bounds) - 1)]


def kind_of(path: str) -> str:
    """`"parquet"`, `"jsonl"` or `"txt"`."""
    name = shown(path)
    return "parquet" if name.endswith(".parquet") else "txt" if name.endswith(TXT_ENDINGS) else "jsonl"


def check_unchanged(file: InputFile) -> None:
    """That a file is still the one that was found."""
    now = _describe(file.path, file.name)
    if (now.size, now.digest) != (file.size, file.digest):
        raise CorruptionError(
            f"{shown(file.path)} has changed since it was found: it had {file.size:,} bytes and digest {file.digest}, "
            f"now {now.size:,} and {now.digest}. Start again with files that stay as they are."
        )


def _describe(path: str, name: str) -> InputFile:
    if is_remote(path):
        from tokenfeed.storage.objects import head

        info = head(path)
        return InputFile(path, name, info.size, _digest(info.size, info.version or ""))
    local = Path(path)
    if not local.exists():
        raise NotAStoreError(
            f"there is no file {path} (any more). If a download is to bring it, run `tokenfeed download` again: it "
            "goes on where it stopped."
        )
    digest = (ParquetText(local, "") if kind_of(path) == "parquet" else JsonlText(local, "")).digest()
    return InputFile(path, name, local.stat().st_size, digest)


def _digest(size: int, version: str) -> str:
    return hashlib.blake2b(f"{size} {version}".encode(), digest_size=8).hexdigest()


def _expand_remote(source: str) -> list[str]:
    """The files of a remote file, folder, or pattern."""
    from tokenfeed.storage.objects import list_names

    address = shown(source)
    folder, _, pattern = address.rpartition("/")
    is_http = parse(address).is_http
    if address.endswith(ENDINGS) and (is_http or not glob.has_magic(pattern)):
        return [source]
    if is_http:
        raise ArgumentError(f"{address} cannot be read as text; its name must end in {', '.join(ENDINGS)}")
    if not glob.has_magic(pattern):
        folder, pattern = address, "*"
    names = [name for name, is_folder in list_names(folder) if not is_folder and not name.startswith(".")]
    names = sorted(name for name in names if name.endswith(ENDINGS) and fnmatch.fnmatchcase(name, pattern))
    if not names:
        raise NotAStoreError(f"{address} stands for no file ending in {', '.join(ENDINGS)}")
    return [join(folder, name) for name in names]


def _remote_names(paths: Sequence[str]) -> list[str]:
    """Addresses relative to the folder they have in common."""
    parts = [shown(path).split("/") for path in paths]
    seen: dict[str, None] = {}
    for path in map("/".join, parts):
        if path in seen:
            raise ArgumentError(f"{path} is there twice: its documents would be read twice")
        seen[path] = None
    common = 0
    while all(len(path) > common + 1 and path[common] == parts[0][common] for path in parts):
        common += 1
    return ["/".join(path[common:]) for path in parts]


def _cut_groups(sizes: Sequence[int], slice_bytes: int) -> list[int]:
    """Where runs of row groups begin, and the end: [30, 30, 50, 10] with 60 → 0, 2, 4."""
    bounds, in_run = [0], 0
    for group, size in enumerate(sizes):
        if group > bounds[-1] and in_run + size > slice_bytes:
            bounds.append(group)
            in_run = 0
        in_run += size
    return [*bounds, len(sizes)] if sizes else [0]
