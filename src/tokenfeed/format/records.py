"""Our JSON files: written with a checksum at the end, and read into dataclasses whose every field is checked.

The annotations of a dataclass say what is expected: whole numbers in [0, 2**62), texts, tuples, mappings, NumPy dtypes,
other dataclasses, and `None`. `Annotated[…, read]` has a reader of its own. Only fields with a default may be missing.
"""

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from tokenfeed.errors import CorruptionError, FormatError
from tokenfeed.format.npy import descr_from_json, descr_to_json
from tokenfeed.kernels.checksum import checksum

__all__ = ["Digest", "check_signature", "parse", "reader", "refuse", "sign"]

VERSION = 1
Record = TypeVar("Record")
Reader = Callable[[Any, str], Any]
"""Takes a value from JSON and its place, for the message of the FormatError that it raises for anything else."""


def parse(kind: type[Record], name: str, data: bytes, path: str) -> Record:
    """The record in a file of the format `name`. Errors name the file and the field."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{path} is not valid JSON: {error}") from error
    found = reader(Mapping[str, Any])(value, path)
    if found.get("format") != name:
        refuse(found.get("format"), f"{path}: format", repr(name))
    if type(found.get("version")) is not int or found["version"] != VERSION:
        raise FormatError(
            f"{path} has format version {reprlib.repr(found.get('version'))}; this version of tokenfeed reads version "
            f"{VERSION}. A newer one wrote it: upgrade tokenfeed"
        )
    made: Any = kind
    record: Record = reader(made)(value, f"{path}:")
    return record


@cache
def reader(kind: Any) -> Reader:
    """A function that turns a value from JSON into the type. Made once for each type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, where: value
    if origin is Annotated:
        own: Reader = arguments[1]
        return own
    if kind is int:
        return _read_count
    if kind is str:
        return lambda value, where: value if isinstance(value, str) else refuse(value, where, "a string")
    if origin in (Union, UnionType):
        inner = reader(next(one for one in arguments if one is not NoneType))
        return lambda value, where: None if value is None else inner(value, where)
    if origin is np.dtype:
        return descr_from_json
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin is tuple:
        return partial(_read_list, reader(arguments[0]))
    return partial(_read_mapping, reader(arguments[0]), reader(arguments[1]))


def refuse(value: Any, where: str, expected: str) -> Any:
    raise FormatError(f"{where} is {reprlib.repr(value)}, expected {expected}")


def _read_count(value: Any, where: str) -> Any:
    is_count = type(value) is int and 0 <= value < 1 << 62
    return value if is_count else refuse(value, where, "a whole number from 0 to 2**62")


def _read_list(read: Reader, value: Any, where: str) -> tuple[Any, ...]:
    items = value if isinstance(value, list) else refuse(value, where, "a list")
    return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(items))


def _read_mapping(read_key: Reader, read: Reader, value: Any, where: str) -> dict[Any, Any]:
    items = value if isinstance(value, dict) else refuse(value, where, "a JSON object")
    return {read_key(key, where): read(item, f"{where} {key!r}") for key, item in items.items()}


def _dataclass_reader(kind: Any) -> Reader:
    readers = {name: reader(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    needed = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}

    def read(value: Any, where: str) -> Any:
        values = value if isinstance(value, dict) else refuse(value, where, "a JSON object")
        if not needed <= values.keys():
            raise FormatError(f"{where} {min(needed - values.keys())} is missing")
        return kind(**{name: one(values[name], f"{where} {name}") for name, one in readers.items() if name in values})

    return read


def _read_digest(value: Any, where: str) -> Any:
    matches = isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value)
    return value if matches else refuse(value, where, "16 hexadecimal digits")


Digest = Annotated[str, _read_digest]


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
