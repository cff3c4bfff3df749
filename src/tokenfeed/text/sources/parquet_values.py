"""Values of Arrow columns as text, and which types of columns can be kept as JSON."""

import codecs
from collections.abc import Iterator
from typing import Any

__all__ = ["fits_json", "is_text", "is_written_out", "pieces_of", "texts_of"]

_TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def texts_of(column: Any, long_bytes: int | None) -> list[str | memoryview | UnicodeDecodeError | None]:
    """The values of a column: strings; Arrow's bytes of those longer than `long_bytes`; what is wrong with others.

    One call of Arrow makes all strings, as fast as slicing its buffers by hand; only where one of them is long or is
    not UTF-8 are they looked at one by one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_dictionary = pa.types.is_dictionary(column.type)
    if long_bytes is not None:
        values = column.dictionary if is_dictionary else column
        if (pc.max(pc.binary_length(values)).as_py() or 0) > long_bytes:
            return [_text_of(column, place, long_bytes) for place in range(len(column))]
    decoded = column.dictionary_decode() if is_dictionary else column
    try:
        texts: list[Any] = decoded.to_pylist()
        return [None if text is None else text.decode() for text in texts] if _is_binary(decoded.type) else texts
    except UnicodeDecodeError:
        return [_text_of(column, place, None) for place in range(len(column))]


def pieces_of(data: memoryview, piece_bytes: int) -> Iterator[str]:
    """UTF-8 as strings of about `piece_bytes` each."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), piece_bytes):
        yield decoder.decode(data[start : start + piece_bytes], start + piece_bytes >= len(data))


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds text: strings, plain or dictionary-encoded, or bytes."""
    import pyarrow as pa

    return str(kind.value_type if pa.types.is_dictionary(kind) else kind) in _TEXTS


def is_written_out(kind: Any) -> bool:
    """Whether values of a type are kept in the way Arrow writes them: 2024-05-01 12:00:00, 1.50."""
    import pyarrow as pa

    return bool((pa.types.is_temporal(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind))


def fits_json(kind: Any) -> bool:
    """Whether JSON can hold the values of a type."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_struct(kind) or is_a.is_map(kind):
        return all(fits_json(kind.field(number).type) for number in range(kind.num_fields))
    if is_a.is_dictionary(kind) or any(
        test(kind) for test in (is_a.is_list, is_a.is_large_list, is_a.is_fixed_size_list)
    ):
        return fits_json(kind.value_type)
    simple = (is_a.is_null, is_a.is_boolean, is_a.is_integer, is_a.is_floating, is_a.is_string, is_a.is_large_string)
    return any(test(kind) for test in simple) or str(kind) == "string_view"


def _is_binary(kind: Any) -> bool:
    return "binary" in str(kind)


def _text_of(column: Any, place: int, long_bytes: int | None) -> str | memoryview | UnicodeDecodeError | None:
    data = _bytes_of(column, place)
    if data is None:
        return None
    try:
        if long_bytes is None or len(data) <= long_bytes:
            return str(data, "utf-8")
        for _ in pieces_of(data, long_bytes):  # all of it must be right before anything is handed over
            pass
    except UnicodeDecodeError as error:
        return error
    return data


def _bytes_of(column: Any, place: int) -> memoryview | None:
    """The bytes of a value where Arrow has them (`column[place]` would copy them)."""
    import pyarrow as pa

    if not column[place : place + 1].is_valid()[0].as_py():
        return None
    if pa.types.is_dictionary(column.type):
        return _bytes_of(column.dictionary, column.indices[place].as_py())
    if str(column.type).endswith("_view"):
        return memoryview(column[place].as_buffer())
    size = 8 if str(column.type).startswith("large_") else 4
    _, offsets, data = column.buffers()
    at = (column.offset + place) * size
    start, stop = memoryview(offsets)[at : at + 2 * size].cast("B").cast("q" if size == 8 else "i")
    return memoryview(b"") if data is None else memoryview(data)[start:stop]
