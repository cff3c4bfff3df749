"""Streams: what is refused and how, states of other runs, files that come later, what a batch says of itself."""

import gc
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken

import tokenfeed
import tokenfeed.torch
from golden import GOLDEN, golden_tokenizer, golden_vocabulary
from tokenfeed.errors import (
    ArgumentError,
    CorruptionError,
    MissingError,
    PlanMismatchError,
    StateError,
    TokenfeedError,
)
from tokenfeed.text import TextFeed, Tokenizer, stream_chat
from tokenfeed.text.sources.finding import Listing, write_listing

SMALL = {"batch_size": 2, "length": 16, "buffer_size": 5, "refill_size": 3, "rank": 0, "world_size": 1, "val": "last"}


def write(path, texts, *, per_group=4, column="text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: pa.array(texts, pa.string())}), path, row_group_size=per_group)


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.parquet", [f"file {number} text {row} " * (row % 5) for row in range(20)])
    return tmp_path


def make(source, tokenizer=None, **options) -> TextFeed:
    return tokenfeed.stream(source, tokenizer or golden_tokenizer(), **{**SMALL, **options})


def take(feed, count):
    return [next(feed).tokens.copy() for _ in range(count)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"length": 0}, "length is 0"),
        ({"length": "16"}, "length is '16'; it must be a whole number"),
        ({"buffer_size": 2.5}, "buffer_size is 2.5; it must be a whole number"),
        ({"lanes": 0}, "lanes is 0"),
        ({"buffer_size": 0}, "buffer_size is 0"),
        ({"refill_size": 0}, "refill_size is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"packing": "first_fit"}, "packing is 'first_fit'"),
        ({"overflow": "drop"}, "overflow is 'drop'"),
        ({"sharding": "random"}, "sharding is 'random'"),
        ({"sharding": "per_file", "seed": 1}, "seed permutes row groups"),
        ({"split": "test"}, "split is 'test'"),
        ({"lanes": 3, "world_size": 2, "rank": 0}, "3 lanes cannot be shared by 2 ranks"),
        ({"lanes": 11}, "11 lanes, but all files have only 10 row groups"),
        ({"lanes": 6, "sharding": "per_file"}, "6 lanes, but the largest file has only 5 row groups"),
        ({"world_size": 12, "rank": 3}, "12 lanes"),
    ],
)
def test_arguments_that_cannot_be_meant(folder, options, message):
    with pytest.raises(ArgumentError, match=message):
        make(folder, **options)


def test_a_tokenizer_without_bos(folder):
    without = Tokenizer.from_ranks(
        GOLDEN / "tokenizer" / "ranks.tiktoken", pattern="nanochat", special_tokens={"<|end|>": 4087}
    )
    with pytest.raises(TokenfeedError, match="bos"):
        make(folder, without)


def test_a_missing_column_is_said_at_once(folder):
    with pytest.raises(MissingError, match="no column 'body'; its columns are text"):
        make(folder, text_column="body")


def test_nulls_are_passed_over_and_empty_documents_are_a_bos(tmp_path):
    write(tmp_path / "0.parquet", [None, "one", None, "", "two", None, None, "three"])
    tokenizer = golden_tokenizer()
    batch = next(make(tmp_path, split="all", packing="concat", batch_size=1, length=20))
    expected = []
    while len(expected) < 21:
        for text in ("one", "", "two", "three"):
            expected += [tokenizer.bos_id, *tokenizer.encode(text).tolist()]
    assert batch.tokens[0].tolist() == expected[:21]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_damaged_file_is_an_error_in_its_turn_and_the_next_call_tries_again(tmp_path, prefetch):
    random = np.random.default_rng(0)
    texts = [" ".join(map(str, random.integers(0, 10**6, 60))) for _ in range(400)]
    write(tmp_path / "0.parquet", texts[:200], per_group=10)
    write(tmp_path / "1.parquet", texts[200:], per_group=10)
    whole = make(tmp_path, split="all", prefetch=prefetch)
    batches = take(whole, 5000)
    whole.close()
    sound = (tmp_path / "1.parquet").read_bytes()
    damaged = bytearray(sound)
    damaged[len(sound) // 2 : len(sound) // 2 + 400] = bytes(400)
    (tmp_path / "1.parquet").write_bytes(damaged)
    feed = make(tmp_path, split="all", prefetch=prefetch)
    delivered = []
    with pytest.raises(CorruptionError, match=r"1\.parquet"):
        for _ in range(5000):
            delivered.append(next(feed).tokens.copy())
    assert len(delivered) > 100
    assert all(np.array_equal(a, b) for a, b in zip(delivered, batches, strict=False))
    with pytest.raises(CorruptionError, match=r"1\.parquet"):
        next(feed)
    state = feed.state_dict()
    feed.close()
    (tmp_path / "1.parquet").write_bytes(sound)
    resumed = make(tmp_path, split="all", prefetch=prefetch)
    resumed.load_state_dict(state)
    for expected in batches[len(delivered) : len(delivered) + 50]:
        np.testing.assert_array_equal(next(resumed).tokens, expected)
    resumed.close()


def test_a_state_is_small_and_says_which_lanes_it_holds(folder):
    feed = make(folder, lanes=2, buffer_size=12)
    next(feed)
    state = feed.state_dict()
    assert set(state["lanes"]) == {"0", "1"}
    waiting = sum(len(lane["documents"]) // 4 for lane in state["lanes"].values())
    assert waiting >= 20
    text = json.dumps(state, separators=(",", ":"))
    assert len(text) < 600 + 24 * waiting
    assert json.loads(text) == state


def test_a_state_of_other_files_tokenizers_or_columns(folder, tmp_path_factory):
    feed = make(folder)
    take(feed, 3)
    state = feed.state_dict()
    feed.close()

    other = tmp_path_factory.mktemp("other")
    for number in range(3):
        write(other / f"{number}.parquet", [f"other {row}" for row in range(20)])
    with pytest.raises(PlanMismatchError, match=r"0\.parquet is not the file that the checkpoint was made from"):
        make(other).load_state_dict(state)
    write(other / "3.parquet", ["x"] * 20)
    (other / "1.parquet").rename(other / "9.parquet")
    with pytest.raises(PlanMismatchError, match="files"):
        make(other).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="seed None, this plan has 1"):
        make(folder, seed=1).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="sharding"):
        make(folder, sharding="per_file").load_state_dict(state)
    renamed = Tokenizer.from_ranks(
        GOLDEN / "tokenizer" / "ranks.tiktoken", pattern="gpt4", special_tokens={"<|bos|>": 4087}, bos="<|bos|>"
    )
    with pytest.raises(PlanMismatchError, match="tokenizer"):
        make(folder, renamed).load_state_dict(state)
    other_bos = Tokenizer(replace(golden_vocabulary(), bos="<|user_start|>"))
    with pytest.raises(PlanMismatchError, match="bos"):
        make(folder, other_bos).load_state_dict(state)

    moved = folder.parent / "moved"
    folder.rename(moved)
    resumed = make(moved)
    resumed.load_state_dict(state)  # where the files lie does not matter
    next(resumed)


def test_a_state_of_another_packing_or_of_the_other_road(folder):
    feed = make(folder)
    next(feed)
    words = r"packing 'best_fit', this plan has 'concat' \(files, column, split, tokenizer, bos, sharding, seed agree\)"
    with pytest.raises(PlanMismatchError, match=words):
        make(folder, packing="concat").load_state_dict(feed.state_dict())
    other = make(folder, overflow="crop", length=32, buffer_size=9, batch_size=3)
    other.load_state_dict(feed.state_dict())  # these may change
    next(other)
    with pytest.raises(StateError, match="of kind 'run', made by a Loader"):
        feed.load_state_dict({"kind": "run", "version": 2, "samples": 5, "plan": {}})


def test_states_that_cannot_be_understood(folder):
    feed = make(folder, lanes=2)
    next(feed)
    state = feed.state_dict()
    for broken, message in [
        (7, "not int"),
        ([], "empty list"),
        ({}, "does not say its kind"),
        ({**state, "version": 1}, "version 1"),
        ({**state, "samples": -1}, "damaged"),
        ({**state, "lanes": {"0": {}}}, "damaged"),
        ({**state, "lanes": {"5": state["lanes"]["0"]}}, "damaged"),
        ({**state, "lanes": {"0": {**state["lanes"]["0"], "documents": [1, 2]}}}, "damaged"),
        ({**state, "lanes": {"0": {**state["lanes"]["0"], "documents": [1, 2, 3, "4"]}}}, "damaged"),
        ({**state, "lanes": {"0": state["lanes"]["0"]}}, r"needs lanes \[1\]"),
        ([state, {**state, "samples": 99}], "different moments"),
        ([{**state, "lanes": {"0": state["lanes"]["0"]}}], r"lanes \[1\] of 2 are in none"),
        ({**state, "pq_idx": 0, "rg_idx": 1, "epoch": 1}, "nanochat's pq_idx and also files, kind"),
        ({"tokenfeed": state, "pq_idx": 0, "rg_idx": 1, "epoch": 1}, "nanochat's pq_idx and also tokenfeed"),
        ({"pq_idx": 0, "rg_idx": 1, "epoch": 1, "samples": 3}, "nanochat's pq_idx and also samples"),
    ]:
        with pytest.raises(StateError, match=message):
            make(folder, lanes=2).load_state_dict(broken)
    with pytest.raises(StateError, match="the list of all ranks' states"):
        make(folder, lanes=3).load_state_dict({**state, "lanes": {"0": state["lanes"]["0"]}})
    beyond = json.loads(json.dumps(state))
    beyond["lanes"]["0"]["documents"][2] = 10**6
    resumed = make(folder, lanes=2)
    resumed.load_state_dict(beyond)
    with pytest.raises(CorruptionError, match="row 1000000"):
        next(resumed)


def test_files_that_come_later_change_nothing_for_a_resumed_run(tmp_path):
    names = [f"{number}.parquet" for number in range(4)]
    for name in names:
        write(tmp_path / name, [f"{name} {row} words" for row in range(12)])
    write_listing(tmp_path, Listing(("0.parquet", "1.parquet"), ("3.parquet",)))
    whole = make(tmp_path)
    batches = [next(whole) for _ in range(60)]
    expected = [batch.tokens.copy() for batch in batches]
    write_listing(tmp_path, Listing(("0.parquet", "1.parquet", "2.parquet"), ("3.parquet",)))
    grown = make(tmp_path)
    grown.load_state_dict(batches[9].state)
    assert all(np.array_equal(a, b) for a, b in zip(take(grown, 50), expected[10:], strict=True))
    anew = make(tmp_path)
    assert not all(np.array_equal(a, b) for a, b in zip(take(anew, 60), expected, strict=True))
    for feed in (whole, grown, anew):
        feed.close()


def test_a_feed_begins_while_files_arrive(tmp_path):
    """The listing names files that are not there yet: the feed waits for each in its turn."""
    ready, arriving = tmp_path / "ready", tmp_path / "arriving"
    names = [f"{number}.parquet" for number in range(4)]
    for name in names:
        write(ready / name, [f"{name} {row} words and words" for row in range(30)], per_group=5)
    whole = make(ready, prefetch=0)
    expected = take(whole, 80)
    arriving.mkdir()
    write_listing(arriving, Listing(tuple(names[:3]), (names[3],)))
    (arriving / names[0]).write_bytes((ready / names[0]).read_bytes())
    feed = make(arriving, prefetch=0)
    np.testing.assert_array_equal(next(feed).tokens, expected[0])

    def arrive():
        for name in names[1:]:
            time.sleep(0.3)
            (arriving / f"{name}.tmp").write_bytes((ready / name).read_bytes())
            (arriving / f"{name}.tmp").rename(arriving / name)

    thread = threading.Thread(target=arrive)
    thread.start()
    assert all(np.array_equal(a, b) for a, b in zip(take(feed, 79), expected[1:], strict=True))
    thread.join()


def test_threads_end_with_the_feed(folder):
    before = set(threading.enumerate())  # some of which other tests have left, and may end meanwhile
    feed = make(folder)
    next(feed)
    started = set(threading.enumerate()) - before
    assert started
    del feed
    gc.collect()
    for thread in started:
        thread.join(5)
        assert not thread.is_alive()


def test_a_tokenizer_may_be_a_path_and_others_are_told_how_to_become_one(folder, tmp_path):
    golden_tokenizer().save(tmp_path / "tokenizer")
    chat = {"batch_size": 1, "length": 64, "rank": 0, "world_size": 1, "prefetch": 0}
    talks = [{"messages": [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}]}]
    expected = next(stream_chat(talks, golden_tokenizer(), **chat)).tokens
    np.testing.assert_array_equal(next(stream_chat(talks, str(tmp_path / "tokenizer"), **chat)).tokens, expected)
    feeds = make(folder, prefetch=0), make(folder, tmp_path / "tokenizer", prefetch=0)
    np.testing.assert_array_equal(*(next(feed).tokens for feed in feeds))
    vocabulary = golden_tokenizer().vocabulary
    ranks = {token: rank for rank, token in enumerate(vocabulary.tokens) if token and rank < 256}
    encoding = tiktoken.Encoding("mine", pat_str=vocabulary.pattern, mergeable_ranks=ranks, special_tokens={})
    for call in (lambda one: make(folder, one), lambda one: stream_chat(talks, one, **chat)):
        with pytest.raises(ArgumentError, match=r"tokenizer is a tiktoken.*Encoding; .*Tokenizer\.from_tiktoken\("):
            call(encoding)
        with pytest.raises(ArgumentError, match=r"tokenizer is a builtins\.int; pass a tokenfeed\.Tokenizer"):
            call(5)
        with pytest.raises(TokenfeedError, match="tok"):
            call("tok")
