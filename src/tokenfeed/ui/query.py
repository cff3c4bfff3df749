"""Parameters of a request, checked when they are read."""

from collections.abc import Mapping, Sequence

from tokenfeed.errors import ArgumentError

__all__ = ["Query"]

_MOST_DIGITS = 20


class Query:
    """The parameters of one request. An invalid one raises ArgumentError, which says what is valid."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def whole(self, name: str, default: int, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A whole number in [least, most]."""
        text = self._values.get(name, "").strip()
        if not text:
            return default
        digits = text.removeprefix("-")
        if len(text) > _MOST_DIGITS or not digits.isascii() or not digits.isdigit():
            raise ArgumentError(f"{name} is {text[:40]!r}; expected a whole number")
        number = int(text)
        if not least <= number <= most:
            raise ArgumentError(f"{name} is {number:,}; it must be from {least:,} to {most:,}")
        return number

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """One of the choices; if the request names none, `default`, or else the first."""
        if not choices:
            raise ArgumentError(f"the store has no {name} to choose from")
        text = self._values.get(name, "") or default or choices[0]
        if text not in choices:
            raise ArgumentError(f"{name} is {text[:40]!r}; it must be one of {', '.join(choices)}")
        return text

    def text(self, name: str) -> str | None:
        """Any text; None if the request has none."""
        return self._values.get(name) or None
