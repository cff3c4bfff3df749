"""`files.json`: which files a folder of text consists of, those still to arrive included.

`tokenfeed download` writes it before the first byte, so that a feed can begin with the first file: the order of files
and the split are fixed from the start, whatever is there.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenfeed.errors import FormatError
from tokenfeed.storage.local import read_bytes, replace_bytes

__all__ = ["Listing", "read_listing", "write_listing"]

_NAME = "files.json"


@dataclass(frozen=True)
class Listing:
    """The names of the files of each split, in order."""

    train: tuple[str, ...]
    val: tuple[str, ...]


def read_listing(folder: Path) -> Listing | None:
    """The listing of a folder, where there is one."""
    path = folder / _NAME
    if not path.exists():
        return None
    try:
        fields = json.loads(read_bytes(path))
        if fields["version"] != 1:
            raise FormatError(f"{path}: version is {fields['version']!r}; this tokenfeed reads version 1")
        return Listing(_names(fields["train"], path), _names(fields["val"], path))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: not a list of files ({error})") from error


def write_listing(folder: Path, listing: Listing) -> None:
    """Write the listing of a folder, in one step."""
    fields = {"version": 1, "train": list(listing.train), "val": list(listing.val)}
    replace_bytes(folder / _NAME, json.dumps(fields, indent=0).encode())


def _names(value: object, path: Path) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise FormatError(f"{path}: a split must be a list of names, not {value!r}")
    for name in value:
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise FormatError(f"{path}: {name!r} is not the plain name of a file in this folder")
    return tuple(value)
