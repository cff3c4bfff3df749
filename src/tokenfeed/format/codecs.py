"""Codecs: how a span's payload becomes bytes, and comes back.

A codec is any object with a name, `encode(object) -> bytes` and `decode(memoryview) -> object`. A store records the
name alone, so opening a store never runs code that the store brought along, and pickle is not among the codecs.
"""

import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError
from tokenfeed.format.npy import parse_header

__all__ = ["SHIPPED", "Codec", "find_codec", "resolve_codec"]


class Codec(Protocol):
    """What a span table's payloads are made with."""

    @property
    def name(self) -> str:
        """How a store refers to the codec."""

    def encode(self, value: Any, /) -> bytes:
        """The bytes that `decode` turns back into `value`."""

    def decode(self, data: memoryview, /) -> Any:
        """The value. `data` may be kept: it is never overwritten."""


class Bytes:
    """Bytes as they are."""

    name = "bytes"

    def encode(self, value: Any) -> bytes:
        return bytes(memoryview(value))

    def decode(self, data: memoryview) -> bytes:
        return bytes(data)


class Utf8:
    """Text."""

    name = "utf8"

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: memoryview) -> str:
        return str(data, "utf8")


class Json:
    """Whatever JSON can hold. Compact, and not escaped to ASCII."""

    name = "json"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, data: memoryview) -> Any:
        return json.loads(bytes(data))


class Msgpack:
    """Whatever MessagePack can hold."""

    name = "msgpack"

    def encode(self, value: Any) -> bytes:
        import msgpack

        packed: bytes = msgpack.packb(value)
        return packed

    def decode(self, data: memoryview) -> Any:
        import msgpack

        return msgpack.unpackb(data, strict_map_key=False)


class Numpy:
    """One array, as the bytes of a `.npy` file; arrays of Python objects are refused both ways."""

    name = "numpy"

    def encode(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return buffer.getvalue()

    def decode(self, data: memoryview) -> Any:
        file = io.BytesIO(data)
        dtype, shape, byte_start = parse_header(file, "the payload", any_order=True)
        if byte_start + dtype.itemsize * math.prod(shape) != len(data):  # before NumPy allocates what a header claims
            raise CorruptionError(f"{len(data):,} bytes are no array of {dtype} with shape {shape}")
        file.seek(0)
        return np.load(file, allow_pickle=False)


class Unknown:
    """Stands for a codec that this process does not know: payloads are given as bytes, and none can be written."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, value: Any) -> bytes:
        raise ArgumentError(f"codec {self.name!r} is not known here; pass the codec itself to the writer")

    def decode(self, data: memoryview) -> bytes:
        return bytes(data)


SHIPPED: Mapping[str, Codec] = {codec.name: codec for codec in (Bytes(), Utf8(), Json(), Msgpack(), Numpy())}


def resolve_codec(codec: str | Codec, *, what: str) -> Codec:
    """The codec that a writer was given, by name or itself."""
    if isinstance(codec, str):
        if codec not in SHIPPED:
            raise ArgumentError(
                f"{what}: no codec is called {codec!r}; there are {', '.join(SHIPPED)}, or pass your own"
            )
        return SHIPPED[codec]
    if not all(hasattr(codec, attribute) for attribute in ("name", "encode", "decode")):
        raise ArgumentError(f"{what}: a codec has a name, encode and decode; {codec!r} does not")
    return codec


def find_codec(name: str, codecs: Iterable[Codec]) -> Codec:
    """The codec of that name: one of the caller's, a shipped one, or `Unknown`."""
    for codec in codecs:
        if codec.name == name:
            return codec
    return SHIPPED.get(name) or Unknown(name)
