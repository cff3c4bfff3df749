"""Names what lies at a path that cannot be opened, and what to do with it."""

import json
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from tokenfeed.format.foreign.file import is_file, peek, whole
from tokenfeed.format.layout import SHARD, SHARD_SUMS

__all__ = ["describe", "describe_other", "describe_remote"]

_MOST_NAMES = 1000
_INDEX = "index.json"
_LARGEST_INDEX = 1 << 28

_PREPARE = (
    "prepare it first: `tokenfeed prepare {path} -o STORE --tokenizer …` for text, `--tokens-column input_ids` for "
    "token ids; text can also be trained on at once, with tokenfeed.stream"
)
_DOWNLOAD = (
    "token files of others are read where they lie, on disk. Download it and open the copy; or copy it once to a store "
    "(docs/guides/write-a-store.md), which can be read from a server"
)
_READERS = "read it by its own package and give that to tokenfeed.prepare (docs/guides/other-readers.md)"
_LITDATA = "data of litdata", _READERS
_OPEN_FILES = 'open the files themselves: tokenfeed.open("{path}/{name}"), or a list of them'
_TEXT = "plain text", _PREPARE
_JSON = "JSON lines", _PREPARE

_KINDS: dict[str, tuple[str, str]] = {
    ".mds": ("data of MosaicML Streaming", _READERS),
    ".ds": ("datatrove token files", _OPEN_FILES),
    ".idx": ("Megatron token files", _OPEN_FILES),
    ".bin": ("token files", _OPEN_FILES),
    ".npy": ("token files", _OPEN_FILES),
    ".arrow": ("Arrow data, as Hugging Face datasets saves it", _PREPARE),
    ".feather": ("Arrow data", _PREPARE),
    ".ipc": ("Arrow data", _PREPARE),
    ".parquet": ("Parquet", _PREPARE),
    ".jsonl": _JSON,
    ".json": _JSON,
    ".txt": _TEXT,
    ".lance": ("a Lance dataset", _READERS),
    ".tar": ("WebDataset archives", _READERS),
}
"""What files of a suffix are, and the advice; the first that is found in a folder counts."""


def describe(path: str | os.PathLike[str]) -> str | None:
    """What is at a local path, and what to do instead of opening it; None if that is not known. Reads only names.

    describe("data") == "data holds Parquet (.parquet): prepare it first: …"
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _describe_folder(path)
    except OSError:
        return None
    if any(letter in str(path) for letter in "*?[") and not path.exists():
        return f'{path} is a pattern: open a list of paths, tokenfeed.open(sorted(glob.glob("{path}")))'
    suffix = _suffix(path.name)
    if suffix not in _KINDS or _KINDS[suffix][1] is _OPEN_FILES or not path.exists():
        return None
    what, advice = _KINDS[suffix]
    return f"{path} is {what} ({suffix}): {advice.format(path=path)}"


def describe_other(path: Path) -> str | None:
    """What to do with a local file that is never read as plain items: of MDS, Arrow, or a chunk of litdata."""
    if path.suffix not in (".mds", ".arrow", ".feather", ".ipc") and not _is_litdata(path):
        return None
    what, advice = _LITDATA if path.suffix == ".bin" else _KINDS[path.suffix]
    return f"{path} is {what} ({path.suffix}): {advice.format(path=path)}"


def _is_litdata(path: Path) -> bool:
    """Whether the `index.json` beside a file is that of litdata: other systems have one too."""
    index = path.parent / _INDEX
    if path.suffix != ".bin" or not is_file(index) or whole(index).file_bytes > _LARGEST_INDEX:
        return False
    try:
        value = json.loads(peek(index, _LARGEST_INDEX))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.keys() >= {"chunks", "config"}


def describe_remote(address: str, names: Iterable[str] = ()) -> str | None:
    """As `describe`, of an address: of the file that its name says, or of a folder that holds these names."""
    suffix = _suffix(address.rpartition("/")[2])
    if not names and suffix in _KINDS:
        what, advice = _KINDS[suffix]
        advice = _DOWNLOAD if advice is _OPEN_FILES else advice
        return f"{address} is {what} ({suffix}): {advice.format(path=address)}"
    if list(names) == [_INDEX]:  # of a server that cannot list
        return f"{address} holds an {_INDEX}, as data of MosaicML Streaming and litdata does: {_READERS}"
    return _describe_names(address, sorted(names), _DOWNLOAD)


def _describe_folder(path: Path) -> str | None:
    return _describe_names(str(path), sorted(entry.name for entry in islice(os.scandir(path), _MOST_NAMES)))


def _describe_names(path: str, names: Sequence[str], otherwise: str | None = None) -> str | None:
    """What a folder with these names holds. `otherwise` is the advice for token files that are read in place."""
    if SHARD in names or SHARD_SUMS in names:
        return (
            f"{path} is one shard of a store. Open the store: {path.rpartition('/')[0] or 'the folder that it is in'}"
        )
    if "dataset_dict.json" in names:
        return (
            f"{path} holds the splits of a Hugging Face dataset (save_to_disk): {_PREPARE.format(path=path + '/train')}"
        )
    if "_versions" in names or path.endswith(".lance"):
        what, advice = _KINDS[".lance"]
        return f"{path} is {what}: {advice.format(path=path)}"
    found = {_suffix(name): name for name in reversed(names)}
    for suffix, (what, advice) in _KINDS.items():
        if suffix == ".bin" and _INDEX in names:
            what, advice = _LITDATA
        if suffix in found and (suffix != ".json" or len(found) == 1):
            advice = otherwise if otherwise and advice is _OPEN_FILES else advice
            return f"{path} holds {what} ({suffix}): {advice.format(path=path, name=found[suffix])}"
    return None


def _suffix(name: str) -> str:
    """The last suffix but for compression: `a.jsonl.zst` is `.jsonl`."""
    stem = name.removesuffix(".gz").removesuffix(".zst")
    return Path(stem).suffix
