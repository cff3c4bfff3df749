"""Columns of the tables: what is taken from the raw results, how it is written, and who is ahead in it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Column", "Figure", "losses", "table"]

OURS = "tokenfeed_loader"
LIMITS = ("c_loop",)


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured once or several times; or words, where there is no number."""

    values: tuple[float, ...] = ()
    words: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def write_median(self, digits: int) -> str:
        return _write(self.median, digits)

    def write(self, digits: int) -> str:
        if not self.values:
            return self.words or "–"
        numbers = [_write(value, digits) for value in (self.median, min(self.values), max(self.values))]
        spread = f" ({numbers[1]}–{numbers[2]})" if len(self.values) > 1 else ""
        return f"{numbers[0]}{spread}{self.words}"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    get: Callable[[Any], Figure]
    more_is_better: bool | None = None
    """None where nobody is ahead of anybody."""
    digits: int = 3
    why: str = ""
    """Why somebody may be ahead of tokenfeed here, and what would change it."""


def _write(value: float, digits: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def table(columns: Sequence[Column], rows: Mapping[str, Any], titles: Mapping[str, str], *, head: str) -> list[str]:
    """Lines of Markdown; rows in the order of the first column that has somebody ahead."""
    cells = {name: [column.get(row) for column in columns] for name, row in rows.items()}
    lead = next((at for at, column in enumerate(columns) if column.more_is_better is not None), None)
    order = list(rows)
    if lead is not None:
        sign = -1 if columns[lead].more_is_better else 1
        order.sort(key=lambda name: sign * cells[name][lead].median if cells[name][lead].values else float("inf"))
    lines = [
        "| " + " | ".join([head, *(column.title for column in columns)]) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in order:
        title = f"**{titles[name]}**" if name.startswith("tokenfeed") else titles[name]
        written = [figure.write(column.digits) for figure, column in zip(cells[name], columns, strict=True)]
        lines.append("| " + " | ".join([title, *written]) + " |")
    return lines


def losses(
    columns: Sequence[Column],
    rows: Mapping[str, Any],
    titles: Mapping[str, str],
    *,
    ours: str,
    limits: Sequence[str] = (),
) -> list[str]:
    """A line for every column in which somebody is ahead of `ours`; the limits are no rivals."""
    lines = []
    if ours not in rows:
        return [f"{titles.get(ours, ours)} was not measured here."]
    for column in columns:
        mine = column.get(rows[ours])
        if column.more_is_better is None or not mine.values:
            continue
        ahead = []
        for name, row in rows.items():
            theirs = column.get(row)
            if name == ours or name in limits or name.startswith("tokenfeed") or not theirs.values:
                continue
            better = theirs.median > mine.median if column.more_is_better else theirs.median < mine.median
            if better:
                apart = min(theirs.values) > max(mine.values) or max(theirs.values) < min(mine.values)
                ahead.append(f"{titles[name]} {theirs.write(column.digits)}{'' if apart else ' (ranges overlap)'}")
        if ahead:
            head = f"- **{column.title}**, ours {mine.write(column.digits)}"
            lines.append(f"{head}: {'; '.join(ahead)}. {column.why or 'Not explained yet.'}")
    return lines
