"""Streams: finite ones, collate functions, run files, batch sizes that grow, and what a batch says of itself."""

import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import tokenfeed
import tokenfeed.torch
from golden import golden_tokenizer
from tokenfeed.errors import ArgumentError, FitError, FormatError, NotFoundError, StateError
from tokenfeed.runs.run import Run
from tokenfeed.text import stream_chat

SMALL = {"batch_size": 2, "length": 16, "buffer_size": 5, "refill_size": 3, "rank": 0, "world_size": 1, "split": "all"}
TEXTS = [f"text {row} " * (row % 9) for row in range(50)]
CHAT = [
    {"messages": [{"role": "user", "content": "why " * (i % 5)}, {"role": "assistant", "content": "so " * (i % 7 + 1)}]}
    for i in range(9)
]


@pytest.fixture
def folder(tmp_path):
    for number in range(2):
        table = pa.table({"text": TEXTS[25 * number :][:25]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    return tmp_path


def make(folder, **options):
    return tokenfeed.stream(folder / "*.parquet", golden_tokenizer(), **{**SMALL, **options})


def number_of(reference):
    file, group, row = reference
    return 25 * file + 4 * group + row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": 1.0}, r"epochs is 1\.0"),
        ({"epochs": 1, "lanes": 2}, "one lane, which every rank packs"),
        ({"epochs": 1, "packing": "concat_pop"}, "drops a token"),
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number of at least 1"),
        ({"batch_size": {0: 2}}, "it must be a whole number"),
    ],
)
def test_options_that_do_not_go_together(folder, options, message):
    with pytest.raises(ArgumentError, match=message):
        make(folder, **options)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_for_loop_over_a_stream_that_has_ended_begins_again(folder, prefetch):
    with make(folder, epochs=1, prefetch=prefetch) as feed:
        first = [batch.tokens.copy() for batch in feed]
        second = [batch.tokens.copy() for batch in feed]
        assert len(first) > 10
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        with pytest.raises(StopIteration):
            next(feed)
        with pytest.raises(TypeError, match="has no length"):
            len(feed)


def test_late_batches_are_short_or_empty_and_say_so(folder):
    """Five ranks, and fewer rows than ranks in the last step: the arrays keep their width."""
    ranks = [[*make(folder, epochs=1, batch_size=3, rank=rank, world_size=5)] for rank in range(5)]
    assert len({len(batches) for batches in ranks}) == 1
    last = [batches[-1] for batches in ranks]
    assert sum(map(len, last)) < 15
    for batch in last:
        assert batch.inputs.shape == batch.targets.shape == batch.loss_mask.shape == (len(batch), 16)
        assert len(batch.samples) == len(batch.lengths) == len(batch.sources) == len(batch.spans["documents"])
        assert batch.state == last[0].state
        assert batch.as_dict()["targets"].shape == (len(batch), 16)
    few = [[*make(folder, epochs=1, packing="concat", length=512, rank=rank, world_size=5)] for rank in range(5)]
    assert [len(batches) for batches in few] == [1] * 5
    assert {len(batch) for (batch,) in few} == {0, 1}
    assert few[4][0].inputs.shape == (0, 512)
    assert few[4][0].documents.shape == (0, 4)


def test_states_of_a_finite_stream_end_where_it_ends(folder):
    feed = make(folder, epochs=1)
    states = [batch.state for batch in feed]
    assert len(json.dumps(states[-1])) < 500
    ended = make(folder, epochs=1, rank=2, world_size=3)  # any rank of any number takes the state of any other
    ended.load_state_dict(states[-1])
    assert next(ended, None) is None
    more = make(folder, epochs=2)
    more.load_state_dict(states[-1])
    assert len([*more]) == len(states)
    endless = make(folder)
    while next(endless).epoch < 2:
        pass
    with pytest.raises(StateError, match="beyond 1 epochs"):
        make(folder, epochs=1).load_state_dict(endless.state_dict())
    endless.close()


def test_conversations_too_long_for_a_finite_stream_are_an_error_or_dropped():
    long = {"messages": [{"role": "user", "content": "why " * 99}, {"role": "assistant", "content": "because"}]}
    options = {"batch_size": 2, "length": 24, "epochs": 1, "rank": 0, "world_size": 1}
    with pytest.raises(FitError, match="too_long='truncate' or 'drop'"):
        [*stream_chat([*CHAT, long], golden_tokenizer(), too_long="error", **options)]
    kept = [*stream_chat([*CHAT, long], golden_tokenizer(), too_long="drop", **options)]
    assert sorted(row for batch in kept for row in batch.documents[:, 1].tolist()) == list(range(len(CHAT)))
    with pytest.raises(FitError, match="no conversation fits"):
        [*stream_chat([long], golden_tokenizer(), too_long="drop", **options)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_collate_runs_once_a_batch_and_fills_data(folder, prefetch):
    calls = []

    def collate(batch):
        calls.append(batch.samples.tolist())
        return {"sum": int(batch.inputs.sum()), "documents": len(batch.documents)}

    feed = make(folder, collate=collate, prefetch=prefetch)
    for batch in (next(feed) for _ in range(4)):
        assert batch.data == {"sum": int(batch.inputs.sum()), "documents": len(batch.documents)}
        assert batch.as_dict()["data"] is batch.data
    assert calls[:4] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert feed.stats().collate_seconds > 0
    feed.close()
    chat = stream_chat(CHAT, golden_tokenizer(), batch_size=2, length=32, collate=len, rank=0, world_size=1)
    assert next(chat).data == 2
    chat.close()


def test_an_error_of_collate_comes_in_its_turn_and_the_next_call_tries_again(folder):
    failures = [4]

    def collate(batch):
        if batch.samples[0] == 4 and failures:
            raise ZeroDivisionError(failures.pop())

    feed = make(folder, collate=collate)
    taken = [next(feed).samples.tolist() for _ in range(2)]
    with pytest.raises(ZeroDivisionError):
        next(feed)
    assert [*taken, next(feed).samples.tolist()] == [[0, 1], [2, 3], [4, 5]]
    feed.close()


def test_a_run_file_notes_every_start_and_says_that_it_cannot_be_traced(folder, tmp_path):
    path = tmp_path / "checkpoints" / "run.jsonl"
    options = {"batch_size": 4, "run": path}
    feeds = [make(folder, rank=rank, world_size=2, **options) for rank in range(2)]
    for _ in range(5):
        batches = [next(feed) for feed in feeds]
    resumed = make(folder, **options)
    resumed.load_state_dict([batch.state for batch in batches])
    next(resumed)
    header, first, *others = map(json.loads, path.read_text().splitlines())
    assert (header["kind"], header["version"], header["length"], header["num_lanes"]) == ("stream", 2, 16, 2)
    assert header["files"] == [str(folder / "0.parquet"), str(folder / "1.parquet")]
    assert header["plan"]["tokenizer"] == golden_tokenizer().digest
    assert header["plan"]["packing"] == "best_fit"
    assert (first["step"], first["samples"], first["world_size"]) == (0, 0, 2)
    *_, last = others
    assert (last["step"], last["samples"], last["world_size"]) == (5, 40, 1)
    assert last["batch_sizes"] == [[0, 4]]
    with pytest.raises(StateError, match=r"run\.jsonl, line 1: this is the run file of a stream, and cannot be traced"):
        Run(path)
    for feed in (*feeds, resumed):
        feed.close()
    path.write_text(json.dumps({"kind": "run", "version": 2}) + "\n")
    with pytest.raises(StateError, match=r"run\.jsonl, line 1: the state is of kind 'run'"):
        next(make(folder, **options))


def test_documents_of_a_part_of_a_batch(folder):
    batch = next(make(folder, batch_size=5, prefetch=0))
    part = batch.part(2, 4)
    first, last = batch.spans["documents"].offsets[[2, 4]]
    np.testing.assert_array_equal(part.documents, batch.documents[first:last])
    assert len(part.spans["documents"].starts) == len(part.documents)
    np.testing.assert_array_equal(part.loss_mask, batch.loss_mask[2:4])
    np.testing.assert_array_equal(part.lengths, batch.lengths[2:4])


def test_the_mask_of_a_chat_is_what_was_rendered(folder):
    """Targets are the tokens that follow; the mask leaves out users, frames and padding."""
    tokenizer = golden_tokenizer()
    ids, mask, offsets = tokenfeed.text.render(CHAT, tokenizer)
    feed = stream_chat(CHAT, tokenizer, batch_size=2, length=40, epochs=1, rank=0, world_size=1)
    learned = []
    for batch in feed:
        np.testing.assert_array_equal(batch.targets, batch.tokens[:, 1:])
        assert batch.targets.dtype == tokenizer.dtype
        assert batch.loss_mask.shape == (len(batch), 40)
        learned += batch.targets[batch.loss_mask].tolist()
        spans = batch.spans["documents"]
        for entry, number in enumerate(batch.documents[:, 1].tolist()):
            row = int(np.searchsorted(spans.offsets, entry, side="right")) - 1
            start, stop = int(spans.starts[entry]), int(spans.stops[entry])
            whole = slice(int(offsets[number]), int(offsets[number + 1]))
            np.testing.assert_array_equal(batch.tokens[row, start:stop], ids[whole])
            np.testing.assert_array_equal(batch.loss_mask[row, start : stop - 1], mask[whole][1:])
    assert Counter(learned) == Counter(ids[mask].tolist())


def test_bits_per_byte_over_a_whole_split(folder):
    """To the end of a finite stream, which no rank knows beforehand; empty batches are passed over."""
    tokenizer = golden_tokenizer()

    def model(inputs, targets, loss_reduction):
        assert len(inputs) > 0
        return torch.ones(targets.shape)

    ranks = [make(folder, epochs=1, length=512, rank=rank, world_size=5) for rank in range(5)]
    batches = [batch for feed in ranks for batch in feed]
    assert any(len(batch) == 0 for batch in batches)
    tokens = [token for text in TEXTS for token in tokenizer.encode(text).tolist()]
    expected = len(tokens) / (math.log(2) * sum(len(text.encode()) for text in TEXTS))
    assert tokenfeed.torch.evaluate_bpb(model, batches, None, tokenizer.token_bytes) == pytest.approx(expected)
    placed = tokenfeed.torch.to_device(make(folder, epochs=1), "cpu")
    assert tokenfeed.torch.evaluate_bpb(model, placed, None, tokenizer.token_bytes) == pytest.approx(expected)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_lane_that_finds_only_nulls_says_so(tmp_path, prefetch):
    """Row groups 1, 3, … hold nulls, so lane 1 of 2 never finds a document; neither does a stream of nulls alone."""
    texts = [None if row % 2 else f"text {row}" for row in range(8)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=1)
    lanes = [make(tmp_path, rank=rank, world_size=2, prefetch=prefetch) for rank in range(2)]
    assert len(next(lanes[0])) == 2
    with pytest.raises(FormatError, match=r"lane 1 of 2 found no document in a whole epoch of .*a\.parquet"):
        next(lanes[1])
    lanes[0].close()
    assert len(next(make(tmp_path, prefetch=prefetch))) == 2
    pq.write_table(pa.table({"text": pa.array([None] * 8, pa.string())}), tmp_path / "a.parquet")
    for epochs in (None, 1):
        with pytest.raises(FormatError, match="the stream found no document"):
            next(make(tmp_path, prefetch=prefetch, epochs=epochs))


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_empty_texts_alone_are_rows_of_bos_without_a_target_to_learn(tmp_path, packing):
    pq.write_table(pa.table({"text": [""] * 8}), tmp_path / "a.parquet", row_group_size=2)
    for rank in range(2):
        batch = next(make(tmp_path, packing=packing, rank=rank, world_size=2, prefetch=0))
        assert (batch.tokens == golden_tokenizer().bos_id).all()
        assert packing == "concat" or not batch.loss_mask.any()


def test_nothing_held_out_of_few_documents_is_an_error(folder):
    for epochs in (None, 1):
        with pytest.raises(NotFoundError, match=r"nothing that is held out .* share of 1e-06.*val='last'"):
            next(make(folder, split="val", val=1e-6, epochs=epochs))


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_tokens_before_a_piece_do_not_count_bos(folder, packing):
    """The text of a piece is the text of its document from there on, less BOS, whatever the packing."""
    tokenizer = golden_tokenizer()
    num_continued = 0
    for batch in make(folder, packing=packing, epochs=1, length=7, prefetch=0):
        spans = batch.spans["documents"]
        rows = np.repeat(np.arange(len(batch)), np.diff(spans.offsets))
        for row, start, stop, (*place, before) in zip(
            rows, spans.starts, spans.stops, batch.documents.tolist(), strict=True
        ):
            piece = batch.tokens[row, start:stop]
            piece = piece[piece != tokenizer.bos_id]
            whole = tokenizer.encode(TEXTS[number_of(place)])
            np.testing.assert_array_equal(piece, whole[before : before + piece.size])
            num_continued += before > 0
    assert num_continued > 20


def test_the_epoch_of_a_row_is_that_of_its_documents(tmp_path):
    """Also once lanes that are epochs apart, since one has short texts, are dealt out again to another number of ranks.

    The epoch of a document is how often it has begun before.
    """
    texts = [f"short {row}" if row % 2 == 0 else f"long {row} " * 60 for row in range(40)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "0.parquet", row_group_size=1)
    options = {"buffer_size": 2, "batch_size": 1, "length": 32, "prefetch": 0}
    ranks = [make(tmp_path, rank=rank, world_size=2, **options) for rank in range(2)]
    begun, epochs = Counter(), []

    def check(batch):
        epochs_of_pieces = []
        for _, group, _, before in batch.documents.tolist():
            begun[group] += before == 0
            epochs_of_pieces.append(begun[group] - 1)
        assert batch.epochs.tolist() == [max(epochs_of_pieces)]
        epochs.append(int(batch.epochs[0]))

    for _ in range(30):
        batches = [next(rank) for rank in ranks]
        for batch in batches:
            check(batch)
    assert epochs[-1] == 0 < epochs[-2]
    alone = make(tmp_path, **options)
    alone.load_state_dict([batch.state for batch in batches])
    for _ in range(100):
        check(next(alone))
    assert 0 in epochs[61:]
