"""The packing plan on disk: its folder, its record `pack.json`, and the pieces of any row in two reads."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorruptionError, MissingError, SampleIndexError, StateError
from tokenfeed.format.layout import SUM_DTYPE, first_sums
from tokenfeed.format.npy import build_header
from tokenfeed.format.records import Digest, check_signature, parse, sign
from tokenfeed.kernels import pieces, posix
from tokenfeed.kernels.checksum import Checksum
from tokenfeed.storage.files import Backend, FileTable, Part
from tokenfeed.storage.local import read_bytes, reading
from tokenfeed.store.shards import NativeShard, Shard
from tokenfeed.store.spec import PACKING_ALGORITHM
from tokenfeed.types import Array, Bools, Ints

__all__ = [
    "PackKey",
    "PackRecord",
    "PackedPieces",
    "PackingPlan",
    "Pieces",
    "find_plan",
    "load_record",
    "plan_folders",
]

RECORD, ROWS, PIECES, SUMS = "pack.json", "rows.npy", "pieces.npy", "pack.blocks.npy"
ROW_DTYPE = np.dtype("<i8")
PIECE_DTYPE = np.dtype([("first_item", "<i8"), ("length", "<u4"), ("mark", "<u4")])

_LARGEST_RECORD = 1 << 16
_SLICE = 1 << 20


class PackKey(NamedTuple):
    """The data, table and row length that a plan must match."""

    identity: str
    table: str
    length: int
    num_items: int

    @property
    def command(self) -> str:
        """The command that makes such a plan."""
        table = "" if self.table == "documents" else f" --table {self.table}"
        return f"tokenfeed pack STORE --length {self.length}{table}"


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
    def from_json(cls, data: bytes, path: str) -> "PackRecord":
        check_signature(data, path)
        return parse(cls, "tokenfeed-pack", data, path)


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


class PackingPlan:
    """A plan made by `pack`."""

    def __init__(self, folder: Path, record: PackRecord, *, verify: bool = False) -> None:
        """`verify` compares everything read with its block checksums."""
        self.folder = folder
        self.record = record
        self._is_verified = verify

    def part(self, number: int) -> Part:
        """File `number` of the two, with the checksums to compare it with."""
        part = self.parts()[number]
        if not self._is_verified:
            return part
        sums = self.sums_part()
        return part._replace(sums=sums, first_sum=self.first_sums()[0][os.path.basename(part.path)])

    def parts(self) -> tuple[Part, Part]:
        """The files of rows and of pieces."""
        rows = self._part(ROWS, ROW_DTYPE, self.record.rows + 1, kept=1.0)
        return rows, self._part(PIECES, PIECE_DTYPE, self.record.pieces, kept=1.0)

    def first_sums(self) -> tuple[dict[str, int], int]:
        """Position of the first block checksum of each file, by name; and the number of all."""
        return first_sums({os.path.basename(part.path): part.file_bytes for part in self.parts()})

    def sums_part(self) -> Part:
        """The file of block checksums."""
        return self._part(SUMS, SUM_DTYPE, self.first_sums()[1])

    def _part(self, name: str, dtype: np.dtype[Any], count: int, *, kept: float = 0.0) -> Part:
        header = build_header(dtype, (), count)
        return Part(str(self.folder / name), len(header) + count * dtype.itemsize, len(header), header, kept=kept)

    def read_pieces(self) -> Iterator[Array]:
        """All pieces as records of `first_item`, `length` and `mark`, a million at a time."""
        return self._read(PIECES, self.record.pieces_checksum)

    def read_rows(self) -> Ints:
        """The first piece of each row, and the end of the last row, as a mapped file."""
        for _ in self._read(ROWS, self.record.rows_checksum):
            pass
        return self._map(ROWS)

    def _read(self, name: str, expected: str) -> Iterator[npt.NDArray[Any]]:
        """A file slice by slice; raises CorruptionError after the last if the checksum is wrong."""
        mapped, found = self._map(name), Checksum()
        for first in range(0, mapped.size, _SLICE):
            part = np.array(mapped[first : first + _SLICE])
            found.update(part)
            yield part
        if found.hexdigest() != expected:
            raise CorruptionError(
                f"{self.folder / name} is damaged: its checksum is {found.hexdigest()}, expected {expected}. Pack "
                "again; the result is the same"
            )

    def _map(self, name: str) -> npt.NDArray[Any]:
        """A mapped file without its header, which was checked when the file was opened."""
        part, dtype = self.parts()[0 if name == ROWS else 1], ROW_DTYPE if name == ROWS else PIECE_DTYPE
        if part.file_bytes == part.byte_start:
            return np.empty(0, dtype)
        count = (part.file_bytes - part.byte_start) // dtype.itemsize
        with reading(part.path):
            return np.memmap(part.path, dtype, "r", part.byte_start, (count,))


class PackedPieces:
    """What the rows of one or more plans of one length are made of; rows are numbered through all plans.

    Up to 64 MiB of plans (3 million documents or so) are kept in memory; the rest is read from its file, by at most two
    reads a row. Every row that is read is checked. Threads may share this.
    """

    def __init__(self, plans: Sequence[PackingPlan], *, backend: Backend) -> None:
        """Opens the files and checks their sizes and headers."""
        records = [plan.record for plan in plans]
        self.plans = list(plans)
        self._backend: Backend = backend
        self._table = np.zeros(len(plans) + 1, pieces.PLAN)
        self._table["first_row"][1:] = np.cumsum([record.rows for record in records])
        self._table["first_item"][1:] = np.cumsum([record.items for record in records])
        self._table["num_pieces"][:-1] = [record.pieces for record in records]
        self._table["num_items"][:-1] = [record.items for record in records]
        num_files = pieces.PLAN_FILES * len(plans)
        self._files = FileTable(num_files, partial(_describe_file, self.plans), backend=backend)
        for number in range(num_files):
            self._files.open(number)

    def join(self, others: Sequence["PackedPieces"]) -> "PackedPieces":
        """The rows of this, then those of the others."""
        return PackedPieces([plan for rows in (self, *others) for plan in rows.plans], backend=self._backend)

    @property
    def length(self) -> int:
        """Inputs per row; a row has one item more."""
        return self.plans[0].record.length

    def __len__(self) -> int:
        return int(self._table["first_row"][-1])

    def find(self, indices: Ints) -> Pieces:
        """The pieces of some rows, in one GIL-free call."""
        status, file, row, *found = pieces.find_pieces(indices, self._files.rows, self._table, self.length + 1)
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
    return plans[plan].part(file)


def plan_folders(shards: Sequence[Shard], wanted: PackKey) -> list[Path]:
    """Possible folders of a plan, the best first: inside the store if that is one local folder, then the user's cache.

    The name begins with a dot, because in a store a folder without `shard.json` is taken for a shard being written.
    """
    folders = []
    homes = {shard.home.local if isinstance(shard, NativeShard) else None for shard in shards}
    home = homes.pop() if len(homes) == 1 else None
    if home is not None:
        splits = {shard.split for shard in shards}
        split = splits.pop() if len(splits) == 1 else None
        folders.append(home / f".packed-{wanted.table}-{wanted.length}{'' if split is None else f'.{split}'}")
    given = os.environ.get("TOKENFEED_CACHE")
    cache = Path(given).expanduser() if given else Path.home() / ".cache" / "tokenfeed"
    return [*folders, cache / "packed" / f"{wanted.identity}-{wanted.table}-{wanted.length}"]


def find_plan(folders: Sequence[Path], wanted: PackKey, *, backend: Backend, verify: bool = False) -> PackedPieces:
    """The rows of the first matching plan in these folders. O(1): reads `pack.json` and two headers.

    If no plan matches, raises the problem of the first: StateError for other data or another algorithm,
    CorruptionError for a damaged plan; MissingError if there is no plan at all.
    """
    problem: Exception | None = None
    for folder in folders:
        try:
            with reading(str(folder / RECORD)):
                is_there = (folder / RECORD).is_file()
            if is_there:
                plan = PackingPlan(folder, _load_record(folder, wanted), verify=verify)
                return PackedPieces([plan], backend=backend)
        except (StateError, CorruptionError) as error:
            problem = problem or error
    if problem is not None:
        raise problem
    raise MissingError(
        f"there is no plan that packs {wanted.table!r} into rows of {wanted.length} + 1 items; make one with "
        f"`{wanted.command}` or store.pack({wanted.length}). Looked in {', '.join(map(str, folders))}"
    )


def load_record(folder: Path) -> PackRecord:
    """Read `pack.json`. Raises FormatError if it was changed."""
    path = folder / RECORD
    with reading(str(path)):
        size = path.stat().st_size
    if size > _LARGEST_RECORD:
        raise CorruptionError(f"{path} has {size:,} bytes, expected at most {_LARGEST_RECORD:,}")
    return PackRecord.from_json(read_bytes(path), str(path))


def _load_record(folder: Path, wanted: PackKey) -> PackRecord:
    record = load_record(folder)
    for what, ours, theirs in (
        ("data", wanted.identity, record.identity),
        ("table", wanted.table, record.table),
        ("length", wanted.length, record.length),
        ("algorithm", PACKING_ALGORITHM, record.algorithm),
        ("number of items", wanted.num_items, record.items),
    ):
        if ours != theirs:
            raise StateError(
                f"{folder} is a plan of other samples: its {what} is {theirs!r}, expected {ours!r}. Pack again with "
                f"`{wanted.command}`, or open the store that was packed"
            )
    return record
