"""What a run file must say of a history: where samples and documents were delivered."""

from pathlib import Path
from typing import Any

import tokenfeed
from simulation.figures import Figures, demand
from simulation.history import SMALL, WIDE, World
from simulation.worlds import NAMES, Data

__all__ = ["RunChecks"]


class RunChecks:
    """The part of a player that compares the run file with what was delivered."""

    world: World
    data: Data
    figures: Figures
    run_path: Path
    rows: dict[tuple[int, int], list[Any]]
    is_tangled: bool

    def _check_exactly_once(self) -> None:
        raise NotImplementedError

    def check_run(self) -> None:
        self._check_exactly_once()
        if not self.rows or self.is_tangled:
            return
        run = tokenfeed.Run(self.run_path)
        steps = sorted({step for step, _ in self.rows})
        for step in steps if self.world.kind == SMALL else steps[-2:]:
            self._check_trace(run, step)
        places = [(*at, number) for at, rows in self.rows.items() for number in range(len(rows))]
        for place in places[:: max(1, len(places) // 40)]:
            sample = self.rows[place[:2]][place[2]].sample
            demand(run.place(sample) == place, "sample", sample, "was at", place, "not at", run.place(sample))
        if self.world.kind == SMALL:
            for source, document in self._documents_to_find():
                self._check_find(run, source, document)

    def _check_trace(self, run: Any, step: int) -> None:
        ranks = [rank for at, rank in self.rows if at == step]
        for rank in ranks if self.world.kind != WIDE else ranks[:2]:
            for trace, row in zip(run.trace(step, rank=rank), self.rows[step, rank], strict=True):
                source = NAMES[row.drawn.source] if self.data.is_mixed else ""
                told = (trace.sample, trace.source, trace.epoch, trace.index)
                demand(
                    told == (row.sample, source, row.drawn.epoch, row.drawn.index),
                    "step",
                    step,
                    "is traced as",
                    trace,
                    "was",
                    row,
                )
                self.figures.traced += 1

    def _documents_to_find(self) -> set[tuple[int, int]]:
        rows = [rows[0] for rows in self.rows.values() if rows]
        some = [rows[0], rows[len(rows) // 2], rows[-1]]
        return {(row.drawn.source, each) for row in some for each in self.data.touched(row.drawn, row.settings)[:1]}

    def _check_find(self, run: Any, source: int, document: int) -> None:
        epochs = range(max(row.drawn.epoch for rows in self.rows.values() for row in rows) + 1)
        steps = {step for step, _ in self.rows}
        name = NAMES[source] if self.data.is_mixed else None
        seen = run.find(document, source=name, epochs=epochs)
        found = sorted((each.step, each.rank, each.row) for each in seen if each.step in steps and not each.rolled_back)
        expected = sorted(
            (*at, number)
            for at, rows in self.rows.items()
            for number, row in enumerate(rows)
            if row.drawn.source == source and document in self.data.touched(row.drawn, row.settings)
        )
        demand(found == expected, f"document {document} of {name} is found in {found}, was in {expected}")
        self.figures.found += len(found)
