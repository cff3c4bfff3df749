"""Writes the files of one shard, and commits it by writing its `shard.json`."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from tokenfeed.errors import ArgumentError, TokenfeedError, WriteError
from tokenfeed.format.layout import CHECKED_BYTES, SHARD, SHARD_SUMS, SPAN_DTYPE, SUM_DTYPE, column_file, span_files
from tokenfeed.format.manifest import Column, FileRecord, ShardRecord, SpanCount
from tokenfeed.format.npy import build_header
from tokenfeed.kernels.blocks import checksum_blocks
from tokenfeed.kernels.checksum import Checksum, bytes_of, checksum
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage import objects
from tokenfeed.storage.folder import Folder, is_missing
from tokenfeed.storage.local import sync_folder, write_all, writing
from tokenfeed.storage.locks import FileLock
from tokenfeed.types import Array, Bytes

__all__ = ["BlockSums", "CheckedFile", "ShardWriter", "Spans", "is_abandoned", "write_sums"]

Spans = Mapping[str, tuple[Sequence[int], Sequence[bytes | None]]]
"""Lengths and payloads of spans, by table."""

_BUFFER_BYTES = 1 << 20
_PENDING_SPANS = 4096


class ShardWriter:
    """One shard being written: `begin`, `append` and `commit`, then `close`; or `abort`, at any time before `close`.

    Readers see it once it is committed. Its files are written in place, and the file of block checksums is locked
    meanwhile, which tells others that this writer lives. For a remote store they are temporary files without a name,
    until `commit` uploads them.
    """

    def __init__(
        self,
        home: Folder,
        name: str,
        columns: Mapping[str, Column],
        tables: Mapping[str, bool],
        *,
        split: str | None,
        sync: bool,
        redo: bool = False,
        check_owner: Callable[[], None] | None = None,
    ) -> None:
        """`home` is the folder of the store. `tables` says for each span table whether it has payloads.

        `redo` makes a shard again that may be there already. `check_owner` is called before each upload, and raises a
        WriteError if the name is no longer this writer's.
        """
        self.num_documents = 0
        self.num_items = 0
        self.num_bytes = 0
        self.name = name
        self._home = home
        self._split = split
        self._redo = redo
        self._check_owner = check_owner
        self._uploaded: list[str] = []
        self._folder = Path(tempfile.gettempdir()) if home.local is None else home.local / name
        self._lock: FileLock | None = None
        self._sync = sync and home.local is not None
        self._files: list[CheckedFile] = []
        self._given = columns, tables

    def begin(self) -> None:
        """Make its files. Not done on construction: whoever has the object can `abort` what is half made."""
        if not self._redo and self._home.exists(f"{self.name}/{SHARD}"):
            raise ArgumentError(f"shard {self._home.path(self.name)} exists already; give this writer another name")
        self._lock = None if self._home.local is None else self._own(self._folder)
        columns, tables = self._given
        self._columns = {column: self._create(column_file(column), item) for column, item in columns.items()}
        self._tables = {
            table: _SpanWriter(
                [
                    self._create(file, Column(SPAN_DTYPE) if file.endswith(".npy") else None)
                    for file in span_files(table, payloads=payloads)
                ]
            )
            for table, payloads in tables.items()
        }

    def _own(self, folder: Path) -> FileLock:
        """Make the folder, or take it over from a writer that was killed, and hold it. A writer that lives keeps it."""
        lock = FileLock(folder / SHARD_SUMS)
        try:
            with writing(folder):
                folder.mkdir(exist_ok=True)
                if not lock.take(exclusive=True):
                    raise ArgumentError(
                        f"another writer is writing {folder}: two of the same name are at work. Give each its own name"
                    )
                if not self._redo and (folder / SHARD).exists():  # committed while this one waited for the lock
                    raise ArgumentError(f"shard {folder} exists already; give this writer another name")
                (folder / SHARD).unlink(missing_ok=True)  # first: without it, there is no shard
                for left in folder.iterdir():
                    if left.name != SHARD_SUMS:
                        left.unlink()
                os.ftruncate(lock.descriptor, 0)
        except BaseException:
            lock.release()
            raise
        return lock

    def _create(self, name: str, item: Column | None) -> "CheckedFile":
        self._files.append(CheckedFile(self._folder / name, item, temporary=self._lock is None))
        return self._files[-1]

    def append(self, arrays: Mapping[str, Array], num_items: int, spans: Spans) -> None:
        """Begin spans one after the other from the current item on, of which the last stays open; and add items.

        After an exception the shard can only be aborted.
        """
        for table, (lengths, payloads) in spans.items():
            self.num_bytes += self._tables[table].begin(self.num_items, lengths, payloads)
        for name, array in arrays.items():
            self._columns[name].write(array)
            self.num_bytes += array.nbytes
        self.num_items += num_items

    def commit(self) -> str:
        """Finish every file, then write `shard.json`. Returns its checksum."""
        for table in self._tables.values():
            table.finish(self.num_items)
        records = {file.path.name: file.finish(sync=self._sync) for file in self._files}
        with self._create_sums() as sums:
            records[SHARD_SUMS] = write_sums(sums, self._files, sync=self._sync)
            counts = {name: table.count for name, table in self._tables.items()}
            record = ShardRecord(self.num_items, counts, records, self._split)
            data = record.to_json().encode()
            if self._lock is None:
                self._upload([*self._files, sums], data)
            else:
                self._put(data, self._lock)
        return checksum(data)

    def _create_sums(self) -> "CheckedFile":
        path = self._folder / SHARD_SUMS
        if self._lock is None:
            return CheckedFile(path, Column(SUM_DTYPE), temporary=True)
        with writing(path):
            descriptor = os.dup(self._lock.descriptor)
        return CheckedFile(path, Column(SUM_DTYPE), descriptor=descriptor)

    def _put(self, data: bytes, lock: FileLock) -> None:
        if self._sync:
            sync_folder(self._folder)
        record = f"{self.name}/{SHARD}"
        if not lock.is_current():
            raise self._lost()
        is_new = self._home.create(record, data, sync=self._sync)
        if not is_new and (not self._redo or self._home.read(record) != data):
            raise self._lost()
        if self._sync:
            sync_folder(self._folder.parent)

    def _upload(self, files: "Sequence[CheckedFile]", data: bytes) -> None:
        """Upload files, then `shard.json`. One that is there with the same content needs nothing more.

        So runs that make the same shard at the same time do not disturb each other.
        """
        record = f"{self.name}/{SHARD}"
        try:
            before = self._home.read(record)
        except TokenfeedError as error:
            if not is_missing(error):
                raise
        else:
            if before == data and self._redo:
                return
            if not self._redo:
                raise self._lost()
            self._home.remove(record)
        for file in files:
            if self._check_owner is not None:
                self._check_owner()
            self._uploaded.append(file.path.name)  # before the upload: the file may exist even if that fails
            file.upload(self._home.path(f"{self.name}/{file.path.name}"))
        self._uploaded.append(SHARD)
        if self._redo:
            self._home.replace(record, data)
        elif not self._home.create(record, data):
            raise self._lost()

    def _lost(self) -> WriteError:
        self._uploaded.clear()  # these are the other one's
        path = self._home.path(self.name)
        return WriteError(
            f"{path} was taken over by another writer of the same name, or removed, while this one wrote it. It was "
            "not committed. Give each writer its own name",
            filename=path,
        )

    def close(self) -> None:
        """Let go of the files and of the name."""
        for file in self._files:
            with contextlib.suppress(WriteError):
                file.close()
        if self._lock is not None:
            self._lock.release()

    def abort(self) -> None:
        """Remove the files, `shard.json` first; those of a remote shard as far as its server allows."""
        try:
            with contextlib.suppress(OSError):
                if self._lock is not None and self._lock.is_current():
                    (self._folder / SHARD).unlink(missing_ok=True)
                    shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            self.close()
        with contextlib.suppress(TokenfeedError):
            if self._uploaded and self._check_owner is not None:
                self._check_owner()
            for name in () if self._redo else reversed(self._uploaded):  # another run may be making the same shard
                objects.delete(self._home.path(f"{self.name}/{name}"))


def is_abandoned(folder: Path) -> bool:
    """Whether an unfinished shard is what a killed writer left; False too where that cannot be told."""
    lock = FileLock(folder / SHARD_SUMS)
    with lock:
        return lock.path.is_file() and lock.take(exclusive=True) and lock.is_known


class BlockSums:
    """The checksums of all blocks of a file that is written front to back, except for its header, which comes last.

    It keeps the block that is not full yet, the blocks that hold the header, and 8 bytes for each finished block.
    """

    def __init__(self, header_bytes: int) -> None:
        self._front = bytearray(header_bytes)
        self._rest = bytearray()
        self._sums: list[Array] = []

    def update(self, data: Bytes) -> None:
        """Append an array of bytes. One pass over them, without the GIL."""
        data = _fill(self._rest, _fill(self._front, data))
        if len(self._rest) == CHECKED_BYTES:
            self._sums.append(_sums_of(self._rest))
            self._rest.clear()
        whole = data.size // CHECKED_BYTES * CHECKED_BYTES
        self._sums.append(_sums_of(data[:whole]))
        self._rest += data[whole:].tobytes()

    def finish(self, header: bytes) -> Array:
        """The checksum of every block, once the header is known."""
        self._front[: len(header)] = header
        return np.concatenate([_sums_of(self._front), *self._sums, _sums_of(self._rest)])


def _fill(held: bytearray, data: Bytes) -> Bytes:
    """Append to what is held, as far as whole blocks. Returns the rest of the data."""
    taken = min(-len(held) % CHECKED_BYTES, data.size)
    held += data[:taken].tobytes()
    return data[taken:]


def _sums_of(data: bytearray | Bytes) -> Array:
    sums: Array = checksum_blocks(bytes_of(data), CHECKED_BYTES)
    return sums


class CheckedFile:
    """A file written from front to back, and its checksums. Small writes are buffered.

    Where it holds items, it is a `.npy` file. Its header is written last, into space left for it, when the count is
    known.
    """

    def __init__(
        self,
        path: Path,
        item: Column | None,
        *,
        descriptor: int | None = None,
        temporary: bool = False,
    ) -> None:
        """`descriptor` is that of a file that is open and empty. A `temporary` one has no name, so that nothing is left
        of it when the process is killed, and stays open after `finish`, to be uploaded."""
        self.path = path
        self.sums = np.empty(0, SUM_DTYPE)
        """Checksum of every block, set by `finish`."""
        self._item = item
        self._given = 0  # bytes of items
        self._stop = header_bytes = len(self._header())
        self._checksum = Checksum()
        self._block_sums = BlockSums(header_bytes)
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8)
        self._filled = 0
        self._temporary = temporary
        with writing(path):
            if temporary:
                with tempfile.TemporaryFile(dir=path.parent) as file:
                    self._fd = os.dup(file.fileno())
            elif descriptor is not None:
                self._fd = descriptor
            else:
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, array: Array) -> None:
        """Add the bytes of a contiguous array, in slices that stay in the cache for both checksums."""
        data = array.reshape(-1).view(np.uint8)
        self._given += data.size
        while self._filled + data.size >= _BUFFER_BYTES:
            room = _BUFFER_BYTES - self._filled
            if room == _BUFFER_BYTES:
                self._put(data[:room])
            else:
                self._buffer[self._filled :] = data[:room]
                self._filled = _BUFFER_BYTES
                self._flush()
            data = data[room:]
        self._buffer[self._filled : self._filled + data.size] = data
        self._filled += data.size

    def _flush(self) -> None:
        self._put(self._buffer[: self._filled])
        self._filled = 0

    def _put(self, data: Bytes) -> None:
        self._checksum.update(data)
        self._block_sums.update(data)
        with writing(self.path):
            write_all(self._fd, data.data, self._stop)
        self._stop += data.size

    def _header(self) -> bytes:
        if self._item is None:
            return b""
        return build_header(self._item.dtype, self._item.shape, self._given // self._item.item_bytes)

    def finish(self, *, sync: bool) -> FileRecord:
        """Write what is left, and the header, which is always as long as that of no items."""
        self._flush()
        header = self._header()
        with writing(self.path):
            write_all(self._fd, header, 0)
            if sync:
                os.fsync(self._fd)
        if not self._temporary:
            self.close()
        self.sums = self._block_sums.finish(header)
        return FileRecord(self._stop, self._checksum.hexdigest())

    def upload(self, uri: str) -> None:
        """Put a finished temporary file into an object store."""
        with writing(self.path):
            file = os.fdopen(os.dup(self._fd), "rb")
        with file:
            objects.upload(uri, file)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with writing(self.path):
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(WriteError):  # of an unfinished file, errors no longer matter
            self.close()


def write_sums(sums: CheckedFile, files: Sequence[CheckedFile], *, sync: bool) -> FileRecord:
    """Fill the file of block checksums of finished files, in the order of their names."""
    for file in sorted(files, key=lambda file: file.path.name):
        sums.write(file.sums)
    return sums.finish(sync=sync)


class _SpanWriter:
    """The files of one span table. Numbers are collected in lists and written 4,096 at a time."""

    def __init__(self, files: Sequence[CheckedFile]) -> None:
        """`files` are starts and anchors; and offsets and payloads, if there are any."""
        self._starts, self._anchors, *self._payload_files = files
        self._num_spans = 0
        self._payload_bytes = 0
        self._num_anchors = 0
        self._pending_starts: list[int] = []
        self._pending_offsets: list[int] = []
        self._pending_payloads: list[bytes] = []

    @property
    def count(self) -> SpanCount:
        return SpanCount(self._num_spans, self._payload_bytes)

    def begin(self, position: int, lengths: Sequence[int], payloads: Sequence[bytes | None]) -> int:
        """Begin spans of `lengths` items from `position` on. Returns the bytes they take."""
        before = self._payload_bytes
        for length, payload in zip(lengths, payloads, strict=True):
            self._pending_starts.append(position)
            position += length
            self._pending_offsets.append(~self._payload_bytes if payload is None else self._payload_bytes)
            if payload is not None:
                self._pending_payloads.append(payload)
                self._payload_bytes += len(payload)
        self._num_spans += len(lengths)
        if len(self._pending_starts) >= _PENDING_SPANS:
            self._flush(self._pending_starts[-1])
        return self._payload_bytes - before + 16 * len(lengths)

    def _flush(self, anchor_stop: int) -> None:
        """Write pending spans, and the anchors of items before `anchor_stop`, which no later span can cover."""
        starts = np.array(self._pending_starts, SPAN_DTYPE)
        first_span = self._num_spans - starts.size
        positions = np.arange(self._num_anchors, -(-anchor_stop // ANCHOR_ITEMS), dtype=SPAN_DTYPE) * ANCHOR_ITEMS
        anchors = first_span + np.searchsorted(starts, positions, side="right") - 1
        self._num_anchors += positions.size
        self._starts.write(starts)
        self._anchors.write(anchors.astype(SPAN_DTYPE))
        if self._payload_files:
            self._payload_files[0].write(np.array(self._pending_offsets, SPAN_DTYPE))
            self._payload_files[1].write(np.frombuffer(b"".join(self._pending_payloads), np.uint8))
        self._pending_starts.clear()
        self._pending_offsets.clear()
        self._pending_payloads.clear()

    def finish(self, num_items: int) -> None:
        self._flush(num_items)
        if self._payload_files:
            self._payload_files[0].write(np.array([self._payload_bytes], SPAN_DTYPE))
