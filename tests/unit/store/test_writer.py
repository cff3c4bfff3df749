"""The writer: what it refuses, how shards roll over, several writers on one store, sealing."""

import contextlib
import json
import multiprocessing
import pickle
import shutil

import numpy as np
import pytest

import tokenfeed
from tiers import pick
from tokenfeed.errors import (
    ArgumentError,
    CorruptionError,
    FitError,
    FormatError,
    MissingError,
    NotAStoreError,
    StateError,
)
from tokenfeed.store.sealing import list_shards, load_manifest
from tokenfeed.store.verify import verify

COLUMNS = {"tokens": "uint16"}


def write(path, *values, **options):
    with tokenfeed.Writer(path, columns=COLUMNS, spans={"documents": "json"}, **options) as writer:
        for value in values:
            writer.append({"tokens": value}, documents=len(value))


def test_documents_do_not_straddle_shards(tmp_path):
    write(tmp_path, *([1] * 100 for _ in range(10)), shard_bytes=500)
    store = tokenfeed.open(tmp_path)
    assert len(store.shards) == 4
    assert {len(store.documents().locate(number)) for number in range(10)} == {1}


def test_an_empty_store(tmp_path):
    write(tmp_path)
    store = tokenfeed.open(tmp_path)
    assert store.num_items == len(store.windows(5)) == len(store.documents()) == 0
    assert store.windows(5).read([]).inputs.shape == (0, 5)
    assert len(store.documents().read([])) == 0
    assert verify(tmp_path).ok


def test_documents_without_any_tokens(tmp_path):
    """Any payload, and no columns at all."""
    with tokenfeed.Writer(tmp_path, columns={}, spans={"documents": "msgpack"}) as writer:
        for number in range(10):
            writer.append({}, documents={"number": number})
    documents = tokenfeed.open(tmp_path).documents()
    assert documents.read([7, 2]).payloads == [{"number": 7}, {"number": 2}]
    assert verify(tmp_path).ok


def test_gaps_are_told_from_empty_payloads(tmp_path):
    with tokenfeed.Writer(tmp_path, columns=COLUMNS, spans={"a": "bytes", "b": "utf8"}) as writer:
        writer.append({"tokens": [1]}, a=b"", b="x")
        writer.append({"tokens": [2]}, b="")
        writer.append({"tokens": [3]}, a=b"y")
    spans = tokenfeed.open(tmp_path).windows(3, extra=0)[0].spans
    assert [span.payload for span in spans["a"]] == [b"", None, b"y"]
    assert [span.payload for span in spans["b"]] == ["x", "", None]
    assert [span.has_payload for span in spans["a"]] == [True, False, True]


def test_a_failed_append_changes_nothing(tmp_path):
    with tokenfeed.Writer(tmp_path, columns=COLUMNS, spans={"documents": "json"}) as writer:
        writer.append({"tokens": [1, 2]}, documents="a")
        for error, columns, spans in (
            (FitError, {"tokens": [70_000]}, {}),
            (FitError, {}, {}),
            (FitError, {"tokens": [1], "more": [1]}, {}),
            (ArgumentError, {"tokens": [1]}, {"other": 1}),
            (FitError, {"tokens": [1]}, {"documents": object()}),
            (ArgumentError, {"tokens": [1]}, {"lengths": [2]}),
            (ArgumentError, {"tokens": [1]}, {"lengths": [2, -1]}),
            (ArgumentError, {"tokens": [1]}, {"lengths": [1], "documents": ["a", "b"]}),
            (ArgumentError, {"tokens": [1, 2, 3]}, {"lengths": [2.9, 1.9]}),
            (ArgumentError, {"tokens": [1, 2, 3]}, {"lengths": [2.0, 1.0]}),
            (ArgumentError, {"tokens": [1, 2, 3]}, {"lengths": 3}),
            (ArgumentError, {"tokens": [1, 2, 3]}, {"lengths": "12"}),
            (ArgumentError, {"tokens": [1, 2, 3]}, {"lengths": [[1], [1, 1]]}),
            (ArgumentError, {"tokens": [1, 2, 3]}, {"lengths": [2**62, 2**62, 2**62, 2**62, 3]}),
            (ArgumentError, [1, 2, 3], {}),
            (FitError, {"tokens": [[1], [2, 3]]}, {}),
            (FitError, {"tokens": "abc"}, {}),
        ):
            with pytest.raises(error):
                writer.append(columns, **spans)
        writer.append({"tokens": [3]}, documents="b")
    store = tokenfeed.open(tmp_path)
    assert store.windows(3, extra=0)[0].tokens.tolist() == [1, 2, 3]
    assert store.documents().read([0, 1]).payloads == ["a", "b"]


def test_an_exception_in_the_with_block_discards_the_shard_under_way(tmp_path):
    write(tmp_path, [1, 2, 3])
    with (
        contextlib.suppress(KeyboardInterrupt),
        tokenfeed.Writer(
            tmp_path, mode="append", columns=COLUMNS, spans={"documents": "json"}, shard_bytes=4
        ) as writer,
    ):
        writer.append({"tokens": [4, 5]}, documents=0)
        writer.append({"tokens": [6, 7]}, documents=0)
        raise KeyboardInterrupt
    assert tokenfeed.open(tmp_path).windows(5, extra=0)[0].tokens.tolist() == [1, 2, 3, 4, 5]
    assert not list_shards(tmp_path).unfinished


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"tokens": "uint32"}}, "uint16"),
        ({"columns": {"tokens": "uint16", "x": "u1"}}, "columns"),
        ({"spans": {"documents": "utf8"}}, "span tables"),
        ({"spans": {}}, "span tables"),
        ({"tokenizer": "other"}, "tokenizer"),
    ],
)
def test_another_writer_must_agree(tmp_path, options, message):
    write(tmp_path, [1], tokenizer="gpt2")
    with pytest.raises(ArgumentError, match=message):
        tokenfeed.Writer(tmp_path, **{"columns": COLUMNS, "spans": {"documents": "json"}, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"columns": {}},
        {"columns": {"a/b": "u1"}},
        {"columns": {"a.starts": "u1"}},
        {"columns": {"a": "object"}},
        {"columns": {"a": ">u2"}},
        {"columns": {"a": "nonsense"}},
        {"columns": {"a": ("u1", (3, 0))}},
        {"columns": {"a": [(("title", "name"), "u1")]}},
        {"columns": {"a": [("日", "u1")]}},
        {"columns": {"a": "u1"}, "spans": {"..": "json"}},
        {"columns": {"a": "u1"}, "spans": {"x": "pickle"}},
        {"columns": {"a": "u1"}, "split": "a/b"},
        {"columns": {"a": "u1"}, "name": "../a"},
        {"columns": {"a": "u1"}, "shard_bytes": 0},
    ],
)
def test_bad_arguments_create_nothing(tmp_path, options):
    with pytest.raises((ArgumentError, FormatError)):
        tokenfeed.Writer(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_closed_writer_takes_nothing_more(tmp_path):
    writer = tokenfeed.Writer(tmp_path, columns=COLUMNS)
    with pytest.raises(ArgumentError, match="no document to extend"):
        writer.extend({"tokens": [1]})
    writer.close()
    writer.close()
    with pytest.raises(ArgumentError, match="closed"):
        writer.append({"tokens": [1]})


def test_splits(tmp_path):
    write(tmp_path, [1, 2, 3], split="train", name="a")
    write(tmp_path, [4], split="val", name="b", mode="append")
    write(tmp_path, [5, 6], split="train", name="c", mode="append")
    assert tokenfeed.open(tmp_path, split="all").num_items == 6
    assert tokenfeed.open(tmp_path, split="val").windows(1, extra=0)[0].tokens.tolist() == [4]
    assert tokenfeed.open(tmp_path, split="train").windows(5, extra=0)[0].tokens.tolist() == [1, 2, 3, 5, 6]
    with pytest.raises(MissingError, match=r"no split 'test'; the store has 'train', 'val': open one"):
        tokenfeed.open(tmp_path, split="test")
    with pytest.raises(ArgumentError, match="stands for every split"):
        tokenfeed.Writer(tmp_path / "other", columns={"tokens": "u2"}, split="all")


def test_validation_data_is_not_trained_on_by_default(tmp_path):
    write(tmp_path, [1, 2, 3], split="train", name="a")
    write(tmp_path, [4], split="val", name="b", mode="append")
    store = tokenfeed.open(tmp_path)
    assert (store.num_items, store.split) == (3, "train")
    assert "3 items in 1 shard; split 'train' of train 3, val 1;" in repr(store)
    assert "4 items in 2 shards; split 'all' of train 3, val 1;" in repr(tokenfeed.open(tmp_path, split="all"))
    for split in (None, "train", "val", "all"):
        assert tokenfeed.open(tmp_path, split=split).splits == {"train": (1, 3), "val": (1, 1)}
    assert pickle.loads(pickle.dumps(store)).num_items == 3
    assert verify(tmp_path).num_shards == 2

    # Parts without splits are not left out of what is opened together; those of validation are.
    write(tmp_path / "plain", [7, 8])
    assert tokenfeed.open([tmp_path, tmp_path / "plain"]).num_items == 5
    tokenfeed.combine([tmp_path, tmp_path / "plain"], tmp_path / "combined")
    assert tokenfeed.open(tmp_path / "combined").num_items == 5
    assert tokenfeed.open(tmp_path / "combined", split="all").num_items == 6
    plain = tokenfeed.open(tmp_path / "plain")
    assert (plain.split, plain.splits) == (None, {})
    assert "split" not in repr(plain)


def test_a_store_without_training_data_is_refused_by_default(tmp_path):
    write(tmp_path, [4], split="val")
    with pytest.raises(MissingError, match=r"no split 'train'; the store has 'val': .* split=\"all\""):
        tokenfeed.open(tmp_path)
    assert tokenfeed.open(tmp_path, split="val").num_items == 1


def test_a_script_that_runs_twice_does_not_write_twice(tmp_path):
    write(tmp_path, [1, 2, 3])
    with pytest.raises(ArgumentError, match=r'complete store of 3 items\. mode="append" adds to it'):
        write(tmp_path, [1, 2, 3])
    assert tokenfeed.open(tmp_path).num_items == 3
    write(tmp_path, [4], mode="append")
    assert tokenfeed.open(tmp_path).num_items == 4
    assert verify(tmp_path).ok
    for mode in ("a", "w"):
        with pytest.raises(ArgumentError, match="expected 'x' or 'append'"):
            write(tmp_path, [1], mode=mode)


def test_an_empty_store_may_be_filled(tmp_path):
    write(tmp_path)
    write(tmp_path, [1])
    assert tokenfeed.open(tmp_path).num_items == 1


def test_shards_without_a_manifest_are_refused(tmp_path):
    """They would be taken for shards of the new store."""
    write(tmp_path, [1])
    (tmp_path / "manifest.json").unlink()
    for mode in ("x", "append"):
        with pytest.raises(ArgumentError, match=r"holds shards and no manifest\.json.* Use a new folder"):
            write(tmp_path, [9], mode=mode)


def test_the_last_of_several_writers_seals(tmp_path):
    writers = [tokenfeed.Writer(tmp_path, columns=COLUMNS, name=name) for name in "abc"]
    for number, writer in enumerate(writers):
        writer.append({"tokens": [number]})
    with pytest.raises(NotAStoreError, match=rf"one shard of a store. Open the store: {tmp_path}$"):
        tokenfeed.open(tmp_path / "a-00000")
    for number, writer in enumerate(writers):
        if number == 0:
            with pytest.raises(StateError, match="no finished shard: its writer is at work, was not closed, or failed"):
                tokenfeed.open(tmp_path)
        else:
            assert tokenfeed.open(tmp_path).num_items == number
        writer.close()
        assert (load_manifest(tmp_path).shards is not None) == (writer is writers[-1])
    assert tokenfeed.open(tmp_path).windows(3, extra=0)[0].tokens.tolist() == [0, 1, 2]


def _write_many(path, number):
    options = {"mode": "append", "columns": COLUMNS, "spans": {"documents": "json"}, "shard_bytes": 300, "sync": False}
    for round_ in range(5):
        with tokenfeed.Writer(path, name=f"{number}-{round_}", **options) as writer:
            for i in range(20):
                writer.append({"tokens": np.full(50, number)}, documents=[number, round_, i])


def test_writers_in_parallel_processes(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_many, args=(tmp_path, number)) for number in range(pick(2, 4))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert load_manifest(tmp_path).shards is not None
    store = tokenfeed.open(tmp_path)
    assert store.num_items == len(workers) * 5 * 20 * 50
    payloads = store.documents().read(np.arange(len(store.documents()))).payloads
    assert sorted(payloads) == [[n, r, i] for n in range(len(workers)) for r in range(5) for i in range(20)]
    assert verify(tmp_path).ok


def test_seal_needs_a_store_of_its_own(tmp_path):
    with pytest.raises(NotAStoreError):
        tokenfeed.seal(tmp_path)
    write(tmp_path / "a", [1])
    tokenfeed.combine([tmp_path / "a"], tmp_path / "all")
    with pytest.raises(ArgumentError, match="combined"):
        tokenfeed.seal(tmp_path / "all")
    with pytest.raises(ArgumentError, match="combined"):
        write(tmp_path / "all", [1])


def test_combine_refuses_what_does_not_fit_together(tmp_path):
    write(tmp_path / "a", [1], tokenizer="gpt2")
    write(tmp_path / "b", [1], tokenizer="llama")
    with tokenfeed.Writer(tmp_path / "c", columns={"tokens": "uint32"}) as writer:
        writer.append({"tokens": [1]})
    for other, message in (("b", "tokenizer"), ("c", "columns")):
        with pytest.raises(ArgumentError, match=message):
            tokenfeed.combine([tmp_path / "a", tmp_path / other], tmp_path / "all")
        with pytest.raises(ArgumentError, match=message):
            tokenfeed.open([tmp_path / "a", tmp_path / other])
    for bad in ([], str(tmp_path / "a")):
        with pytest.raises(ArgumentError):
            tokenfeed.combine(bad, tmp_path / "all")
    with pytest.raises(ArgumentError, match="already"):
        tokenfeed.combine([tmp_path / "a"], tmp_path / "b")


def test_a_combined_store_notices_that_a_part_changed(tmp_path):
    write(tmp_path / "a", [1])
    tokenfeed.combine([tmp_path / "a"], tmp_path / "all")
    write(tmp_path / "a", [2], mode="append")
    assert tokenfeed.open(tmp_path / "all").num_items == 1
    shutil.rmtree(tmp_path / "a")
    write(tmp_path / "a", [2])
    with pytest.raises(CorruptionError, match="Combine again"):
        tokenfeed.open(tmp_path / "all")
    assert not verify(tmp_path / "all").ok


def test_combined_stores_may_be_moved_together(tmp_path):
    for name in "ab":
        write(tmp_path / "here" / name, [ord(name)])
    tokenfeed.combine([tmp_path / "here" / name for name in "aba"], tmp_path / "here" / "aba")
    (tmp_path / "here").rename(tmp_path / "there")
    store = tokenfeed.open(tmp_path / "there" / "aba")
    assert store.windows(3, extra=0)[0].tokens.tolist() == [97, 98, 97]
    assert store.documents().read([0, 1, 2]).payloads == [1, 1, 1]
    assert tokenfeed.open([tmp_path / "there" / "aba", tmp_path / "there" / "a"]).num_items == 4


def test_a_combined_store_that_consists_of_itself(tmp_path):
    write(tmp_path / "a", [1])
    tokenfeed.combine([tmp_path / "a"], tmp_path / "b")
    path = tmp_path / "b" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["stores"] = [{**manifest["stores"][0], "uri": uri} for uri in (".", "../b", "../a/../b")]
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArgumentError, match="cannot be part of another"):
        tokenfeed.open(tmp_path / "b")
    assert any("cannot be part of another" in problem for problem in verify(tmp_path / "b").problems)


def test_aligned_dtypes_are_the_same_to_a_second_writer(tmp_path):
    dtype = np.dtype([("a", "u1"), ("b", "<u8")], align=True)
    for value in (1, 2):
        with tokenfeed.Writer(tmp_path, mode="append", columns={"tokens": dtype}) as writer:
            writer.append({"tokens": [(value, 5)]})
    assert tokenfeed.open(tmp_path).windows(2, extra=0)[0].tokens["a"].tolist() == [1, 2]
    assert verify(tmp_path).ok


@pytest.mark.parametrize("payload", [{"url": "a"}, "a", b"a", 7, [{"url": "a"}, {"url": "b"}]])
def test_one_payload_is_not_taken_for_a_list_of_them(tmp_path, payload):
    """The keys of a dict, or the letters of a text, would be the payloads of the documents."""
    with tokenfeed.Writer(tmp_path, columns={"tokens": "u2"}, spans={"documents": "json"}) as writer:
        with pytest.raises(ArgumentError, match=r"expected a list of 1 payload, one for each of lengths"):
            writer.append({"tokens": [1, 2]}, lengths=[2], documents=payload)
        writer.append({"tokens": [1, 2]}, lengths=[2], documents=[{"url": "a"}])
    assert tokenfeed.open(tmp_path).spans["documents"][0].payload == {"url": "a"}
