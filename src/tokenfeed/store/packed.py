"""`store.packed(length)`: whole documents packed into rows of equal width, by a plan that `pack` made before."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import CorruptionError, MissingError, StateError
from tokenfeed.format.layout import SUM_DTYPE
from tokenfeed.format.manifest import Column
from tokenfeed.format.records import Digest, check_signature, parse, sign
from tokenfeed.kernels import pieces, posix
from tokenfeed.kernels.checksum import Checksum
from tokenfeed.storage.files import Backend, FileTable, Part
from tokenfeed.storage.local import open_binary, read_bytes, reading
from tokenfeed.store.data import Data, offsets_of
from tokenfeed.store.numbers import outside, slices
from tokenfeed.store.shards import NativeShard, npy_part, with_sums
from tokenfeed.store.spans import BatchSpans, SpanTable
from tokenfeed.store.spec import PACKING_ALGORITHM, PackedSpec
from tokenfeed.store.view import StoreRows, View
from tokenfeed.types import Array, Bools, Ints

__all__ = ["PackKey", "PackRecord", "Packed", "PackingPlan", "PieceRows", "plan_folders"]

RECORD, ROWS, PIECES, SUMS = "pack.json", "rows.npy", "pieces.npy", "pack.blocks.npy"
DTYPES: dict[str, np.dtype[Any]] = {
    ROWS: np.dtype("<i8"),
    PIECES: np.dtype([("first_item", "<i8"), ("length", "<u4"), ("mark", "<u4")]),
    SUMS: SUM_DTYPE,
}

_LARGEST_RECORD = 1 << 16
_SLICE = 1 << 20
_CHECKED_ROWS = 1 << 16
_FIELDS = {"identity": "data", "items": "number of items"}


class PackKey(NamedTuple):
    """The fields of its record by which a plan fits what is to be read."""

    algorithm: int
    identity: str
    table: str
    length: int
    items: int

    @classmethod
    def of(cls, data: Data, table: str, length: int) -> "PackKey":
        return cls(PACKING_ALGORITHM, data.identity, data.spans[table].name, length, data.num_items)


@dataclass(frozen=True, slots=True)
class PackRecord:
    """Content of `pack.json`. A plan exists once this file does."""

    algorithm: int
    identity: Digest
    """Identity of the packed store."""
    table: str
    length: int
    """Inputs per row; a row has one item more."""
    block_documents: int
    """Number of documents packed together; a row never mixes documents of two blocks."""
    documents: int
    """Number of documents, without empty ones, which are in no row."""
    cut_documents: int
    """Number of documents longer than a row."""
    items: int
    rows: int
    pieces: int
    rows_checksum: Digest
    pieces_checksum: Digest
    blocks_checksum: Digest

    def to_json(self) -> str:
        return sign("tokenfeed-pack", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "PackRecord":
        """Read `pack.json`. Raises FormatError if it was changed."""
        path = folder / RECORD
        with reading(str(path)):
            size = path.stat().st_size
        if size > _LARGEST_RECORD:
            raise CorruptionError(f"{path} has {size:,} bytes, expected at most {_LARGEST_RECORD:,}")
        data = read_bytes(path)
        check_signature(data, str(path))
        return parse(cls, "tokenfeed-pack", data, str(path))


class PackingPlan(NamedTuple):
    """A plan made by `pack`."""

    folder: Path
    record: PackRecord

    def parts(self) -> dict[str, Part]:
        """The files of block checksums, of rows and of pieces, by name."""

        def part(name: str, count: int, kept: float = 0.0) -> Part:
            return npy_part(str(self.folder / name), Column(DTYPES[name]), count, kept=kept)

        rows, pieces = part(ROWS, self.record.rows + 1, 1.0), part(PIECES, self.record.pieces, 1.0)
        return with_sums([rows, pieces], lambda count: part(SUMS, count))

    def read(self, name: str) -> Iterator[Array]:
        """A file a million entries at a time: the first piece of each row, and the end of the last row; or the pieces.

        Raises CorruptionError after the last slice if the checksum is wrong.
        """
        part, computed = self.parts()[name], Checksum()
        expected = self.record.rows_checksum if name == ROWS else self.record.pieces_checksum
        with reading(part.path), open_binary(part.path) as file:
            file.seek(part.byte_start)  # the header was checked when the file was opened
            while (entries := np.fromfile(file, DTYPES[name], _SLICE)).size:
                computed.update(entries)
                yield entries
        if computed.hexdigest() != expected:
            raise CorruptionError(
                f"{part.path} is damaged: its checksum is {computed.hexdigest()}, expected {expected}. Pack again; the "
                "result is the same"
            )

    def check_rows(self) -> None:
        """Raise a CorruptionError unless each item of the store is in one of its rows, and in one alone.

        One pass in slices, O(1) memory. Pieces are steps from their first item to their end. They lead from item 0 to
        the end, and each item is passed once, if and only if every place but these two is left as often as it is
        reached. Sums of hashes tell; their key is drawn here, so that nobody can have made a plan for it.
        """
        record, rows = self.record, _PlanRows([self])
        key = np.frombuffer(os.urandom(16), np.uint64) | np.uint64(1)
        left, reached = _hash_places(np.array([record.items]), key), _hash_places(np.array([0]), key)
        num_pieces = 0
        for numbers in slices(record.rows, _CHECKED_ROWS):
            _, first_items, offsets = rows.find(numbers)
            filled = first_items >= 0
            num_pieces += int(filled.sum())
            left += _hash_places(first_items[filled], key)
            reached += _hash_places((first_items + np.diff(offsets))[filled], key)
        if num_pieces != record.pieces or (left - reached) % (1 << 64):
            raise CorruptionError(f"{self.folder}: its rows leave out or repeat items. Pack again")


class _PlanRows:
    """The rows of plans over stores of the same table and length, numbered through all of them.

    Opens the files and checks their sizes and headers. Up to 64 MiB of plans (3 million documents or so) are kept in
    memory; the rest is read from its file, by at most two reads a row. Every row that is read is checked.
    """

    def __init__(self, plans: Sequence[PackingPlan], backend: Backend = "pread") -> None:
        records = [plan.record for plan in plans]
        self._width = records[0].length + 1
        self._table = np.zeros(len(records) + 1, pieces.PLAN)
        self._table["first_row"] = offsets_of(np.array([record.rows for record in records]))
        self._table["first_item"] = offsets_of(np.array([record.items for record in records]))
        self._table["num_pieces"][:-1] = [record.pieces for record in records]
        self._table["num_items"][:-1] = [record.items for record in records]
        num_files = pieces.PLAN_FILES * len(records)
        self._files = FileTable(num_files, partial(_describe_file, plans), backend=backend)
        for number in range(num_files):
            self._files.open(number)

    def __len__(self) -> int:
        return int(self._table["first_row"][-1])

    def find(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """(entries, first items, offsets) of the pieces of rows, as `PieceRows` takes them, in one GIL-free call."""
        status, file, row, *found = pieces.find_pieces(numbers, self._files.rows, self._table, self._width)
        if status == posix.OK:
            return found[0], found[1], found[2]
        if status == posix.BAD_INDEX:
            raise outside(numbers[row], len(self))
        if status == posix.BAD_SPANS:
            raise CorruptionError(
                f"{self._files.name(file)} is damaged at row {numbers[row]:,}: its pieces do not bear its mark. Pack "
                "again; the result is the same"
            )
        raise self._files.failure(status, file)


def _hash_places(places: Ints, key: Array) -> int:
    """Sum of a hash of each, modulo 2**64."""
    words = (places.astype(np.uint64) ^ key[0]) * key[1]
    for shift in (29, 32, 31):
        words = (words ^ words >> np.uint64(shift)) * np.uint64(0x9E3779B97F4A7C15)
    return int(words.sum(dtype=np.uint64))


def _describe_file(plans: Sequence[PackingPlan], number: int) -> Part:
    plan, file = divmod(number, pieces.PLAN_FILES)
    return plans[plan].parts()[(ROWS, PIECES)[file]]


def plan_folders(data: Data, wanted: PackKey, cache: str | Path | None) -> list[Path]:
    """Possible folders of a plan, the best first: inside the store if that is one local folder, then the user's cache.

    The name begins with a dot, because in a store a folder without `shard.json` is taken for a shard being written.
    """
    if cache is not None:
        return [Path(cache)]
    folders = []
    homes = {shard.home.local if isinstance(shard, NativeShard) else None for shard in data.shards}
    home = homes.pop() if len(homes) == 1 else None
    if home is not None:
        splits = {shard.split for shard in data.shards}
        split = splits.pop() if len(splits) == 1 else None
        folders.append(home / f".packed-{wanted.table}-{wanted.length}{'' if split is None else f'.{split}'}")
    given = os.environ.get("TOKENFEED_CACHE")
    root = Path(given).expanduser() if given else Path.home() / ".cache" / "tokenfeed"
    return [*folders, root / "packed" / f"{wanted.identity}-{wanted.table}-{wanted.length}"]


def _advice(data: Data, spec: PackedSpec) -> str:
    """The call and the command that make the plan of a spec."""
    given = {} if spec.table == "documents" else {"table": spec.table}
    given |= {} if spec.cache is None else {"cache": spec.cache}
    call = ", ".join([str(spec.length), *(f"{name}={value!r}" for name, value in given.items())])
    if data.opening is None or len(data.paths) != 1:
        return f"store.pack({call})"
    given |= {name: data.opening.keywords[name] for name in ("split", "dtype", "eos")}
    options = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
    return f"store.pack({call}) or `tokenfeed pack {shlex.quote(data.paths[0])} --length {spec.length}{options}`"


def _find_plan(data: Data, spec: PackedSpec) -> PackingPlan:
    """The plan that a spec describes. O(1): reads `pack.json`. If no plan matches, raises the problem of the first."""
    if spec.algorithm != PACKING_ALGORITHM:
        raise StateError(
            f"rows were packed by algorithm {spec.algorithm}; this tokenfeed packs by {PACKING_ALGORITHM}, which makes "
            "other rows"
        )
    wanted = PackKey.of(data, spec.table, spec.length)
    folders = plan_folders(data, wanted, spec.cache)
    problem: Exception | None = None
    for folder in folders:
        try:
            with reading(str(folder / RECORD)):
                is_there = (folder / RECORD).is_file()
            if is_there:
                record = PackRecord.load(folder)
                for what, ours in wanted._asdict().items():
                    if ours != (theirs := asdict(record)[what]):
                        raise StateError(
                            f"{folder} is a plan of other samples: its {_FIELDS.get(what, what)} is {theirs!r}, "
                            f"expected {ours!r}. Pack again with {_advice(data, spec)}, or open the store that was "
                            "packed"
                        )
                return PackingPlan(folder, record)
        except (StateError, CorruptionError) as error:
            problem = problem or error
    raise problem or MissingError(
        f"there is no plan that packs {wanted.table!r} into rows of {wanted.length} + 1 items; make one with "
        f"{_advice(data, spec)}. Looked in {', '.join(map(str, folders))}"
    )


class Packed(View, opens=PackedSpec):
    """Sample i is row i of a packing plan: documents one after the other, then zeros up to length + 1 items.

    Documents a b b b c c c c c d d, length 3:  row 0 = c c c c,  row 1 = b b b a,  row 2 = d d c ·
    """

    spec: PackedSpec
    length: int

    def __init__(self, data: Data, spec: PackedSpec, plans: Sequence[PackingPlan] = ()) -> None:
        """Rows are numbered through all plans. Without any, the one that `pack` made is looked up."""
        super().__init__(data, spec, spec.length)
        self.length, self.width = spec.length, spec.length + 1
        self.plans = list(plans) or [_find_plan(data, spec)]
        self._rows = _PlanRows(self.plans, data.reader.options.backend)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, numbers: Ints) -> "PieceRows":
        return PieceRows(self, numbers, *self._rows.find(numbers))

    def _join(self, others: Sequence["Packed"], data: Data) -> "Packed":
        return Packed(data, self.spec, [plan for view in (self, *others) for plan in view.plans])

    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        """As for every view. One pass over the plan: 0.1 s for a million rows."""
        starts, stops = self._locate_spans(documents, table)
        touching, first_row, first_item = [np.empty(0, np.int64)], 0, 0
        for plan in self.plans if starts.size else ():
            found, first_piece = [np.empty(0, np.int64)], 0
            for placed in plan.read(PIECES):
                begins = first_item + placed["first_item"]
                last = np.searchsorted(starts, begins + placed["length"]) - 1  # of the spans that begin before the end
                found.append(first_piece + np.flatnonzero((last >= 0) & (begins < stops[last])))
                first_piece += begins.size
            touched = np.concatenate(found)
            rows = sum(np.searchsorted(firsts, touched, side="right") for firsts in plan.read(ROWS)) - 1
            touching.append(first_row + np.unique(rows))
            first_row += plan.record.rows
            first_item += plan.record.items
        return np.concatenate(touching)


class PieceRows(StoreRows):
    """Rows of equal width, made of pieces of documents and padding: row j has pieces [entries[j], entries[j + 1])."""

    def __init__(self, view: View, indices: Ints, entries: Ints, first_items: Ints, offsets: Ints) -> None:
        super().__init__(view, indices)
        self._entries = entries
        self._extents = first_items, offsets

    @property
    def lengths(self) -> Ints:
        return self._count(0)

    def _count(self, left_out: int, start: int = 0, stop: int | None = None) -> Ints:
        """Number of items of rows [start, stop), without the first `left_out` of every piece."""
        first_items, offsets = self.extents
        counts = offsets_of(np.where(first_items >= 0, np.diff(offsets) - left_out, 0))
        return np.diff(counts[self._entries[start : None if stop is None else stop + 1]])

    def _find_spans(self, table: SpanTable) -> BatchSpans:
        """Spans are found piece by piece, so one that reaches from a piece into the next is listed for both."""
        first_items, offsets = self.extents
        filled = first_items >= 0
        counts = np.diff(offsets)[filled]
        found = table.find(first_items[filled], offsets_of(counts))
        shifts = np.repeat(offsets[:-1][filled] % self.view.width, np.diff(found.offsets))
        pieces_before = np.concatenate(([0], np.cumsum(filled)))[self._entries]
        return BatchSpans(
            table, found.offsets[pieces_before], found.numbers, found.starts + shifts, found.stops + shifts
        )

    def loss_mask(self, start: int, stop: int) -> Bools | None:
        """Whether a target is an item that follows its input in the same document.

        So it is never padding; nor the first item of a document or of the later part of a cut one; nor an item for
        which the column `loss_mask` or `loss_weights` of the view is 0.

            row a a b b b ·  →  inputs a a b b b,  targets a b b b ·,  mask 1 0 1 1 0
        """
        wanted = super().loss_mask(start, stop)
        first_items, offsets = self.extents
        first, last = self._entries[start], self._entries[stop]
        filled, offsets = first_items[first:last] >= 0, offsets[first : last + 1]
        mask = np.repeat(filled, np.diff(offsets))
        mask[offsets[:-1] - offsets[0]] = False
        mask = mask.reshape(stop - start, self.view.width)[:, 1:]
        return mask if wanted is None else mask & wanted

    def num_targets(self, start: int, stop: int) -> Ints:
        return super().num_targets(start, stop) if self.view.masks else self._count(1, start, stop)
