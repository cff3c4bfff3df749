"""Span tables and packing plans that lie: sizes, checksums and signatures are right, the numbers are not.

Whoever can write a store can sign it, so checksums are no defence here. What is read must be what the bytes say: a
document is the items from its start to the next, a payload the bytes from its offset to the next, a row the pieces that
the plan names. Else it is refused.
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
from tokenfeed.format.records import parse
from tokenfeed.kernels.blocks import checksum_blocks
from tokenfeed.kernels.checksum import checksum
from tokenfeed.store.packed import PackRecord
from tokenfeed.store.verify import verify

Attempt = Callable[[Case], None]
Arrays = dict[str, Any]
LENGTH = 64
TABLES = {"documents": "bytes", "parts": "bytes", "bare": None}
_I8 = np.int64
_LOW, _HIGH = np.iinfo(_I8).min, np.iinfo(_I8).max


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


def _put(name: str, place: Any, value: Any) -> Lie:
    def lie(arrays: Arrays) -> None:
        arrays[name][place] = value(arrays) if callable(value) else value

    return lie


def _become(name: str, change: Callable[[Arrays], np.ndarray]) -> Lie:
    def lie(arrays: Arrays) -> None:
        arrays[name] = np.ascontiguousarray(change(arrays), arrays[name].dtype)

    return lie


def _together(*lies: Lie) -> Lie:
    def lie(arrays: Arrays) -> None:
        for each in lies:
            each(arrays)

    return lie


SPAN_LIES: dict[str, Lie] = {
    "the first span begins at item 1": _put("S", 0, 1),
    "the first span begins before item 0": _put("S", 0, -1),
    "all spans begin at item 0": _put("S", slice(None), 0),
    "all spans begin at the end": _put("S", slice(None), lambda a: a["N"]),
    "the last span begins after the end": _put("S", -1, lambda a: a["N"] + 1),
    "a span begins at 2**62": _put("S", -1, 1 << 62),
    "a span begins at the largest number": _put("S", 4, _HIGH),
    "a span begins at the smallest number": _put("S", 4, _LOW),
    "neighbours differ by more than fits 64 bits": _together(_put("S", 4, _LOW), _put("S", 5, _HIGH)),
    "starts fall": _become("S", lambda a: a["S"][::-1]),
    "two starts are swapped": _put("S", [8, 9], lambda a: a["S"][[9, 8]]),
    "starts go to and fro": _become("S", lambda a: np.where(np.arange(a["S"].size) % 2, a["N"], 0)),
    "a span is empty that is not": _put("S", 8, lambda a: a["S"][9]),
    "all starts are one too far": _become("S", lambda a: a["S"] + 1),
    "one start is far beyond, the next is right": _put("S", 8, 1 << 40),
    "starts are those of twice the items": _become("S", lambda a: a["S"] * 2),
    "there is one span less": _become("S", lambda a: a["S"][:-1]),
    "there is one span more": _become("S", lambda a: np.append(a["S"], a["N"])),
    "there is no span": _become("S", lambda a: a["S"][:0]),
    "all anchors are span 0": _put("A", slice(None), 0),
    "all anchors are the last span": _put("A", slice(None), lambda a: a["S"].size - 1),
    "anchors are one span beyond the last": _put("A", slice(None), lambda a: a["S"].size),
    "an anchor is span -1": _put("A", 1, -1),
    "an anchor is span 2**62": _put("A", 1, 1 << 62),
    "an anchor is the smallest number": _put("A", 1, _LOW),
    "anchors fall": _become("A", lambda a: a["A"][::-1]),
    "anchors are one too many": _become("A", lambda a: a["A"] + 1),
    "anchors are one too few": _become("A", lambda a: a["A"] - 1),
    "payloads fall": _become("O", lambda a: a["O"][::-1]),
    "all payloads are empty": _put("O", slice(None), 0),
    "all payloads begin at the end": _put("O", slice(None), lambda a: a["P"].size),
    "a payload begins after the end": _put("O", 6, lambda a: a["P"].size + 1),
    "a payload begins at 2**62": _put("O", 6, 1 << 62),
    "a payload ends at the largest number": _put("O", 7, _HIGH),
    "no span has a payload, and yet bytes": _become("O", lambda a: ~np.abs(a["O"])),
    "the last offset says there is no payload": _put("O", -1, lambda a: ~a["O"][-1]),
    "the last offset is one byte short": _put("O", -1, lambda a: a["O"][-1] - 1),
    "the last offset is one byte too far": _put("O", -1, lambda a: a["O"][-1] + 1),
    "an offset is the smallest number": _put("O", 6, _LOW),
    "offsets are -1": _put("O", slice(3, 9), -1),
    "neighbouring offsets wrap around": _together(_put("O", 5, _HIGH), _put("O", 6, _LOW)),
    "payloads overlap": _put("O", 6, lambda a: a["O"][5]),
    "there are fewer payload bytes": _become("P", lambda a: a["P"][:-3]),
    "there are no payload bytes": _become("P", lambda a: a["P"][:0]),
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
        (shard / f"{table}.{name}.npy").write_bytes(npy(values.astype(_I8)))
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


def _refused(action: Callable[[], Any]) -> Any:
    """The result, or None where it was refused: other tables and samples are still to be read."""
    try:
        return action()
    except TokenfeedError as error:
        str(error)
        return None


def _check_windows(case: Case, batch: Any, table: str, numbers: np.ndarray, extents: list[tuple[int, int]]) -> None:
    rows = _refused(lambda: batch.spans[table])
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
        found = _refused(lambda chosen=chosen: view.read(chosen))
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
            found = _refused(lambda number=number: [store.spans[table][number].payload])
            if found is not None and "O" not in arrays:
                check(found == [None], "payload", number)
            elif found is not None:
                here, there = arrays["O"][entry : entry + 2].tolist()
                if here < 0:
                    check(found == [None], "a payload where there is none", number)
                else:
                    check(found[0] == arrays["P"][here : max(there, ~there)].tobytes(), "payload", number)


# Packing plans.

PIECE = np.dtype([("first_item", "<i8"), ("length", "<u4"), ("mark", "<u4")])
_WORD = (1 << 64) - 1


def mark(row: int, count: int, place: int, first_item: int, length: int) -> int:
    """As docs/format.md says."""

    def mix(word: int) -> int:
        for _ in range(2):
            word = ((word ^ word >> 32) * 0xD6E8FEB86659FD93) & _WORD
        return word ^ word >> 32

    word = mix((first_item + row * 0x9E3779B185EBCA87) & _WORD)
    place_and_count = (place * 0xC2B2AE3D27D4EB4F + count * 0x165667B19E3779F9) & _WORD
    return mix(word ^ ((length + place_and_count) & _WORD)) >> 32


def _pieces(change: Callable[[Any], Any]) -> Lie:
    """A lie about the pieces Q; marks are made right again afterwards."""

    def lie(arrays: Arrays) -> None:
        arrays["Q"] = change(arrays["Q"].copy())

    return lie


def _set(place: Any, **fields: Any) -> Lie:
    def change(pieces: Any) -> Any:
        for name, value in fields.items():
            pieces[name][place] = value(pieces) if callable(value) else value
        return pieces

    return _pieces(change)


PLAN_LIES: dict[str, Lie] = {
    "a piece comes twice": _set(5, first_item=lambda q: q["first_item"][4], length=lambda q: q["length"][4]),
    "all pieces are the first": _pieces(lambda q: np.repeat(q[:1], q.size)),
    "a piece is shorter": _set(3, length=lambda q: q["length"][3] - 1),
    "a piece is empty": _set(3, length=0),
    "a piece has 2**32 - 1 items": _set(3, length=0xFFFFFFFF),
    "a piece is wider than its row": _set(3, length=LENGTH + 2),
    "a piece begins at item -1": _set(3, first_item=-1),
    "a piece begins at 2**62": _set(3, first_item=1 << 62),
    "a piece begins at the largest number": _set(3, first_item=_HIGH),
    "a piece begins at the smallest number": _set(3, first_item=_LOW),
    "a piece ends after the last item": _set(3, first_item=lambda q: q["first_item"].max() + 60),
    "two pieces overlap by an item": _set(3, first_item=lambda q: q["first_item"][3] + 1),
    "pieces are in another order": _pieces(lambda q: q[::-1]),
    "there is a piece less": _pieces(lambda q: q[:-1]),
    "there is a piece more": _pieces(lambda q: np.append(q, q[:1])),
    "there are no pieces": _pieces(lambda q: q[:0]),
    "rows begin at piece 1": _become("R", lambda a: a["R"] + 1),
    "rows fall": _become("R", lambda a: a["R"][::-1]),
    "a row has no piece": _put("R", 3, lambda a: a["R"][2]),
    "a row has all pieces": _put("R", slice(1, None), lambda a: a["Q"].size),
    "a row begins at -1": _put("R", 3, -1),
    "a row begins at 2**62": _put("R", 3, 1 << 62),
    "a row ends at the largest number": _put("R", -1, _HIGH),
    "rows wrap around": _together(_put("R", 3, _HIGH), _put("R", 4, _LOW)),
    "there is a row less": _become("R", lambda a: a["R"][:-1]),
    "there is a row more": _become("R", lambda a: np.append(a["R"], a["R"][-1])),
    "there are no rows": _become("R", lambda a: a["R"][:1]),
}


def plan_lies(folder: Path) -> Attempt:
    """Rows of a signed plan are what it says, or refused; `verify` finds what is not there once."""
    path = folder / "store"
    write_store(path)
    store = tokenfeed.open(path)
    plan = store.pack(LENGTH).folder
    originals = {file: file.read_bytes() for file in plan.iterdir()}
    tokens = np.concatenate([np.load(each / "tokens.npy") for each in sorted(path.glob("part-*"))])
    record = PackRecord.load(plan)
    good = {"R": np.load(plan / "rows.npy"), "Q": np.load(plan / "pieces.npy")}
    named = list(PLAN_LIES.items())

    def attempt(case: Case) -> None:
        for file, data in originals.items():
            file.write_bytes(data)
        arrays = {name: values.copy() for name, values in good.items()}
        name, lie = named[case.number] if case.number < len(named) else ("", _random_plan(case))
        case.note("lie", name)
        lie(arrays)
        write_plan(plan, record, arrays)
        said = _rows_of(arrays, tokens)
        if case.rng.random() < 0.5:
            covered = _covers(said, arrays, tokens.size)
            check(verify(path).ok <= covered, "verify passes a plan that leaves out or repeats items")
        view = open_store(path, **options(case)).packed(LENGTH)
        check(len(view) == max(0, arrays["R"].size - 1), "rows")
        for number in some(case.rng, len(view)).tolist():
            found = _refused(lambda number=number: view.read([number]))
            if found is not None:
                check(said[number] is not None, "a row that cannot be", number)
                check(np.array_equal(found.tokens[0], said[number]), "row", number)

    return attempt


def _random_plan(case: Case) -> Lie:
    def lie(arrays: Arrays) -> None:
        field = case.rng.choice(("R", "first_item", "length"))
        if field == "R":
            arrays["R"] = mutate_numbers(case.rng, arrays["R"])
        else:
            numbers = mutate_numbers(case.rng, arrays["Q"][field].astype(_I8))
            arrays["Q"][field] = numbers.astype(np.uint32) if field == "length" else numbers

    return lie


def write_plan(plan: Path, record: PackRecord, arrays: Arrays) -> None:
    """Marks, checksums and the record fit what is written."""
    rows, pieces = arrays["R"], arrays["Q"]
    for row, (start, stop) in enumerate(zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True)):
        if 0 <= start <= stop <= pieces.size:
            for place, entry in enumerate(range(start, stop)):
                first, length = int(pieces["first_item"][entry]), int(pieces["length"][entry])
                pieces["mark"][entry] = mark(row, stop - start, place, first, length)
    data = {"pieces.npy": npy(pieces), "rows.npy": npy(rows)}
    sums = [checksum_blocks(np.frombuffer(data[name], np.uint8), CHECKED_BYTES) for name in sorted(data)]
    data["pack.blocks.npy"] = npy(np.concatenate(sums))
    for name, content in data.items():
        (plan / name).write_bytes(content)
    digests = {
        f"{field}_checksum": checksum(split_file(data[name])[1])
        for field, name in (("rows", "rows.npy"), ("pieces", "pieces.npy"), ("blocks", "pack.blocks.npy"))
    }
    told = replace(record, rows=max(0, rows.size - 1), pieces=pieces.size, **digests)
    (plan / "pack.json").write_text(told.to_json())
    check(parse(PackRecord, "tokenfeed-pack", (plan / "pack.json").read_bytes(), "plan") == told)


def _rows_of(arrays: Arrays, tokens: np.ndarray) -> list[np.ndarray | None]:
    """The items of every row, by the plainest way there is; None for one that cannot be."""
    rows: list[np.ndarray | None] = []
    pieces = list(zip(arrays["Q"]["first_item"].tolist(), arrays["Q"]["length"].tolist(), strict=True))
    for start, stop in zip(arrays["R"][:-1].tolist(), arrays["R"][1:].tolist(), strict=True):
        chosen = pieces[start:stop] if 0 <= start < stop <= len(pieces) else []
        fits = chosen and all(length > 0 and 0 <= first <= tokens.size - length for first, length in chosen)
        if not fits or sum(length for _, length in chosen) > LENGTH + 1:
            rows.append(None)
            continue
        items = np.concatenate([tokens[first : first + length] for first, length in chosen])
        rows.append(np.pad(items, (0, LENGTH + 1 - items.size)))
    return rows


def _covers(said: list[np.ndarray | None], arrays: Arrays, num_items: int) -> bool:
    """Whether every item is in one row, and in one alone."""
    if any(row is None for row in said) or arrays["R"][0] != 0 or arrays["R"][-1] != arrays["Q"].size:
        return False
    places = [np.arange(first, first + length) for first, length, _ in arrays["Q"].tolist()]
    return np.array_equal(np.sort(np.concatenate([np.empty(0, _I8), *places])), np.arange(num_items))


# Sizes that no memory holds.


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
