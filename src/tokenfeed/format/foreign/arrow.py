"""Arrow files with a column of lists of integers: IPC streams, as Hugging Face `datasets` writes them, and IPC files.

A file is a row of messages: 0xFFFFFFFF, i32 size of the metadata, metadata (a flatbuffer), body. pyarrow maps the file
and says where the values of a column lie; they are read there, in one piece for each record batch. Opening reads the
metadata of every batch (a thousand rows each, as `datasets` writes them), and both ends of its lists.
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
from tokenfeed.format.foreign.file import Boundaries, ForeignFile, agree, is_file, read_slices, whole
from tokenfeed.storage.files import Extents
from tokenfeed.types import Ints

__all__ = ["find_batches", "find_files", "first_byte", "open_arrow", "read_schema"]

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
    part, first, every = whole(path), first_byte(file.peek(path, len(_MAGIC))), list[_Lists]()
    kind = None
    try:
        with pa.memory_map(str(path)) as source:
            name, kind = _choose(path, read_schema(path, source, first, part.file_bytes))
            chosen = agree(path, np.dtype(kind.value_type.to_pandas_dtype()).newbyteorder("<"), dtype)
            source.seek(0)
            mapped = source.read_buffer()
            for batch in pa.ipc.open_stream(pa.BufferReader(mapped.slice(first))):
                every.append(_lists_of(path, batch.column(name), mapped))
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        if kind is None:
            raise FormatError(f"{path} is no Arrow file that can be read: {error}") from error
        told = f"record batch {len(every)} is damaged, or the file ends before it does"
        raise CorruptionError(f"{path}: {told} ({' '.join(str(error).split())})") from error
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


def _lists_of(path: Path, column: Any, mapped: Any) -> _Lists:
    """The lists of a batch, whose buffers lie in the file as it is mapped."""
    import pyarrow as pa

    column.validate()  # that buffers are as long as they must be, and both ends of the offsets
    buffers, is_fixed = column.buffers(), pa.types.is_fixed_size_list(column.type)
    offsets, values = None if is_fixed else buffers[1], buffers[-1]
    if column.null_count or column.values.null_count:
        raise FormatError(f"{path}: a list or a token is null, and cannot be read in place. {_ADVICE}")
    if is_fixed:
        first, stop = 0, len(column) * column.type.list_size
    else:
        first, stop = (column.offsets[end].as_py() for end in (0, -1)) if len(column) else (0, 0)
    places = [0 if each is None or not stop else each.address - mapped.address for each in (offsets, values)]
    if not all(0 <= place <= mapped.size for place in places):
        raise FormatError(f"{path}: its record batches are compressed, and cannot be read in place. {_ADVICE}")
    if not 0 <= first <= stop or places[1] + stop * (column.type.value_type.bit_width // 8) > mapped.size:
        raise CorruptionError(f"{path}: the lists of a record batch lie outside it")
    return _Lists(len(column), places[0], first, stop, places[1])


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


def first_byte(head: bytes) -> int:
    """Where the messages begin of a file with this head: an IPC file is a stream between two magics, with a footer."""
    return 8 if head.startswith(_MAGIC) else 0


def read_schema(path: object, source: Any, at: int, size: int) -> Any:
    """The schema of the stream that begins at a byte of a file of pyarrow."""
    import pyarrow as pa

    source.seek(at)
    lead = source.read(8)
    if lead[:4] != _CONTINUED or not 0 < int.from_bytes(lead[4:], "little", signed=True) <= size - at - 8:
        raise FormatError(f"{path} is no Arrow file that can be read: there is no schema at byte {at}")
    source.seek(at)
    return pa.ipc.open_stream(source).schema


def find_batches(path: object, read: Callable[[int, int], bytes], at: int, size: int) -> Iterator[tuple[int, int]]:
    """Bytes [start, stop) of every record batch from a byte on, by its metadata alone.

    One call of `read(byte_start, num_bytes)` for each, if its metadata is short.
    """
    while at + 8 <= size:
        lead = read(at, min(_HEAD_BYTES, size - at))
        length = int.from_bytes(lead[4:8], "little", signed=True)
        if lead[:4] != _CONTINUED or length < 0 or at + 8 + length > size:
            raise CorruptionError(f"{path}: no message of Arrow at byte {at:,}, or one that is longer than the file")
        if length == 0:
            return
        metadata = lead[8 : 8 + length] if 8 + length <= len(lead) else read(at + 8, length)
        try:
            kind, body_bytes = _field(metadata, 1, "<B"), _field(metadata, 3, "<q")
        except (struct.error, IndexError) as error:
            raise CorruptionError(f"{path}: the message at byte {at:,} is damaged ({error})") from error
        start, at = at, at + 8 + length + body_bytes
        if body_bytes < 0 or at > size:
            raise CorruptionError(
                f"{path}: the message at byte {start:,} has {body_bytes:,} bytes; the file ends before"
            )
        if kind == _BATCH:
            yield start, at


def _field(data: bytes, number: int, code: str) -> int:
    """A number of the root table of a flatbuffer; 0 where it has its default."""
    (root,) = struct.unpack_from("<I", data)
    table = root - struct.unpack_from("<i", data, root)[0]
    if table < 0:
        raise IndexError("a table outside the message")
    (size,) = struct.unpack_from("<H", data, table)
    (offset,) = struct.unpack_from("<H", data, table + 4 + 2 * number) if 6 + 2 * number <= size else (0,)
    return int(struct.unpack_from(code, data, root + offset)[0]) if offset else 0
