"""Measuring on a machine that others use too: short slices, contenders by turns, medians, and a table of bars.

Every repetition measures each contender once, and the order turns with the repetition, so that both sides of a ratio
see the same noise. The figure that a bar is held against is the median of the ratios of the single repetitions.
"""

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

__all__ = ["Neighbours", "Report", "Series", "interleave"]

_TABLE_WIDTH = 140  # wide enough for every row to take one line, in a log too


@dataclass(frozen=True, slots=True)
class Series:
    """What one contender reached, repetition by repetition."""

    values: tuple[float, ...]
    unit: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        if len(self.values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / 2 / self.median

    def over(self, other: "Series", unit: str = "×") -> "Series":
        """The ratio of each repetition."""
        return Series(tuple(a / b for a, b in zip(self.values, other.values, strict=True)), unit)

    def __str__(self) -> str:
        spread = f" ±{100 * self.spread:.0f}%" if len(self.values) > 1 else ""
        return f"{_number(self.median)} {self.unit}{spread}"


def interleave(
    contenders: Mapping[str, Callable[[int], float]], *, repetitions: int, unit: str = ""
) -> dict[str, Series]:
    """Call every contender once per repetition, with the number of the repetition, and gather what they return."""
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            values[name].append(contenders[name](repetition))
    return {name: Series(tuple(series), unit) for name, series in values.items()}


class Neighbours:
    """How busy others keep this machine from now on. Where that is more than a little, distrust figures of threads."""

    def __init__(self) -> None:
        self._begin = _processor_seconds()

    def share(self) -> float:
        """The share of all processors that was taken by other processes, and by the host."""
        everything, busy, ours = (end - begin for begin, end in zip(self._begin, _processor_seconds(), strict=True))
        return max(0.0, busy - ours) / max(everything, 1e-9)


def _processor_seconds() -> tuple[float, float, float]:
    """Seconds so far, summed over processors: all, those not idle, and those of this process and its children."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    rate = os.sysconf("SC_CLK_TCK")
    return sum(ticks) / rate, (sum(ticks) - idle) / rate, sum(os.times()[:4])


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `figure` is what the bar is held against: a ratio, or ours itself."""

    what: str
    ours: Series
    baseline: Series | None
    figure: float
    ratio_of_medians: float | None
    bar: float | None
    kind: Literal["≥", "≤"]
    void: str = ""
    """Why the figure says nothing, where the machine did not allow the comparison. Such a row does not hold its bar."""

    @property
    def ok(self) -> bool | None:
        """Whether the bar is held; None where there is none."""
        if self.bar is None:
            return None
        if self.void:
            return False
        return self.figure >= self.bar if self.kind == "≥" else self.figure <= self.bar


@dataclass(slots=True)
class Report:
    """Rows as they come in, printed together."""

    title: str
    rows: list[Row] = field(default_factory=list)
    neighbours: Neighbours = field(default_factory=Neighbours)

    def compare(self, what: str, ours: Series, baseline: Series, *, bar: float | None = None, void: str = "") -> None:
        """Ours over the baseline, which must reach the bar."""
        figure = ours.over(baseline).median
        self.rows.append(Row(what, ours, baseline, figure, ours.median / baseline.median, bar, "≥", void))

    def limit(self, what: str, values: Sequence[float], unit: str, *, bar: float | None = None) -> None:
        """A figure of ours alone, which must not exceed the bar."""
        ours = Series(tuple(values), unit)
        self.rows.append(Row(what, ours, None, ours.median, None, bar, "≤"))

    @property
    def missed(self) -> list[str]:
        return [row.what for row in self.rows if row.ok is False]

    def show(self) -> None:
        caption = f"other processes took {self.neighbours.share():.0%} of the processors meanwhile"
        table = Table(title=self.title, caption=caption)
        for name in ("what", "ours", "baseline", "ratio", "bar", "ok"):
            table.add_column(name, justify="left" if name == "what" else "right", overflow="fold")
        for row in self.rows:
            table.add_row(
                row.what,
                str(row.ours),
                "" if row.baseline is None else str(row.baseline),
                "" if row.baseline is None else f"{row.figure:.3f}",
                "" if row.bar is None else f"{row.kind} {row.bar:g}",
                "[bold red]void" if row.void else {True: "[green]yes", False: "[bold red]NO", None: ""}[row.ok],
            )
        console = Console(width=_TABLE_WIDTH)
        console.print(table)
        for row in self.rows:
            if row.void:
                console.print(f"void: {row.what}: {row.void}", highlight=False)

    def write_json(self, path: Path) -> None:
        rows = [{**asdict(row), "ok": row.ok} for row in self.rows]
        fields = {"title": self.title, "others": self.neighbours.share(), "rows": rows}
        path.write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
