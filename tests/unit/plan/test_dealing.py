"""Costs, and how the samples of a step are dealt by them."""

import numpy as np
import pytest

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.plan.dealing import Cost, Step, StepRule

WORLD_SIZE = 64
QUADRATIC = Cost(1, 1 / (6 * 4096))


def log_normal(count, rng):
    """Lengths of documents up to 128 k tokens: median 1,200, mean 3,200."""
    return np.minimum(rng.lognormal(np.log(1200), 1.4, count).astype(np.int64) + 1, 131_072)


def loads_of(rule, tokens):
    bins = rule.deal(Step(0, tokens), WORLD_SIZE, str)
    costs = rule.cost(tokens)
    return np.bincount(bins, costs, minlength=WORLD_SIZE * rule.accumulate), bins, costs


@pytest.mark.parametrize("cost", [Cost(1), QUADRATIC])
@pytest.mark.parametrize("count", [1024, 4096, 16_384])
def test_ranks_of_a_log_normal_corpus_have_equal_work(cost, count):
    """The largest is within 2% of the mean, or is a single sample that exceeds it."""
    rng, rule = np.random.default_rng(count), StepRule.of(None, 1 << 20, balance=cost)
    for _ in range(10):
        loads, bins, costs = loads_of(rule, log_normal(count, rng))
        alone = np.bincount(bins)[np.argmax(loads)] == 1 and costs.max() > loads.mean()
        assert alone or loads.max() <= 1.02 * loads.mean()


@pytest.mark.parametrize("cost", [Cost(1), QUADRATIC])
def test_batches_of_a_fixed_number_of_rows_have_equal_work(cost):
    rng, rule = np.random.default_rng(1), StepRule.of(32, None, balance=cost)
    for _ in range(10):
        lengths = np.minimum(log_normal(32 * WORLD_SIZE, rng), 16_384)
        loads, bins, costs = loads_of(rule, lengths)
        assert set(np.bincount(bins).tolist()) == {32}
        assert loads.max() <= 1.02 * max(loads.mean(), costs.max())


def test_micro_batches_are_alike_on_all_ranks_and_ranks_have_equal_sums():
    rng, rule = np.random.default_rng(2), StepRule.of(None, 1 << 20, 4, QUADRATIC)
    loads, _, _ = loads_of(rule, log_normal(1024, rng))
    by_part = loads.reshape(4, WORLD_SIZE)
    assert (by_part[:-1].min(axis=1) >= by_part[1:].max(axis=1)).all()
    dealt_in_order = np.sort(loads)[::-1].reshape(4, WORLD_SIZE).sum(axis=0)
    assert np.ptp(by_part.sum(axis=0)) <= np.ptp(dealt_in_order)


def test_no_rank_has_the_longest_samples_of_all_steps():
    rng, rule = np.random.default_rng(4), StepRule.of(4, None, balance=True)
    steps = [Step(number * 32, log_normal(32, rng)) for number in range(800)]
    ranks = [rule.deal(step, 8, str)[np.argmax(step.tokens)] for step in steps]
    assert np.bincount(ranks, minlength=8).min() > 60


def test_samples_of_equal_length_are_dealt_in_turn():
    rule = StepRule.of(None, 30)
    assert rule.deal(Step(7, np.full(9, 10)), 4, str).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_sample_that_is_too_long_is_named_or_alone():
    tokens = np.array([3, 4, 50, 2, 7, 1])
    with pytest.raises(
        ArgumentError, match=r'here9 has 50 tokens; the budget of one rank is tokens=20.*too_long="own"'
    ):
        StepRule.of(None, 20).deal(Step(7, tokens), 4, lambda sample: f"here{sample}")
    for balance in (None, True):
        bins = StepRule.of(None, 20, balance=balance, too_long="own").deal(Step(7, tokens), 4, str)
        assert (bins == bins[2]).sum() == 1


@pytest.mark.parametrize("balance", ["yes", np.sqrt, 1])
def test_costs_are_checked(balance):
    with pytest.raises(ArgumentError, match=r"balance is .*; it must be True, or tokenfeed\.Cost"):
        StepRule.of(4, None, balance=balance)


@pytest.mark.parametrize("numbers", [(-1, 0), (0, 0), (float("nan"), 1), (1, float("inf")), (True, 1), ("1", 0)])
def test_numbers_of_a_cost_are_checked(numbers):
    with pytest.raises(ArgumentError, match="Cost"):
        Cost(*numbers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None), "neither is given"),
        ((4, 100), "both are given: 4 and 100"),
        ((None, 0), "tokens is 0; it must be a whole number"),
        ((None, {0: 100}), "it must be a whole number"),
        ((4, None, 1, None, "own"), "is for token budgets"),
        ((None, 4, 1, None, "split"), '"error" or "own"'),
    ],
)
def test_rules_are_checked(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        StepRule.of(*arguments)


def test_rules_are_json():
    for rule in (StepRule.of(2, None), StepRule.of(None, 100, 3, Cost(2, 0.5), "own")):
        assert StepRule.from_json(rule.to_json()) == rule
    for wrong in ({"accumulate": 0}, {"balance": 7}, {"balance": [-1, 0]}, {"accumulate": "2"}):
        with pytest.raises((StateError, ArgumentError)):
            StepRule.from_json({"batch_sizes": [[0, 2]], **wrong})
    for sizes in ([], [[0, 2], [9, 4]], [[1, 2]], [[0, 0]], 2):
        with pytest.raises(StateError):
            StepRule.from_json({"batch_sizes": sizes})
