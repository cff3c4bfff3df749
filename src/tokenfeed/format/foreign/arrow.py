"""Arrow files with a column of lists of integers: IPC streams, as Hugging Face `datasets` writes them, and IPC files.

A file is a row of messages: 0xFFFFFFFF, i32 size of the metadata, metadata (a flatbuffer), body. The metadata of a
record batch says where in its body each buffer lies; those of the column are read where they are, in one piece a batch.
Opening reads the metadata of every batch (a thousand rows each, as `datasets` writes them), and both ends of its lists.
"""

import json
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import CorruptionError, DependencyError, FormatError, NotFoundError
from tokenfeed.format.foreign import file
from tokenfeed.format.foreign.file import Boundaries, ForeignFile, agree, is_file, read_at, read_slices, whole
from tokenfeed.storage.files import Extents
from tokenfeed.types import Ints

__all__ = ["Batch", "find_batches", "find_files", "open_arrow", "read_schema"]

_MAGIC = b"ARROW1"
_CONTINUED = b"\xff\xff\xff\xff"
_BATCH = 3  # type of the header of a message
_NAMES = ("input_ids", "tokens")
_LARGEST_STATE = 1 << 24
_HEAD_BYTES = 1 << 12
_ADVICE = "Prepare it with tokens_column=…, which reads lists of any kind"


class _Lists(NamedTuple):
    """Where the lists of one record batch lie."""

    num_lists: int
    offsets_byte: int
    """Byte of the file at which the offsets begin; 0 for lists of a fixed size."""
    first: int
    """Number of the first item in the values."""
    stop: int
    values_byte: int


def find_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that `save_to_disk` wrote, in their order; of any other folder, sorted by name."""
    state = folder / "state.json"
    if is_file(state):
        try:
            names = [each["filename"] for each in json.loads(file.peek(state, _LARGEST_STATE))["_data_files"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            names = []  # of another system
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise CorruptionError(f"{state}: {name!r} is not the name of a file")
            if not is_file(folder / name):
                raise NotFoundError(f"{state} lists {name}, but {folder / name} does not exist")
        if names:
            return [folder / name for name in names]
    return sorted(folder.glob("*.arrow"))


def open_arrow(path: Path, *, dtype: np.dtype[Any] | None) -> ForeignFile:
    """The lists of a file as documents, one after the other."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DependencyError(f"{path}: Arrow files need pyarrow: pip install 'tokenfeed[text]' ({error})") from error
    part = whole(path)
    first = 8 if file.peek(path, len(_MAGIC)) == _MAGIC else 0
    try:
        with pa.OSFile(str(path)) as source:
            schema = read_schema(path, source, first, part.file_bytes)
        name, kind = _choose(path, schema)
        node, buffer = _place_of(path, schema, name)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is no Arrow file that can be read: {error}") from error
    stated = np.dtype(kind.value_type.to_pandas_dtype()).newbyteorder("<")
    chosen = agree(path, stated, dtype)
    found = find_batches(path, partial(read_at, path), first, part.file_bytes)
    every = (
        _lists_of(path, each.body, each.metadata, node, buffer, kind, chosen.itemsize, part.file_bytes)
        for each in found
    )
    batches = [batch for batch in every if batch.num_lists]
    sizes = [(batch.stop - batch.first) * chosen.itemsize for batch in batches]
    firsts = np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))])
    places = np.array([batch.values_byte + batch.first * chosen.itemsize for batch in batches], np.int64)
    column = part._replace(extents=Extents(firsts, places))
    width = 8 if pa.types.is_large_list(kind) else 4
    find = partial(_find_documents, path, batches, firsts // chosen.itemsize, f"<i{width}")
    return ForeignFile({"tokens": (chosen, column)}, Boundaries(find))


def _choose(path: Path, schema: Any) -> tuple[str, Any]:
    import pyarrow as pa

    is_a = pa.types
    able = {
        each.name: each.type
        for each in schema
        if (is_a.is_list(each.type) or is_a.is_large_list(each.type) or is_a.is_fixed_size_list(each.type))
        and is_a.is_integer(each.type.value_type)
    }
    name = next((name for name in _NAMES if name in able), next(iter(able), None) if len(able) == 1 else None)
    if name is None:
        raise FormatError(
            f"{path}: no column is known to hold tokens; its columns are {', '.join(map(str, schema)) or 'none'}. "
            "Expected lists of integers, called input_ids or tokens, or the only ones. Text is for `tokenfeed prepare` "
            "or tokenfeed.stream"
        )
    return name, able[name]


def _place_of(path: Path, schema: Any, name: str) -> tuple[int, int]:
    """Numbers of the first field node and the first buffer of a column, in every record batch."""
    nodes = buffers = 0
    for each in schema:
        if each.name == name:
            return nodes, buffers
        more = _count(path, each.type)
        nodes, buffers = nodes + more[0], buffers + more[1]
    raise AssertionError(name)


def _count(path: Path, kind: Any) -> tuple[int, int]:
    """(field nodes, buffers) of a type, those of its parts included."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_null(kind):
        return 1, 0
    if any(test(kind) for test in (is_a.is_string, is_a.is_binary, is_a.is_large_string, is_a.is_large_binary)):
        return 1, 3
    if is_a.is_dictionary(kind) or is_a.is_primitive(kind) or is_a.is_decimal(kind) or is_a.is_fixed_size_binary(kind):
        return 1, 2
    if any(test(kind) for test in (is_a.is_list, is_a.is_large_list, is_a.is_fixed_size_list)):
        inner, own = [kind.value_type], 1 if is_a.is_fixed_size_list(kind) else 2
    elif is_a.is_struct(kind):
        inner, own = [kind.field(number).type for number in range(kind.num_fields)], 1
    elif is_a.is_map(kind):
        inner, own = [pa.struct([("key", kind.key_type), ("value", kind.item_type)])], 2
    else:
        raise FormatError(f"{path}: a column is {kind}, after which nothing can be read in place. {_ADVICE}")
    parts = [_count(path, each) for each in inner]
    return 1 + sum(part[0] for part in parts), own + sum(part[1] for part in parts)


def read_schema(path: object, source: Any, at: int, size: int) -> Any:
    """The schema of a stream that begins at a byte. An IPC file is a stream between two magics, with a footer."""
    import pyarrow as pa

    source.seek(at)
    lead = source.read(8)
    if lead[:4] != _CONTINUED or not 0 < int.from_bytes(lead[4:], "little", signed=True) <= size - at - 8:
        raise FormatError(f"{path} is no Arrow file that can be read: there is no schema at byte {at}")
    source.seek(at)
    return pa.ipc.open_stream(source).schema


class Batch(NamedTuple):
    """A record batch: bytes [start, stop) of a file."""

    start: int
    body: int
    stop: int
    metadata: bytes


def find_batches(path: object, read: Callable[[int, int], bytes], at: int, size: int) -> Iterator[Batch]:
    """The record batches from a byte on. One call of `read(byte_start, num_bytes)` each, if their metadata is short."""
    while at + 8 <= size:
        lead = read(at, min(_HEAD_BYTES, size - at))
        length = int.from_bytes(lead[4:8], "little", signed=True)
        if lead[:4] != _CONTINUED or length < 0 or at + 8 + length > size:
            raise CorruptionError(f"{path}: no message of Arrow at byte {at:,}, or one that is longer than the file")
        if length == 0:
            return
        body = at + 8 + length
        metadata = lead[8 : 8 + length] if 8 + length <= len(lead) else read(at + 8, length)
        try:
            message = _Table.root(metadata)
            kind, body_bytes = message.number(1, "<B"), message.number(3, "<q")
        except (struct.error, IndexError) as error:
            raise CorruptionError(f"{path}: the message at byte {at:,} is damaged ({error})") from error
        if body_bytes < 0 or body + body_bytes > size:
            raise CorruptionError(f"{path}: the message at byte {at:,} has {body_bytes:,} bytes; the file ends before")
        if kind == _BATCH:
            yield Batch(at, body, body + body_bytes, metadata)
        at = body + body_bytes


def _lists_of(
    path: Path, body: int, metadata: bytes, node: int, buffer: int, kind: Any, item_bytes: int, size: int
) -> _Lists:
    import pyarrow as pa

    try:
        batch = _Table.root(metadata).table(2)
        if batch.has(3):
            raise FormatError(f"{path}: its record batches are compressed, and cannot be read in place. {_ADVICE}")
        count, nulls = batch.structs(1, node)
        inner_count, inner_nulls = batch.structs(1, node + 1)
        is_fixed = pa.types.is_fixed_size_list(kind)
        if is_fixed and kind.list_size < 1:
            raise FormatError(f"{path}: lists of {kind.list_size} items hold no tokens")
        offsets = 0 if is_fixed else body + batch.structs(2, buffer + 1)[0]
        values, value_bytes = batch.structs(2, buffer + (2 if is_fixed else 3))
    except (struct.error, IndexError) as error:
        raise CorruptionError(f"{path}: a record batch before byte {body:,} is damaged ({error})") from error
    if nulls or inner_nulls:
        raise FormatError(f"{path}: a list or a token is null, and cannot be read in place. {_ADVICE}")
    width = 8 if pa.types.is_large_list(kind) else 4
    if is_fixed:
        first, stop = 0, count * kind.list_size
    elif count > 0 and offsets + (count + 1) * width <= size:
        ends = (read_at(path, offsets, width), read_at(path, offsets + count * width, width))
        first, stop = (int.from_bytes(end, "little", signed=True) for end in ends)
    else:
        first = stop = 0
    place = body + values
    is_inside = 0 <= first <= stop <= inner_count and stop * item_bytes <= value_bytes and values >= 0 <= count
    if not is_inside or place + stop * item_bytes > size:
        raise CorruptionError(f"{path}: the lists of a record batch before byte {body:,} lie outside it")
    return _Lists(count, offsets, first, stop, place)


def _find_documents(path: Path, batches: list[_Lists], firsts: Ints, dtype: str) -> Ints:
    """One pass over the offsets of all batches; 8 bytes of memory per document."""
    found = [np.empty(0, np.int64)]
    for batch, first in zip(batches, firsts.tolist(), strict=False):
        if not batch.offsets_byte:
            length = (batch.stop - batch.first) // batch.num_lists
            found.append(first + np.arange(batch.num_lists, dtype=np.int64) * length)
            continue
        slices = read_slices(path, dtype, batch.num_lists, byte_start=batch.offsets_byte)
        offsets = np.concatenate([values.astype(np.int64) for _, values in slices])
        file.check_sorted(path, "offset", np.append(offsets, batch.stop))
        found.append(first + offsets - batch.first)
    return np.concatenate(found)


class _Table(NamedTuple):
    """A table of a flatbuffer."""

    data: bytes
    position: int

    @classmethod
    def root(cls, data: bytes) -> "_Table":
        return cls(data, *struct.unpack_from("<I", data, 0))

    def _field(self, number: int) -> int:
        """Where a field lies; 0 where it has its default."""
        table = self.position - struct.unpack_from("<i", self.data, self.position)[0]
        if table < 0 or self.position < 0:
            raise IndexError("a table outside the message")
        (size,) = struct.unpack_from("<H", self.data, table)
        if 4 + 2 * number + 2 > size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, table + 4 + 2 * number)
        return self.position + offset if offset else 0

    def has(self, number: int) -> bool:
        return self._field(number) != 0

    def number(self, number: int, code: str) -> int:
        at = self._field(number)
        return int(struct.unpack_from(code, self.data, at)[0]) if at else 0

    def table(self, number: int) -> "_Table":
        at = self._field(number)
        return _Table(self.data, at + struct.unpack_from("<I", self.data, at)[0])

    def structs(self, number: int, index: int) -> tuple[int, int]:
        """An element of a vector of structs of two int64."""
        at = self._field(number)
        at += struct.unpack_from("<I", self.data, at)[0]
        if index >= struct.unpack_from("<I", self.data, at)[0]:
            raise IndexError(f"no element {index}")
        first, second = struct.unpack_from("<qq", self.data, at + 4 + 16 * index)
        return first, second
