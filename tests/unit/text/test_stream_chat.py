"""`stream_chat`: conversations on any ranks, those longer than a row, and those that are none."""

import numpy as np
import pytest

from golden import golden_tokenizer
from tokenfeed.errors import ArgumentError, FitError, PlanMismatchError, TokenfeedError
from tokenfeed.text import Chat, render, stream_chat
from tokenfeed.text.streaming.chat import Conversations
from tokenfeed.text.streaming.lanes import SavedStream


def conversation_of(number):
    question = {"role": "user", "content": f"question {number} " * (number % 4)}
    return {"messages": [question, {"role": "assistant", "content": "yes " * (number % 7)}]}


CHAT = [conversation_of(number) for number in range(23)]


def test_a_chat_on_other_ranks_goes_on_with_every_conversation_once():
    """From two ranks to three: what was delivered and what comes is every conversation once an epoch."""
    options = {"batch_size": 1, "length": 48, "buffer_size": 4}
    ranks = [stream_chat(CHAT, golden_tokenizer(), rank=rank, world_size=2, **options) for rank in range(2)]
    seen = []
    for _ in range(4):
        batches = [next(rank) for rank in ranks]
        seen += [row for batch in batches for row in batch.documents[:, 1].tolist()]
    states = [batch.state for batch in batches]
    ranks = [stream_chat(CHAT, golden_tokenizer(), rank=rank, world_size=3, **options) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(states)
    for _ in range(10):
        batches = [next(rank) for rank in ranks]
        seen += [row for batch in batches for row in batch.documents[:, 1].tolist()]
    saved = SavedStream.from_json([batch.state for batch in batches])
    (cursor,) = Conversations(CHAT, Chat().open(golden_tokenizer()), 48).deal(saved.position.lanes, 1)
    left = [*cursor.pending[:, 1].tolist(), *(group for _, group, _ in cursor.rest)]
    counts = np.bincount([*seen, *left], minlength=len(CHAT))
    read = np.arange(cursor.epoch * len(CHAT) + cursor.group)
    np.testing.assert_array_equal(counts, np.bincount(read % len(CHAT), minlength=len(CHAT)))
    for rank in ranks:
        rank.close()


def test_conversations_longer_than_a_row():
    """They are cut to the length of a row, left out, refused, or wait until they fill the buffer."""
    tokenizer = golden_tokenizer()
    long = {"messages": [{"role": "user", "content": "why " * 99}, {"role": "assistant", "content": "because"}]}
    mixed = [long if number % 3 == 2 else CHAT[5] for number in range(30)]
    options = {"batch_size": 2, "length": 48, "buffer_size": 6, "rank": 0, "world_size": 1, "prefetch": 0}
    whole, _, offsets = render([long, CHAT[5]], tokenizer)
    feed = stream_chat(mixed, tokenizer, **options)
    for _ in range(40):
        batch = next(feed)
        spans = batch.spans["documents"]
        for number, row, start, stop in zip(batch.documents[:, 1], *places(batch), spans.stops, strict=True):
            kept = whole[: min(48, offsets[1])] if number % 3 == 2 else whole[offsets[1] :]
            np.testing.assert_array_equal(batch.tokens[row, start:stop], kept)
    feed = stream_chat(mixed, tokenizer, too_long="drop", **options)
    assert {number % 3 for _ in range(40) for number in next(feed).documents[:, 1].tolist()} == {0, 1}
    with pytest.raises(PlanMismatchError, match="too_long"):
        stream_chat(mixed, tokenizer, **options).load_state_dict(feed.state_dict())
    with pytest.raises(FitError, match="no conversation fits a row of 49 tokens"):
        next(stream_chat([long], tokenizer, too_long="drop", **options))
    with pytest.raises(FitError, match=r"conversation 2 has \d+ tokens, and a row holds 49\. .*'truncate' or 'drop'"):
        next(stream_chat(mixed, tokenizer, too_long="error", **options))
    exact = {**options, "length": int(offsets[1]) - 1}
    next(stream_chat(mixed, tokenizer, too_long="error", **exact))
    feed = stream_chat(mixed, tokenizer, too_long="wait", **options)
    assert {number % 3 for number in next(feed).documents[:, 1].tolist()} <= {0, 1}
    with pytest.raises(FitError, match="the 6 documents that wait are all longer than a row of 49 tokens"):
        for _ in range(40):
            next(feed)
    with pytest.raises(ArgumentError, match="too_long is 'keep'; it must be 'truncate', 'drop', 'error' or 'wait'"):
        stream_chat(mixed, tokenizer, too_long="keep", **options)
    for no_list in (7, iter(mixed)):
        with pytest.raises(ArgumentError, match=r"conversations is .*; expected files of JSONL"):
            stream_chat(no_list, tokenizer, **options)


def places(batch):
    """(rows, starts) of all pieces."""
    spans = batch.spans["documents"]
    return np.repeat(np.arange(len(batch)), np.diff(spans.offsets)), spans.starts


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ({}, "of no layout that is known: messages"),
        ({"messages": []}, "has no messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "take turns"),
        ({"messages": [{"role": "system", "content": "x"}]}, "followed by a user's"),
        ({"messages": [{"role": "user", "content": 5}]}, "not text"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "image"}]}]},
            "text, python or python_output",
        ),
    ],
)
def test_conversations_that_are_none(conversation, message):
    feed = stream_chat([conversation], golden_tokenizer(), batch_size=2, length=16, rank=0, world_size=1)
    with pytest.raises(TokenfeedError, match=message):
        next(feed)
    feed.close()
