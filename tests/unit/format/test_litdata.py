"""Chunks of litdata, as litdata 0.2.76 wrote them (tests/data/litdata): opened in place, or refused by name.

`documents()` are what was written: 20 documents of 1 to 59 tokens.
"""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, NotAStoreError, NotFoundError

DATA = Path(__file__).parents[2] / "data" / "litdata"


def documents() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 50_000, int(length)) for length in rng.integers(1, 60, 20)]


def read(store) -> list[list[int]]:
    return [store.documents()[number].tokens.tolist() for number in range(len(store.documents()))]


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(DATA / "tensor", tmp_path / "out")
    return tmp_path / "out"


def change(folder, **config):
    index = json.loads((folder / "index.json").read_text())
    index["config"] |= config
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(("kind", "dtype"), [("tensor", "int32"), ("numpy", "uint16")])
def test_a_folder_is_one_store_of_all_documents(kind, dtype):
    store = tokenfeed.open(DATA / kind)
    assert store.columns["tokens"].dtype == dtype
    assert read(store) == [tokens.tolist() for tokens in documents()]
    flat = np.concatenate(documents())
    np.testing.assert_array_equal(store.windows(16).read([3, 30]).column("tokens")[1], flat[480:497])


def test_a_chunk_is_a_store(folder):
    """Its header is no token: this read 48 bytes of count and offsets as 24 tokens."""
    store = tokenfeed.open(folder / "chunk-0-0.bin")
    assert read(store) == [tokens.tolist() for tokens in documents()[:10]]
    assert store.num_items == 223
    with pytest.raises(ArgumentError, match=r"dtype is uint16, but .*index\.json records int32"):
        tokenfeed.open(folder / "chunk-0-0.bin", dtype="uint16")


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_wide_tokens_begin_where_they_begin(tmp_path, backend):
    """An odd number of items puts 8-byte tokens at a byte that is no multiple of 8."""
    config = {"data_format": ["no_header_tensor:18"]}
    chunk = {"filename": "chunk-0-0.bin", "chunk_size": 1, "chunk_bytes": 36, "dim": 3}
    (tmp_path / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    (tmp_path / "chunk-0-0.bin").write_bytes(struct.pack("<3I3q", 1, 12, 36, 7, 8, 1 << 40))
    store = tokenfeed.open(tmp_path, backend=backend)
    assert store.windows(2).read([0, 0]).column("tokens").tolist() == [[7, 8, 1 << 40]] * 2


def test_a_file_that_the_index_does_not_list_is_what_it_was(folder):
    np.arange(9, dtype=np.uint16).tofile(folder / "train.bin")
    assert tokenfeed.open(folder / "train.bin").num_items == 9


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compression": "zstd"}, "compressed .zstd.*migrating.md"),
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"data_format": ["str", "no_header_tensor:16"]}, "an item is .*'str'"),
        ({"data_format": ["no_header_tensor:0"]}, "data_format is 'no_header_tensor:0', expected whole numbers"),
        ({"data_format": 5}, "data_format is 5, expected a list"),
    ],
)
def test_what_cannot_be_read_in_place_is_refused_by_name(folder, config, message):
    change(folder, **config)
    for path in (folder, folder / "chunk-0-0.bin"):
        with pytest.raises(FormatError, match=rf"index\.json.*{message}"):
            tokenfeed.open(path)


def test_items_with_their_sizes_before_them():
    """Not written for TokensLoader: a u32 before every item, which is no token."""
    store = tokenfeed.open(DATA / "items")
    assert read(store) == [tokens.tolist() for tokens in documents()]
    flat = np.concatenate(documents())
    np.testing.assert_array_equal(store.windows(16).read([3, 30]).column("tokens")[1], flat[480:497])
    assert read(tokenfeed.open(DATA / "items" / "chunk-0-0.bin")) == [tokens.tolist() for tokens in documents()[:10]]


def test_items_whose_sizes_contradict_their_offsets(tmp_path):
    shutil.copytree(DATA / "items", tmp_path / "out")
    chunk = tmp_path / "out" / "chunk-0-0.bin"
    data = chunk.read_bytes()
    for change, message in (
        (data[:48] + b"\xcb" + data[49:], "size of item 0 is 203, expected 204"),
        (data[:-1], "last offset is 980, expected 979"),
        (data[:9] + b"\0" + data[10:], "offset"),
    ):
        chunk.write_bytes(change)
        with pytest.raises(CorruptionError, match=message):
            tokenfeed.open(tmp_path / "out")


def test_damage(folder):
    chunk = folder / "chunk-0-0.bin"
    good = chunk.read_bytes()
    for at, value, message in (
        (0, 9, "count is 9, expected 10"),
        (4, 0, r"offset\[0\] is 0, expected 48"),
        (44, 936, "last offset is 936, expected 940"),
    ):
        chunk.write_bytes(good[:at] + struct.pack("<I", value) + good[at + 4 :])
        with pytest.raises(CorruptionError, match=message):
            tokenfeed.open(folder)
    for value, message in (
        (50, r"offset\[1\] is 50, expected whole items of 4 bytes"),
        (1000, "expected at least 1,000"),
    ):
        chunk.write_bytes(good[:8] + struct.pack("<I", value) + good[12:])
        with pytest.raises(CorruptionError, match=message):
            tokenfeed.open(folder).documents()[0]
    chunk.write_bytes(good[:-4])
    with pytest.raises(CorruptionError, match="size is 936 bytes, expected 940 bytes"):
        tokenfeed.open(folder)
    chunk.unlink()
    with pytest.raises(NotFoundError, match=r"lists chunk-0-0\.bin"):
        tokenfeed.open(folder)


def test_names_do_not_lead_outside(folder):
    index = json.loads((folder / "index.json").read_text())
    index["chunks"][0]["filename"] = "../secret"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptionError, match="not the name of a file"):
        tokenfeed.open(folder)


def test_an_index_of_another_system(tmp_path):
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')
    (tmp_path / "shard.00000.mds").touch()
    with pytest.raises(NotAStoreError, match="MosaicML"):
        tokenfeed.open(tmp_path)
