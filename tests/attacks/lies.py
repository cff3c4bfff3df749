"""Span tables that lie: sizes, checksums and signatures are right, the numbers are not.

Whoever can write a store can sign it, so checksums are no defence here. What is read must be what the bytes say: a
document is the items from its start to the next, a payload the bytes from its offset to the next. Else it is refused.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from fuzz.harness import Case
from fuzz.mutator import mutate_numbers
from fuzz.store_targets import check, options, some
from opening import open_store
from tokenfeed.errors import TokenfeedError
from tokenfeed.format.layout import CHECKED_BYTES, MANIFEST, SHARD, SHARD_SUMS
from tokenfeed.format.manifest import FileRecord, Manifest, ShardRecord, SpanCount
from tokenfeed.format.npy import MAGIC
from tokenfeed.kernels.blocks import checksum_blocks
from tokenfeed.kernels.checksum import checksum
from tokenfeed.store.verify import verify

Attempt = Callable[[Case], None]
Arrays = dict[str, Any]
LENGTH = 64
TABLES = {"documents": "bytes", "parts": "bytes", "bare": None}
I8 = np.int64
LOW, HIGH = np.iinfo(I8).min, np.iinfo(I8).max


def write_store(path: Path) -> None:
    """Three shards of some 9,000 items: three anchors each. Some documents are empty, some have no payload."""
    rng = np.random.default_rng(3)
    with tokenfeed.Writer(
        path, columns={"tokens": "uint16"}, spans=TABLES, shard_bytes=20_000, name="part", sync=False
    ) as writer:
        for number in range(90):
            size = int(rng.choice((0, 1, 63, 64, 300, 700)))
            payload = None if number % 7 == 0 else b"payload %d " % number * (number % 5)
            tokens = rng.integers(0, 2**16, size).astype(np.uint16)
            half = size // 2
            writer.append({"tokens": tokens[:half]}, documents=payload, parts=b"first", bare=None)
            writer.extend({"tokens": tokens[half:]}, parts=b"second")


# A store, read and written by NumPy alone.


def split_file(data: bytes) -> tuple[bytes, bytes]:
    """(header, content) of a file of a shard."""
    start = 10 + int.from_bytes(data[8:10], "little") if data.startswith(MAGIC) else 0
    return data[:start], data[start:]


def npy(values: np.ndarray) -> bytes:
    """As the writer writes it."""
    from tokenfeed.format.npy import build_header

    return build_header(values.dtype, values.shape[1:], len(values)) + values.tobytes()


def reseal(store: Path, shard: str, counts: dict[str, int] | None = None, items: int | None = None) -> None:
    """Make every checksum and count of a shard agree with its files, as a liar would. `counts` are those of spans."""
    manifest = Manifest.from_json((store / MANIFEST).read_bytes(), MANIFEST)
    record = ShardRecord.from_json((store / shard / SHARD).read_bytes(), SHARD, manifest.spans)
    files, sums = {}, []
    for name in sorted(record.files.keys() - {SHARD_SUMS}):
        data = (store / shard / name).read_bytes()
        files[name] = FileRecord(len(data), checksum(split_file(data)[1]))
        sums.append(checksum_blocks(np.frombuffer(data, np.uint8), CHECKED_BYTES))
    data = npy(np.concatenate(sums))
    (store / shard / SHARD_SUMS).write_bytes(data)
    files[SHARD_SUMS] = FileRecord(len(data), checksum(split_file(data)[1]))
    spans = {
        table: SpanCount((counts or {}).get(table, count.spans), files[f"{table}.payload.bin"].bytes if codec else 0)
        for (table, count), codec in zip(record.spans.items(), manifest.spans.values(), strict=True)
    }
    record = replace(record, files=files, spans=spans, items=record.items if items is None else items)
    text = record.to_json().encode()
    (store / shard / SHARD).write_bytes(text)
    entries = [
        replace(entry, items=record.items, spans=spans, checksum=checksum(text)) if entry.name == shard else entry
        for entry in manifest.shards or ()
    ]
    (store / MANIFEST).write_text(replace(manifest, shards=tuple(entries)).to_json())


# Span tables.

Lie = Callable[[Arrays], None]
"""Changes starts S, anchors A, offsets O or payload bytes P of a table in a shard of N items."""


def put(name: str, place: Any, value: Any) -> Lie:
    def lie(arrays: Arrays) -> None:
        arrays[name][place] = value(arrays) if callable(value) else value

    return lie


def become(name: str, change: Callable[[Arrays], np.ndarray]) -> Lie:
    def lie(arrays: Arrays) -> None:
        arrays[name] = np.ascontiguousarray(change(arrays), arrays[name].dtype)

    return lie


def together(*lies: Lie) -> Lie:
    def lie(arrays: Arrays) -> None:
        for each in lies:
            each(arrays)

    return lie


SPAN_LIES: dict[str, Lie] = {
    "the first span begins at item 1": put("S", 0, 1),
    "the first span begins before item 0": put("S", 0, -1),
    "all spans begin at item 0": put("S", slice(None), 0),
    "all spans begin at the end": put("S", slice(None), lambda a: a["N"]),
    "the last span begins after the end": put("S", -1, lambda a: a["N"] + 1),
    "a span begins at 2**62": put("S", -1, 1 << 62),
    "a span begins at the largest number": put("S", 4, HIGH),
    "a span begins at the smallest number": put("S", 4, LOW),
    "neighbours differ by more than fits 64 bits": together(put("S", 4, LOW), put("S", 5, HIGH)),
    "starts fall": become("S", lambda a: a["S"][::-1]),
    "two starts are swapped": put("S", [8, 9], lambda a: a["S"][[9, 8]]),
    "starts go to and fro": become("S", lambda a: np.where(np.arange(a["S"].size) % 2, a["N"], 0)),
    "a span is empty that is not": put("S", 8, lambda a: a["S"][9]),
    "all starts are one too far": become("S", lambda a: a["S"] + 1),
    "one start is far beyond, the next is right": put("S", 8, 1 << 40),
    "starts are those of twice the items": become("S", lambda a: a["S"] * 2),
    "there is one span less": become("S", lambda a: a["S"][:-1]),
    "there is one span more": become("S", lambda a: np.append(a["S"], a["N"])),
    "there is no span": become("S", lambda a: a["S"][:0]),
    "all anchors are span 0": put("A", slice(None), 0),
    "all anchors are the last span": put("A", slice(None), lambda a: a["S"].size - 1),
    "anchors are one span beyond the last": put("A", slice(None), lambda a: a["S"].size),
    "an anchor is span -1": put("A", 1, -1),
    "an anchor is span 2**62": put("A", 1, 1 << 62),
    "an anchor is the smallest number": put("A", 1, LOW),
    "anchors fall": become("A", lambda a: a["A"][::-1]),
    "anchors are one too many": become("A", lambda a: a["A"] + 1),
    "anchors are one too few": become("A", lambda a: a["A"] - 1),
    "payloads fall": become("O", lambda a: a["O"][::-1]),
    "all payloads are empty": put("O", slice(None), 0),
    "all payloads begin at the end": put("O", slice(None), lambda a: a["P"].size),
    "a payload begins after the end": put("O", 6, lambda a: a["P"].size + 1),
    "a payload begins at 2**62": put("O", 6, 1 << 62),
    "a payload ends at the largest number": put("O", 7, HIGH),
    "no span has a payload, and yet bytes": become("O", lambda a: ~np.abs(a["O"])),
    "the last offset says there is no payload": put("O", -1, lambda a: ~a["O"][-1]),
    "the last offset is one byte short": put("O", -1, lambda a: a["O"][-1] - 1),
    "the last offset is one byte too far": put("O", -1, lambda a: a["O"][-1] + 1),
    "an offset is the smallest number": put("O", 6, LOW),
    "offsets are -1": put("O", slice(3, 9), -1),
    "neighbouring offsets wrap around": together(put("O", 5, HIGH), put("O", 6, LOW)),
    "payloads overlap": put("O", 6, lambda a: a["O"][5]),
    "there are fewer payload bytes": become("P", lambda a: a["P"][:-3]),
    "there are no payload bytes": become("P", lambda a: a["P"][:0]),
    "the shard has fewer items": lambda arrays: arrays.update(N=arrays["N"] - 700),
    "the shard has more items": lambda arrays: arrays.update(N=arrays["N"] + 4096),
}


def span_lies(folder: Path) -> Attempt:
    """Every named lie in every table, then random numbers; read in every way, opened with and without `verify`."""
    path, shard = folder / "store", "part-00001"
    write_store(path)
    originals = {file: file.read_bytes() for file in [path / MANIFEST, *(path / shard).iterdir()]}
    tokens = {each.name: np.load(each / "tokens.npy") for each in sorted(path.glob("part-*"))}
    named = [
        (table, name)
        for table, codec in TABLES.items()
        for name in SPAN_LIES
        if codec or not ("payload" in name or "offset" in name)
    ]

    def attempt(case: Case) -> None:
        for file, data in originals.items():
            file.write_bytes(data)
        table, name = named[case.number] if case.number < len(named) else (case.rng.choice(list(TABLES)), "")
        arrays = load_table(path / shard, table)
        case.note("lie", (table, name))
        lie = SPAN_LIES[name] if name else _random_lie(case)
        lie(arrays)
        write_table(path / shard, table, arrays)
        items = tokens | {shard: np.resize(tokens[shard], arrays["N"])}
        (path / shard / "tokens.npy").write_bytes(npy(items[shard]))
        reseal(path, shard, {table: arrays["S"].size}, arrays["N"])
        verify(path, quick=case.rng.random() < 0.5)
        store = open_store(path, **options(case))
        read_as_the_files_say(case, store, path, list(items.values()))
        if case.rng.random() < 0.1:
            store.pack(LENGTH, table=table, cache=folder / "packed")

    return attempt


def _random_lie(case: Case) -> Lie:
    def lie(arrays: Arrays) -> None:
        letter = case.rng.choice([each for each in "SAO" if each in arrays])
        arrays[letter] = mutate_numbers(case.rng, arrays[letter])

    return lie


def load_table(shard: Path, table: str) -> Arrays:
    """S, A, O, P and N of a table of a shard; there is no O and no P where there are no payloads."""
    arrays = {
        "S": np.load(shard / f"{table}.starts.npy"),
        "A": np.load(shard / f"{table}.anchors.npy"),
        "N": int(np.load(shard / "tokens.npy", mmap_mode="r").size),
    }
    if (shard / f"{table}.payload.bin").exists():
        arrays["O"] = np.load(shard / f"{table}.offsets.npy")
        arrays["P"] = np.fromfile(shard / f"{table}.payload.bin", np.uint8)
    return arrays


def write_table(shard: Path, table: str, arrays: Arrays) -> None:
    """With as many anchors and offsets as the numbers of items and spans ask for."""
    anchors = np.resize(arrays["A"], -(-arrays["N"] // 4096))
    for name, values in (("starts", arrays["S"]), ("anchors", anchors)):
        (shard / f"{table}.{name}.npy").write_bytes(npy(values.astype(I8)))
    if "O" in arrays:
        (shard / f"{table}.offsets.npy").write_bytes(npy(np.resize(arrays["O"], arrays["S"].size + 1)))
        (shard / f"{table}.payload.bin").write_bytes(arrays["P"].tobytes())


def read_as_the_files_say(case: Case, store: tokenfeed.Store, path: Path, items: list[np.ndarray]) -> None:
    """Whatever is not refused is what starts, offsets and payloads say, however the reader came upon it."""
    tokens = np.concatenate(items)
    first_items = np.cumsum([0, *(each.size for each in items)])
    windows = store.windows(LENGTH)
    numbers = some(case.rng, len(windows))
    batch = windows.read(numbers)
    for row, number in zip(batch.tokens, numbers.tolist(), strict=True):
        check(np.array_equal(row, tokens[number * LENGTH : (number + 1) * LENGTH + 1]), "window", number)
    for table in store.spans:
        shards = [load_table(path / f"part-{number:05}", table) for number in range(len(items))]
        extents = [
            (first + start, first + stop)
            for arrays, first in zip(shards, first_items.tolist(), strict=False)
            for start, stop in zip(arrays["S"].tolist(), [*arrays["S"].tolist()[1:], arrays["N"]], strict=False)
        ]
        _check_windows(case, batch, table, numbers, extents)
        _check_documents(case, store, table, tokens, extents)
        _check_payloads(case, store, table, shards)


def refused(action: Callable[[], Any]) -> Any:
    """The result, or None where it was refused: other tables and samples are still to be read."""
    try:
        return action()
    except TokenfeedError as error:
        str(error)
        return None


def _check_windows(case: Case, batch: Any, table: str, numbers: np.ndarray, extents: list[tuple[int, int]]) -> None:
    rows = refused(lambda: batch.spans[table])
    for row, number in zip(rows if rows is not None else (), numbers.tolist(), strict=False):
        first, place = number * LENGTH, 0
        for span in row:
            start, stop = extents[span.number]
            told = max(start - first, 0), min(stop - first, LENGTH + 1)
            check((span.start, span.stop) == told, table, number, span, told)
            check(span.start == place, "a gap", table, number, span)
            place = span.stop
        check(place == LENGTH + 1, "the row is not covered", table, number)


def _check_documents(
    case: Case, store: tokenfeed.Store, table: str, tokens: np.ndarray, extents: list[tuple[int, int]]
) -> None:
    view = store.documents(table)
    check(len(view) == len(extents), "documents", len(view))
    together = some(case.rng, len(view))
    for chosen in (together, *(np.array([number]) for number in together.tolist())):
        found = refused(lambda chosen=chosen: view.read(chosen))
        for row, number in enumerate(chosen.tolist() if found is not None else ()):
            start, stop = extents[number]
            check(0 <= start <= stop <= tokens.size, "a document that cannot be", number)
            check(np.array_equal(found[row].tokens, tokens[start:stop]), table, number)


def _check_payloads(case: Case, store: tokenfeed.Store, table: str, shards: list[Arrays]) -> None:
    chosen, number = set(some(case.rng, len(store.spans[table])).tolist()), -1
    for arrays in shards:
        for entry in range(arrays["S"].size):
            number += 1
            if number not in chosen:
                continue
            found = refused(lambda number=number: [store.spans[table][number].payload])
            if found is not None and "O" not in arrays:
                check(found == [None], "payload", number)
            elif found is not None:
                here, there = arrays["O"][entry : entry + 2].tolist()
                if here < 0:
                    check(found == [None], "a payload where there is none", number)
                else:
                    check(found[0] == arrays["P"][here : max(there, ~there)].tobytes(), "payload", number)


def vast_documents(folder: Path) -> Attempt:
    """Sparse files that hold nothing, of documents whose lengths add up to anything, 2**64 among it."""
    path = folder / "store"
    with tokenfeed.Writer(path, columns={"tokens": "u1"}, spans={"documents": None}, name="part", sync=False) as writer:
        for _ in range(4):
            writer.append({"tokens": np.arange(64, dtype=np.uint8)}, documents=None)
    (shard,) = path.glob("part-*")
    originals = {file: file.read_bytes() for file in [path / MANIFEST, *shard.iterdir()]}

    def attempt(case: Case) -> None:
        for file, data in originals.items():
            file.write_bytes(data)
        bits = case.rng.choice((31, 32, 33, 40, 42, 43))
        number, count = case.rng.choice((0, 3, 3, 3)), case.rng.choice((1, 2, 1 << 10, 1 << 20, 1 << 21))
        count = count if number == 3 else min(count, 1 << 10)
        case.note("size", (bits, number, count))
        make_vast(path, shard, 1 << bits)
        store = tokenfeed.open(path, backend=case.rng.choice(("pread", "mmap")))
        check(store.num_items == 1 << bits, "items")
        view = store.documents()
        found = view.read(np.full(count, number))
        check(found.tokens.size == 16 * count, found.tokens.size)  # only the small document fits any memory

    return attempt


def make_vast(path: Path, shard: Path, items: int) -> None:
    """Documents of 16, 16 and 16 items, then one of all the rest. Items, and anchors of more than 2**32, are a hole."""
    from tokenfeed.format.npy import build_header

    header = build_header(np.dtype("u1"), (), items)
    (shard / "tokens.npy").write_bytes(header)
    os.truncate(shard / "tokens.npy", len(header) + items)
    num_anchors = -(-items // 4096)
    anchors = build_header(np.dtype("<i8"), (), num_anchors)
    with (shard / "documents.anchors.npy").open("wb") as file:
        file.write(anchors)
        if items < 1 << 32:
            file.write(np.append(0, np.full(num_anchors - 1, 3)).tobytes())
        file.truncate(len(anchors) + 8 * num_anchors)
    (shard / "documents.starts.npy").write_bytes(npy(np.array([0, 16, 32, 48])))
    manifest = Manifest.from_json((path / MANIFEST).read_bytes(), MANIFEST)
    (entry,) = manifest.shards or ()
    (path / MANIFEST).write_text(replace(manifest, shards=(replace(entry, items=items),)).to_json())
