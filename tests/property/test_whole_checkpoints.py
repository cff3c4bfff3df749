"""Checkpoints of runs that were changed on the way: the same script goes on from any of them, with no other file.

Random histories are killed and resumed, or go back, on other ranks with other batch sizes. What must be delivered is a
list: the rows of a run that has never stopped, row by row, with the changes of this line of the history.
"""

import json
import random
from functools import cache

import pytest

import tokenfeed
from tiers import pick
from tokenfeed.errors import ArgumentError, NotFoundError, PlanMismatchError, StateError
from tokenfeed.store.subset import join_views
from wrong.small_stores import SIZES, load, mix, rows_of, write_growths, write_sources, write_store

HISTORIES = pick(40, 500)


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return {**write_sources(folder), "g": write_growths(folder / "growing")}


def change(loader, views, at, kind, what):
    """Make a change of a history, on one rank."""
    if kind == "weights":
        loader.amend(at, weights=what)
    elif kind == "source":
        loader.amend(at, sources={"c": views["c"]}, weights={**what, "c": 1})
    elif kind == "growth":
        loader.amend(at, grow={"g": views["g"][what]})
    elif kind == "mask":
        loader.amend(at, mask={"b": what})
    else:
        loader.amend(at, max_epochs=what)


class Lines:
    """What is delivered, by what the program gives and the changes: rows of a run that never stopped."""

    def __init__(self, views, program):
        self.views, self.program = views, program
        self.rows = cache(self._deliver)

    def script(self, batch_size=1, **options):
        """What a training script says, at every start."""
        plan = tokenfeed.Plan.of(mix({**self.views, "g": self.views["g"][0]}, a=2, b=1, g=1), seed=3)
        for at, weights in self.program:
            plan = plan.amend(at, weights=weights)
        return load(plan, batch_size, **options)

    def _deliver(self, changes, count):
        """The first rows of a run with changes, each ((made after so many samples, from which sample on), what)."""
        loader, waiting, rows = self.script(), list(changes), []
        while len(rows) < count:
            while waiting and waiting[0][0] <= len(rows):
                _, at, kind, what = waiting.pop(0)
                change(loader, self.views, at, kind, json.loads(what))
            batch = next(loader, None)
            if batch is None:
                break
            rows += tell(batch)
        return rows


def tell(batch):
    names = [batch.source_names[number] for number in batch.sources.tolist()]
    return [(k, name, *rest) for name, (k, *rest) in zip(names, rows_of(batch), strict=True)]


class History:
    """One run, on all its ranks, and the list of what it must deliver."""

    def __init__(self, views, rng):
        program = [(rng.randrange(1, 120), {"a": 1, "b": 2, "g": 1})] if rng.random() < 0.4 else []
        self.views, self.rng, self.lines = views, rng, Lines(views, tuple(program))
        self.changes, self.samples, self.saved = (), 0, []
        self.start()
        self.save()

    def start(self):
        self.batch_size, world_size = self.rng.randint(1, 4), self.rng.randint(1, 3)
        places = [{"rank": rank, "world_size": world_size} for rank in range(world_size)]
        self.ranks = [self.lines.script(self.batch_size, prefetch=self.rng.choice([0, 3]), **each) for each in places]

    def steps(self):
        for _ in range(self.rng.randint(1, 8)):
            batches = [batch for rank in self.ranks if (batch := next(rank, None)) is not None]
            stop = self.samples + self.batch_size * len(self.ranks)
            expected = self.lines.rows(self.changes, stop)[self.samples :]
            assert sorted(row for batch in batches for row in tell(batch)) == expected
            self.samples += len(expected)
        self.save()

    def change(self):
        kind = self.rng.choice(["weights", "weights", "source", "growth", "mask", "limit"])
        have = [source.name for source in self.ranks[0].plan.sources]
        weights = {name: self.rng.randint(0, 3) for name in have} | {"a": 1}
        what = {
            "weights": weights,
            "source": weights,
            "growth": self.rng.randint(1, 4),
            "mask": [self.rng.randrange(SIZES["b"]) for _ in range(3)],
            "limit": {self.rng.choice(have): self.rng.choice([1, 2, None])},
        }[kind]
        at = self.samples + self.rng.choice([0, 0, 0, 5, 30])
        try:
            for rank in self.ranks:
                change(rank, self.views, at, kind, what)
        except (ArgumentError, PlanMismatchError):  # such as a limit that is behind, or a source that there is
            assert rank is self.ranks[0]
        else:
            self.changes = (*self.changes, (self.samples, at, kind, json.dumps(what)))

    def save(self):
        states = [rank.state_dict() for rank in self.ranks]
        assert states == [states[0]] * len(states)
        self.saved.append((json.dumps(states[0]), self.samples, self.changes))

    def resume(self):
        """Kill the run, or let it live; go on from any state that was ever saved."""
        state, self.samples, self.changes = self.rng.choice(self.saved)
        if self.rng.random() < 0.7:
            for rank in self.ranks:
                rank.close()
            self.start()
        for rank in self.ranks:
            rank.load_state_dict(json.loads(state))
        assert json.dumps(self.ranks[0].state_dict()) == state
        assert [each.at for each in self.ranks[0].plan.amendments if each.live] == sorted(
            at for _, at, *_ in self.changes
        )


@pytest.mark.parametrize("part", range(4))
def test_the_same_script_goes_on_after_any_history(views, part):
    for number in range(part, HISTORIES, 4):
        rng = random.Random(f"whole {number}")
        history = History(views, rng)
        for event in rng.choices(["steps", "change", "resume"], [5, 4, 2], k=rng.randint(4, 24)):
            getattr(history, event)()
        history.steps()


def test_states_are_small(views):
    """300 bytes; and about 200 for a usual change, without the address that a change that brought rows has."""
    loader = Lines(views, ()).script()
    size = len(json.dumps(loader.state_dict()))
    assert size <= 300
    weights = {"a": 0.5, "b": 0.3, "g": 0.2}
    usual = {"weights": weights, "growth": 1, "mask": [1, 20, 250], "limit": {"a": 4}, "source": weights}
    for kind, what in usual.items():
        change(loader, views, None, kind, what)
        last, size = size, len(json.dumps(loader.state_dict()))
        address = {"growth": views["g"][0], "source": views["c"]}.get(kind)
        assert size - last - (0 if address is None else len(address.paths[0])) <= (230 if kind == "source" else 200)


def everything(loader):
    """All that a state could have changed."""
    return loader.plan, loader.state_dict(), loader._stop, loader.rule, loader._given_plan


@pytest.fixture
def moved(views, tmp_path):
    """(what a script says, a state after two changes, the rows that follow): the second brought rows that moved."""
    new = write_store(tmp_path / "new", 50, first=20_000)

    def script(**options):
        return load(mix(views, a=1, b=1), **options)

    loader = script()
    next(loader)
    loader.amend(weights={"a": 1, "b": 2})
    next(loader)
    loader.amend(sources={"new": new}, weights={"a": 0, "b": 1, "new": 1})
    next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    rows = [tell(next(loader)) for _ in range(9)]
    loader.load_state_dict(state)  # what is open need not be there
    (tmp_path / "new").rename(tmp_path / "old")
    loader.load_state_dict(state)
    assert [tell(next(loader)) for _ in range(9)] == rows
    return script, state, rows


def test_rows_that_moved_are_given(moved, tmp_path):
    script, state, rows = moved
    for place in (tmp_path / "old", tokenfeed.open(tmp_path / "old"), tokenfeed.open(tmp_path / "old").windows(4)):
        again = script()
        again.load_state_dict(state, rows={"new": place})
        assert [tell(next(again)) for _ in range(9)] == rows
        last = script()
        last.load_state_dict(again.state_dict())  # which says where they are now
        assert [tell(next(last)) for _ in range(3)] == [tell(next(again)) for _ in range(3)]


def test_a_state_that_was_refused_changes_nothing(moved, views, tmp_path):
    """Not the plan, not the place, and nothing of what was read ahead."""
    script, state, _ = moved
    loader = script(prefetch=4)
    expected = [tell(next(loader)) for _ in range(6)]
    loader = script(prefetch=4)
    batches = [next(loader) for _ in range(3)]
    loader.amend(max_epochs={"b": 9})
    before = everything(loader)
    write_store(tmp_path / "other", 50)
    first, second = state["changes"]
    damaged = json.dumps({**json.loads(second), "at": -1})
    base = {"seed": 9}, {"data": "0" * 16}
    refused = [
        (NotFoundError, f"'new' came to the run from {tmp_path / 'new'}, .*rows={{'new': view}}", state, {}),
        (PlanMismatchError, "rows={'new': view}", state, {"new": tmp_path / "other"}),
        (PlanMismatchError, "rows of source 'new' are 50 samples", state, {"new": views["a"]}),
        (ArgumentError, "names old; the changes of the state brought new", state, {"old": tmp_path / "old"}),
        (StateError, "no amendment", {**state, "changes": [first, damaged]}, {}),
        (PlanMismatchError, "different mixture", {**state, "changes": [second]}, {}),
        *((PlanMismatchError, "seed|data", {**state, "plan": {**state["plan"], **each}}, {}) for each in base),
    ]
    for error, message, given, rows in refused:
        with pytest.raises(error, match=message):
            loader.load_state_dict(given, rows=rows)
        assert everything(loader) == before
    assert [tell(each) for each in batches] + [tell(next(loader)) for _ in range(3)] == expected


def test_what_the_program_gives_counts_once(moved):
    """Changes of the state may become part of the program; what it gives beyond the state is its future."""
    script, state, _ = moved
    first, second = ({"weights": {"a": 1, "b": 2}}, {"weights": {"a": 2, "b": 1}})

    def start(*changes):
        plan = script().plan
        for at, change in changes:
            plan = plan.amend(at, **change)
        loader = load(plan)
        loader.load_state_dict({**state, "samples": 8, "plan": early["plan"], "changes": state["changes"][:1]})
        return [each.at for each in loader.plan.amendments], [tell(next(loader)) for _ in range(9)]

    loader = script()
    next(loader)
    loader.amend(**first)
    next(loader)
    early = loader.state_dict()
    rows = [tell(next(loader)) for _ in range(9)]
    assert start() == start((4, first)) == ([4], rows)
    ats, others = start((4, first), (20, second))
    assert (ats, others[:3]) == ([4, 20], rows[:3])
    assert others != rows
    with pytest.raises(PlanMismatchError, match=r'different mixture; changes .*"b":2.*, this plan has .*"b":1'):
        start((4, second))
    with pytest.raises(PlanMismatchError, match=r"different mixture; changes 'none', this plan has .*\"at\":5"):
        start((4, first), (5, second))


def test_growths_of_program_and_state_are_told_apart(tmp_path):
    """A source may have grown by both: each has rows where they came, and those of the state are given in order."""
    views = write_growths(tmp_path / "growing")
    given, *brought = views[1:4]

    def script(*growths):
        plan = tokenfeed.Plan.of(mix({"g": views[0]}, g=1))
        for at, view in growths:
            plan = plan.amend(at, grow={"g": view})
        return load(plan)

    loader = script((4, given))
    for view in brought:
        next(loader), next(loader)
        loader.amend(grow={"g": view})
    state = json.loads(json.dumps(next(loader).state))
    rows = [tell(next(loader)) for _ in range(30)]
    last = views[4]
    for growths in ((4, given),), ((4, given), (8, brought[0])), ((4, given), (8, brought[0]), (16, brought[1])):
        again = script(*growths, (160, last))
        again.load_state_dict(state)
        assert [tell(next(again)) for _ in range(30)] == rows
        assert again.plan.views[0].parts[-1] is last
        assert [len(each) for each in again._given_plan.views] == [len(views[0]) + 3 * (len(growths) + 1)]
    (tmp_path / "growing" / "1").rename(tmp_path / "1")
    again = script((4, given))
    with pytest.raises(NotFoundError, match=r"growing/1, and are not there now"):
        again.load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"rows has 1 set of rows of source 'g'; .* brought 2, one after the other"):
        again.load_state_dict(state, rows={"g": tmp_path / "1"})
    with pytest.raises(PlanMismatchError):
        again.load_state_dict(state, rows={"g": [brought[1], tmp_path / "1"]})
    again.load_state_dict(state, rows={"g": [tmp_path / "1", brought[1]]})
    assert [tell(next(again)) for _ in range(30)] == rows
    last = script((4, given))
    last.load_state_dict(again.state_dict())
    assert tell(next(last)) == tell(next(again))
    with pytest.raises(ArgumentError, match=r"shard .* already"):
        script((4, given), (160, brought[0])).load_state_dict(state, rows={"g": brought})


def test_rows_of_several_stores_are_a_set_each(tmp_path):
    """One growth by joined views: the state has the address of every one."""
    first, *views = write_growths(tmp_path / "growing")
    loader, again = load(first), load(first)
    next(loader)
    loader.amend(grow=join_views(views[:2]))
    state = next(loader).state
    assert [len(each["paths"]) for each in json.loads(state["changes"][0])["grown"]] == [1, 1]
    again.load_state_dict(state)
    assert [rows_of(next(again)) for _ in range(40)] == [rows_of(next(loader)) for _ in range(40)]


def test_a_start_over_notes_what_was_left_behind(views, tmp_path):
    """The same script after a crash: the run file tells which changes are of a timeline that was lost."""
    path, states = tmp_path / "run.jsonl", []

    def script():
        return load(mix(views, a=1, b=1), run=path)

    loader = script()
    for _ in range(4):
        next(loader)
        states.append(loader.state_dict())
        loader.amend(weights={"a": 1 + len(states), "b": 1})
    del loader
    again = script()
    again.load_state_dict(states[2])
    next(again)
    again.close()
    run = tokenfeed.Run(path)
    assert [start.left_behind for start in run.starts] == [(), (), (), (), (12,)]
    assert run.plan() == again.plan
    assert [row.rolled_back for row in run.trace(3, rolled_back=True)] == [True] * 4
