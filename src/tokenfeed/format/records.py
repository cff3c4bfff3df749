"""Our JSON files: written with a checksum at the end, and read into dataclasses whose every field is checked.

The annotations of a dataclass say what is expected: whole numbers in [0, 2**62), texts, tuples, mappings, NumPy dtypes,
other dataclasses, and `None`. `Annotated[…, read]` has a reader of its own. Only fields with a default may be missing.
"""

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from tokenfeed.errors import CorruptionError, FormatError
from tokenfeed.format.npy import descr_from_json, descr_to_json
from tokenfeed.kernels.checksum import checksum

__all__ = ["Digest", "Unfit", "check_signature", "parse", "reader", "sign"]

VERSION = 1
Record = TypeVar("Record")
Reader = Callable[[Any], Any]


class Unfit(Exception):  # noqa: N818
    """Why a value is not what it must be. Each level that it passes on its way up adds a key to `path`."""

    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.path = list(path)

    def __str__(self) -> str:
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return f"field {place.removeprefix('.')!r} {self.args[0]}"


@dataclass
class _Header:
    format: str
    version: Any


def parse(kind: type[Record], name: str, data: bytes, path: str) -> Record:
    """The record in a file of the format `name`. Errors name the file and the field."""
    try:
        value = json.loads(data)
        header: _Header = reader(_Header)(value)
        if header.format != name:
            _refuse(header.format, repr(name), "format")
        if type(header.version) is not int or header.version != VERSION:
            raise FormatError(
                f"{path} has format version {reprlib.repr(header.version)}; this version of tokenfeed reads version "
                f"{VERSION}. A newer one wrote it: upgrade tokenfeed"
            )
        made: Any = kind
        record: Record = reader(made)(value)
        return record
    except Unfit as error:
        raise FormatError(f"{path}: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{path} is not valid JSON: {error}") from error


@cache
def reader(kind: Any) -> Reader:
    """A function that turns a value from JSON into the type, or raises `Unfit`. Made once for each type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        own: Reader = arguments[1]
        return own
    if kind is int:
        return lambda value: (
            value if type(value) is int and 0 <= value < 1 << 62 else _refuse(value, "a whole number from 0 to 2**62")
        )
    if kind is str:
        return lambda value: value if isinstance(value, str) else _refuse(value, "a string")
    if origin in (Union, UnionType):
        inner = reader(next(one for one in arguments if one is not NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is np.dtype:
        return _read_dtype
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    readers = [reader(argument) for argument in arguments if argument is not ...]
    return partial(_read_list if origin is tuple else _read_mapping, *readers)


def _read_list(read: Reader, value: Any) -> tuple[Any, ...]:
    items = value if isinstance(value, list) else _refuse(value, "a list")
    return tuple(_inside(number, read, item) for number, item in enumerate(items))


def _read_mapping(read_key: Reader, read: Reader, value: Any) -> dict[Any, Any]:
    items = value if isinstance(value, dict) else _refuse(value, "a JSON object")
    return {_inside(key, read_key, key): _inside(key, read, item) for key, item in items.items()}


def _dataclass_reader(kind: Any) -> Reader:
    readers = {name: reader(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    needed = [field.name for field in fields(kind) if field.default is field.default_factory is MISSING]

    def read(value: Any) -> Any:
        values = value if isinstance(value, dict) else _refuse(value, "a JSON object")
        for name in needed:
            if name not in values:
                raise Unfit("is missing", name)
        return kind(**{name: _inside(name, one, values[name]) for name, one in readers.items() if name in values})

    return read


def _inside(key: Any, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except Unfit as error:
        error.path.insert(0, key)
        raise


def _refuse(value: Any, expected: str, *path: str) -> Any:
    raise Unfit(f"is {reprlib.repr(value)}, expected {expected}", *path)


def _read_dtype(value: Any) -> np.dtype[Any]:
    try:
        return descr_from_json(value, what="it")
    except FormatError as error:
        raise Unfit(f"is wrong: {error}") from None


def _read_checksum(value: Any) -> str:
    matches = isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value)
    return str(value) if matches else _refuse(value, "16 hexadecimal digits")


Digest = Annotated[str, _read_checksum]


def sign(name: str, fields: Mapping[str, Any]) -> str:
    """A file of the format `name`: one line per entry of its lists and objects, then the checksum of all lines."""
    fields = {"format": name, "version": VERSION, **fields}
    text = "{\n" + "".join(f'"{key}": {_by_line(value)},\n' for key, value in fields.items())
    return text + _signature(text.encode())


def check_signature(data: bytes, path: str) -> None:
    """Raise CorruptionError unless every byte of a file is as `sign` wrote it."""
    length = len(_signature(b""))
    expected = _signature(data[:-length]).encode()
    if data[-length:] != expected:
        raise CorruptionError(
            f"{path} has changed since it was written: it ends in {data[-length:]!r}, but its content requires "
            f"{expected!r}. If it was changed on purpose, tokenfeed.seal(path) signs the manifest of a store again"
        )


def _signature(data: bytes) -> str:
    return f'"checksum": "{checksum(data)}"\n}}\n'


def _by_line(value: Any) -> str:
    dump = partial(json.dumps, default=descr_to_json)
    if isinstance(value, Mapping) and value:
        return "{\n" + ",\n".join(f"  {dump(key)}: {dump(item)}" for key, item in value.items()) + "\n}"
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(f"  {dump(item)}" for item in value) + "\n]"
    return dump(value)
