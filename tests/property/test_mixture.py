"""Mixtures under random histories: shares kept, every source seen once an epoch, and changes that repeat nothing."""

import contextlib
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenfeed
from oracle import Leg, run
from tiers import examples
from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.loader.loader import Loader

SIZES = {"web": 40, "code": 13, "math": 5, "law": 1}
LENGTH = 4
LEGS = st.lists(
    st.builds(Leg, st.integers(1, 5), st.integers(1, 6), st.integers(0, 6), st.sampled_from([0, 1, 3])),
    min_size=1,
    max_size=4,
)
WEIGHTS = st.lists(st.one_of(st.integers(1, 20), st.floats(0.01, 1)), min_size=1, max_size=4)


@pytest.fixture(scope="module", params=["windows", "packed"])
def views(request):
    """Windows that tell their source and number: item value = 1000 · source + 4 · window + place.

    Or rows of packed documents, of which each just fits: the same content.
    """
    with tempfile.TemporaryDirectory() as folder:
        opened = {}
        for source, (name, size) in enumerate(SIZES.items()):
            path = Path(folder, name)
            with tokenfeed.Writer(
                path, columns={"tokens": "uint16"}, spans={"documents": "json"}, shard_bytes=100, sync=False
            ) as writer:
                for window in range(size):
                    writer.append(
                        {"tokens": 1000 * source + LENGTH * window + np.arange(LENGTH)}, documents=[name, window]
                    )
            store = tokenfeed.open(path)
            store.pack(LENGTH - 1)
            is_packed = request.param == "packed"
            opened[name] = store.packed(LENGTH - 1) if is_packed else store.windows(LENGTH, extra=0)
        yield opened


def mixture(views, weights):
    return tokenfeed.mix({name: (views[name], weight) for name, weight in zip(views, weights, strict=False)})


def drawn(rows):
    """(source, window) of rows."""
    values = [int(np.frombuffer(row.content, "<u2")[0]) for row in rows]
    return [(value // 1000, value % 1000 // LENGTH) for value in values]


def check_sources(seen):
    """Every source gives all its samples once in each of its epochs."""
    by_source: dict[int, list[int]] = {}
    for source, window in seen:
        by_source.setdefault(source, []).append(window)
    sizes = list(SIZES.values())
    for source, windows in by_source.items():
        for first in range(0, len(windows), sizes[source]):
            within = windows[first : first + sizes[source]]
            assert len(set(within)) == len(within)
    return by_source


@given(weights=WEIGHTS, history=LEGS, seed=st.integers(0, 3))
@settings(max_examples=examples(100))
def test_any_history_of_a_mixture(views, weights, history, seed):
    mixed = mixture(views, weights)
    rows = run(history, lambda **options: Loader(mixed, seed=seed, **options))
    assert [row.sample for row in rows] == list(range(len(rows)))
    assert rows == run([Leg(1, 1, len(rows))], lambda **options: Loader(mixed, seed=seed, **options))
    seen = drawn(rows)
    check_sources(seen)
    total = sum(weights)
    counts = np.zeros(len(weights))
    for number, (source, _) in enumerate(seen, 1):
        counts[source] += 1
        assert np.abs(counts - np.array(weights) / total * number).max() <= 2


@given(first=WEIGHTS, second=WEIGHTS, at=st.integers(0, 60), checkpoint=st.integers(0, 60), seed=st.integers(0, 2))
@settings(max_examples=examples(100))
def test_weights_changed_on_resume_repeat_nothing(views, first, second, at, checkpoint, seed):
    names = list(views)
    before = mixture(views, first)
    after = tokenfeed.Plan.of(before, seed=seed).amend(
        at,
        weights=dict.fromkeys(names[: len(first)], 0) | dict(zip(names, second, strict=False)),
        sources={name: views[name] for name in names[len(first) : len(second)]},
    )
    start = Loader(before, 1, seed=seed)
    rows = [next(start).column("tokens")[0, 0] for _ in range(checkpoint)]
    state = start.state_dict()
    start.close()
    resumed = Loader(after, 1)
    if checkpoint > at:
        with contextlib.suppress(PlanMismatchError):  # unless both draw the same up to there
            resumed.load_state_dict(state)
            assert after.shares.digest(checkpoint) == start.plan.shares.digest(checkpoint)
        return
    resumed.load_state_dict(state)
    rows += [next(resumed).column("tokens")[0, 0] for _ in range(80)]
    resumed.close()
    check_sources([(int(value) // 1000, int(value) % 1000 // LENGTH) for value in rows])


def test_stages_by_length_and_an_end(views):
    stages = [
        tokenfeed.Stage({"web": 1, "code": 0, "math": 0}, samples=30),
        tokenfeed.Stage({"web": 0.2, "code": 0.8, "math": 0}, samples=100),
        tokenfeed.Stage({"web": 1, "code": 0, "math": 3}, samples=40),
    ]
    mixed = tokenfeed.mix({name: views[name] for name in ("web", "code", "math")}, stages=stages)
    loader = Loader(mixed, 7)
    seen = [value for batch in loader for value in batch.column("tokens")[:, 0].tolist()]
    assert len(seen) == 170
    sources = [value // 1000 for value in seen]
    assert set(sources[:30]) == {0}
    assert Counter(sources[30:130]) == {0: 20, 1: 80}
    assert Counter(sources[130:]) == {0: 10, 2: 30}
    check_sources([(value // 1000, value % 1000 // LENGTH) for value in seen])
    ledger = loader.plan.ledger(170)
    assert [entry.samples for entry in ledger] == [sources.count(0), sources.count(1), sources.count(2)]
    assert all(abs(entry.samples - entry.target) <= 1 for entry in ledger)


def test_weights_by_tokens(views):
    by_tokens = tokenfeed.mix({"web": (views["web"], 1), "code": (views["code"], 1)}, by="tokens")
    assert [budget.samples for budget in by_tokens.budget(100)] == [50, 50]
    with pytest.raises(ArgumentError, match=r"'a' is Mixture.*; give a view of a store"):
        tokenfeed.mix({"a": (by_tokens, 1)})


def test_limits_on_repetition(views):
    mixed = tokenfeed.mix({"web": (views["web"], 1), "math": (views["math"], 1)}, max_epochs={"math": 2})
    assert mixed.budget(40)[1].epochs == 4
    loader = Loader(mixed, 1)
    seen = [int(batch.column("tokens")[0, 0]) // 1000 for batch in loader]
    assert seen.count(2) == 10
    assert 10 <= seen.count(0) <= 11
    with pytest.raises(ArgumentError, match="the run ends with sample"):
        loader.plan.trace([len(seen)])


def test_forward_and_back(views):
    mixed = mixture(views, [5, 3, 2])
    plan = tokenfeed.Plan.of(mixed, seed=3)
    samples = np.arange(500)
    sources, epochs, indices = plan.locate(samples)
    for k in range(0, 500, 7):
        name = plan.sources[sources[k]].name
        assert plan.find(int(indices[k]), epochs=[int(epochs[k])], source=name).tolist() == [k]
        (trace,) = plan.trace([k])
        assert (trace.source, trace.epoch, trace.index) == (name, epochs[k], indices[k])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda views: tokenfeed.mix({}), "at least one source"),
        (lambda views: mixture(views, [1, -1]), "web|code"),
        (lambda views: mixture(views, [1, float("nan")]), "nan"),
        (lambda views: mixture(views, [0, 0]), "0"),
        (lambda views: tokenfeed.mix({"web": views["web"]}), "a weight is needed"),
        (lambda views: tokenfeed.mix({"web": (views["web"], 1)}, stages=[tokenfeed.Stage({"web": 1})]), "stages say"),
        (lambda views: tokenfeed.mix({"web": views["web"]}, stages=[tokenfeed.Stage({"book": 1})]), "book"),
        (lambda views: tokenfeed.mix({"web": (views["web"], 1)}, by="bytes"), "by is 'bytes'"),
        (lambda views: tokenfeed.mix({"web": (views["web"], 1)}, max_epochs=0), "max_epochs"),
        (lambda views: Loader(mixture(views, [1, 1]), 1, epochs=1), "epochs of their own"),
        (lambda views: tokenfeed.mix({"": (views["web"], 1)}), "need names"),
        (lambda views: tokenfeed.mix({"a": (views["web"], 1), "b": (views["web"].data, 1)}), "give a view"),
        (lambda views: tokenfeed.mix([views["web"]]), "sources is a list; a mixture needs a name"),
    ],
)
def test_mixtures_that_cannot_be(views, make, message):
    with pytest.raises(ArgumentError, match=message):
        make(views)


def test_a_change_before_the_checkpoint_is_refused(views):
    mixed = mixture(views, [1, 1])
    loader = Loader(mixed, 4)
    for _ in range(10):
        next(loader)
    state = loader.state_dict()
    loader.close()
    assert len(str(state)) < 300
    plan = tokenfeed.Plan.of(mixed)
    Loader(plan.amend(40, weights={"web": 1, "code": 0}), 4).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match=r"different mixture; changes 'none', this .*\"at\":39"):
        Loader(plan.amend(39, weights={"web": 1, "code": 0}), 4).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="data"):
        Loader(tokenfeed.mix({"web": (views["math"], 1), "code": (views["code"], 1)}), 4).load_state_dict(state)
    with pytest.raises(StateError):
        Loader(mixed, 4).load_state_dict({})


def test_the_run_file_of_a_mixture(views, tmp_path):
    mixed = mixture(views, [2, 1])
    loader = Loader(mixed, 3, run=tmp_path / "run.jsonl")
    batches = [next(loader) for _ in range(5)]
    loader.close()
    traced = tokenfeed.Run(tmp_path / "run.jsonl").trace(step=3)
    assert [trace.sample for trace in traced] == batches[3].samples.tolist()
    expected = [int(value) for value in batches[3].column("tokens")[:, 0]]
    names = list(SIZES)
    assert [1000 * names.index(trace.source) + LENGTH * trace.index for trace in traced] == expected


@pytest.fixture(scope="module")
def documents():
    """Documents of 2 tokens in one source, of 6 in the other."""
    with tempfile.TemporaryDirectory() as folder:
        opened = {}
        for name, length in (("short", 2), ("long", 6)):
            with tokenfeed.Writer(
                Path(folder, name), columns={"tokens": "uint16"}, spans={"documents": "json"}, sync=False
            ) as writer:
                for number in range(50):
                    writer.append({"tokens": np.full(length, number)}, documents=number)
            opened[name] = tokenfeed.open(Path(folder, name)).documents()
        yield opened


def test_later_weights_count_tokens_as_the_mixture_does(documents):
    """Later weights counted samples, whatever the mixture counted."""
    mixed = tokenfeed.mix({name: (view, 1) for name, view in documents.items()}, by="tokens")
    assert [budget.samples for budget in mixed.budget(400)] == [300, 100]
    later = tokenfeed.Plan.of(mixed).amend(400, weights={"short": 1, "long": 3})
    assert [each.samples for each in later.ledger(800)] == [300 + 200, 100 + 200]
    again = later.amend(800, weights={"short": 1, "long": 1, "more": 1}, sources={"more": documents["long"]})
    assert [each.samples for each in again.ledger(1300)] == [500 + 300, 300 + 100, 100]
    with pytest.raises(ArgumentError, match=r"weighs by tokens, .*Run\(path\).plan"):
        tokenfeed.Plan.from_json(later.to_json()).amend(900, weights={"short": 1, "long": 0})
    by_samples = tokenfeed.Plan.of(tokenfeed.mix({name: (view, 1) for name, view in documents.items()}))
    by_samples = by_samples.amend(400, weights={"short": 1, "long": 3})
    assert [each.samples for each in by_samples.ledger(800)] == [200 + 100, 200 + 300]


def test_a_mask_of_a_source_over_one_view(views):
    """The source was ignored."""
    with pytest.raises(ArgumentError, match="no source 'web': the run is over one view"):
        Loader(views["web"], 1, mask={"web": [3]})
