"""From paths, folders, patterns and addresses to files of text, in a fixed order and with splits."""

import fnmatch
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenfeed.errors import ArgumentError, NotFoundError
from tokenfeed.storage.address import is_remote, join, local_path, parse
from tokenfeed.text.sources.listing import read_listing
from tokenfeed.text.sources.stored import list_folder, shown

__all__ = ["ENDINGS", "Found", "PathLike", "check_split", "find_files", "kind_of", "of_split"]

PathLike = str | os.PathLike[str]

_TXT = (".txt", ".txt.gz", ".txt.zst")
_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".json.gz", ".json.zst")
ENDINGS = (".parquet", *_JSONL, *_TXT)
"""Endings of the files that are read: Parquet, JSONL, and plain text (one document a file). Folders may hold others."""


@dataclass(frozen=True)
class Found:
    path: str = field(repr=False)
    """A local path, or an address, which may contain a signature: messages show `shown(path)`."""
    name: str = ""
    """The path relative to the folder that all files have in common: the same wherever that folder lies."""
    is_val: bool = False
    is_listed: bool = False
    """Whether a `files.json` names it: then it may still be on its way."""


def find_files(source: PathLike | Sequence[PathLike]) -> list[Found]:
    """The files of a folder, a pattern, a path or an address, or of a list of these. Lists folders, opens no file.

    A folder that holds plain text beside other kinds is refused; a pattern or a list may name both.

    Files of one entry are sorted by name; a list keeps its order. A folder with a `files.json` consists of what that
    says, in its order; where there is none, the last file of all is `val`. The files are all local or all remote
    (`s3://`, `gs://`, `https://`, …). Remote patterns are for the last part of the path; HTTP has neither patterns nor
    folders.
    """
    given = [os.fspath(one) for one in ([source] if isinstance(source, str | os.PathLike) else source)]
    if not given:
        raise ArgumentError("an empty list of files cannot be read")
    remote = [one for one in given if is_remote(one)]
    if remote and len(remote) < len(given):
        raise ArgumentError(f"local files and remote ones, such as {shown(remote[0])}, cannot be read together")
    found = [file for one in given for file in (_expand_remote(one) if remote else _expand(local_path(one)))]
    _check_distinct(found)
    if not any(file.is_listed for file in found):
        found[-1] = replace(found[-1], is_val=True)
    names = _relative([shown(file.path) if remote else os.path.abspath(file.path) for file in found])  # noqa: PTH100
    return [replace(file, name=name) for file, name in zip(found, names, strict=True)]


def kind_of(path: str) -> str:
    """`"parquet"`, `"jsonl"` or `"txt"`."""
    name = shown(path)
    return "parquet" if name.endswith(".parquet") else "txt" if name.endswith(_TXT) else "jsonl"


def check_split(split: str | None) -> None:
    if split not in (None, "train", "val"):
        raise ArgumentError(f"split is {split!r}; it must be 'train', 'val' or None for all files")


def of_split(found: Sequence[Found], split: str | None) -> list[Found]:
    """The files of a split, None for all; there must be some."""
    check_split(split)
    chosen = [file for file in found if split is None or file.is_val == (split == "val")]
    if chosen:
        return chosen
    if not any(file.is_listed for file in found):
        raise NotFoundError(
            f"there is no file for split 'train': the last file is 'val', and there is only one: "
            f"{shown(found[0].path)}. split=None takes all."
        )
    raise NotFoundError(
        f"there is no file for split {split!r}: {Path(found[0].path).parent / 'files.json'} puts all {len(found):,} "
        "files into the other one. split=None takes all."
    )


def _expand(text: str) -> list[Found]:
    """The local files that one entry stands for."""
    path = Path(text)
    if path.is_dir():
        listing = read_listing(path)
        if listing is not None:
            if not listing.train + listing.val:
                raise NotFoundError(f"{path / 'files.json'} lists no file")
            named = [(name, False) for name in listing.train] + [(name, True) for name in listing.val]
            return [Found(_known(str(path / name)), "", is_val, True) for name, is_val in named]
        paths = sorted(child for child in path.iterdir() if _is_text(child))
        _check_kinds(text, [child.name for child in paths])
        looked_for = f"in the folder {text} there is no file ending in"
    elif path.exists():
        return [Found(_known(str(path)))]
    elif not glob.has_magic(text):
        raise NotFoundError(f"there is no file or folder {text}")
    else:
        paths = [Path(name) for name in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207
        paths = [path for path in paths if _is_text(path)]
        looked_for = f"the pattern {text} matches no file ending in"
    if not paths:
        raise NotFoundError(f"{looked_for} {', '.join(ENDINGS)}")
    return [Found(str(path)) for path in paths]


def _expand_remote(source: str) -> list[Found]:
    """The remote files that one entry stands for."""
    address = shown(source)
    folder, _, pattern = address.rpartition("/")
    if parse(address).is_http or (address.endswith(ENDINGS) and not glob.has_magic(pattern)):
        _known(address)
        return [Found(source)]
    is_folder = not glob.has_magic(pattern)
    if is_folder:
        folder, pattern = address, "*"
    names = [name for name in list_folder(folder) if name.endswith(ENDINGS) and not name.startswith(".")]
    names = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if is_folder:
        _check_kinds(address, names)
    if not names:
        raise NotFoundError(f"{address} stands for no file ending in {', '.join(ENDINGS)}")
    return [Found(join(folder, name)) for name in names]


def _check_kinds(folder: str, names: Sequence[str]) -> None:
    """Raise where a folder holds plain text beside Parquet or JSONL: a note would be a document, or all of `val`."""
    notes = [name for name in names if kind_of(name) == "txt"]
    if notes and len(notes) < len(names):
        raise ArgumentError(
            f"the folder {folder} holds Parquet or JSONL files and also plain text, such as {notes[0]}, of which each "
            f"file is one document. Say which files you mean: a pattern such as {join(folder, '*.parquet')}, or a list"
        )


def _is_text(path: Path) -> bool:
    return path.name.endswith(ENDINGS) and not path.name.startswith(".") and path.is_file()


def _known(path: str) -> str:
    if not path.endswith(ENDINGS):
        raise ArgumentError(f"{path} cannot be read as text; its name must end in {', '.join(ENDINGS)}")
    return path


def _check_distinct(found: Sequence[Found]) -> None:
    first: dict[str, str] = {}
    for file in found:
        path = shown(file.path)
        other = first.setdefault(path if is_remote(path) else str(Path(path).resolve()), file.path)
        if other is not file.path:
            raise ArgumentError(
                f"{path} is there twice (the other is {shown(other)}): its documents would be read twice"
            )


def _relative(paths: Sequence[str]) -> list[str]:
    """Paths or addresses relative to the folder they have in common."""
    parts = [path.split("/") for path in paths]
    common = 0
    while all(len(path) > common + 1 and path[common] == parts[0][common] for path in parts):
        common += 1
    return ["/".join(path[common:]) for path in parts]
