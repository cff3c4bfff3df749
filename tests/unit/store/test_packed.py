"""Packed rows: plans, shapes, spans, masks, locations, and loading them."""

import itertools
import json
import os
import re
import shlex
import shutil
import struct

import numpy as np
import pytest

import command_line
import tokenfeed
from plain import make_documents, spans_of
from tokenfeed.errors import ArgumentError, MissingError, StateError
from tokenfeed.store.verify import verify


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Nothing is written to the home of whoever runs the tests."""
    monkeypatch.setenv("TOKENFEED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


def write(path, lengths):
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "json"}, name="part") as writer:
        for number, length in enumerate(lengths):
            writer.append({"tokens": [number + 1] * length}, documents=number)
    return tokenfeed.open(path)


def test_inputs_targets_and_masks(tmp_path):
    store = write(tmp_path / "store", [2, 3])
    store.pack(5)
    inputs, targets = batch = store.packed(5).read([0])
    assert inputs.tolist() == [[2, 2, 2, 1, 1]]
    assert targets.tolist() == [[2, 2, 1, 1, 0]]
    assert np.shares_memory(inputs, targets)
    assert batch.loss_mask.tolist() == [[True, True, False, True, False]]
    spans = batch.spans["documents"]
    assert spans_of(spans[0]) == [(1, 0, 3, 1), (0, 3, 5, 0)]
    assert spans.cu_seqlens().tolist() == batch.cu_seqlens.tolist() == [0, 3, 5]
    assert spans.position_ids().tolist() == batch.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert spans.document_ids().tolist() == [[0, 0, 0, 1, 1]]
    assert batch.span_numbers("documents").tolist() == batch.span_numbers().tolist() == [[1, 1, 1, 0, 0, -1]]
    assert (batch.length, batch.max_seqlen, batch.lengths.tolist()) == (5, 3, [5])


def test_a_column_may_mask_more(tmp_path):
    columns = {"tokens": "uint16", "learn": "uint8", "frame": ("uint8", (2,))}
    with tokenfeed.Writer(tmp_path / "store", columns=columns, spans={"documents": None}) as writer:
        for learn in ([0, 1, 0], [1, 1, 1, 0]):
            frame = np.zeros((len(learn), 2), np.uint8)
            writer.append({"tokens": np.arange(1, len(learn) + 1), "learn": learn, "frame": frame})
    store = tokenfeed.open(tmp_path / "store")
    store.pack(7)
    batch = store.packed(7, loss_mask="learn").read([0])
    assert batch.targets.tolist() == [[2, 3, 4, 1, 2, 3, 0]]
    assert batch.loss_mask.tolist() == [[True, True, False, False, True, False, False]]
    assert list(batch.columns) == ["tokens", "learn"]
    assert store.packed(7).read([0]).loss_mask.tolist() == [[True, True, True, False, True, True, False]]
    with pytest.raises(ArgumentError, match="'frame'"):
        store.packed(7, loss_mask="frame")
    with pytest.raises(MissingError, match="nothing"):
        store.packed(7, loss_mask="nothing")


def test_parts_share_what_was_read(store_path):
    store = tokenfeed.open(store_path)
    store.pack(64)
    batch = store.packed(64, spans=["documents"]).read(np.arange(3, 23))
    part = batch.part(5, 12)
    assert np.shares_memory(part.tokens, batch.tokens)
    np.testing.assert_array_equal(part.loss_mask, batch.loss_mask[5:12])
    np.testing.assert_array_equal(part.span_numbers("concepts"), batch.span_numbers("concepts")[5:12])
    assert [spans_of(row) for row in part.spans["documents"]] == [
        spans_of(batch.spans["documents"][5 + j]) for j in range(7)
    ]
    assert len(batch.part(4, 4)) == 0
    assert batch[-1].index == 22
    assert batch[2].tokens.shape == (65,)


def test_no_plan(store_path):
    store = tokenfeed.open(store_path)
    with pytest.raises(MissingError, match=r"make one with store\.pack\(64\) or `tokenfeed pack /.* --length 64`"):
        store.packed(64)
    with pytest.raises(MissingError, match=r"pack\(64, table='concepts'\) or .* --length 64 --table concepts`"):
        store.packed(64, table="concepts")
    with pytest.raises(MissingError, match="no span table"):
        store.pack(64, table="nothing")
    for length in (0, -1, 2**24):
        with pytest.raises(ArgumentError, match="length"):
            store.pack(length)


def test_a_store_with_plans_is_still_the_same_store(store_path):
    """A plan is no shard: it is not listed, not verified, and does not keep a writer from sealing."""
    identity = tokenfeed.open(store_path).identity
    tokenfeed.open(store_path).pack(64)
    assert tokenfeed.open(store_path).identity == identity
    report = verify(store_path)
    assert report.ok
    assert not report.notes
    columns, spans = {"tokens": "uint16", "frame": ("uint8", (2, 3))}, {"documents": "json", "concepts": "msgpack"}
    with tokenfeed.Writer(store_path, mode="append", columns=columns, spans=spans) as writer:
        writer.append({"tokens": [1], "frame": np.zeros((1, 2, 3), np.uint8)}, documents=1, concepts=1)
    assert "shards" in json.loads((store_path / "manifest.json").read_bytes())


def test_splits_have_plans_of_their_own(tmp_path):
    for split, count in (("train", 50), ("val", 7)):
        with tokenfeed.Writer(
            tmp_path / "store", mode="append", columns={"tokens": "uint16"}, spans={"documents": None}, split=split
        ) as writer:
            for number in range(count):
                writer.append({"tokens": np.full(number % 9, number + 1)})
    opened = [tokenfeed.open(tmp_path / "store", split=split) for split in ("train", "val", "all")]
    reports = [store.pack(10) for store in opened]
    assert [report.folder.name for report in reports] == [
        ".packed-documents-10.train",
        ".packed-documents-10.val",
        ".packed-documents-10",
    ]
    for store, report in zip(opened, reports, strict=True):
        assert len(store.packed(10)) == report.rows
        assert report.items == store.num_items


@pytest.mark.parametrize("split", [None, "train", "val", "all"])
@pytest.mark.parametrize("options", [{}, {"cache": "my plans"}])
def test_the_advice_can_be_followed(tmp_path, monkeypatch, split, options):
    """The command and the call that the error names make the plan that was missing, whatever the split."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "val"):
        with tokenfeed.Writer(
            "the store", mode="append", columns={"tokens": "u2"}, spans={"documents": None}, split=name
        ) as writer:
            writer.append({"tokens": range(30)}, lengths=[10, 20])
    store = tokenfeed.open("the store", split=split)
    for follow in (
        lambda call, command: eval(call, {"store": store}),
        lambda call, command: command_line.run(*shlex.split(command)[1:]),
    ):
        with pytest.raises(MissingError) as raised:
            store.packed(10, **options)
        follow(*re.search(r"make one with (store\.pack\(.*?\)) or `(.*?)`", str(raised.value)).groups())
        shutil.rmtree(store.packed(10, **options).plans[0].folder)
    joined = tokenfeed.open([store.paths[0], store.paths[0]], split=split)
    with pytest.raises(MissingError, match=r"make one with store\.pack\(10\)\. Looked"):
        joined.packed(10)


def test_another_table_and_a_folder_of_ones_own(store_path, tmp_path):
    store = tokenfeed.open(store_path)
    report = store.pack(30, table="concepts", cache=tmp_path / "mine")
    assert report.folder == tmp_path / "mine"
    view = store.packed(30, table="concepts", cache=tmp_path / "mine")
    assert str(view.spec) == "packed(30, table='concepts')"
    numbers = view.read(np.arange(len(view))).span_numbers("concepts")
    counts = np.bincount(numbers[numbers >= 0], minlength=len(store.spans["concepts"]))
    np.testing.assert_array_equal(counts, store.spans["concepts"].locate(np.arange(counts.size))[1])
    with pytest.raises(StateError, match="table is 'concepts', expected 'documents'"):
        store.packed(30, cache=tmp_path / "mine")
    with pytest.raises(StateError, match="length is 30, expected 31"):
        store.packed(31, table="concepts", cache=tmp_path / "mine")


def test_what_is_nobodys_folder_goes_to_the_cache(tmp_path, cache):
    """Combined stores, lists, and files of other systems, by their boundaries or by EOS."""
    tokens = np.random.default_rng(0).integers(0, 30, 5000).astype("<u2")
    tokens.tofile(tmp_path / "m.bin")
    lengths = [1000, 0, 3999, 1]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 4, 5) + np.array(lengths, "<i4").tobytes()
    index += (np.cumsum([0, 1000, 0, 3999]) * 2).astype("<i8").tobytes() + np.arange(5, dtype="<i8").tobytes()
    (tmp_path / "m.idx").write_bytes(index)
    tokens.tofile(tmp_path / "d.ds")
    np.cumsum(lengths).astype("<u8").tofile(tmp_path / "d.ds.index")
    tokens.tofile(tmp_path / "r.bin")
    stores = [tokenfeed.open(tmp_path / "m.idx"), tokenfeed.open(tmp_path / "d.ds", dtype="uint16")]
    stores.append(tokenfeed.open(tmp_path / "r.bin", eos=7))
    stores.append(tokenfeed.open([tmp_path / "m.idx", tmp_path / "m.idx"]))
    for name, seed in (("a", 0), ("b", 1)):
        make_documents([30, 0, 400, 70, 5], seed=seed).write(tmp_path / name)
    tokenfeed.combine([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    stores.append(tokenfeed.open(tmp_path / "both"))
    for store in stores:
        report = store.pack(99)
        assert report.folder == cache / f"{store.identity}-documents-99"
        view = store.packed(99)
        batch = view.read(np.arange(len(view)))
        numbers = batch.span_numbers("documents")
        for number in range(len(store.documents())):
            np.testing.assert_array_equal(
                np.sort(batch.tokens[numbers == number]), np.sort(store.documents()[number].tokens)
            )


def test_plain_numpy_reads_a_plan(tmp_path):
    store = write(tmp_path / "store", [6, 14, 0, 3, 5, 4])
    folder = store.pack(9).folder
    rows, pieces = np.load(folder / "rows.npy"), np.load(folder / "pieces.npy")
    assert rows.tolist() == [0, 1, 3, 5, 6]
    assert pieces["first_item"].tolist() == [6, 0, 16, 23, 28, 20]
    assert pieces["length"].tolist() == [10, 6, 4, 5, 4, 3]
    record = json.loads((folder / "pack.json").read_bytes())
    assert (record["documents"], record["cut_documents"], record["rows"], record["pieces"]) == (5, 1, 4, 6)
    assert sorted(os.listdir(folder)) == ["pack.blocks.npy", "pack.json", "pieces.npy", "rows.npy"]


def test_marks_are_what_the_format_page_says(tmp_path):
    def mixed(x):
        for _ in range(2):
            x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 % 2**64
        return x ^ x >> 32

    store = write(tmp_path / "store", [6, 14, 0, 3, 5, 4])
    folder = store.pack(9).folder
    rows, pieces = np.load(folder / "rows.npy").tolist(), np.load(folder / "pieces.npy").tolist()
    for row, (first, stop) in enumerate(itertools.pairwise(rows)):
        for place, (first_item, length, mark) in enumerate(pieces[first:stop]):
            word = mixed((first_item + row * 0x9E3779B185EBCA87) % 2**64)
            word ^= (length + place * 0xC2B2AE3D27D4EB4F + (stop - first) * 0x165667B19E3779F9) % 2**64
            assert mixed(word) >> 32 == mark
