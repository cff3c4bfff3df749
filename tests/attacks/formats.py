"""Manifests, shards and files that are whole, signed and wrong; files that are no files; stores without end."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from fuzz.harness import Case
from fuzz.store_targets import check, load_tokens, options, read_store, some, write_store
from opening import open_store
from tokenfeed.format.records import sign
from tokenfeed.store.verify import verify

Attempt = Callable[[Case], None]
Change = Callable[[Any], None]
VAST = [2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**400, -1, 1.5, True, None, "7", [7], {}]


def put(*keys: Any, to: Any) -> Change:
    def change(manifest: Any) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = to

    return change


def rename(*keys: Any, to: str) -> Change:
    """Another name for a key of an object."""

    def change(manifest: Any) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[to] = manifest.pop(keys[-1])

    return change


def every_shard(**fields: Any) -> Change:
    return lambda manifest: [entry.update(fields) for entry in manifest["shards"]]


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


NAMES = ["", ".", "..", "../part-00000", "/etc", "a/b", "a\0b", "é", "a" * 300, ".hidden", "a\\b", "tokens\n", "[/x]"]
DTYPES = [
    *("O", "|V0", ">u2", "<U0", "V99999999999", "m8[ns]", "u2,u2", "(2,)u2", "", "datetime64", 7, None, [], {}, "<u9"),
    *([["a", "<u2"]], [["a", "|O"]], [["a", "<u2", [2**40]]], [["a"]], _nested(900), [["", "<u2"], ["", "<u2"]]),
]
MANIFEST_LIES: dict[str, Change] = {
    **{f"version {version!r}": put("version", to=version) for version in (0, 2, "1", True, None, 1.0)},
    **{f"format {form!r}": put("format", to=form) for form in ("", "tokenfeed-shard", None, 7)},
    "no columns": put("columns", to={}),
    "columns is a list": put("columns", to=[]),
    **{f"a dtype {dtype!r:.40}": put("columns", "tokens", "dtype", to=dtype) for dtype in DTYPES},
    **{
        f"a shape {shape}": put("columns", "tokens", "shape", to=shape)
        for shape in ([-1], [0], [2**31, 2**31], [2**62], [2**32, 2**32], [1] * 70, "3", [1.5], [True], [[1]])
    },
    **{f"a column named {name!r:.20}": rename("columns", "tokens", to=name) for name in NAMES},
    **{f"a table named {name!r:.20}": rename("spans", "documents", to=name) for name in NAMES},
    **{
        f"a codec {codec!r:.20}": put("spans", "documents", "codec", to=codec)
        for codec in ("pickle", "../x", "[/x]", "x" * 10_000, 7, "os.system", "numpy", None, "\x1b]0;title\x07")
    },
    **{f"a shard named {name!r:.20}": put("shards", 1, "name", to=name) for name in (*NAMES, "part-00000", "missing")},
    **{f"a shard of {items!r:.20} items": put("shards", 1, "items", to=items) for items in (0, 1, 617, *VAST)},
    **{f"shards of {items} items each": every_shard(items=items) for items in (2**60, 2**61, 2**62 - 1)},
    **{f"{spans!r:.20} spans": put("shards", 1, "spans", "documents", 0, to=spans) for spans in (0, 17, 19, *VAST)},
    **{f"{size!r:.20} payload bytes": put("shards", 1, "spans", "documents", 1, to=size) for size in (0, 165, *VAST)},
    **{f"a checksum {text!r:.20}": put("shards", 1, "checksum", to=text) for text in ("0" * 16, "", "A" * 16, 7)},
    **{f"a split {name!r:.20}": put("shards", 1, "split", to=name) for name in ("../x", "", 7, "val", "a" * 300)},
    **{f"a tokenizer {value!r:.20}": put("tokenizer", to=value) for value in (7, [], "x" * 10**6, "\x1b[2J", "\ud800")},
    **{
        f"a provenance {value!r:.20}": put("provenance", to=value)
        for value in (7, [], {"a": _nested(900)}, {"a": "x" * 10**6}, {"\x1b": "\x1b"})
    },
    **{f"shards are {value!r}": put("shards", to=value) for value in (None, [], {}, 7, [None], [[]], [{}])},
    **{f"stores are {value!r}": put("stores", to=value) for value in (None, [], {}, 7, [None], [{}])},
    "ten thousand columns": lambda manifest: manifest["columns"].update(
        {f"c{number}": {"dtype": "<u2", "shape": []} for number in range(10_000)}
    ),
    "ten thousand shards that are not there": lambda manifest: manifest["shards"].extend(
        {**manifest["shards"][0], "name": f"x{number}"} for number in range(10_000)
    ),
}
RECORD_LIES: dict[str, Change] = {
    **{f"items {items!r:.20}": put("items", to=items) for items in (0, 617, *VAST)},
    **{f"spans {spans!r:.20}": put("spans", "documents", to=[spans, 166]) for spans in (0, 17, *VAST)},
    **{f"files named {name!r:.20}": rename("files", "tokens.npy", to=name) for name in NAMES},
    **{f"a file of {size!r:.20} bytes": put("files", "tokens.npy", "bytes", to=size) for size in (0, 1361, *VAST)},
    "no files": put("files", to={}),
    "a split": put("split", to="val"),
}


def signed(text: bytes, change: Change) -> bytes:
    """A file of JSON with a change, and a checksum that is right."""
    fields = json.loads(text)
    name = fields["format"]
    del fields["checksum"]
    change(fields)
    return sign(name, fields).encode("utf8", "surrogatepass")


def manifests(folder: Path) -> Attempt:
    """Every named change of the manifest, sealed, and of a shard's record, unsealed and sealed."""
    path = folder / "store"
    write_store(path)
    files = {"manifest": path / "manifest.json", "record": path / "part-00001" / "shard.json"}
    originals = {file: file.read_bytes() for file in files.values()}
    named = [("manifest", *each) for each in MANIFEST_LIES.items()] + [
        ("record", *each) for each in RECORD_LIES.items()
    ]

    def attempt(case: Case) -> None:
        for file, data in originals.items():
            file.write_bytes(data)
        kind, name, change = named[case.number % len(named)]
        case.write(files[kind], signed(originals[files[kind]], change))
        case.note("lie", name)
        if kind == "record" and case.number < len(named):
            unsealed = signed(originals[files["manifest"]], lambda manifest: manifest.pop("shards"))
            files["manifest"].write_bytes(unsealed)
        verify(path, quick=case.rng.random() < 0.5)
        store = open_store(path, **options(case))
        read_store(case, store, load_tokens(path, store))

    return attempt


# Files that are no files, or not those that are meant.


def _no_file(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _to(target: str) -> Callable[[Path], None]:
    return _no_file(lambda path: path.symlink_to(target))


def _edited(old: bytes, new: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new, 1)) and None


FILE_LIES: dict[str, Callable[[Path], None]] = {
    "missing": _no_file(lambda path: None),
    "empty": lambda path: path.write_bytes(b"") and None,
    "a byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "a byte too long": lambda path: os.truncate(path, path.stat().st_size + 1),
    "vast": lambda path: os.truncate(path, 1 << 42),
    "a folder": _no_file(Path.mkdir),
    "a pipe that nobody writes to": _no_file(os.mkfifo),
    "a link to itself": _no_file(lambda path: path.symlink_to(path.name)),
    "a link to nothing": _to("nothing"),
    "a link to zeros without end": _to("/dev/zero"),
    "a link to a device without content": _to("/dev/null"),
    "a link to a terminal": _to("/dev/tty"),
    "a link to a file of the system": _to("/etc/passwd"),
    "a link to a folder": _to("/"),
    "the file of another shard": lambda path: shutil.copy(path.parent.parent / "part-00000" / path.name, path) and None,
    "in Fortran's order": _edited(b"False", b"True "),
    "of big-endian numbers": _edited(b"<", b">"),
    "with another version of header": _edited(b"\x01\x00", b"\x02\x00"),
    "with more items in its header": _edited(b"(6", b"(7"),
    "with a header of 65,535 bytes": lambda path: (
        path.write_bytes(path.read_bytes()[:8] + b"\xff\xff" + path.read_bytes()[10:]) and None
    ),
    "with a call in its header": _edited(b"{'descr'", b"{exit()  "),
}


def files(folder: Path) -> Attempt:
    """Every named change of every file of a shard."""
    path = folder / "store"
    write_store(path)
    shutil.copytree(path, folder / "good")
    names = sorted(each.name for each in (path / "part-00001").iterdir())
    named = [(name, each) for name in names for each in FILE_LIES]
    named += [("manifest.json", each) for each in FILE_LIES if each != "the file of another shard"]
    tokens = load_tokens(path, tokenfeed.open(path))

    def attempt(case: Case) -> None:
        shutil.rmtree(path)
        shutil.copytree(folder / "good", path)
        case.may_open_anything = True  # links are followed; what they lead to must be what the manifest says
        name, lie = named[case.number % len(named)]
        case.note("lie", (name, lie))
        FILE_LIES[lie](path / name if name == "manifest.json" else path / "part-00001" / name)
        is_quick = case.rng.random() < 0.5
        is_left = is_quick and lie == "the file of another shard"  # of the same size: its checksum would tell
        is_found = not verify(path, quick=is_quick).ok or name == "shard.json" or lie == "missing" or _same(folder)
        check(is_found or is_left, "verify has found nothing")
        store = open_store(path, **options(case))
        if lie != "the file of another shard":
            read_store(case, store, tokens)
        else:
            store.windows(16).read(some(case.rng, len(store.windows(16))))

    return attempt


def _same(folder: Path) -> bool:
    """Whether the change changed nothing."""
    return all(
        each.read_bytes() == (folder / "good" / each.relative_to(folder / "store")).read_bytes()
        for each in (folder / "store").rglob("*.*")
        if each.is_file()
    )


# Combined stores.


def combined(folder: Path) -> Attempt:
    """Stores of stores: of themselves, of nothing, of the same again and again."""
    write_store(folder / "good")
    good = tokenfeed.open(folder / "good")
    tokens = load_tokens(folder / "good", good)
    tokenfeed.combine([folder / "good", folder / "good"], folder / "twice")
    twice = json.loads((folder / "twice" / "manifest.json").read_bytes())
    reference = twice["stores"][0]
    uris = [
        *("../good", "../twice", ".", "", "..", "/", "../good/", "../good/part-00000", "../missing", "/etc/passwd"),
        *("file:///etc/passwd", "memory://x/y", "http://127.0.0.1:1/x", "s3://", "gs://x", "hf://x/y", "://", "a\0b"),
        *("../" * 2000 + "x", "x" * 70_000, "\ud800", "http://[", "http://127.0.0.1:99999/x", "../good?x=1", "-"),
        *("%2e%2e", "~"),
    ]

    def attempt(case: Case) -> None:
        case.may_open_anything = True
        number, place = case.number, folder / "attacked"
        place.mkdir(exist_ok=True)
        if number < len(uris):
            stores = [{**reference, "uri": uris[number]}]
        else:
            stores = [
                {**reference, "uri": case.rng.choice(uris[:9]), "identity": case.rng.choice((good.identity, "0" * 16))}
                for _ in range(case.rng.choice((1, 2, 3, 40)))
            ]
        text = signed((folder / "twice" / "manifest.json").read_bytes(), put("stores", to=stores))
        case.write(place / "manifest.json", text)
        os.environ["TOKENFEED_TIMEOUT"] = "1"
        store = tokenfeed.open(place)
        copies = [part for part in stores if part["uri"] in ("../good", "../good/")]
        check(len(copies) == len(stores), "opened what is not there")
        check(store.num_items == tokens.size * len(stores), "items")
        expected = np.concatenate([tokens] * len(stores))
        rows = store.windows(16).read(some(case.rng, len(store.windows(16))))
        for row, sample in zip(rows.tokens, rows.samples.tolist(), strict=True):
            check(np.array_equal(row, expected[sample * 16 : sample * 16 + 17]), sample)

    return attempt
