"""Mixtures by example: what is refused at once, weights by tokens, and rules that hold for sources added later."""

import re

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError


@pytest.fixture
def make(tmp_path):
    def write(name, lengths, tokenizer=None):
        columns, spans = {"tokens": "uint16"}, {"documents": "json"}
        with tokenfeed.Writer(tmp_path / name, columns=columns, spans=spans, tokenizer=tokenizer, sync=False) as writer:
            for number, length in enumerate(lengths):
                writer.append({"tokens": np.full(length, number)}, documents={"id": number})
        return tokenfeed.open(tmp_path / name)

    return write


def drawn(mixture, samples):
    return [entry.samples for entry in mixture.budget(samples)]


def given(plan, samples):
    return [entry.samples for entry in plan.ledger(samples)]


def test_different_tokenizers_are_refused(make):
    """A batch of both vocabularies was delivered."""
    stores = {name: make(name, [9] * 9, tokenizer) for name, tokenizer in (("a", "one"), ("b", "two"), ("c", "one"))}
    a, b, c = (store.windows(4) for store in stores.values())
    told = "'a' and 'b' were made with different tokenizers, one and two.*allow_different_tokenizers=True"
    with pytest.raises(ArgumentError, match=told):
        tokenfeed.mix({"a": (a, 1), "b": (b, 1)})
    alike = tokenfeed.mix({"a": (a, 1), "c": (c, 1)})
    with pytest.raises(ArgumentError, match="different tokenizers"):
        tokenfeed.Plan.of(alike).amend(5, weights={"a": 0, "b": 1, "c": 0}, sources={"b": b})
    allowed = tokenfeed.mix({"a": (a, 1), "b": (b, 1)}, allow_different_tokenizers=True)
    later = tokenfeed.Plan.of(allowed).amend(4, weights={"a": 1, "b": 0, "c": 1}, sources={"c": c})
    assert given(later, 8) == [4, 2, 2]


def test_views_that_make_no_batch_are_refused_at_once(make):
    store = make("a", [9] * 9)
    for one, other in (
        (store.windows(4), store.windows(8)),
        (store.windows(4), store.documents()),
        (store.windows(4), store.windows(4, extra=0)),
    ):
        told = f"'a' and 'b' cannot be mixed: samples of one are {one.spec.sample}, of the other {other.spec.sample}"
        with pytest.raises(ArgumentError, match=re.escape(told)):
            tokenfeed.mix({"a": (one, 1), "b": (other, 1)})
        with pytest.raises(ArgumentError, match="cannot be mixed"):
            tokenfeed.Plan.of(tokenfeed.mix({"a": (one, 1)})).amend(3, weights={"b": 1}, sources={"b": other})
    for wrong in (store, "store", None, (store.windows(4), 1, 2)):
        with pytest.raises(ArgumentError, match=r"source 'a'.*(give a view of a store: store.windows|a weight)"):
            tokenfeed.mix({"a": (wrong, 1)})


def test_weights_by_tokens_use_exact_means(make):
    """Lengths (1, 1, 2) against (4, 4, 4) gave 57 to 43."""
    short, long = make("short", [1, 1, 2] * 4).documents(), make("long", [4, 4, 4]).documents()
    mixed = tokenfeed.mix({"short": (short, 0.5), "long": (long, 0.5)}, by="tokens")
    assert drawn(mixed, 400) == [300, 100]
    weights = {"short": 1, "long": 0, "more": 1}
    later = tokenfeed.Plan.of(mixed).amend(400, weights=weights, sources={"more": long})
    assert given(later, 800) == [600, 100, 100]
    empty = make("empty", [0, 0]).documents()
    with pytest.raises(ArgumentError, match="'empty' has no tokens to weigh"):
        tokenfeed.mix({"short": (short, 1), "empty": (empty, 1)}, by="tokens")


def test_padding_of_packed_rows_is_no_token(make):
    half, full = make("half", [4] * 12), make("full", [8] * 12)
    for store in (half, full):
        store.pack(7)
    mixed = tokenfeed.mix({"half": (half.packed(7), 1), "full": (full.packed(7), 1)}, by="tokens")
    assert drawn(mixed, 100) == [50, 50]  # two documents of 4 in a row: no padding
    odd = make("odd", [5] * 12)
    odd.pack(7)
    mixed = tokenfeed.mix({"odd": (odd.packed(7), 1), "full": (full.packed(7), 1)}, by="tokens")
    rows = len(odd.packed(7))
    short, long = drawn(mixed, 1300)
    assert abs(short * 60 / rows - long * 8) <= 8  # 60 tokens in all rows, whatever the padding


def test_sources_added_later_have_the_limit_of_the_mixture(make):
    """They had none."""
    a, b = make("a", [4] * 10).documents(), make("b", [4] * 3).documents()
    change = {"weights": {"a": 0, "b": 1}, "sources": {"b": b}}
    plan = tokenfeed.Plan.of(tokenfeed.mix({"a": (a, 1)}, max_epochs=2)).amend(4, **change)
    assert [entry.max_epochs for entry in plan.ledger(4)] == [2, 2]
    assert plan.end == 4 + 6
    named = tokenfeed.Plan.of(tokenfeed.mix({"a": (a, 1)}, max_epochs={"a": 2})).amend(4, **change)
    assert [entry.max_epochs for entry in named.ledger(4)] == [2, None]


def test_a_source_never_stops_unless_it_is_said(make):
    """Weights of one source set those of all others to 0, without a word."""
    a, b, c = (make(name, [4] * 10).documents() for name in "abc")
    plan = tokenfeed.Plan.of(tokenfeed.mix({"a": (a, 1), "b": (b, 1), "c": (c, 1)}))
    for weights, told in (
        ({"a": 2, "b": 1}, r"do not name 'c': name every source that is drawn, .* \{'a': 2, 'b': 1, 'c': 0\}"),
        ({"b": 1}, r"\{'b': 1, 'a': 0, 'c': 0\}"),
        ([tokenfeed.Stage({"a": 1, "b": 1, "c": 1}, 9), tokenfeed.Stage({"a": 1, "c": 1})], r"do not name 'b'"),
    ):
        with pytest.raises(ArgumentError, match=told):
            plan.amend(5, weights=weights)
    stopped = plan.amend(5, weights={"a": 1, "b": 0, "c": 0})
    assert given(stopped.amend(9, weights={"a": 2}), 100)[1:] == given(stopped, 5)[1:]  # those are gone already
    staged = [tokenfeed.Stage({"a": 1, "b": 0}, 20), tokenfeed.Stage({"a": 1, "b": 1})]
    later = tokenfeed.Plan.of(tokenfeed.mix({"a": a, "b": b}, stages=staged))
    with pytest.raises(ArgumentError, match="do not name 'b'"):  # which is to come
        later.amend(5, weights={"a": 1})
    with pytest.raises(ArgumentError, match="do not name 'b'"):
        tokenfeed.mix({"a": a, "b": b}, stages=[tokenfeed.Stage({"a": 1}, 20), staged[1]])


def test_what_mixtures_say(make):
    a, b = make("a", [4] * 10).documents(), make("b", [4] * 3).documents()
    mixed = tokenfeed.mix({"a": (a, 3), "b": (b, 1)})
    assert repr(mixed) == f"Mixture(a 75.0%: {a}, b 25.0%: {b})"
    assert (
        repr(tokenfeed.Plan.of(mixed).amend(5, weights={"a": 0, "b": 1}))
        == "Plan(2 sources: a, b; seed 0, 1 amendment)"
    )
    many = tokenfeed.mix({str(number): (a, 1) for number in range(10)})
    assert repr(many).endswith("and 2 more)")
