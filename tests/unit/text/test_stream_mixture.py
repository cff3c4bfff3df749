"""Mixtures of streams: exact shares, every document of every source, exact resume on the same and on other ranks."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
from golden import golden_tokenizer
from oracle import Leg, run
from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.plan.shares import Shares, Stage

COUNTS = {"web": 70, "code": 40, "math": 24}
LENGTH = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixture")
    for name, count in COUNTS.items():
        (root / name).mkdir()
        texts = [f"{name} document {number} " + "word " * (number % 9) for number in range(count)]
        for part in range(2):
            table = pa.table({"text": texts[part * count // 2 : (part + 1) * count // 2]})
            pq.write_table(table, root / name / f"{part}.parquet", row_group_size=3)
    return {name: str(root / name) for name in COUNTS}


def make(sources, **options):
    defaults = {"batch_size": 4, "length": LENGTH, "rank": 0, "world_size": 1, "split": "all", "prefetch": 0}
    defaults |= {"buffer_size": 6, "refill_size": 4}
    return tokenfeed.stream(sources, golden_tokenizer("tiktoken"), **{**defaults, **options})


def shares(folders, **weights):
    return {name: (folders[name], weight) for name, weight in weights.items()}


def sources_of(feeds, steps):
    """Names of the sources of every row, in the order of the run."""
    found = {}
    for _ in range(steps):
        for feed in feeds:
            batch = next(feed)
            names = [batch.source_names[number] for number in batch.sources]
            found |= dict(zip(batch.samples.tolist(), names, strict=True))
    return [found[row] for row in range(len(found))]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shares_are_those_of_the_mixture_at_every_step(folders, world_size):
    weights = {"web": 0.5, "code": 0.3, "math": 0.2}
    feeds = [make(shares(folders, **weights), rank=rank, world_size=world_size) for rank in range(world_size)]
    drawn = sources_of(feeds, 30)
    for rows in range(0, len(drawn) + 1, world_size):
        counts = Counter(drawn[:rows])
        assert all(abs(counts[name] - weight * rows) <= 1 for name, weight in weights.items()), rows


def test_every_lane_draws_from_every_source(folders):
    """Half and half on two ranks: without turning rounds, rank 0 would have all of web and rank 1 all of code."""
    feeds = [make(shares(folders, web=1, code=1), rank=rank, world_size=2) for rank in range(2)]
    seen = [Counter(np.concatenate([next(feed).sources for _ in range(50)]).tolist()) for feed in feeds]
    assert all(70 <= count[source] <= 130 for count in seen for source in (0, 1))


def test_resume_gives_the_rows_of_the_run_without_a_stop(folders):
    mixture = shares(folders, web=0.7, code=0.3)
    whole = run([Leg(2, 3, 24)], lambda **how: make(mixture, lanes=4, **how), per_rank=True)
    stopped = run(
        [Leg(2, 3, 7), Leg(4, 3, 4, 2), Leg(1, 3, 10)], lambda **how: make(mixture, lanes=4, **how), per_rank=True
    )
    assert stopped == whole[: len(stopped)]


def test_shares_hold_after_a_stop_in_the_middle_of_a_round(folders):
    """8 lanes, stopped after 6 rows, then 5 ranks: the two samples that are left of the round come first."""
    mixture = shares(folders, web=0.5, code=0.5)
    feeds = [make(mixture, lanes=4, batch_size=3, rank=rank, world_size=2) for rank in range(2)]
    drawn = sources_of(feeds, 1)
    states = json.loads(json.dumps([feed.state_dict() for feed in feeds]))
    again = [make(mixture, batch_size=3, rank=rank, world_size=5) for rank in range(5)]
    for feed in again:
        feed.load_state_dict(states)
    for _ in range(10):
        step = {}
        for feed in again:
            batch = next(feed)
            step |= dict(zip(batch.samples.tolist(), batch.sources.tolist(), strict=True))
        drawn += [("web", "code")[step[row]] for row in sorted(step)]
    for rows in range(8, len(drawn), 5):
        assert abs(drawn[:rows].count("web") - rows / 2) <= 1


def test_stages(folders):
    stages = [Stage({"web": 1, "math": 0}, samples=20), Stage({"web": 0.5, "math": 0.5})]
    parts = {"web": folders["web"], "math": folders["math"]}
    drawn = sources_of([make(parts, stages=stages)], 20)
    assert set(drawn[:20]) == {"web"}
    assert drawn == [("web", "math")[source] for source in Shares(stages, ["web", "math"]).at(np.arange(80))[0]]


def test_stages_and_sources_may_be_added_on_resume(folders):
    feed = make(shares(folders, web=0.5, code=0.5))
    sources_of([feed], 5)
    state = feed.state_dict()
    stages = [
        Stage({"web": 0.5, "code": 0.5, "math": 0}, samples=20),
        Stage({"web": 0.4, "code": 0, "math": 0.6}),
    ]
    later = make(folders, stages=stages)
    later.load_state_dict(state)
    drawn = Counter(name for _ in range(5) for batch in [next(later)] for name in named(batch))
    assert drawn == {"web": 8, "math": 12}
    with pytest.raises(PlanMismatchError, match=r"first 20 rows with other weights.*stages=\[Stage.*at least 20"):
        make(shares(folders, web=0.6, code=0.4)).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="the sources web, code, and these are code, web"):
        make(shares(folders, code=0.5, web=0.5)).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="of a mixture, and this is one of one source"):
        make(folders["web"]).load_state_dict(state)
    with pytest.raises(StateError, match="damaged"):
        make(shares(folders, web=0.5, code=0.5)).load_state_dict({**state, "rounds": [[0, 0]]})


def test_a_stream_says_how_its_weights_change(folders):
    """It was an AttributeError."""
    with pytest.raises(ArgumentError, match=r"cannot be amended while it runs.*stages="):
        make(shares(folders, web=0.5, code=0.5)).amend(weights={"web": 1, "code": 0})


def named(batch):
    return [batch.source_names[source] for source in batch.sources]


def test_another_file_in_a_source_is_refused(folders, tmp_path):
    feed = make(shares(folders, web=0.5, code=0.5))
    next(feed)
    state = feed.state_dict()
    assert any(file.startswith("code/") for file in state["files"])
    mixture = {"web": (folders["web"], 0.5), "code": (folders["math"], 0.5)}
    with pytest.raises(PlanMismatchError, match=r"source 'code': .*is not the file"):
        make(mixture).load_state_dict(state)


def test_the_run_file_says_what_was_mixed(folders, tmp_path):
    feed = make(shares(folders, web=0.5, code=0.5), run=tmp_path / "run.jsonl")
    next(feed)
    text = (tmp_path / "run.jsonl").read_text()
    assert '"web"' in text
    assert '"code"' in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 1}, "epochs=1 is for a stream of one source"),
        ({"packing": "concat_pop"}, "packing='concat_pop' is for a stream of one source"),
        ({"stages": [Stage({"web": 1})]}, "source 'web': stages say the weights"),
    ],
)
def test_what_cannot_be_meant(folders, change, message):
    with pytest.raises(ArgumentError, match=message):
        make(shares(folders, web=0.5, code=0.5), **change)


def test_weights_that_are_missing(folders):
    with pytest.raises(ArgumentError, match="source 'web': a weight is needed"):
        make({"web": folders["web"]})
    with pytest.raises(ArgumentError, match="at least one source"):
        make({})
    with pytest.raises(ArgumentError, match="stages change the weights of a mixture"):
        make(folders["web"], stages=[Stage({"web": 1})])
    with pytest.raises(ArgumentError, match="the last stage of a stream has no end"):
        make({"web": folders["web"]}, stages=[Stage({"web": 1}, samples=5)])
    with pytest.raises(ArgumentError, match="'code': 0"):  # whether a source stops must be said, as in mix
        make({"web": folders["web"], "code": folders["code"]}, stages=[Stage({"web": 1})])
