"""Token for token what nanochat delivers."""

import json

import numpy as np
import pytest

from golden import GOLDEN, golden_numbers, golden_options, golden_rows, golden_tokenizer
from tokenfeed.text import render, stream_chat
from tokenfeed.text.streaming.feed import stream

RUNS = sorted((GOLDEN / "runs").glob("*.npz"))
RESUMED = sorted((GOLDEN / "resume").glob("*.npz"))
CHATS = ["w1_r0_buf100", "w2_r0_buf100", "w2_r1_buf100", "w1_r0_buf16"]


def feed_of(name, expected, **changes):
    batch_size, width = expected.shape[1:]
    return stream(
        GOLDEN / "data",
        golden_tokenizer(),
        batch_size=batch_size,
        length=width - 1,
        **{**golden_options(name), **changes},
    )


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_run_of_nanochat(path):
    expected = golden_rows(path)
    feed = feed_of(path.stem, expected)
    first_file = 3 if "val" in path.stem else 0
    placed = []
    for number, rows in enumerate(expected):
        batch = next(feed)
        np.testing.assert_array_equal(batch.inputs, rows[:, :-1])
        np.testing.assert_array_equal(batch.targets, rows[:, 1:])
        placed.append(segments_of(number, batch, first_file))
    recorded = np.load(path)
    if "segs" in recorded:
        np.testing.assert_array_equal(np.concatenate(placed), by_row(recorded["segs"])[:, :5])
        (lane,) = feed.state_dict()["lanes"].values()
        waiting = np.array(lane["documents"]).reshape(-1, 4)
        waiting[:, 0] %= 1 if first_file else 3  # files count on from epoch to epoch
        assert numbers_of(waiting, first_file) == recorded["final_buffer"].tolist()
    feed.close()


def numbers_of(references, first_file):
    return [golden_numbers()[file + first_file, group, row] for file, group, row, _ in references.tolist()]


def segments_of(number, batch, first_file):
    """(batch, row, start, length, document)."""
    spans = batch.spans["documents"]
    rows = np.repeat(np.arange(len(spans)), np.diff(spans.offsets))
    documents = numbers_of(batch.documents, first_file)
    return np.column_stack([np.full(len(rows), number), rows, spans.starts, spans.stops - spans.starts, documents])


def by_row(segments):
    return segments[np.lexsort((segments[:, 2], segments[:, 1], segments[:, 0]))]


@pytest.mark.parametrize("path", RESUMED, ids=lambda path: path.stem)
def test_nanochats_own_state_continues_as_it_does_there(path):
    expected = golden_rows(path)
    feed = feed_of(path.stem, expected)
    name = "_".join(part for part in path.stem.split("_") if not part.startswith(("r0", "r1", "from")))
    feed.load_state_dict(json.loads((path.parent / f"{name}_state20_rank0.json").read_text()))
    for rows in expected:
        np.testing.assert_array_equal(next(feed).tokens, rows)
    feed.close()


@pytest.mark.parametrize("name", ["bestfit_small_w1_r0", "concat_w2_r1"])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("prefetch", [0, 1, 9])
def test_threads_and_prefetch_change_nothing(name, threads, prefetch):
    expected = golden_rows(GOLDEN / "runs" / f"{name}.npz")
    feed = feed_of(name, expected, threads=threads, prefetch=prefetch)
    for rows in expected:
        np.testing.assert_array_equal(next(feed).tokens, rows)
    feed.close()


@pytest.fixture(scope="module")
def chat():
    lines = (GOLDEN / "sft" / "conversations.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], np.load(GOLDEN / "sft" / "sft.npz")


def test_conversations_are_rendered_as_nanochat_renders_them(chat):
    conversations, recorded = chat
    ids, mask, offsets = render(conversations, golden_tokenizer())
    np.testing.assert_array_equal(ids, recorded["ids"])
    np.testing.assert_array_equal(mask, recorded["mask"])
    np.testing.assert_array_equal(offsets, recorded["offsets"])


@pytest.mark.parametrize("name", CHATS)
def test_conversations_are_packed_as_nanochat_packs_them(chat, name):
    conversations, recorded = chat
    batch_size, length = recorded["params"].tolist()
    world_size, rank, buffer_size = (int(part.lstrip("wrbuf")) for part in name.split("_"))
    feed = stream_chat(
        conversations,
        golden_tokenizer(),
        batch_size=batch_size,
        length=length,
        buffer_size=buffer_size,
        rank=rank,
        world_size=world_size,
    )
    for inputs, targets in zip(recorded[f"{name}_inputs"], recorded[f"{name}_targets"], strict=True):
        batch = next(feed)
        np.testing.assert_array_equal(batch.inputs, inputs)
        np.testing.assert_array_equal(np.where(batch.loss_mask, batch.targets.astype(np.int64), -1), targets)
    feed.close()


@pytest.mark.parametrize(("world_size", "rank"), [(1, 0), (2, 1)])
def test_conversations_longer_than_2048_tokens_are_cut_as_nanochat_cuts_them(chat, world_size, rank):
    """Every fourth of 200 joins 40 conversations, and has up to 3,778 tokens; rows are nanochat's, of 2,048."""
    short, _ = chat
    parts = [short[start : start + (1, 3, 8, 40)[start % 4]] for start in range(200)]
    joined = [
        {"messages": [message for each in part for message in each["messages"] if message["role"] != "system"]}
        for part in parts
    ]
    assert sum(np.diff(render(joined, golden_tokenizer())[2]) > 2048) == 50
    recorded = np.load(GOLDEN / "sft" / "long.npz")
    options = {"batch_size": 2, "length": 2048, "buffer_size": 20, "rank": rank, "world_size": world_size}
    with stream_chat(joined, golden_tokenizer(), **options) as feed:
        name = f"w{world_size}_r{rank}"
        for inputs, targets in zip(recorded[f"{name}_inputs"], recorded[f"{name}_targets"], strict=True):
            batch = next(feed)
            np.testing.assert_array_equal(batch.inputs, inputs)
            np.testing.assert_array_equal(np.where(batch.loss_mask, batch.targets.astype(np.int64), -1), targets)
