"""The files of a dataset, and where they are.

A dataset is named by one of

    climbmix-400b                                   a dataset known by name (`PRESETS`)
    hf://owner/name[@revision][/folder]             the parquet files of a dataset repository of the Hugging Face hub
    https://host/path/shard_{00000..01822}.parquet  numbered files: the last one is for validation, the rest to train on
    https://host/path/shard_{:05d}.parquet          numbered files without a known end (see `find_dataset`)

Numbered files may be in an object store too, such as `s3://bucket/shard_{00000..00099}.parquet`.
"""

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.address import clean, is_remote, parse

__all__ = ["PRESETS", "Dataset", "RemoteFile", "find_dataset", "hub_folder", "local_name", "numbered"]

PRESETS = {
    "climbmix-400b": ("karpathy/climbmix-400b-shuffle", 6542),
    "fineweb-edu-100b": ("karpathy/fineweb-edu-100b-shuffle", 1822),
}
"""Name → (dataset repository on the hub, number of its last shard): the two that nanochat has trained on."""

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_NUMBER = re.compile(r"\{(?::0(\d)d)?\}")


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, and what is known of it beforehand."""

    name: str
    """Plain name that it gets in the folder."""
    url: str
    """Address without secrets (`storage.address.clean`)."""
    size: int | None = None
    sha256: str | None = None
    on_hub: bool = False
    """Whether the Hugging Face hub can say its size and SHA-256."""


@dataclass(frozen=True)
class Dataset:
    """Files to train on, in order, and one for validation."""

    name: str
    train: tuple[RemoteFile, ...]
    val: RemoteFile

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for file in (*self.train, self.val):
            if not file.name or "/" in file.name or file.name in (".", "..") or file.name.endswith((".tmp", ".json")):
                raise ArgumentError(f"{self.name}: {file.name!r} cannot be the name of a file in a folder of text")
            if file.name in seen:
                raise ArgumentError(f"{self.name}: two files would have the name {file.name!r}")
            seen.add(file.name)


def hub_folder(repository: str, revision: str = "main") -> str:
    """The clean address of a dataset repository's files. The environment variable HF_ENDPOINT names a mirror."""
    endpoint = clean(os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co")
    return f"{endpoint}/datasets/{repository}/resolve/{quote(revision, safe='')}"


def find_dataset(
    source: str,
    *,
    count: int = -1,
    list_repository: Callable[[str], Dataset],
    earlier_val: Callable[[str], str | None] = lambda name: None,
) -> Dataset:
    """The dataset that a text names (see above). Makes no request, except by `list_repository` for `hf://`.

    Of numbered files without a known end, `count` are to train on. The one that follows them is for validation, and
    stays so: a later call with a greater `count` leaves it out. `earlier_val` gives its name for a dataset's name.
    """
    if source in PRESETS:
        repository, last = PRESETS[source]
        return numbered(f"{hub_folder(repository)}/shard_{{00000..{last:05d}}}.parquet", name=source, on_hub=True)
    if source.startswith("hf://"):
        return list_repository(source)
    if is_remote(source):
        if _RANGE.search(source):
            return numbered(source)
        if _NUMBER.search(source):
            return _open_ended(source, count, earlier_val)
    raise ArgumentError(
        f"no dataset {clean(source) if is_remote(source) else repr(source)}: expected one of {', '.join(PRESETS)}, "
        "hf://owner/name, or an address such as https://host/path/shard_{00000..01822}.parquet"
    )


def numbered(template: str, *, name: str | None = None, on_hub: bool = False) -> Dataset:
    """The files of `https://host/path/shard_{00000..01822}.parquet`; the last one is for validation.

    >>> dataset = numbered("https://host/shard_{08..10}.txt")
    >>> [file.name for file in dataset.train], dataset.val.name
    (['shard_08.txt', 'shard_09.txt'], 'shard_10.txt')
    """
    match = _RANGE.search(template)
    if not match or int(match[1]) >= int(match[2]):
        raise ArgumentError(f"{clean(template)}: expected a range of at least two numbers such as {{00000..01822}}")
    numbers = range(int(match[1]), int(match[2]) + 1)
    files = [_file(template, match, number, len(match[1]), on_hub=on_hub) for number in numbers]
    return Dataset(name or _folder_name(template), tuple(files[:-1]), files[-1])


def local_name(path: str) -> str:
    """The plain name of a file in sub-folders: `"sample/10BT/000.parquet"` is `"sample--10BT--000.parquet"`."""
    return path.replace("/", "--")


def _open_ended(template: str, count: int, earlier_val: Callable[[str], str | None]) -> Dataset:
    match = _NUMBER.search(template)
    assert match is not None
    if count < 1:
        raise ArgumentError(
            f"{clean(template)}: the number of files is not known. Say how many to get, or write the range, such as "
            "{00000..01822}"
        )
    name, width, held_out = _folder_name(template), int(match[1] or 0), count
    if (val := earlier_val(name)) is not None:
        before, after = template[: match.start()].rpartition("/")[2], template[match.end() :].partition("?")[0]
        digits = val.removeprefix(unquote(before)).removesuffix(unquote(after))
        held_out = int(digits) if digits.isdecimal() else count  # a file of another dataset is noticed later
    numbers = (number for number in itertools.count() if number != held_out)
    train = [_file(template, match, number, width) for number in itertools.islice(numbers, count)]
    return Dataset(name, tuple(train), _file(template, match, held_out, width))


def _file(template: str, match: re.Match[str], number: int, width: int, *, on_hub: bool = False) -> RemoteFile:
    url = clean(f"{template[: match.start()]}{number:0{width}d}{template[match.end() :]}")
    return RemoteFile(parse(url).key.rpartition("/")[2], url, on_hub=on_hub)


def _folder_name(template: str) -> str:
    """`"host--path"` for `https://host/path/shard_{:05d}.parquet`."""
    host, _, path = clean(template).partition("://")[2].rpartition("/")[0].partition("/")
    return "--".join(part for part in (host.replace(":", "-"), *path.split("/")) if part not in ("", ".", ".."))
