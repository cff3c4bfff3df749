"""Pipes and devices in the place of files; sparse files that claim very much."""

import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import tokenfeed
from golden import golden_tokenizer
from opening import open_store
from tokenfeed.errors import ReadError, TokenfeedError, TooLargeError
from tokenfeed.format.manifest import Manifest, ShardRecord, SpanCount
from tokenfeed.format.npy import build_header
from tokenfeed.kernels.checksum import checksum
from tokenfeed.store.verify import verify
from tokenfeed.text.sources.files import open_text
from tokenfeed.text.sources.portions import TextRules
from tokenfeed.text.sources.stored import StoredFile

STRANGE = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero")}
MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENFEED_CACHE", str(tmp_path / "cache"))


def write(path):
    with tokenfeed.Writer(path, columns={"tokens": "uint8"}, spans={"documents": "json"}, name="part") as writer:
        for number in range(5):
            writer.append({"tokens": [number] * (number + 3)}, documents=number)
    tokenfeed.open(path).pack(7)


def use(path):
    """Whatever is wrong is found by one of these, and no one waits."""
    found = verify(path).problems
    for options in ({}, {"backend": "mmap"}, {"open_files": 0}):
        try:
            store = open_store(path, **options)
            store.documents().read([0, 1]).payloads  # noqa: B018
            store.windows(4, spans=["documents"]).read([0])
            store.packed(7).read([0])
        except TokenfeedError as error:
            found.append(str(error))
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", STRANGE)
def test_only_regular_files_are_read_of_a_store(tmp_path, kind):
    write(tmp_path / "store")
    files = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert len(files) == 12
    for path in files:
        kept = path.rename(tmp_path / "kept")
        STRANGE[kind](path)
        assert use(tmp_path / "store") != [], path
        path.unlink()
        kept.rename(path)
    assert use(tmp_path / "store") == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt"])
def test_only_regular_files_are_read_as_text(tmp_path, kind, name):
    path = tmp_path / name
    STRANGE[kind](path)
    tokenizer = golden_tokenizer("tiktoken")
    with pytest.raises(TokenfeedError, match="not a regular file"):
        next(tokenfeed.stream(path, tokenizer, batch_size=1, length=8, val=None, prefetch=0))
    with pytest.raises(TokenfeedError, match="not a regular file"):
        tokenfeed.prepare(path, tmp_path / "store", tokenizer=tokenizer, workers=0)
    found = open_text(StoredFile(str(path)), "text")  # one that took the place of a file after that was found
    for act in (found.digest, lambda: list(found.read_slice(0, 1, TextRules()))):
        with pytest.raises(ReadError, match=f"it is a {kind}, not a regular file"):
            act()
    bare = tmp_path / "tokens.bin"
    STRANGE[kind](bare)
    with pytest.raises(TokenfeedError):
        tokenfeed.open(bare, dtype="uint16").windows(4).read([0])


def claim(path, items, spans, starts, anchors):
    """A sealed store of one shard whose files are sparse: `spans` spans, the last few of which begin at `starts`."""
    with tokenfeed.Writer(path, columns={"tokens": "uint8"}, spans={"documents": None}, name="part") as writer:
        writer.append({"tokens": [1]})
    shard, manifest = path / "part-00000", Manifest.from_json((path / "manifest.json").read_bytes(), "manifest")
    record = ShardRecord.from_json((shard / "shard.json").read_bytes(), "shard", manifest.spans)
    sizes = {}
    for name, dtype, count, last in (
        ("tokens.npy", "|u1", items, []),
        ("documents.starts.npy", "<i8", spans, starts),
        ("documents.anchors.npy", "<i8", -(-items // 4096), anchors),
    ):
        header = build_header(np.dtype(dtype), (), count)
        sizes[name] = len(header) + count * np.dtype(dtype).itemsize
        with (shard / name).open("wb") as file:
            file.write(header)
            file.truncate(sizes[name])
            file.seek(sizes[name] - 8 * len(last))
            file.write(np.array(last, "<i8").tobytes())
    blocks = sum(-(-size // 4096) for size in sizes.values())
    header = build_header(np.dtype("<u8"), (), blocks)
    sizes["shard.blocks.npy"] = len(header) + 8 * blocks
    with (shard / "shard.blocks.npy").open("wb") as file:
        file.write(header)
        file.truncate(sizes["shard.blocks.npy"])
    counts = {"documents": SpanCount(spans, 0)}
    files = {name: replace(one, bytes=sizes[name]) for name, one in record.files.items()}
    data = replace(record, items=items, spans=counts, files=files).to_json()
    (shard / "shard.json").write_text(data)
    entry = replace(manifest.shards[0], items=items, spans=counts, checksum=checksum(data.encode()))
    (path / "manifest.json").write_text(replace(manifest, shards=(entry,)).to_json())


def test_lengths_that_would_wrap_around(tmp_path):
    """One document of 2**42 items, in a file that takes no room, asked for so often that the sum does not fit."""
    claim(tmp_path, 1 << 42, 1, [0], [])
    documents = tokenfeed.open(tmp_path).documents()
    for count in (1 << 20, (1 << 21) + 1, 1 << 22):
        with pytest.raises(TooLargeError, match=r"rows of up to 4,398,046,511,104 items: read fewer"):
            documents.read(np.zeros(count, np.int64))
    with pytest.raises(TooLargeError, match="which do not fit memory: read fewer"):
        documents.read(np.zeros(1024, np.int64))


def test_millions_of_empty_spans(tmp_path):
    """They lie in a sparse file: checking them, and finding the spans of a row among them, takes little memory."""
    spans = 3 << 20
    claim(tmp_path, 5000, spans, [10, 4096], [spans - 3, spans - 1])
    assert verify(tmp_path, quick=True).problems == []
    store = tokenfeed.open(tmp_path)
    found = store.windows(20, extra=0, spans=["documents"]).read([0]).spans["documents"]
    assert (found.numbers.tolist(), found.starts.tolist()) == ([spans - 3, spans - 2], [0, 10])
    tracemalloc.start()
    try:
        assert verify(tmp_path, quick=True).problems == []
        assert tracemalloc.get_traced_memory()[1] < 64 * MEBIBYTE
    finally:
        tracemalloc.stop()
    with (tmp_path / "part-00000" / "documents.anchors.npy").open("r+b") as file:
        file.seek(-16, os.SEEK_END)
        file.write((spans - 4).to_bytes(8, "little"))
    problems = verify(tmp_path, quick=True).problems
    assert any(f"anchor 0 is span {spans - 4}; span {spans - 3} covers its item" in problem for problem in problems)
