"""The files of a dataset, and where they are.

A dataset is named by one of

    climbmix-400b                                   a dataset known by name (`PRESETS`)
    hf://owner/name[@revision][/folder]             the parquet files of a dataset repository of the Hugging Face hub
    https://host/path/shard_{00000..01822}.parquet  numbered files: the last one is for validation, the rest to train on
    https://host/path/shard_{:05d}.parquet          numbered files without a known end (see `find_dataset`)

Numbered files may be in an object store too, such as `s3://bucket/shard_{00000..00099}.parquet`. The package
huggingface_hub lists repositories, and tells size and SHA-256 of a file; the bytes come as from any other server.
"""

import itertools
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from tokenfeed.errors import ArgumentError, DownloadError, quantity
from tokenfeed.storage import hub
from tokenfeed.storage.address import clean, is_remote, parse
from tokenfeed.storage.retries import Failed
from tokenfeed.text.sources.finding import Found, read_listing
from tokenfeed.text.sources.splitting import named_split

__all__ = ["PRESETS", "Dataset", "RemoteFile", "default_folder", "find_dataset", "local_name", "look_up", "numbered"]

PRESETS = {
    "climbmix-400b": ("karpathy/climbmix-400b-shuffle", 6542),
    "fineweb-edu-100b": ("karpathy/fineweb-edu-100b-shuffle", 1822),
}
"""Name → (dataset repository on the hub, number of its last shard): the two that nanochat has trained on."""

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_NUMBER = re.compile(r"\{(?::0(\d)d)?\}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_NAME = 200


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
    """Files to train on, in order, and those for validation."""

    name: str
    train: tuple[RemoteFile, ...]
    val: tuple[RemoteFile, ...] = ()
    left_out: tuple[str, ...] = ()
    """Names of files that are for tests: they are not fetched."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for file in (*self.train, *self.val):
            if not _is_plain(file.name) or file.name.endswith((".tmp", ".json")):
                raise ArgumentError(
                    f"{self.name!a:.300}: {file.name!a:.300} cannot be the name of a file in a folder of text"
                )
            if file.name in seen:
                raise ArgumentError(f"{self.name}: two files would have the name {file.name!r}")
            seen.add(file.name)


def _is_plain(name: str) -> bool:
    """Whether a folder can have a file of this name, and the longer name of a part of it."""
    has_letters = name not in ("", ".", "..") and "/" not in name and "\0" not in name
    return has_letters and len(name.encode(errors="surrogatepass")) <= _LONGEST_NAME and not _SURROGATE.search(name)


def default_folder(name: str) -> Path:
    """The folder of a dataset if the caller names none."""
    if not _is_plain(name):
        raise ArgumentError(f"{name!a:.300} cannot be the name of a folder: name one to download to")
    cache = os.environ.get("TOKENFEED_CACHE")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache" / "tokenfeed") / name


def find_dataset(source: str, *, count: int = -1, folder: Path | None = None) -> Dataset:
    """The dataset that a text names (see above). Makes no request, except for `hf://`.

    Of numbered files without a known end, `count` are to train on. The one that follows them is for validation, and
    stays so: where the folder's list names one, that one is left out of those to train on.
    """
    if source in PRESETS:
        repository, last = PRESETS[source]
        base = hub.server_address(hub.repository_of(f"hf://{repository}"))
        return numbered(f"{base}/shard_{{00000..{last:05d}}}.parquet", name=source, on_hub=True)
    if source.startswith("hf://"):
        return _list_repository(source)
    if is_remote(source):
        if _RANGE.search(source):
            return numbered(source)
        if match := _NUMBER.search(source):
            return _open_ended(source, match, count, folder)
    raise ArgumentError(
        f"no dataset {clean(source) if is_remote(source) else repr(source)}: expected one of {', '.join(PRESETS)}, "
        "hf://owner/name, or an address such as https://host/path/shard_{00000..01822}.parquet"
    )


def numbered(template: str, *, name: str | None = None, on_hub: bool = False) -> Dataset:
    """The files of `https://host/path/shard_{00000..01822}.parquet`; the last one is for validation.

    >>> dataset = numbered("https://host/shard_{08..10}.txt")
    >>> [file.name for file in dataset.train], dataset.val[0].name
    (['shard_08.txt', 'shard_09.txt'], 'shard_10.txt')
    """
    match = _RANGE.search(template)
    if not match or int(match[1]) >= int(match[2]):
        raise ArgumentError(f"{clean(template)}: expected a range of at least two numbers such as {{00000..01822}}")
    numbers = range(int(match[1]), int(match[2]) + 1)
    files = [_file(template, match, number, len(match[1]), on_hub=on_hub) for number in numbers]
    return Dataset(name or _folder_name(template), tuple(files[:-1]), (files[-1],))


def local_name(path: str) -> str:
    """The plain name of a file in sub-folders: `"sample/10BT/000.parquet"` is `"sample--10BT--000.parquet"`."""
    return path.replace("/", "--")


def _open_ended(template: str, match: re.Match[str], count: int, folder: Path | None) -> Dataset:
    if count < 1:
        raise ArgumentError(
            f"{clean(template)}: the number of files is not known. Say how many to get, or write the range, such as "
            "{00000..01822}"
        )
    name, width, held_out = _folder_name(template), int(match[1] or 0), count
    listing = read_listing(folder or default_folder(name))
    if listing is not None and listing.val:
        before, after = template[: match.start()].rpartition("/")[2], template[match.end() :].partition("?")[0]
        digits = listing.val[0].removeprefix(unquote(before)).removesuffix(unquote(after))
        held_out = int(digits) if digits.isdecimal() else count  # a file of another dataset is noticed later
    numbers = (number for number in itertools.count() if number != held_out)
    train = [_file(template, match, number, width) for number in itertools.islice(numbers, count)]
    return Dataset(name, tuple(train), (_file(template, match, held_out, width),))


def _file(template: str, match: re.Match[str], number: int, width: int, *, on_hub: bool = False) -> RemoteFile:
    url = clean(f"{template[: match.start()]}{number:0{width}d}{template[match.end() :]}")
    return RemoteFile(parse(url).key.rpartition("/")[2], url, on_hub=on_hub)


def _folder_name(template: str) -> str:
    """`"host--path"` for `https://host/path/shard_{:05d}.parquet`."""
    host, _, path = clean(template).partition("://")[2].rpartition("/")[0].partition("/")
    return "--".join(part for part in (host.replace(":", "-"), *path.split("/")) if part not in ("", ".", ".."))


def _list_repository(address: str) -> Dataset:
    """The parquet files of a repository, in the order of their paths. One request for every thousand files or so.

    Files that are called validation, or lie in such a folder, are for that, and those called test are left out, as
    `named_split` says. Where none is for validation, `stream` and `prepare` hold out a share of the documents.
    """
    place = hub.repository_of(address)
    base = hub.server_address(place._replace(path=""))
    found = [each for each in hub.list_files(address, place) if each.path.endswith(".parquet")]
    files: dict[str, list[RemoteFile]] = {"train": [], "val": [], "test": []}
    for each in found:
        sha256 = each.lfs.sha256 if each.lfs is not None and _SHA256.fullmatch(each.lfs.sha256) else None
        url = f"{base}/{quote(each.path, errors='surrogatepass')}"
        file = RemoteFile(local_name(each.path), url, each.size, sha256)
        split, unclear = named_split(Found(each.path, each.path))
        if unclear:
            raise DownloadError(
                f"{address}: by its name, {each.path} may be held out, or data. Stream or prepare the files in place, "
                f"and say which: '{address.rstrip('/')}/**/*.parquet' with val='{unclear}', or with val=() for data"
            )
        files[split or "train"].append(file)
    if not files["train"]:
        raise DownloadError(f"{address} has {quantity(len(found), 'parquet file')}, and none to train on")
    name = local_name("/".join(filter(None, (place.name, place.path))))
    name += "" if place.revision == "main" else f"@{place.revision}"
    return Dataset(name, tuple(files["train"]), tuple(files["val"]), tuple(file.name for file in files["test"]))


def look_up(file: RemoteFile) -> RemoteFile:
    """A file of the hub, with size and SHA-256. One request, tried once; raises `Failed`."""
    library = hub.library()
    try:
        token = library.get_token() or False
        found = library.get_hf_file_metadata(file.url, token=token, endpoint=hub.endpoint())
    except library.errors.HTTPError as error:
        raise Failed(hub.failure_of(error)) from None
    digest = found.etag if _SHA256.fullmatch(found.etag or "") else None
    return replace(file, size=found.size, sha256=digest)
