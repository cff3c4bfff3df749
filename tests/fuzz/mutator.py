"""Damage of every kind, the same for the same `random.Random`: to bytes, to JSON, and to arrays of numbers."""

import json
import random
import re
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["INTEGERS", "NAMES", "mutate_bytes", "mutate_json", "mutate_numbers"]

INTEGERS = [
    *(0, 1, -1, 2, 7, 127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536, -(2**31), 2**31 - 1, 2**31, 2**32),
    *(2**40, 2**53, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400),
]
NAMES = [
    *("", ".", "..", "../x", "../../etc/passwd", "/etc/passwd", "a/b", "a\0b", "x\n", "a\\b", "~", "-x", "\u202etxt"),
    *("file:///etc/passwd", "https://user:pass@host.invalid/x", "é" * 60, "a" * 300, "a" * 70_000, "\ud800", "CON"),
]
_SCALARS = [None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), *INTEGERS, *NAMES]
_WORDS = [
    b"\0",
    b"\n",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"NaN",
    b"-",
]
_DEEP = "deep:{}"


def mutate_bytes(rng: random.Random, data: bytes, most: int = 4) -> bytes:
    """Up to `most` damages, one on top of the other."""
    for _ in range(rng.randint(1, most)):
        data = _damage(rng, bytearray(data))
    return data


def _damage(rng: random.Random, data: bytearray) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = min(len(data) - at, rng.choice((1, 2, 4, 8, 16, 100)))
    match rng.randrange(8):
        case 0 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case 2:
            del data[at : at + size]
        case 3:
            data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
        case 4:
            data[at:at] = rng.choice(_WORDS) * rng.choice((1, 1, 3, 1000))
        case 5:
            del data[at:]
        case 6:
            data[at : at + size] = rng.randbytes(size)
        case _:
            form = rng.choice("bhiq")
            width = struct.calcsize(form)
            bits = rng.choice(INTEGERS) % (1 << (8 * width))
            start = at // width * width if rng.random() < 0.5 else at
            data[start : start + width] = bits.to_bytes(width, "little")
    return bytes(data)


def mutate_json(rng: random.Random, value: Any, most: int = 3) -> bytes:
    """JSON text of `value` with up to `most` parts replaced, removed or doubled; at times damaged as text too."""
    value = json.loads(json.dumps(value))
    for _ in range(min(most, rng.choice((1, 1, 1, 2, 3)))):
        value = _replace(rng, value)
    text = json.dumps(value, allow_nan=True, ensure_ascii=rng.random() < 0.7)
    text = re.sub(r'"deep:(\d+)"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text)
    if rng.random() < 0.15:  # a key twice
        key = rng.choice(re.findall(r'"\w{1,20}"(?=: )', text) or ['"version"'])
        text = text.replace("{", "{" + f"{key}: {json.dumps(rng.choice(_SCALARS))}, ", 1)
    data = text.encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, data, 2) if rng.random() < 0.2 else data


def _replace(rng: random.Random, value: Any) -> Any:
    """The same value with something in it changed; the deeper, the likelier."""
    children = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    if children and rng.random() < 0.95:
        key = rng.choice(children)
        match rng.randrange(12):
            case 0:
                del value[key]
            case 1 if isinstance(value, list):
                value.insert(key, value[rng.randrange(len(value))])
            case 1:
                value[rng.choice(NAMES)] = value.pop(key)
            case 2 if isinstance(value, list):
                rng.shuffle(value)
            case _:
                value[key] = _replace(rng, value[key])
        return value
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.3:
        return value + rng.choice((-1, 1, 2**32, -(2**32)))
    if rng.random() < 0.1:
        return rng.choice(([], {}, [[]], {"": None}, _DEEP.format(rng.choice((100, 300, 600, 990, 100_000)))))
    return rng.choice(_SCALARS)


def mutate_numbers(rng: random.Random, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """As many numbers, some of which are wrong: out of order, negative, beyond the end, near overflow."""
    numbers = numbers.copy()
    for _ in range(rng.randint(1, 4) if numbers.size else 0):
        at = rng.randrange(numbers.size)
        match rng.randrange(6):
            case 0:
                numbers[at] += rng.choice((-1, 1, -100, 100))
            case 1:
                numbers[at] = ~numbers[at]
            case 2:
                other = rng.randrange(numbers.size)
                numbers[[at, other]] = numbers[[other, at]]
            case 3:
                numbers[at:] += rng.choice((-1, 1, 5, -5, 2**40))
            case 4:
                numbers[at : at + rng.randint(1, 50)] = numbers[at]
            case _:
                numbers[at] = (rng.choice(INTEGERS) + 2**63) % 2**64 - 2**63
    return numbers
