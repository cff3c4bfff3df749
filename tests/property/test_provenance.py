"""Random histories with returns to earlier checkpoints: rows trace to what was delivered, and documents are found."""

import tempfile
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from tokenfeed.loader.loader import Loader
from tokenfeed.runs.diff import compare

LENGTHS = [5, 3, 0, 1, 9, 4, 4, 14, 2, 6, 1, 8]
VIEWS = ["windows", "documents", "packed", "mixture", "packed mixture"]


class Leg(NamedTuple):
    world_size: int
    batch_size: int
    steps: int
    back: int
    """From which checkpoint: so many before the last. Those after it are given up."""
    skip: int
    """How many samples are left out before its second step."""


HISTORY = st.lists(
    st.builds(
        Leg,
        st.integers(1, 4),
        st.integers(1, 5),
        st.integers(1, 5),
        st.sampled_from([0, 0, 1, 2, 5]),
        st.sampled_from([0, 0, 3]),
    ),
    min_size=1,
    max_size=5,
)


class Row(NamedTuple):
    """What was delivered."""

    sample: int
    epoch: int
    tokens: bytes
    payloads: list[object]


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture(scope="module")
def views(folder):
    """Documents of 0 to 14 items, each unlike any other, whose payloads tell their source and number."""
    stores = {}
    for source in ("a", "b"):
        with tokenfeed.Writer(
            folder / source, columns={"tokens": "uint16"}, spans={"documents": "json"}, shard_bytes=40, sync=False
        ) as writer:
            for number, length in enumerate(LENGTHS if source == "a" else LENGTHS[::-1]):
                tokens = 1000 * (source == "b") + 20 * number + np.arange(length)
                writer.append({"tokens": tokens}, documents={"source": source, "number": number})
        stores[source] = tokenfeed.open(folder / source)
    for store in stores.values():
        store.pack(6)
    mixed = {"a": (stores["a"].windows(4), 2), "b": (stores["b"].windows(4), 1)}
    return {
        "windows": stores["a"].windows(4),
        "documents": stores["a"].documents(),
        "packed": stores["a"].packed(6),
        "mixture": tokenfeed.mix(mixed),
        "packed mixture": tokenfeed.mix({"a": (stores["a"].packed(6), 2), "b": (stores["b"].packed(6), 1)}),
    }


def deliver(view, history, path, seed):
    """What a history delivers in the end, rows by (step, rank, row); and what it delivered and rolled back."""
    checkpoints = [None]
    delivered, rolled_back = {}, []
    for leg in history:
        del checkpoints[max(1, len(checkpoints) - leg.back) :]
        state = checkpoints[-1]
        loaders = [
            Loader(view, leg.batch_size, seed=seed, rank=rank, world_size=leg.world_size, prefetch=0, run=path)
            for rank in range(leg.world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        for number in range(leg.steps):
            batches = [next(loader) for loader in loaders]
            if number == 0:
                step = tokenfeed.Run(path).starts[-1].step
                rolled_back += [(place, row) for place, row in delivered.items() if place[0] >= step]
                delivered = {place: row for place, row in delivered.items() if place[0] < step}
            for rank, batch in enumerate(batches):
                spans = batch.spans["documents"]
                for row, (sample, epoch) in enumerate(zip(batch.samples.tolist(), batch.epochs.tolist(), strict=True)):
                    payloads = [span.payload for span in spans[row]]
                    content = np.ascontiguousarray(batch[row].tokens).tobytes()
                    delivered[step + number, rank, row] = Row(sample, epoch, content, payloads)
            if number == 0 and leg.skip:
                for loader in loaders:
                    loader.skip_to(batches[0].state["samples"] + leg.skip)
            checkpoints.append(loaders[0].state_dict())
        for loader in loaders:
            loader.close()
    return delivered, rolled_back


def told(row):
    """A row that was traced, as `deliver` notes rows."""
    payloads = [span.payload for span in row.documents]
    return Row(row.sample, row.epoch, row.content.tokens.tobytes(), payloads)


numbers = count()


@pytest.mark.parametrize("kind", VIEWS)
@given(history=HISTORY, seed=st.integers(0, 3))
def test_every_row_is_traced_and_every_document_found(views, folder, kind, history, seed):
    path = folder / f"{next(numbers)}.jsonl"
    delivered, rolled_back = deliver(views[kind], history, path, seed)
    run = tokenfeed.Run(path)
    steps = sorted({step for step, _, _ in delivered})
    assert steps == list(range(len(steps)))

    traced = {(step, row.rank, row.row): row for step in steps for row in run.trace(step)}
    assert traced.keys() == delivered.keys()
    for place, row in traced.items():
        assert told(row) == delivered[place]
        items = sum(location.stop - location.start for location in row.locations)
        assert items == sum(span.stop - span.start for span in row.documents)
    for step, rank in {(step, rank) for step, rank, _ in delivered}:
        (*expected,) = (row for place, row in sorted(traced.items()) if place[:2] == (step, rank))
        assert run.trace(step, rank=rank) == expected

    check_places(run, delivered)

    again = [run.trace(step, rolled_back=True) for step in range(1 + max([0, *(place[0] for place, _ in rolled_back)]))]
    found = [((row.step, row.rank, row.row), told(row)) for rows in again for row in rows]
    assert sorted(found) == sorted(rolled_back)

    epochs = range(max(row.epoch for row in (*delivered.values(), *(row for _, row in rolled_back))) + 1)
    for source in ("a", "b") if "mixture" in kind else ("a",):
        for number in range(len(LENGTHS)):
            wanted = {"source": source, "number": number}
            seen = run.find(number, epochs=epochs, source=source if "mixture" in kind else None)
            back = [(each.step, each.rank, each.row) for each in seen if each.rolled_back]
            assert sorted(back) == sorted(place for place, row in rolled_back if wanted in row.payloads)
            seen = [each for each in seen if not each.rolled_back]
            places = [(each.step, each.rank, each.row) for each in seen if each.step in steps]
            assert len(set(places)) == len(places)
            assert set(places) == {place for place, row in delivered.items() if wanted in row.payloads}
            for each in seen:
                if each.step in steps:
                    row = traced[each.step, each.rank, each.row]
                    assert (each.sample, each.epoch, each.index) == (row.sample, row.epoch, row.index)


@pytest.mark.parametrize("kind", ["windows", "mixture"])
@given(
    together=HISTORY.filter(lambda legs: len(legs) < 4),
    suffixes=st.tuples(HISTORY, HISTORY),
    alike=st.sampled_from([0, 1, 2]),
    seeds=st.sampled_from([(0, 0), (0, 0), (0, 1)]),
)
def test_runs_are_compared_exactly(views, folder, kind, together, suffixes, alike, seeds):
    """Against a comparison of every row of the first steps."""
    runs = []
    for number, seed in enumerate(seeds):
        path = folder / f"{next(numbers)}.jsonl"
        suffix = suffixes[0 if alike == 0 else number][:alike]
        if alike == 1:  # six rows a step, whatever the division
            suffix = [
                leg._replace(world_size=[1, 2, 3][leg.steps % 3], batch_size=[6, 3, 2][leg.steps % 3]) for leg in suffix
            ]
        deliver(views[kind], [*together, *suffix], path, seed)
        runs.append(tokenfeed.Run(path))
    differ = divided = None
    for step in range(80):
        first, second = (run.trace(step) for run in runs)
        if [content(row) for row in first] != [content(row) for row in second]:
            differ = step
            break
        if divided is None and [row.rank for row in first] != [row.rank for row in second]:
            divided = step
    found = compare(*runs)
    assert differ is None or (found.step, found.division_step) == (differ, divided)
    if differ is None:
        assert found.step is None or found.step >= 80
        assert divided is None or found.division_step == divided
    assert found.step is None or found.why


def content(row):
    return row.source, row.epoch, row.index


def check_places(run, delivered):
    """`place` is the inverse of `samples`."""
    for place, row in delivered.items():
        step, rank, number = place
        assert run.samples(step, rank=rank)[number] == row.sample
        assert run.place(row.sample) == place
