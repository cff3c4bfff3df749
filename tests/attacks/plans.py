"""Packing plans that lie: marks, sizes and checksums are right, the rows and pieces are not (see `lies`)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from attacks.lies import (
    HIGH,
    I8,
    LENGTH,
    LOW,
    Arrays,
    Attempt,
    Lie,
    become,
    npy,
    put,
    refused,
    split_file,
    together,
    write_store,
)
from fuzz.harness import Case
from fuzz.mutator import mutate_numbers
from fuzz.store_targets import check, options, some
from opening import open_store
from tokenfeed.format.layout import CHECKED_BYTES
from tokenfeed.format.records import parse
from tokenfeed.kernels.blocks import checksum_blocks
from tokenfeed.kernels.checksum import checksum
from tokenfeed.store.packed import PackRecord
from tokenfeed.store.verify import verify

# Packing plans.

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
    "a piece begins at the largest number": _set(3, first_item=HIGH),
    "a piece begins at the smallest number": _set(3, first_item=LOW),
    "a piece ends after the last item": _set(3, first_item=lambda q: q["first_item"].max() + 60),
    "two pieces overlap by an item": _set(3, first_item=lambda q: q["first_item"][3] + 1),
    "pieces are in another order": _pieces(lambda q: q[::-1]),
    "there is a piece less": _pieces(lambda q: q[:-1]),
    "there is a piece more": _pieces(lambda q: np.append(q, q[:1])),
    "there are no pieces": _pieces(lambda q: q[:0]),
    "rows begin at piece 1": become("R", lambda a: a["R"] + 1),
    "rows fall": become("R", lambda a: a["R"][::-1]),
    "a row has no piece": put("R", 3, lambda a: a["R"][2]),
    "a row has all pieces": put("R", slice(1, None), lambda a: a["Q"].size),
    "a row begins at -1": put("R", 3, -1),
    "a row begins at 2**62": put("R", 3, 1 << 62),
    "a row ends at the largest number": put("R", -1, HIGH),
    "rows wrap around": together(put("R", 3, HIGH), put("R", 4, LOW)),
    "there is a row less": become("R", lambda a: a["R"][:-1]),
    "there is a row more": become("R", lambda a: np.append(a["R"], a["R"][-1])),
    "there are no rows": become("R", lambda a: a["R"][:1]),
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
            found = refused(lambda number=number: view.read([number]))
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
            numbers = mutate_numbers(case.rng, arrays["Q"][field].astype(I8))
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
    return np.array_equal(np.sort(np.concatenate([np.empty(0, I8), *places])), np.arange(num_items))


# Sizes that no memory holds.
