"""docs/format.md is enough: what it alone led a stranger to read and to write is what tokenfeed writes and reads."""

import json
import shutil

import msgpack
import numpy as np
import pytest

import stranger
import tokenfeed
from plain import spans_of
from tokenfeed.store.verify import verify

DECODE = {"documents": json.loads, "concepts": msgpack.unpackb}


def decoded(table, spans):
    return [(*rest, None if payload is None else DECODE[table](payload)) for *rest, payload in spans]


def every_file(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


@pytest.fixture(params=["sealed", "unsealed", "combined"])
def written(request, plain, store_path, tmp_path):
    """(path, how often `plain` is in it) of a store that tokenfeed wrote."""
    if request.param == "unsealed":
        columns, spans = {"tokens": "uint16", "frame": ("uint8", (2, 3))}, {"documents": "json", "concepts": "msgpack"}
        with tokenfeed.Writer(tmp_path / "open", columns=columns, spans=spans, name="other") as other:
            other.append({"tokens": [1], "frame": np.zeros((1, 2, 3), np.uint8)})  # under way: nobody seals
            plain.write(tmp_path / "open", shard_bytes=30_000, name="part")
            assert "shards" not in json.loads((tmp_path / "open/manifest.json").read_bytes())
            yield tmp_path / "open", 1
            other.abort()
        return
    tokenfeed.combine([store_path, store_path], tmp_path / "both")
    yield {"sealed": (store_path, 1), "combined": (tmp_path / "both", 2)}[request.param]


def test_the_stranger_reads_every_version(store_path, plain):
    options = {"columns": {"tokens": "uint16", "frame": ("uint8", (2, 3))}, "shard_bytes": 1}
    options |= {"spans": {"documents": "json", "concepts": "msgpack"}, "mode": "append"}
    document = {"tokens": [1], "frame": np.zeros((1, 2, 3), np.uint8)}
    for name in ("b", "a"):
        with tokenfeed.Writer(store_path, name=name, **options) as writer:
            writer.append(document)
    for number in (1, 2, 3, None):
        assert stranger.Store(store_path, number).identity == tokenfeed.open(store_path, version=number).identity
    with tokenfeed.Writer(store_path, name="0", **options) as writer:
        writer.append(document)
        writer.append(document)  # which commits the one before
        for number in (1, 2, 3, None):
            assert stranger.Store(store_path, number).identity == tokenfeed.open(store_path, version=number).identity


def test_the_stranger_reads_what_tokenfeed_wrote(written, plain):
    path, times = written
    theirs, ours = stranger.Store(path), tokenfeed.open(path)
    theirs.check()
    assert len(theirs.shards) > times
    assert len(theirs) == ours.num_items == times * len(plain.tokens)
    assert theirs.identity == ours.identity
    assert np.array_equal(theirs.items("tokens", 0, len(theirs)), np.tile(plain.tokens, times))
    assert np.array_equal(theirs.items("frame", 0, len(theirs)), np.tile(plain.frames(), (times, 1, 1)))
    for length in (1, 333, 5000):
        windows = ours.windows(length, extra=0)
        numbers = np.unique(np.linspace(0, len(windows) - 1, 200).astype(int))
        batch = windows.read(numbers)
        for k, number in enumerate(numbers.tolist()):
            row = batch[k]
            a, b = number * length, (number + 1) * length
            for column in ("tokens", "frame"):
                assert np.array_equal(theirs.items(column, a, b), row.column(column))
            for table in DECODE:
                assert decoded(table, theirs.spans(table, a, b)) == spans_of(row.spans[table])


def test_the_stranger_reads_documents_that_tokenfeed_wrote(written, plain):
    path, times = written
    theirs, documents = stranger.Store(path), tokenfeed.open(path).documents()
    assert len(documents) == times * len(plain.documents)
    for number, (document, expected) in enumerate(zip(documents, [*plain.documents] * times, strict=True)):
        items, payload = theirs.document(number)
        assert np.array_equal(items, document.tokens)
        assert np.array_equal(items, expected.tokens)
        assert (None if payload is None else json.loads(payload)) == document.payload == expected.payload


def test_the_stranger_notices_a_changed_byte_in_any_file(plain, tmp_path):
    plain.write(tmp_path / "store", shard_bytes=1 << 30, name="part")
    files = every_file(tmp_path / "store")
    assert len(files) == 1 + 2 + 2 + 4 + 4
    for file in files:
        good = file.read_bytes()
        for position in {9, 60, 127, len(good) // 2, len(good) - 1} & set(range(len(good))):
            file.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
            with pytest.raises((ValueError, KeyError)):
                stranger.Store(tmp_path / "store").check()
        file.write_bytes(good)
    stranger.Store(tmp_path / "store").check()


def test_the_stranger_notices_a_part_that_changed(plain, store_path, tmp_path):
    tokenfeed.combine([store_path], tmp_path / "all")
    plain.write(store_path, name="more")
    assert stranger.Store(tmp_path / "all").identity == tokenfeed.open(tmp_path / "all").identity  # as it was
    shutil.rmtree(store_path)
    plain.write(store_path, name="more")
    with pytest.raises(ValueError, match="identity"):
        stranger.Store(tmp_path / "all")


LENGTHS = {"a": [3, 0, 5000, 4089, 0], "b-0.x": [], "c": [1, 0, 0, 9], "d": [4096, 4096]}
SPLITS = {"a": "train", "b-0.x": "train", "c": "val", "d": None}
CODECS = {"json": {"full": b'{"a": 1}', "empty": b'""'}, "utf8": {"full": "é".encode(), "empty": b""}}
FIELDS = [["x", "<i4"], ["y", "<f4", [2]]]


def written_by_stranger(path, codec, sealed):
    """Writes a store; returns its tokens, frames, and (start, stop, payload) of its documents."""
    rng, shards, kinds = np.random.default_rng(0), {}, [CODECS[codec]["full"], None, CODECS[codec]["empty"]]
    everything, spans, position = [], [], 0
    for name, lengths in LENGTHS.items():
        items = sum(lengths)
        tokens = rng.integers(0, 2**16, items).astype("<u2")
        frames = np.zeros((items, 2, 3), [("x", "<i4"), ("y", "<f4", 2)])
        frames["x"], frames["y"] = rng.integers(0, 9, (items, 2, 3)), rng.random((items, 2, 3, 2))
        documents = [(length, kinds[k % 3]) for k, length in enumerate(lengths)]
        sentences = [(1, None)] * items
        shards[name] = (SPLITS[name], {"tokens": tokens, "frame": frames}, {"documents": documents, "units": sentences})
        everything.append((tokens, frames))
        for length, payload in documents:
            spans.append((position, position + length, payload))
            position += length
    columns = {"tokens": ("<u2", []), "frame": (FIELDS, [2, 3])}
    stranger.write(path, columns, {"documents": codec, "units": None}, shards, sealed, tokenizer="none")
    return *map(np.concatenate, zip(*everything, strict=True)), spans


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_tokenfeed_reads_what_the_stranger_wrote(codec, sealed, tmp_path):
    tokens, frames, spans = written_by_stranger(tmp_path / "store", codec, sealed)
    decode = {"json": json.loads, "utf8": bytes.decode}[codec]
    spans = [(start, stop, None if payload is None else decode(payload)) for start, stop, payload in spans]
    report = verify(tmp_path / "store")
    assert (report.problems, report.notes) == ([], [])
    assert report.num_shards == len(LENGTHS)
    store = tokenfeed.open(tmp_path / "store", split="all")
    assert store.identity == stranger.Store(tmp_path / "store").identity
    assert (store.num_items, store.tokenizer, list(store.splits)) == (len(tokens), "none", ["", "train", "val"])
    documents = store.documents(columns=["frame"])
    assert len(documents) == len(spans)
    for number, (start, stop, payload) in enumerate(spans):
        assert np.array_equal(documents[number].tokens, tokens[start:stop])
        assert np.array_equal(documents[number].column("frame"), frames[start:stop])
        assert documents[number].payload == payload
    for length in (7, 4096, len(tokens)):
        windows = store.windows(length, extra=0)
        for number in np.unique(np.linspace(0, len(windows) - 1, 100).astype(int)).tolist():
            a, b = number * length, (number + 1) * length
            row = windows.read([number])[0]
            assert np.array_equal(row.column("tokens"), tokens[a:b])
            assert np.array_equal(row.column("frame"), frames[a:b])
            assert spans_of(row.spans["documents"]) == [
                (k, max(start, a) - a, min(stop, b) - a, payload)
                for k, (start, stop, payload) in enumerate(spans)
                if max(start, a) < min(stop, b)
            ]
            assert spans_of(row.spans["units"]) == [(a + k, k, k + 1, None) for k in range(length)]


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("split", ["train", "val"])
def test_splits_that_the_stranger_wrote(split, sealed, tmp_path):
    written_by_stranger(tmp_path / "store", "json", sealed)
    ours, theirs = tokenfeed.open(tmp_path / "store", split=split), stranger.Store(tmp_path / "store").only(split)
    assert ours.num_items == len(theirs) == sum(sum(LENGTHS[name]) for name in LENGTHS if SPLITS[name] == split)
    row = ours.windows(len(theirs), extra=0).read([0])[0]
    assert np.array_equal(row.tokens, theirs.items("tokens", 0, len(theirs)))
    payloads = [payload and json.loads(payload) for *_, payload in theirs.spans("documents", 0, len(theirs))]
    assert [span.payload for span in row.spans["documents"]] == payloads


def test_tokenfeed_goes_on_where_the_stranger_stopped(tmp_path):
    tokens, _, _ = written_by_stranger(tmp_path / "store", "json", sealed=True)
    columns = {"tokens": "uint16", "frame": ([("x", "<i4"), ("y", "<f4", 2)], (2, 3))}
    spans = {"documents": "json", "units": None}
    with tokenfeed.Writer(tmp_path / "store", mode="append", columns=columns, spans=spans, name="z") as w:
        w.append({"tokens": [1, 2], "frame": np.zeros((2, 2, 3), columns["frame"][0])}, documents={"more": True})
    both = stranger.Store(tmp_path / "store")
    both.check()
    assert both.items("tokens", 0, len(both)).tolist() == [*tokens.tolist(), 1, 2]
    assert both.document(sum(map(len, LENGTHS.values())))[1] == b'{"more":true}'
    assert verify(tmp_path / "store").ok
