"""Finite streams: every document once an epoch over all ranks, in equally many steps, whatever happens on the way."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import golden_tokenizer
from oracle import rows_of
from property.test_stream import LAYOUTS, Ledger, documents, make
from tiers import examples
from tokenfeed.text import stream_chat

PACKINGS = [("best_fit", "split"), ("best_fit", "crop"), ("best_fit", "crop_oldest"), ("concat", "split")]
WORLDS = st.sampled_from([1, 2, 3, 5])


def play(make_feed: Any, legs: list[tuple[int, int, int, int]], see: Any) -> tuple[list[Any], int]:
    """All rows of a finite stream, and the number of steps of its last leg; `see` is called with every batch.

    A leg is (world size, batch size, steps, prefetch); the last one goes on to the end. All ranks must take equally
    many steps, have the same state after each, and divide rows without gaps.
    """
    rows, state, steps = [], None, 0
    for number, (world_size, batch_size, most, prefetch) in enumerate(legs):
        feeds = [
            make_feed(rank=rank, world_size=world_size, batch_size=batch_size, prefetch=prefetch)
            for rank in range(world_size)
        ]
        for feed in feeds if state is not None else ():
            feed.load_state_dict(state)
        is_last, steps = number == len(legs) - 1, 0
        while is_last or steps < most:
            batches = [next(feed, None) for feed in feeds]
            if batches[0] is None:
                assert batches == [None] * world_size
                break
            assert [len(batch) for batch in batches] == sorted((len(batch) for batch in batches), reverse=True)
            assert all(batch.state == batches[0].state for batch in batches)
            assert len(batches[0]) > 0
            state = json.loads(json.dumps([batch.state for batch in batches] if steps % 2 else batches[0].state))
            rows += sorted(row for batch in batches for row in rows_of(batch))
            for batch in batches:
                assert len(batch) <= batch_size
                see(batch)
            steps += 1
        for feed in feeds:
            feed.close()
    return rows, steps


@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    packing=st.sampled_from(PACKINGS),
    legs=st.lists(st.tuples(WORLDS, st.integers(1, 4), st.integers(0, 3), st.sampled_from([0, 0, 2])), max_size=3),
    last=st.tuples(WORLDS, st.integers(1, 4), st.just(0), st.sampled_from([0, 2])),
    epochs=st.integers(1, 3),
    length=st.integers(1, 40),
    buffer_size=st.integers(1, 12),
    refill_size=st.integers(1, 6),
    seed=st.sampled_from([None, 3]),
)
@settings(max_examples=examples(150), deadline=None)
def test_every_document_once_an_epoch_whatever_happens(
    layout, packing, legs, last, epochs, length, buffer_size, refill_size, seed
):
    how, overflow = packing
    ledger = Ledger(length, how)
    seen: Counter[tuple[int, int, int]] = Counter()
    counted = 0

    def see(batch):
        nonlocal counted
        ledger.see(batch)
        seen.update(tuple(each) for *each, done in batch.documents.tolist() if done == 0)
        mask = batch.loss_mask
        counted += batch.targets.size if mask is None else int(mask.sum())
        assert mask is None or mask.shape == batch.targets.shape
        assert (batch.lengths <= length + 1).all()

    def made(**options):
        return make(
            layout,
            length=length,
            packing=how,
            overflow=overflow,
            buffer_size=buffer_size,
            refill_size=refill_size,
            seed=seed,
            epochs=epochs,
            **options,
        )

    rows, steps = play(made, [*legs, last], see)
    assert [row.sample for row in rows] == list(range(len(rows)))
    assert {row.epoch for row in rows} <= set(range(epochs))
    if not legs:
        assert steps == -(-len(rows) // (last[0] * last[1]))
    tokens = sum(document.length for document in documents(layout))
    if how == "concat":
        assert counted == max(0, epochs * tokens - 1)  # each token but the first is a target once
    else:
        assert seen == dict.fromkeys((document.place for document in documents(layout)), epochs)
    if overflow == "split" and how == "best_fit":
        assert counted == epochs * (tokens - len(documents(layout)))
        expected = {(each.place, token): epochs for each in documents(layout) for token in range(1, each.length)}
        assert ledger.delivered == expected
    assert rows == play(made, [(1, 3, 0, 0)], lambda batch: None)[0]


@given(
    count=st.integers(1, 20),
    world_size=WORLDS,
    batch_size=st.integers(1, 3),
    epochs=st.integers(1, 2),
    buffer_size=st.integers(1, 9),
    prefetch=st.sampled_from([0, 2]),
)
@settings(deadline=None)
def test_every_conversation_once_an_epoch(count, world_size, batch_size, epochs, buffer_size, prefetch):
    chat = [
        {"messages": [{"role": "user", "content": "why " * (i % 5)}, {"role": "assistant", "content": "so " * (i % 7)}]}
        for i in range(count)
    ]
    seen: Counter[int] = Counter()

    def made(**options):
        return stream_chat(
            chat, golden_tokenizer("tiktoken"), length=24, buffer_size=buffer_size, epochs=epochs, **options
        )

    rows, _ = play(
        made,
        [(2, 1, 1, 0), (world_size, batch_size, 0, prefetch)],
        lambda batch: seen.update(batch.documents[:, 1].tolist()),
    )
    assert seen == dict.fromkeys(range(count), epochs)
    assert [row.sample for row in rows] == list(range(len(rows)))
    assert {row.epoch for row in rows} <= set(range(epochs))


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_finite_stream_goes_on_from_an_endless_one_and_back(epochs):
    """States fit both, as those of a Loader do: documents that are left are delivered once."""
    options = {"length": 12, "buffer_size": 5, "refill_size": 3}
    ranks = [make("uneven", rank=rank, world_size=2, batch_size=2, **options) for rank in range(2)]
    ledger = Ledger(12, "best_fit")
    for _ in range(3):
        batches = [next(feed) for feed in ranks]
        for batch in batches:
            ledger.see(batch)
    finite = make("uneven", rank=0, world_size=1, batch_size=2, epochs=epochs, **options)
    finite.load_state_dict([batch.state for batch in batches])
    for batch in finite:
        ledger.see(batch)
    expected = {(each.place, token): epochs for each in documents("uneven") for token in range(1, each.length)}
    assert ledger.delivered == expected
    endless = make("uneven", rank=0, world_size=1, batch_size=4, **options)
    endless.load_state_dict(finite.state_dict())
    again = make("uneven", rank=0, world_size=1, batch_size=4, **options)
    batch = next(endless)
    np.testing.assert_array_equal(batch.tokens, next(again).tokens)
    assert batch.epochs.tolist() == [epochs] * 4
    for feed in (*ranks, finite, endless, again):
        feed.close()
