"""The resume oracle that all roads share: what a run must deliver, and whether it did.

A *history* is a list of legs: (world size, batch size, steps, prefetch). Each leg begins from the checkpoint of the one
before it, on all its ranks, in one process.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Leg(NamedTuple):
    world_size: int
    batch_size: Any
    steps: int
    prefetch: int = 0


class Row(NamedTuple):
    """What one row was: its number in the run, and its content."""

    sample: int
    epoch: int
    content: bytes


def run(
    history: Sequence[Leg],
    make_loader: Callable[..., Any],
    *,
    per_rank: bool = False,
    see: Callable[[Any], None] = lambda batch: None,
) -> list[Row]:
    """Every row that a history delivers, in the order of the run. `see` is called with every batch.

    Checks that a batch's state is the loader's, and on every rank the same; with `per_rank`, every rank has its own,
    and all of them together are what the next leg begins from, as JSON.
    """
    rows: list[Row] = []
    state: Any = None
    for leg in history:
        loaders = [
            make_loader(batch_size=leg.batch_size, rank=rank, world_size=leg.world_size, prefetch=leg.prefetch)
            for rank in range(leg.world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(leg.steps):
            batches = [next(loader) for loader in loaders]
            states = [batch.state for batch in batches]
            assert states == [loader.state_dict() for loader in loaders]
            assert per_rank or all(other == states[0] for other in states)
            state = json.loads(json.dumps(states if per_rank else states[0]))
            for batch in batches:
                see(batch)
            step = [row for batch in batches for row in rows_of(batch)]
            rows += sorted(step)
        for loader in loaders:
            loader.close()
    return rows


def rows_of(batch: Any) -> list[Row]:
    columns = batch.column("tokens")
    if columns.ndim == 1:  # documents, one after the other
        columns = np.split(columns, batch.host.offsets[1:-1])
    return [
        Row(int(sample), int(epoch), np.ascontiguousarray(columns[row]).tobytes())
        for row, (sample, epoch) in enumerate(zip(batch.samples, batch.epochs, strict=True))
    ]


def check_exactly_once(rows: Sequence[Row], num_samples: int) -> None:
    """Samples are numbered without gap or repeat, and the rows of every whole epoch are all different."""
    assert [row.sample for row in rows] == list(range(len(rows)))
    for epoch in range(len(rows) // num_samples):
        within = rows[epoch * num_samples : (epoch + 1) * num_samples]
        assert {row.epoch for row in within} == {epoch}
        assert len({row.content for row in within}) == num_samples
