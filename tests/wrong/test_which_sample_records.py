"""What is told of a run afterwards: where a document was seen, and where two runs part.

What a later design calls by another name is called in one place: the functions at the top.
"""

import random
import sys

import pytest

import command_line
import tokenfeed
from tiers import pick
from wrong.small_stores import SIZES, grow, load, mix, rows_of, take, write_growths, write_sources


def first_difference(first, second):
    """The first step whose rows differ between two runs, by their run files."""
    from tokenfeed.runs.diff import compare

    return compare(tokenfeed.Run(first), tokenfeed.Run(second)).step


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def growths(tmp_path_factory):
    return write_growths(tmp_path_factory.mktemp("growing") / "store")


@pytest.fixture
def four_epochs(views, tmp_path):
    """A run over 90 documents, four to a step: three epochs are behind it, and 30 samples of the next."""
    path = tmp_path / "run.jsonl"
    loader = load(views["c"], run=path)
    take(loader, 3 * SIZES["c"] + 30)
    loader.close()
    return path


def test_find_looks_in_all_epochs_that_were_reached(four_epochs):
    """`find` shows a document in every epoch that the run has reached, with what is planned in the one under way."""
    run = tokenfeed.Run(four_epochs)
    steps = range(-(-4 * SIZES["c"] // 4))
    rows = [row for step in steps for row in run.trace(step) if any(each.number == 17 for each in row.documents)]
    expected = [(row.epoch, row.step, row.row, row.planned) for row in rows if row.epoch <= 3]
    assert {epoch for epoch, *_ in expected} == {0, 1, 2, 3}
    found = [(row.epoch, row.step, row.row, row.planned) for row in run.find(17)]
    assert found == expected


def test_find_says_what_it_did_not_look_at(four_epochs):
    """`tokenfeed find` ends with a line that says what it did not look at: the epochs from 4 on."""
    done = command_line.run("find", four_epochs, "--document", 17)
    assert done.returncode == 0, done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "not look" in line]
    assert len(told) == 1
    assert "epoch" in told[0]
    assert "4" in told[0]


class History:
    """A run that is driven by events, and the rows of every step as they were in the end."""

    def __init__(self, views, growths, path):
        self.growths, self.path = list(growths[1:]), path
        self.loader = load(mix({**views, "g": growths[0]}, a=1, g=1), run=path)
        self.rows = []
        self.saved = []

    def play(self, kind, amounts):
        if kind == "steps":
            for _ in range(1 + int(6 * amounts[0])):
                batch = next(self.loader)
                names = [batch.source_names[number] for number in batch.sources.tolist()]
                self.rows.append([(name, *row[1:]) for name, row in zip(names, rows_of(batch), strict=True)])
            self.saved.append((len(self.rows), self.loader.state_dict()))
        elif kind == "weigh":
            self.loader.amend(weights={"a": 1 + int(3 * amounts[0]), "g": 1 + int(3 * amounts[1])})
        elif kind == "grow" and self.growths:
            grow(self.loader, "g", self.growths.pop(0))
            self.saved.clear()  # to go back to before a growth is another question
        elif kind == "resize":
            self.loader.resize(rank=0, world_size=1, batch_size=1 + int(6 * amounts[0]))
        elif kind == "back" and self.saved:
            del self.saved[1 + int(amounts[0] * len(self.saved)) :]
            count, state = self.saved[-1]
            del self.rows[count:]
            self.loader.load_state_dict(state)


def draw_events(rng, most):
    kinds = ["steps", "steps", "weigh", "grow", "resize", "back"]
    events = [(rng.choice(kinds), (rng.random(), rng.random())) for _ in range(rng.randint(0, most))]
    return [*events, ("steps", (rng.random(), 0))]


def test_the_first_step_that_differs_is_told(views, growths, tmp_path):
    """`diff` tells the first step whose rows differ, of any two runs that share their beginning."""
    wrong = []
    for number in range(pick(100, 1000)):
        rng = random.Random(number)
        common = draw_events(rng, 6)
        runs = [History(views, growths, tmp_path / f"{number}-{which}.jsonl") for which in "ab"]
        for run in runs:
            for event in [*common, *draw_events(rng, 5)]:
                run.play(*event)
            run.loader.close()
        steps = range(min(len(run.rows) for run in runs))
        expected = next((step for step in steps if runs[0].rows[step] != runs[1].rows[step]), None)
        told = first_difference(*(run.path for run in runs))
        if told != expected and not (expected is None and told is not None and told >= len(steps)):  # which is planned
            wrong.append((number, told, expected))
    assert wrong == []


def count_calls(work):
    """How many functions a piece of work calls, those written in C too."""
    count = 0

    def note(_, event, __):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_comparing_takes_work_by_the_number_of_starts(views, tmp_path):
    """Two runs with four times as many starts take about four times the work to compare."""
    calls = []
    for starts in (10, 50, 200):  # the first compiles and imports what the others need
        paths = [tmp_path / f"{starts}-{which}.jsonl" for which in "ab"]
        for path, last in zip(paths, (1, 2), strict=True):
            loader = load(mix(views, a=1, b=1), run=path)
            for number in range(starts):
                loader.amend(weights={"a": 1 + number % 3, "b": 2 + number % 5 + last * (number == starts - 1)})
                next(loader)
            loader.close()
        calls.append(count_calls(lambda paths=paths: first_difference(*paths)))
    assert calls[2] <= 5 * calls[1]
