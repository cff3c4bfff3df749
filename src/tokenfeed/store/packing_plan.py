"""The packing plan on disk: its folder, its record `pack.json`, and the pieces of any row in two reads."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import CorruptionError, MissingError, SampleIndexError, StateError
from tokenfeed.format.layout import SUM_DTYPE
from tokenfeed.format.manifest import Column, Fields, check_signature, sign
from tokenfeed.kernels import pieces, posix
from tokenfeed.kernels.checksum import Checksum
from tokenfeed.storage.files import Backend, FileTable, Part
from tokenfeed.storage.local import read_bytes, reading
from tokenfeed.store.data import Data
from tokenfeed.store.shards import NativeShard, npy_part, with_sums
from tokenfeed.store.spec import PACKING_ALGORITHM, PackedSpec
from tokenfeed.types import Array, Bools, Ints

__all__ = ["PackKey", "PackRecord", "PackedPieces", "PackingPlan", "Pieces", "find_plan", "plan_folders"]

RECORD, ROWS, PIECES, SUMS = "pack.json", "rows.npy", "pieces.npy", "pack.blocks.npy"
ROW_DTYPE = np.dtype("<i8")
PIECE_DTYPE = np.dtype([("first_item", "<i8"), ("length", "<u4"), ("mark", "<u4")])

_LARGEST_RECORD = 1 << 16
_SLICE = 1 << 20


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

    @property
    def command(self) -> str:
        """The command that makes such a plan."""
        table = "" if self.table == "documents" else f" --table {self.table}"
        return f"tokenfeed pack STORE --length {self.length}{table}"


@dataclass(frozen=True, slots=True)
class PackRecord:
    """Content of `pack.json`. A plan exists once this file does."""

    algorithm: int
    identity: str
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
    rows_checksum: str
    pieces_checksum: str
    blocks_checksum: str

    def to_json(self) -> str:
        return sign({"format": "tokenfeed-pack", "version": 1, **asdict(self)})

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
        return Fields.parse(data, str(path), "tokenfeed-pack").record(cls)


class Pieces(NamedTuple):
    """The pieces of some rows: row j has pieces [entries[j], entries[j + 1]).

    Piece i is the items of the store from first_items[i] on, at positions [offsets[i], offsets[i + 1]) of the rows laid
    end to end; PADDING as first item marks empty positions.
    """

    entries: Ints
    first_items: Ints
    offsets: Ints

    def part(self, start: int, stop: int) -> "Pieces":
        """The pieces of rows [start, stop)."""
        if start == 0 and stop == self.entries.size - 1:
            return self
        first, last = self.entries[start], self.entries[stop]
        offsets = self.offsets[first : last + 1]
        return Pieces(self.entries[start : stop + 1] - first, self.first_items[first:last], offsets - offsets[0])

    @property
    def filled(self) -> Bools:
        """True for pieces that are not padding."""
        return self.first_items >= 0


class PackingPlan(NamedTuple):
    """A plan made by `pack`."""

    folder: Path
    record: PackRecord
    is_verified: bool = False
    """Whether everything read is compared with its block checksums."""

    def parts(self) -> dict[str, Part]:
        """The files of rows and of pieces by name, each with its place in the file of block checksums."""

        def part(name: str, dtype: np.dtype[Any], count: int, kept: float = 0.0) -> Part:
            return npy_part(str(self.folder / name), Column(dtype), count, kept=kept)

        rows = part(ROWS, ROW_DTYPE, self.record.rows + 1, 1.0)
        pieces = part(PIECES, PIECE_DTYPE, self.record.pieces, 1.0)
        return with_sums([rows, pieces], lambda count: part(SUMS, SUM_DTYPE, count))

    def read(self, name: str) -> Iterator[Array]:
        """A file a million entries at a time: the first piece of each row, and the end of the last row; or the pieces.

        Raises CorruptionError after the last slice if the checksum is wrong.
        """
        part, computed = self.parts()[name], Checksum()
        dtype: Any = ROW_DTYPE if name == ROWS else PIECE_DTYPE
        expected = self.record.rows_checksum if name == ROWS else self.record.pieces_checksum
        with reading(part.path), Path(part.path).open("rb") as file:
            file.seek(part.byte_start)  # the header was checked when the file was opened
            while (entries := np.fromfile(file, dtype, _SLICE)).size:
                computed.update(entries)
                yield entries
        if computed.hexdigest() != expected:
            raise CorruptionError(
                f"{part.path} is damaged: its checksum is {computed.hexdigest()}, expected {expected}. Pack again; the "
                "result is the same"
            )


class PackedPieces:
    """What the rows of one or more plans of one length are made of; rows are numbered through all plans.

    Up to 64 MiB of plans (3 million documents or so) are kept in memory; the rest is read from its file, by at most two
    reads a row. Every row that is read is checked. Threads may share this.
    """

    def __init__(self, plans: Sequence[PackingPlan], backend: Backend) -> None:
        """Opens the files and checks their sizes and headers."""
        records = [plan.record for plan in plans]
        self.plans = list(plans)
        self._width = records[0].length + 1
        self._table = np.zeros(len(plans) + 1, pieces.PLAN)
        self._table["first_row"][1:] = np.cumsum([record.rows for record in records])
        self._table["first_item"][1:] = np.cumsum([record.items for record in records])
        self._table["num_pieces"][:-1] = [record.pieces for record in records]
        self._table["num_items"][:-1] = [record.items for record in records]
        num_files = pieces.PLAN_FILES * len(plans)
        self._files = FileTable(num_files, partial(_describe_file, self.plans), backend=backend)
        for number in range(num_files):
            self._files.open(number)

    def __len__(self) -> int:
        return int(self._table["first_row"][-1])

    def find(self, indices: Ints) -> Pieces:
        """The pieces of some rows, in one GIL-free call."""
        status, file, row, *found = pieces.find_pieces(indices, self._files.rows, self._table, self._width)
        if status == posix.OK:
            return Pieces(*found)
        if status == posix.BAD_INDEX:
            raise SampleIndexError(f"row {indices[row]} is outside the view, which has {len(self):,} rows")
        if status == posix.BAD_SPANS:
            raise CorruptionError(
                f"{self._files.name(file)} is damaged at row {indices[row]:,}: its pieces do not bear its mark. "
                "Pack again; the result is the same"
            )
        raise self._files.failure(status, file)


def _describe_file(plans: Sequence[PackingPlan], number: int) -> Part:
    plan, file = divmod(number, pieces.PLAN_FILES)
    part = plans[plan].parts()[(ROWS, PIECES)[file]]
    return part if plans[plan].is_verified else part._replace(sums=None)


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


def find_plan(data: Data, spec: PackedSpec) -> PackedPieces:
    """The rows of the plan that a spec describes. O(1): reads `pack.json` and two headers.

    If no plan matches, raises the problem of the first: StateError for other data or another algorithm,
    CorruptionError for a damaged plan; MissingError if there is no plan at all.
    """
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
                plan = PackingPlan(folder, _load_record(folder, wanted), data.reader.is_verified)
                return PackedPieces([plan], data.reader.options.backend)
        except (StateError, CorruptionError) as error:
            problem = problem or error
    raise problem or MissingError(
        f"there is no plan that packs {wanted.table!r} into rows of {wanted.length} + 1 items; make one with "
        f"`{wanted.command}` or store.pack({wanted.length}). Looked in {', '.join(map(str, folders))}"
    )


def _load_record(folder: Path, wanted: PackKey) -> PackRecord:
    record = PackRecord.load(folder)
    found = PackKey(record.algorithm, record.identity, record.table, record.length, record.items)
    names = "algorithm", "data", "table", "length", "number of items"
    for what, ours, theirs in zip(names, wanted, found, strict=True):
        if ours != theirs:
            raise StateError(
                f"{folder} is a plan of other samples: its {what} is {theirs!r}, expected {ours!r}. Pack again with "
                f"`{wanted.command}`, or open the store that was packed"
            )
    return record
