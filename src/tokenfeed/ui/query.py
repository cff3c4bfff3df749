"""What a request asks for, checked as it is taken."""

from collections.abc import Mapping, Sequence

from tokenfeed.errors import ArgumentError

__all__ = ["Query"]

_MOST_DIGITS = 20


class Query:
    """The parameters of one request. A parameter that cannot be meant is an ArgumentError, which says what can be."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def whole(self, name: str, default: int, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A whole number in [least, most]."""
        text = self._values.get(name, "").strip()
        if not text:
            return default
        if len(text) > _MOST_DIGITS or not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
            raise ArgumentError(f"{name} is {text[:40]!r}; expected a whole number")
        number = int(text)
        if not least <= number <= most:
            raise ArgumentError(f"{name} is {number:,}; it must be from {least:,} to {most:,}")
        return number

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """One of the choices; the first, unless another is the default."""
        if not choices:
            raise ArgumentError(f"there is no {name} to choose: the store has none")
        text = self._values.get(name, "") or default or choices[0]
        if text not in choices:
            raise ArgumentError(f"{name} is {text[:40]!r}; it must be one of {', '.join(choices)}")
        return text

    def text(self, name: str) -> str | None:
        """Any text; None where there is none."""
        return self._values.get(name) or None
