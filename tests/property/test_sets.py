"""Runs as sets: what a run has seen and what it has not are a partition of the view, over any history of a run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from tokenfeed.plan.orders import Local
from tokenfeed.runs.sets import select


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Two stores of documents, and a third that the first may grow by."""
    found = {}
    for name, sizes in (("a", [5, 1, 9, 30, 2, 2, 17]), ("b", [3, 3, 3, 8]), ("more", [11])):
        path = tmp_path_factory.mktemp(name)
        options = {"columns": {"tokens": "uint16"}, "spans": {"documents": None}, "sync": False}
        with tokenfeed.Writer(path, **options) as writer:
            for number, size in enumerate(sizes):
                writer.append({"tokens": np.arange(size) + 100 * number})
        found[name] = tokenfeed.open(path)
    return found


def delivered(plan, num_delivered, source, left_out=()):
    samples = set(range(num_delivered)) - {k for start, stop in left_out for k in range(start, stop)}
    return {trace.index for trace in plan.trace(sorted(samples)) if trace.source == source}


def indices_of(view, base):
    """Samples of the base that a subset holds, told by the tokens in them."""
    known = {base[number].tokens.tobytes(): number for number in range(len(base))}
    assert len(known) == len(base)
    return [known[view[number].tokens.tobytes()] for number in range(len(view))]


kinds = st.sampled_from([lambda store: store.windows(3), lambda store: store.documents()])


@given(
    kind=kinds,
    seed=st.integers(0, 9),
    shuffle=st.sampled_from([True, False, Local(block=2, tile=4)]),
    num_delivered=st.integers(0, 70),
    mixed=st.booleans(),
    changes=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["left out", "weights", "grow"]), st.integers(1, 6)),
        max_size=3,
    ),
)
def test_seen_and_unseen_are_what_the_plan_delivers(views, kind, seed, shuffle, num_delivered, mixed, changes):
    view, other, more = kind(views["a"]), kind(views["b"]), kind(views["more"])
    weights = {"a": (view, 3.0), "b": (other, 1.0)} if mixed else {"a": (view, 1.0)}
    plan = tokenfeed.Plan.of(tokenfeed.mix(weights), seed=seed, shuffle=shuffle)
    is_grown, left_out, end = False, [], 0
    for at, change, number in sorted(changes):
        if change == "left out":
            start, end = max(at, end), max(at, end) + number
            left_out.append((start, end))
        elif change == "weights":
            plan = plan.amend(at, weights={"a": 1.0, **({"b": float(number)} if mixed else {})})
        elif not is_grown:
            plan, is_grown = plan.amend(at, grow={"a": more}), True
    reached = max(num_delivered, end)
    expected = delivered(plan, reached, "a", left_out)
    seen, unseen = (select(view, plan, reached, left_out, "a", seen=each) for each in (True, False))
    known = set(range(len(view)))
    assert sorted(indices_of(seen, view)) == sorted(expected & known)
    assert sorted(indices_of(unseen, view)) == sorted(known - expected)
    if mixed:
        rest = select(other, plan, reached, left_out, "b", seen=False)
        assert set(indices_of(rest, other)) == set(range(len(other))) - delivered(plan, reached, "b", left_out)
    again = views["a"].view(type(unseen.spec).from_json(unseen.spec.to_json()))
    np.testing.assert_array_equal(again[:].tokens, unseen[:].tokens)


def test_a_run_that_goes_on_over_the_rest(views):
    """A run, and then one over what it has not seen, on other ranks and in a mixture: every sample once."""
    view, other = views["a"].windows(3), views["b"].windows(3)
    plan = tokenfeed.Plan.of(view, seed=5)
    rest = select(view, plan, 9, [], None, seen=False)
    taken = [view[trace.index].tokens.tolist() for trace in plan.trace(range(9))]
    loaders = [tokenfeed.Loader(rest, 2, rank=rank, world_size=3, epochs=1) for rank in range(3)]
    taken += [row.tolist() for loader in loaders for batch in loader for row in batch.tokens]
    assert sorted(taken) == sorted(view[:].tokens.tolist())
    mixture = tokenfeed.mix({"rest": (rest, 1.0), "new": (other, 1.0)})
    batch = next(tokenfeed.Loader(mixture, 2 * len(rest)))
    rows = batch.tokens[batch.sources == 0].tolist()
    assert sorted(rows) == sorted(rest[:].tokens.tolist())


def test_a_set_takes_no_memory_where_nothing_was_skipped(views):
    spec = select(views["a"].windows(3), tokenfeed.Plan.of(views["a"].windows(3)), 9, [], None, seen=False).spec
    assert len(str(spec.to_json())) < 700
