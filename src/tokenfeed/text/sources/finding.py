"""From paths, folders, patterns and addresses to files of text, in a fixed order.

A folder may hold a `files.json`, which `tokenfeed download` writes before the first byte. It says which files there
are, in which order and split, those still to arrive included, so that a feed can begin with the first one.
"""

import fnmatch
import glob
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from tokenfeed.errors import ArgumentError, FormatError, NotFoundError
from tokenfeed.storage import hub
from tokenfeed.storage.address import is_remote, join, local_path, parse
from tokenfeed.storage.local import read_bytes, replace_bytes
from tokenfeed.text.sources.memory import MemoryDocuments
from tokenfeed.text.sources.stored import StoredFile, list_folder, shown

__all__ = [
    "CHAT_ENDINGS",
    "ENDINGS",
    "Found",
    "Listing",
    "PathLike",
    "find_files",
    "kind_of",
    "read_listing",
    "write_listing",
]

PathLike = str | os.PathLike[str]

_TXT = (".txt", ".txt.gz", ".txt.zst")
_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".json.gz", ".json.zst")
ENDINGS = (".parquet", *_JSONL, *_TXT, ".arrow")
"""Endings of the files that are read. Plain text is one document a file."""
CHAT_ENDINGS = (".parquet", *_JSONL, ".arrow")
"""Endings of the files that hold records with several fields."""
_LISTING = "files.json"
_READERS = (
    "is read by its own package: give the dataset of that to prepare, with tokens_column=… where it holds tokens "
    "(docs/guides/other-readers.md)"
)
_TOKENS = "holds tokens already: open it with tokenfeed.open, and train from it with a Loader"
_FOREIGN = {
    "manifest.json": "says that it is a store: open it with tokenfeed.open, and train from it with a Loader",
    ".ds": _TOKENS,
    ".idx": _TOKENS,
    ".bin": _TOKENS,
    ".npy": _TOKENS,
    **dict.fromkeys((".mds", ".lance", ".tar", ".tar.gz", ".tgz", ".tar.zst"), _READERS),
    ".json": "is not read, since JSON must be one object a line: write it as JSONL",
    ".csv": "is not read: write it as Parquet or JSONL",
}
"""What files that hold no text are, by the ends of their names, and what to do with them."""


@dataclass(frozen=True)
class Found:
    path: str = field(repr=False)
    """A local path, or an address, which may contain a signature: messages show `shown(path)`."""
    name: str = ""
    """The path relative to the folder that all files have in common: the same wherever that folder lies."""
    listed: str | None = None
    """The split that a `files.json` puts it in; such a file may still be on its way."""
    memory: MemoryDocuments | None = field(default=None, repr=False)
    """Documents of this process, in the place of a file."""

    @property
    def stored(self) -> StoredFile | MemoryDocuments:
        return StoredFile(self.path) if self.memory is None else self.memory


@dataclass(frozen=True)
class Listing:
    """The names of the files of each split, in order."""

    train: tuple[str, ...]
    val: tuple[str, ...]


def find_files(source: Any, endings: tuple[str, ...] = ENDINGS) -> list[Found]:
    """The files of a folder, a pattern, a path or an address, or of a list of these. Lists folders, opens no file.

    Documents of this process (see `memory`) are one file. Files of one entry are sorted by name; a list keeps order.
    A folder with a `files.json` consists of what that says, in its order. A folder that holds plain text beside other
    kinds is refused; a pattern or a list may name both. The files are all local or all remote (`s3://`, `gs://`,
    `https://`, …). Remote patterns are for the last part of the path; HTTP has neither patterns nor folders.
    """
    listed = _paths_of(source)
    if listed is None:
        documents = MemoryDocuments(source)
        return [Found(documents.path, "documents", memory=documents)]
    given = [os.fspath(one) for one in listed]
    if not given:
        raise ArgumentError("an empty list of files cannot be read")
    remote = [one for one in given if is_remote(one)]
    if remote and len(remote) < len(given):
        raise ArgumentError(f"local files and remote ones, such as {shown(remote[0])}, cannot be read together")
    found = [file for one in given for file in _expand(one, endings, is_remote=bool(remote))]
    _check_distinct(found)
    names = _relative([shown(file.path) if remote else os.path.abspath(file.path) for file in found])  # noqa: PTH100
    return [replace(file, name=name) for file, name in zip(found, names, strict=True)]


def _paths_of(source: Any) -> list[PathLike] | None:
    """The paths that a source consists of; None where it consists of documents.

    A list of strings is one of paths: of documents, it is a list of mappings, or a function that gives strings.
    """
    if isinstance(source, str | os.PathLike):
        return [source]
    if isinstance(source, list | tuple | set | frozenset):
        strange = [one for one in source if not isinstance(one, str | os.PathLike)]
        if strange and len(strange) == len(source) and all(isinstance(one, Mapping) for one in strange):
            return None
        if strange:
            raise ArgumentError(
                f"{str(strange[0])[:80]!r} is no path: give a file, a folder, a pattern, an address, or a list of "
                'these; or documents, such as a list of {"text": …}, a datasets.Dataset, or a function that makes them'
            )
        return list(source)
    if isinstance(source, Iterator):  # such as Path.glob; a generator of documents is refused by what it gives
        first = next(source, None)
        if first is None or isinstance(first, os.PathLike):
            return [*(() if first is None else (first,)), *source]
        MemoryDocuments(source)
    if callable(source) or isinstance(source, Iterable) or "__getitem__" in dir(source):
        return None
    raise ArgumentError(
        f"{str(source)[:80]!r} holds no text: give a file, a folder, a pattern, an address, a list of these, or "
        "documents"
    )


def kind_of(path: str) -> str:
    """`"parquet"`, `"jsonl"`, `"txt"` or `"arrow"`."""
    kinds = {"parquet": (".parquet",), "arrow": (".arrow",), "txt": _TXT}
    return next((kind for kind, endings in kinds.items() if shown(path).endswith(endings)), "jsonl")


def read_listing(folder: Path) -> Listing | None:
    """The listing of a folder, where there is one."""
    path = folder / _LISTING
    if not path.exists():
        return None
    try:
        fields = json.loads(read_bytes(path))
        if fields["version"] != 1:
            raise ValueError(f"version is {fields['version']!r}; this tokenfeed reads version 1")
        return Listing(_plain_names(fields["train"]), _plain_names(fields["val"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not a list of files ({error})") from error


def write_listing(folder: Path, listing: Listing) -> None:
    """Write the listing of a folder, in one step."""
    fields = {"version": 1, "train": list(listing.train), "val": list(listing.val)}
    replace_bytes(folder / _LISTING, json.dumps(fields, indent=0).encode())


def _plain_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"a split must be a list of names, not {value!r}")
    for name in value:
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not the plain name of a file in this folder")
    return tuple(value)


def _expand(given: str, endings: tuple[str, ...], *, is_remote: bool) -> list[Found]:
    """The files that one entry stands for."""
    if is_remote:
        return _expand_remote(given, endings)
    text = local_path(given)
    path = Path(text)
    if path.is_file():
        return [_known(text, endings)]
    if path.is_dir():
        listing = read_listing(path)
        if listing is not None:
            named = [(name, "train") for name in listing.train] + [(name, "val") for name in listing.val]
            if not named:
                raise NotFoundError(f"{path / _LISTING} lists no file")
            return [_known(str(path / name), endings, split) for name, split in named]
        paths = [str(child) for child in path.iterdir() if child.is_file()]
    elif path.exists():
        raise NotFoundError(f"{text} is a pipe or a device, not a regular file. Write its content to a file first")
    elif not glob.has_magic(text):
        raise NotFoundError(f"there is no file or folder {text}")
    else:
        paths = [name for name in glob.glob(text, recursive=True) if Path(name).is_file()]  # noqa: PTH207
    return _texts(text, paths, endings, is_folder=path.is_dir())


def _expand_remote(source: str, endings: tuple[str, ...]) -> list[Found]:
    """The remote files that one entry stands for."""
    if source.startswith("hf://"):
        return _expand_hub(source, endings)
    address = shown(source)
    folder, _, pattern = address.rpartition("/")
    if parse(address).is_http or (address.endswith(endings) and not glob.has_magic(pattern)):
        _known(address, endings)
        return [Found(source)]
    is_folder = not glob.has_magic(pattern)
    if is_folder:
        folder, pattern = address, "*"
    names = fnmatch.filter(list_folder(folder), pattern)
    return _texts(address, [join(folder, name) for name in names], endings, is_folder=is_folder)


def _expand_hub(source: str, endings: tuple[str, ...]) -> list[Found]:
    """The files of a repository that one entry stands for, in one commit: a file, a pattern, or a folder and below."""
    place = hub.pin(source)
    if place.path.endswith(endings) and not glob.has_magic(place.path):
        return [Found(str(place))]
    is_folder = not glob.has_magic(place.path)
    fixed = list(itertools.takewhile(lambda part: is_folder or not glob.has_magic(part), place.path.split("/")))
    within = place._replace(path="/".join(fixed))
    pattern = re.compile(glob_to_regex(place.path))
    paths = [each.path for each in hub.list_files(source, within)]
    matching = [str(place._replace(path=path)) for path in paths if is_folder or pattern.fullmatch(path)]
    return _texts(source, matching, endings, is_folder=is_folder)


def glob_to_regex(pattern: str) -> str:
    """A pattern of paths as a regular expression: `*` and `?` stay within a folder, `**/` is any folders or none."""
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(translated.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern))


def _texts(source: str, paths: Sequence[str], endings: tuple[str, ...], *, is_folder: bool) -> list[Found]:
    """Those of the files in a folder, or matching a pattern, that hold text."""
    texts = sorted(path for path in paths if path.endswith(endings) and not path.rpartition("/")[2].startswith("."))
    if not texts:
        where = f"in the folder {source} there is" if is_folder else f"the pattern {source} matches"
        _refuse(source, sorted(paths), f"{where} no file ending in {', '.join(endings)}", NotFoundError)
    notes = [path for path in texts if kind_of(path) == "txt"]
    if is_folder and notes and len(notes) < len(texts):  # a note would be a document, or all of `val`
        raise ArgumentError(
            f"the folder {source} holds Parquet or JSONL files and also plain text, such as {Path(notes[0]).name}, of "
            f"which each file is one document. Say which files you mean: a pattern such as "
            f"{join(source, '*.parquet')}, or a list"
        )
    return [Found(path) for path in texts]


def _known(path: str, endings: tuple[str, ...], split: str | None = None) -> Found:
    if not path.endswith(endings):
        message = f"{path} cannot be read as text; its name must end in {', '.join(endings)}"
        _refuse(path, [path], message, ArgumentError)
    return Found(path, listed=split)


def _refuse(source: str, paths: Sequence[str], message: str, kind: type[Exception]) -> NoReturn:
    """Raise, and say what lies there instead of text, where that is known."""
    source = source.rstrip("/")
    for ending, what in _FOREIGN.items():
        for path in (source, *paths):
            if path.endswith(ending):
                raise kind(f"{path} {what}" if path == source else f"{source} holds no text: {Path(path).name} {what}")
    if (Path(source) / "_versions").is_dir():
        raise kind(f"{source} is a Lance dataset, which {_READERS}")
    if not paths and any(child.is_dir() for child in Path(source).glob("*")):
        message += f". A pattern reads the folders inside it: {join(source, '**/*.parquet')}"
    raise kind(message)


def _check_distinct(found: Sequence[Found]) -> None:
    first: dict[str, str] = {}
    for path in [shown(file.path) for file in found]:
        place = path if is_remote(path) else str(Path(path).resolve())
        if place in first:
            other = "" if first[place] == path else f", also as {first[place]}"
            raise ArgumentError(f"{path} is given twice{other}: its documents would be read twice")
        first[place] = path


def _relative(paths: Sequence[str]) -> list[str]:
    """Paths or addresses relative to the folder they have in common."""
    parts = [path.split("/") for path in paths]
    common = 0
    while all(len(path) > common + 1 and path[common] == parts[0][common] for path in parts):
        common += 1
    return ["/".join(path[common:]) for path in parts]
