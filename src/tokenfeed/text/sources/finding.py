"""Which files of text a path, a folder, a pattern or a list of these stands for, in which order, of which split."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenfeed.errors import ArgumentError, NotAStoreError
from tokenfeed.text.sources.listing import read_listing

__all__ = ["ENDINGS", "JSONL_ENDINGS", "Found", "check_split", "common_names", "find_files", "of_split"]

PathLike = str | os.PathLike[str]

JSONL_ENDINGS = (
    *(".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst"),
    *(".json.gz", ".json.zst"),
)
ENDINGS = (".parquet", *JSONL_ENDINGS)
"""Of the names of files that are read; all others in a folder are passed over."""


class Found(NamedTuple):
    path: Path
    is_val: bool
    is_listed: bool
    """Whether a `files.json` names it: then it may still be on its way."""


def find_files(source: PathLike | Sequence[PathLike], endings: tuple[str, ...] = ENDINGS) -> list[Found]:
    """The files of a folder, of a pattern, of a path, or of a list of these. Lists folders; opens no file of text.

    Within each they are sorted by name; a list keeps its order. A folder with a `files.json` consists of what that
    says, in its order. Where there is none, the last file of all is `val`.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    if not sources:
        raise ArgumentError("an empty list of files cannot be read")
    found = [file for one in sources for file in _expand(os.fspath(one), endings)]
    _check_distinct(found)
    if not any(file.is_listed for file in found):
        found[-1] = found[-1]._replace(is_val=True)
    return found


def common_names(found: Sequence[Found]) -> list[str]:
    """The paths relative to the folder they have in common: the same wherever that folder lies."""
    paths = [Path(os.path.abspath(file.path)) for file in found]  # noqa: PTH100 (resolve would follow links)
    common = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(common).as_posix() for path in paths]


def check_split(split: str | None) -> None:
    if split not in (None, "train", "val"):
        raise ArgumentError(f"split is {split!r}; it must be 'train', 'val' or None for all files")


def of_split(found: Sequence[tuple[Path | str, bool, bool]], split: str | None) -> list[int]:
    """The numbers of the files of a split, of (path, is_val, is_listed); there must be some."""
    chosen = [number for number, (_, is_val, _) in enumerate(found) if is_val == (split == "val")]
    first = found[0][0]
    if not chosen and not any(is_listed for _, _, is_listed in found):
        raise NotAStoreError(
            f"there is no file for split 'train': the last file is 'val', and there is only one: {first}. "
            "split=None takes all."
        )
    if not chosen:
        raise NotAStoreError(
            f"there is no file for split {split!r}: {Path(first).parent / 'files.json'} puts all {len(found):,} "
            "files into the other one. split=None takes all."
        )
    return chosen


def _expand(text: str, endings: tuple[str, ...]) -> list[Found]:
    """What one source stands for."""
    if "://" in text:
        raise ArgumentError(f"{text.split('://')[0]}:// cannot be read; only local files can")
    path = Path(text)
    if path.is_dir():
        listing = read_listing(path)
        if listing is not None:
            if not listing.train + listing.val:
                raise NotAStoreError(f"{path / 'files.json'} lists no file")
            named = [(name, False) for name in listing.train] + [(name, True) for name in listing.val]
            return [Found(_known(path / name, endings), is_val, True) for name, is_val in named]
        paths = sorted(child for child in path.iterdir() if _is_text(child, endings))
        looked_for = f"in the folder {text} there is no file ending in"
    elif path.exists() or not glob.has_magic(text):
        if not path.exists():
            raise NotAStoreError(f"there is no file or folder {text}")
        paths = [_known(path, endings)]
        looked_for = ""
    else:
        names = sorted(glob.glob(text, recursive=True))  # noqa: PTH207
        paths = [Path(name) for name in names if _is_text(Path(name), endings)]
        looked_for = f"the pattern {text} matches no file ending in"
    if not paths:
        raise NotAStoreError(f"{looked_for} {', '.join(endings)}")
    return [Found(path, False, False) for path in paths]


def _is_text(path: Path, endings: tuple[str, ...]) -> bool:
    return path.name.endswith(endings) and not path.name.startswith(".") and path.is_file()


def _known(path: Path, endings: tuple[str, ...]) -> Path:
    if not path.name.endswith(endings):
        raise ArgumentError(f"{path} cannot be read as text; its name must end in {', '.join(endings)}")
    return path


def _check_distinct(found: Sequence[Found]) -> None:
    first: dict[Path, Path] = {}
    for file in found:
        other = first.setdefault(file.path.resolve(), file.path)
        if other is not file.path:
            raise ArgumentError(f"{file.path} is there twice (the other is {other}): its documents would be read twice")
