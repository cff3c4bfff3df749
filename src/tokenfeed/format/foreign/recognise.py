"""Names what lies at a path that cannot be opened, and what to do with it."""

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

__all__ = ["describe", "describe_remote"]

_MOST_NAMES = 1000

_PREPARE = (
    "prepare it first: `tokenfeed prepare {path} -o STORE --tokenizer …` for text, `--tokens-column input_ids` for "
    "token ids; text can also be trained on at once, with tokenfeed.stream"
)
_LOOP = "copy its samples to a tokenfeed.Writer in a loop, as docs/guides/migrating.md shows"
_DOWNLOAD = (
    "token files of others are read where they lie, on disk. Download it and open the copy; or copy it once to a store "
    "(docs/guides/migrating.md), which can be read from a server"
)
_READERS = "read it by its own package and give that to tokenfeed.prepare (docs/guides/other-readers.md)"
_OPEN_FILES = 'open the files themselves: tokenfeed.open("{path}/{name}"), or a list of them'
_ARROW = "data of Hugging Face datasets (save_to_disk)", _PREPARE
_TEXT = "plain text", _PREPARE
_JSON = "JSON lines", _PREPARE

_KINDS: dict[str, tuple[str, str]] = {
    ".mds": ("data of MosaicML Streaming", _LOOP),
    ".ds": ("datatrove token files", _OPEN_FILES),
    ".idx": ("Megatron token files", _OPEN_FILES),
    ".bin": ("token files", _OPEN_FILES),
    ".npy": ("token files", _OPEN_FILES),
    ".arrow": _ARROW,
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


def describe_remote(address: str, names: Iterable[str] = ()) -> str | None:
    """As `describe`, of an address: of the file that its name says, or of a folder that holds these names."""
    suffix = _suffix(address.rpartition("/")[2])
    if not names and suffix in _KINDS:
        what, advice = _KINDS[suffix]
        advice = advice if advice in (_PREPARE, _READERS) else _DOWNLOAD
        return f"{address} is {what} ({suffix}): {advice.format(path=address)}"
    if list(names) == ["index.json"]:  # of a server that cannot list
        return f"{address} holds an index.json, as data of MosaicML Streaming and litdata does: {_DOWNLOAD}"
    return _describe_names(address, sorted(names), _DOWNLOAD)


def _describe_folder(path: Path) -> str | None:
    return _describe_names(str(path), sorted(entry.name for entry in islice(os.scandir(path), _MOST_NAMES)))


def _describe_names(path: str, names: Sequence[str], otherwise: str | None = None) -> str | None:
    """What a folder with these names holds. `otherwise` is the advice for what cannot be prepared."""
    if "dataset_dict.json" in names:
        return (
            f"{path} holds the splits of a Hugging Face dataset (save_to_disk): {_PREPARE.format(path=path + '/train')}"
        )
    if "_versions" in names or path.endswith(".lance"):
        what, advice = _KINDS[".lance"]
        return f"{path} is {what}: {advice.format(path=path)}"
    found = {_suffix(name): name for name in reversed(names)}
    for suffix, (what, advice) in _KINDS.items():
        if suffix in found and (suffix != ".json" or len(found) == 1):
            advice = advice if advice in (_PREPARE, _READERS) else otherwise or advice
            return f"{path} holds {what} ({suffix}): {advice.format(path=path, name=found[suffix])}"
    return None


def _suffix(name: str) -> str:
    """The last suffix but for compression: `a.jsonl.zst` is `.jsonl`."""
    stem = name.removesuffix(".gz").removesuffix(".zst")
    return Path(stem).suffix
