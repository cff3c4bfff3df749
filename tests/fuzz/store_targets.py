"""Stores, packing plans, files of other systems and the cache on disk, damaged and read."""

import gzip
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from fuzz.harness import Case
from fuzz.mutator import INTEGERS, mutate_bytes, mutate_json, mutate_numbers
from opening import open_store
from plain import make_documents
from tokenfeed.errors import TokenfeedError
from tokenfeed.format.npy import parse_header
from tokenfeed.kernels import blocks
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage import objects
from tokenfeed.storage.disk_cache import DiskCache
from tokenfeed.storage.files import Part
from tokenfeed.store.verify import verify

Attempt = Callable[[Case], None]
LENGTH = 16
SPAN_HEADER = 128


def write_store(path: Path) -> None:
    make_documents([(7 * number * number) % 61 for number in range(60)]).write(path, shard_bytes=6_000, name="part")


def some(rng: Any, count: int) -> np.ndarray:
    """Up to 40 of the numbers [0, count), the first and the last among them."""
    if count <= 40:
        return np.arange(count)
    return np.array([0, count - 1, *(rng.randrange(count) for _ in range(38))])


def check(condition: Any, *about: Any) -> None:
    """Wrong data is a finding. No `assert`: it must hold under -O as well."""
    if not condition:
        raise RuntimeError("wrong data", *about)


def options(case: Case) -> dict[str, Any]:
    """Any way of reading."""
    rng = case.rng
    return {"backend": rng.choice(("pread", "mmap")), "open_files": rng.choice((None, None, 0))}


def read_store(case: Case, store: tokenfeed.Store, tokens: np.ndarray) -> None:
    """Read windows and spans, and compare items with those that are expected."""
    str(store), store.identity
    windows = store.windows(LENGTH)
    numbers = some(case.rng, len(windows))
    batch = windows.read(numbers)
    for row, number in zip(batch.tokens, numbers.tolist(), strict=True):
        check(np.array_equal(row, tokens[number * LENGTH : (number + 1) * LENGTH + 1]), "window", number)
    for table in store.spans:
        for row in batch.spans[table]:
            [span.payload for span in row]
        documents = store.documents(table)
        numbers = some(case.rng, len(documents))
        first_items, lengths = store.spans[table].locate(numbers)
        found = documents.read(numbers)
        for row, (first, length) in enumerate(zip(first_items.tolist(), lengths.tolist(), strict=True)):
            document = found[row]
            check(np.array_equal(document.tokens, tokens[first : first + length]), table, first, length)
            str(document.payload)


def load_tokens(path: Path, store: tokenfeed.Store) -> np.ndarray:
    """The items of the shards that a manifest lists, as many as it says; of one that has not so many none is read."""
    arrays = [np.empty(0, np.uint16)]
    for shard in store.shards:
        file = path / shard.name / "tokens.npy"
        found = np.load(file) if file.is_file() else arrays[0]
        missing = min(max(0, shard.num_items - found.size), 1 << 20)
        arrays.append(np.pad(found[: shard.num_items], (0, missing)))
    return np.concatenate(arrays)


def manifest(folder: Path) -> Attempt:
    """`manifest.json`, sealed or not, and `shard.json`."""
    path = folder / "store"
    write_store(path)
    sealed = json.loads((path / "manifest.json").read_bytes())
    unsealed = {key: value for key, value in sealed.items() if key != "shards"}
    record = json.loads((path / "part-00001" / "shard.json").read_bytes())
    originals = {name: (path / name).read_bytes() for name in ("manifest.json", "part-00001/shard.json")}

    def attempt(case: Case) -> None:
        for name, data in originals.items():
            (path / name).write_bytes(data)
        if case.rng.random() < 0.6:
            case.write(path / "manifest.json", mutate_json(case.rng, case.rng.choice((sealed, sealed, unsealed))))
        else:
            (path / "manifest.json").write_text(json.dumps(unsealed))
            case.write(path / "part-00001" / "shard.json", mutate_json(case.rng, record))
        if case.rng.random() < 0.1:
            verify(path, quick=case.rng.random() < 0.5)
        store = open_store(path, **options(case))
        read_store(case, store, load_tokens(path, store))

    return attempt


def remote_manifest(folder: Path) -> Attempt:
    """A server whose manifest and files disagree: nothing about a file is known there before it is asked for."""
    path, uri = folder / "store", "memory://fuzz/store"
    write_store(path)
    for file in path.rglob("*.*"):
        objects.write(f"{uri}/{file.relative_to(path)}", file.read_bytes())
    sealed = json.loads((path / "manifest.json").read_bytes())

    def attempt(case: Case) -> None:
        data = mutate_json(case.rng, sealed)
        case.note("manifest.json", data)
        objects.write(f"{uri}/manifest.json", data)
        store = tokenfeed.open(uri)
        read_store(case, store, load_tokens(path, store))

    return attempt


DESCRS = [
    *("'<u2'", "'>u2'", "'|O'", "'<U0'", "'|V0'", "'V99999999999'", "'<M8[ns]'", "'<f2,<f4'", "'(2,)<i4'", "'('"),
    *("'u2\\x00'", "[('a', '<u2')]", "[('a', '<u2', (3,))]", "[('', '<u2')]", "[('a', '|O')]", "[]", "{}", "None"),
    *("[('a', '<u2', (2147483648,))]", "[('a', '<u2', (99999999999999999999,))]", "[('a', [('b', '<u2')])]", "'é'"),
    *("[('a', '<u2'), ('a', '<u2')]", "('<u2', (2,))", "'<u2' '<u4'", "b'<u2'", "'datetime64'", "['<u2']", "-1", "'S'"),
]
SHAPES = [
    *("(8,)", "()", "(2, 4)", "(-1,)", "(True,)", "8", "[8]", "(8.0,)", "('8',)", "(0,)", "(2**62,)", "(8, 0)", "(9,)"),
    *(f"({number},)" for number in INTEGERS),
    *(f"({10**4300 - 1},)", f"({'9' * 5000},)", "(4, 2)", "(((((8,)))))", "(" * 300 + "8" + ")" * 300),
]


def npy(folder: Path) -> Attempt:
    """Headers of `.npy` files, of all three versions."""
    path = folder / "tokens.npy"
    values = np.arange(8, dtype="<u2")

    def attempt(case: Case) -> None:
        rng = case.rng
        fortran = rng.choice(("False",) * 5 + ("True", "0", "'x'", "[]"))
        text = f"{{'descr': {rng.choice(DESCRS)}, 'fortran_order': {fortran}, 'shape': {rng.choice(SHAPES)}, }}"
        if rng.random() < 0.5:
            text = "{'descr': '<u2', 'fortran_order': False, 'shape': (8,), }"
        if rng.random() < 0.1:
            text = rng.choice(("-", "(", "[", "{1:", "1+", "~")) * rng.choice((10, 1000, 20_000)) + text
        version = rng.choice((1, 1, 1, 2, 3))
        body = text.encode("latin1" if version < 3 else "utf8").ljust(54) + b"\n"
        size = struct.pack("<H" if version == 1 else "<I", len(body) & 0xFFFF)
        data = b"\x93NUMPY" + bytes((version, 0)) + size + body + values.tobytes()
        case.write(path, mutate_bytes(rng, data, 3) if rng.random() < 0.7 else data)
        with path.open("rb") as file:
            dtype, shape, start = parse_header(file, str(path))
        store = open_store(path, **options(case))
        items = np.fromfile(path, dtype, offset=start)
        check(shape == items.shape, shape)
        view = store.windows(1, extra=0)
        check(view.read(np.arange(len(view))).tokens.tobytes() == items.tobytes())

    return attempt


def spans(folder: Path) -> Attempt:
    """Starts, anchors and offsets whose sizes agree and whose numbers lie; read in every way, and verified."""
    path = folder / "store"
    write_store(path)
    tokens = np.concatenate([np.load(shard / "tokens.npy") for shard in sorted(path.glob("part-*"))])
    files = sorted((path / "part-00001").glob("*.*.npy"))

    def attempt(case: Case) -> None:
        file = case.rng.choice(files)
        data = file.read_bytes()
        if case.rng.random() < 0.9:
            numbers = mutate_numbers(case.rng, np.frombuffer(data[SPAN_HEADER:], np.int64))
            changed = data[:SPAN_HEADER] + numbers.tobytes()
        else:
            changed = mutate_bytes(case.rng, data)
        try:
            case.write(file, changed)
            if case.rng.random() < 0.3:
                check(verify(path).ok == (changed == data), "verify")
            store = open_store(path, **options(case))
            if case.rng.random() < 0.2:
                store.pack(LENGTH, cache=folder / "packed")
                rows = store.packed(LENGTH, cache=folder / "packed", spans=list(store.spans))
                rows.read(some(case.rng, len(rows)))
            read_store(case, store, tokens)
        finally:
            file.write_bytes(data)

    return attempt


def payloads(folder: Path) -> Attempt:
    """Payload bytes of every codec, and the offsets of them."""
    codecs = ("bytes", "utf8", "json", "msgpack", "numpy")
    values = {
        "bytes": b"\0\xff" * 9,
        "utf8": "é😀" * 9,
        "json": {"a": [1, None, {"b": "é"}]},
        "msgpack": {"a": [1, None, {"b": "é"}]},
        "numpy": np.arange(12).reshape(3, 4),
    }
    path = folder / "store"
    with tokenfeed.Writer(path, columns={"tokens": "u1"}, spans=dict(zip(codecs, codecs, strict=True))) as writer:
        for _ in range(9):
            writer.append({"tokens": [1, 2, 3]}, **values)
    (shard,) = (each for each in path.iterdir() if each.is_dir())

    def attempt(case: Case) -> None:
        codec = case.rng.choice(codecs)
        file = shard / f"{codec}.payload.bin"
        data = file.read_bytes()
        try:
            case.write(file, mutate_bytes(case.rng, data)[: len(data)].ljust(len(data), b"\0"))
            store = open_store(path, **options(case))
            for number in range(9):
                try:
                    str(store.spans[codec][number].payload)
                except TokenfeedError:
                    continue
            for other in codecs:
                if other != codec:
                    check(np.array_equal(store.spans[other][4].payload, values[other]), other)
        finally:
            file.write_bytes(data)

    return attempt


def packing_plan(folder: Path) -> Attempt:
    """`pack.json`, with its checksum made right at times, `rows.npy` and `pieces.npy`: refused, or as it was."""
    path = folder / "store"
    write_store(path)
    plan = tokenfeed.open(path).pack(LENGTH, cache=folder / "plan").folder
    originals = {file.name: file.read_bytes() for file in plan.iterdir()}
    view = tokenfeed.open(path).packed(LENGTH, cache=plan)
    expected = view.read(np.arange(len(view))).tokens.copy()

    def attempt(case: Case) -> None:
        for each, data in originals.items():
            (plan / each).write_bytes(data)
        name = case.rng.choice(list(originals))
        if name == "pack.json":
            changed = mutate_json(case.rng, json.loads(originals[name]))
            if case.rng.random() < 0.7:
                changed = _with_checksum(changed)
        elif case.rng.random() < 0.5:
            body = np.frombuffer(originals[name][SPAN_HEADER:], np.int64)
            changed = originals[name][:SPAN_HEADER] + mutate_numbers(case.rng, body).tobytes()
        else:
            changed = mutate_bytes(case.rng, originals[name])
        case.write(plan / name, changed)
        rows = open_store(path, **options(case)).packed(LENGTH, cache=plan)
        numbers = some(case.rng, len(rows))
        check(np.array_equal(rows.read(numbers).tokens, expected[numbers]))
        check(len(rows) == len(expected))

    return attempt


def _with_checksum(data: bytes) -> bytes:
    try:
        fields = json.loads(data)
        fields.pop("checksum", None)
        return json.dumps({**fields, "checksum": checksum(json.dumps(fields).encode())}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def _foreign(folder: Path, originals: dict[str, bytes], name: str, **arguments: Any) -> Attempt:
    """Damage one of several files that make up one; what opens is compared with the bytes of the file that it says."""

    def attempt(case: Case) -> None:
        for each, data in originals.items():
            (folder / each).write_bytes(data)
        changed = case.rng.choice(list(originals))
        case.write(folder / changed, mutate_bytes(case.rng, originals[changed]))
        store = open_store(folder / name, **arguments, **options(case))
        (shard,) = store.shards
        part = shard.column_part("tokens")
        items = np.fromfile(part.path, store.columns["tokens"].dtype, offset=part.byte_start)
        check(items.size == store.num_items)
        read_store(case, store, items)

    return attempt


TOKENS = np.random.default_rng(0).integers(0, 300, 400).astype("<u2")


def megatron(folder: Path) -> Attempt:
    lengths = np.full(40, 10, "<i4")
    pointers = (np.arange(40) * 20).astype("<i8")
    documents = np.array([0, 3, 3, 17, 40], "<i8")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 40, 5)
    index = header + lengths.tobytes() + pointers.tobytes() + documents.tobytes()
    return _foreign(folder, {"a.idx": index, "a.bin": TOKENS.tobytes()}, "a.idx")


def datatrove(folder: Path) -> Attempt:
    files = {
        "a.ds": TOKENS.tobytes(),
        "a.ds.index": np.array([10, 10, 300, 400], "<u8").tobytes(),
        "a.ds.metadata": b"gpt2|2\n400\n0.4 K\n",
        "a.ds.loss": (TOKENS % 2).astype(np.uint8).tobytes(),
    }
    return _foreign(folder, files, "a.ds")


def headed(folder: Path) -> Attempt:
    attempts = []
    for kind, (magic, version, size) in {"llmc": (20240520, 1, 0), "nemo": (278895051, 1, 2)}.items():
        header = struct.pack("<4i", magic, version, 400, size).ljust(1024, b"\0")
        (folder / kind).mkdir()
        attempts.append(_foreign(folder / kind, {"a.bin": header + TOKENS.tobytes()}, "a.bin", eos=7))
    return lambda case: case.rng.choice(attempts)(case)


def olmo(folder: Path) -> Attempt:
    rows = b"".join(b"%d,%d,id,source,%d\n" % (start, start + 40, start) for start in range(0, 400, 40))
    good = _foreign(
        folder, {"a.npy": TOKENS.tobytes(), "a.csv.gz": gzip.compress(rows, mtime=0)}, "a.npy", dtype="uint16"
    )

    def attempt(case: Case) -> None:
        """Half of the tables are damaged before they are compressed."""
        if case.rng.random() < 0.5:
            return good(case)
        (folder / "a.npy").write_bytes(TOKENS.tobytes())
        case.write(folder / "a.csv.gz", gzip.compress(mutate_bytes(case.rng, rows), 1, mtime=0))
        return read_store(case, tokenfeed.open(folder / "a.npy", dtype="uint16"), TOKENS)

    return attempt


def nanogpt(folder: Path) -> Attempt:
    """Raw tokens, of a dtype that the caller says, with a damaged `meta.pkl` beside them, which is never loaded."""
    return _foreign(
        folder, {"train.bin": TOKENS.tobytes(), "meta.pkl": b"cos\nsystem\n(S'false'\ntR."}, "train.bin", dtype="uint16"
    )


def disk_cache(folder: Path) -> Attempt:
    """Blocks on disk and their checksums: what is taken for good is what was put there."""
    block = 256
    file = Part("remote", 9 * block + 100)
    data = np.random.default_rng(0).integers(0, 256, file.file_bytes).astype(np.uint8)
    DiskCache(folder, 1 << 30, block).store(file, 0, data)
    (place,) = folder.iterdir()
    originals = {name: (place / name).read_bytes() for name in ("data", "sums")}
    keys = np.array([7 << blocks.BLOCK_BITS | number for number in range(10)], np.int64)

    def attempt(case: Case) -> None:
        for each, content in originals.items():
            (place / each).write_bytes(content)
        name = case.rng.choice(list(originals))
        case.write(place / name, mutate_bytes(case.rng, originals[name]))
        if case.rng.random() < 0.05:
            os.truncate(place / case.rng.choice(("data", "sums")), case.rng.randrange(3000))
        good, damaged, found = DiskCache(folder, 1 << 30, block).load(keys, {7: file})
        check(not (good & damaged).any())
        expected = [data[number * block : (number + 1) * block] for number in np.flatnonzero(good).tolist()]
        for number, each in enumerate(expected):
            check(np.array_equal(found[number * block :][: each.size], each), "block")

    return attempt
