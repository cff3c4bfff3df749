"""Codecs: convert the payload of a span to bytes and back.

A codec is any object with a name, `encode(object) -> bytes` and `decode(memoryview) -> object`. A store records only
the name, so opening a store never runs code from the store. There is no pickle codec.
"""

import importlib
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, FitError
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


@dataclass(frozen=True)
class _Codec:
    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[memoryview], Any]


def _pack_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FitError(f"the payload {value!r:.100} cannot be written as JSON: {error}") from error


_ANY_KEY = {"strict_map_key": False}


def _msgpack() -> Any:
    return importlib.import_module("msgpack")  # only where it is used: it takes 10 ms


def _pack_array(value: Any) -> bytes:
    """The bytes of a `.npy` file. Arrays of Python objects are refused in both directions."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(value), allow_pickle=False)
    return buffer.getvalue()


def _unpack_array(data: memoryview) -> Any:
    file = io.BytesIO(data)
    dtype, shape, byte_start = parse_header(file, "the payload", any_order=True)
    if byte_start + dtype.itemsize * math.prod(shape) != len(data):  # before NumPy allocates what the header says
        raise CorruptionError(f"the payload has {len(data):,} bytes, which is not an array of {dtype}, {shape}")
    file.seek(0)
    return np.load(file, allow_pickle=False)


SHIPPED: Mapping[str, Codec] = {
    codec.name: codec
    for codec in (
        _Codec("bytes", lambda value: bytes(memoryview(value)), bytes),
        _Codec("utf8", str.encode, lambda data: str(data, "utf8")),
        _Codec("json", _pack_json, lambda data: json.loads(bytes(data))),
        _Codec("msgpack", lambda value: _msgpack().packb(value), lambda data: _msgpack().unpackb(data, **_ANY_KEY)),
        _Codec("numpy", _pack_array, _unpack_array),
    )
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
    """The codec of that name: the caller's, a shipped one, or one that gives bytes and cannot be written by."""

    def refuse(_: Any) -> bytes:
        raise ArgumentError(f"codec {name!r} is not known; pass the codec object itself to the writer")

    known = {**SHIPPED, **{codec.name: codec for codec in codecs}}
    return known.get(name) or _Codec(name, refuse, bytes)
