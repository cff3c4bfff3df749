"""Codecs: convert the payload of a span to bytes and back.

A codec is any object with a name, `encode(object) -> bytes` and `decode(memoryview) -> object`. A store records only
the name, so opening a store never runs code from the store. There is no pickle codec.
"""

import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError
from tokenfeed.format.npy import parse_header

__all__ = ["SHIPPED", "Codec", "find_codec", "resolve_codec"]


@runtime_checkable
class Codec(Protocol):
    """Converts the payloads of a span table to bytes and back."""

    @property
    def name(self) -> str:
        """Name that a store records."""

    def encode(self, value: Any, /) -> bytes:
        """The bytes that `decode` turns back into `value`."""

    def decode(self, data: memoryview, /) -> Any:
        """The value. The codec may keep `data`: it is never overwritten."""


class BytesCodec:
    """Bytes, unchanged."""

    name = "bytes"

    def encode(self, value: Any) -> bytes:
        return bytes(memoryview(value))

    def decode(self, data: memoryview) -> bytes:
        return bytes(data)


class Utf8Codec:
    """Text as UTF-8."""

    name = "utf8"

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: memoryview) -> str:
        return str(data, "utf8")


class JsonCodec:
    """Any JSON value, compact and not escaped to ASCII."""

    name = "json"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, data: memoryview) -> Any:
        return json.loads(bytes(data))


class MsgpackCodec:
    """Any MessagePack value."""

    name = "msgpack"

    def encode(self, value: Any) -> bytes:
        import msgpack

        packed: bytes = msgpack.packb(value)
        return packed

    def decode(self, data: memoryview) -> Any:
        import msgpack

        return msgpack.unpackb(data, strict_map_key=False)


class NumpyCodec:
    """One array, as the bytes of a `.npy` file. Arrays of Python objects are refused in both directions."""

    name = "numpy"

    def encode(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return buffer.getvalue()

    def decode(self, data: memoryview) -> Any:
        file = io.BytesIO(data)
        dtype, shape, byte_start = parse_header(file, "the payload", any_order=True)
        if byte_start + dtype.itemsize * math.prod(shape) != len(data):  # before NumPy allocates what the header says
            raise CorruptionError(f"the payload has {len(data):,} bytes, which is not an array of {dtype}, {shape}")
        file.seek(0)
        return np.load(file, allow_pickle=False)


class UnknownCodec:
    """Stands for a codec that this process does not know: payloads are read as bytes, and cannot be written."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, value: Any) -> bytes:
        raise ArgumentError(f"codec {self.name!r} is not known; pass the codec object itself to the writer")

    def decode(self, data: memoryview) -> bytes:
        return bytes(data)


SHIPPED: Mapping[str, Codec] = {
    codec.name: codec for codec in (BytesCodec(), Utf8Codec(), JsonCodec(), MsgpackCodec(), NumpyCodec())
}


def resolve_codec(codec: str | Codec, *, what: str) -> Codec:
    """The codec given to a writer, by name or as an object."""
    if isinstance(codec, str):
        if codec not in SHIPPED:
            raise ArgumentError(
                f"{what}: there is no codec {codec!r}; use one of {', '.join(SHIPPED)}, or pass a codec object"
            )
        return SHIPPED[codec]
    if not isinstance(codec, Codec):
        raise ArgumentError(f"{what}: a codec needs a name, encode and decode; {codec!r} lacks at least one")
    return codec


def find_codec(name: str, codecs: Iterable[Codec]) -> Codec:
    """The codec of that name: the caller's, a shipped one, or `UnknownCodec`."""
    for codec in codecs:
        if codec.name == name:
            return codec
    return SHIPPED.get(name) or UnknownCodec(name)
