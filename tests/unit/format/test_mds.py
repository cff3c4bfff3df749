"""Shards of MosaicML Streaming, as mosaicml-streaming 0.13 wrote them (tests/data/mds): opened in place or refused."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
import write_mds
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, NotFoundError, TokenfeedError

DATA = Path(__file__).parents[2] / "data" / "mds"


def check(folder):
    """Every kind of tokens in a folder: documents, and windows over shards, by either backend."""
    flat = np.concatenate(write_mds.documents())
    for kind, dtype in (("varying", "uint16"), ("bytes", "uint16"), ("any", "uint32"), ("columns", "int32")):
        for backend in ("pread", "mmap"):
            how = {"dtype": "uint16"} if kind == "bytes" else {}
            store = tokenfeed.open(folder / kind, backend=backend, **how)
            assert store.columns["tokens"].dtype == dtype
            documents = store.documents()
            read = [documents[number].tokens.tolist() for number in range(len(documents))]
            assert read == [tokens.tolist() for tokens in write_mds.documents()]
            windows = store.windows(16).read(np.arange(len(store.windows(16)))).column("tokens")
            assert np.array_equal(windows[:, :16].ravel(), flat[: windows.shape[0] * 16])
    fixed = tokenfeed.open(folder / "fixed")
    assert fixed.num_items == 21 * 16
    assert fixed.documents()[20].tokens.tolist() == list(range(20, 36))


def test_what_was_written_is_read():
    check(DATA)


def test_a_loader_and_its_checkpoint():
    with tokenfeed.Loader(tokenfeed.open(DATA / "varying").windows(16), 3, seed=1) as loader:
        rows = [next(loader).column("tokens").copy() for _ in range(12)]
        state = loader.state_dict()
        after = next(loader).column("tokens").copy()
    with tokenfeed.Loader(tokenfeed.open(DATA / "varying").windows(16), 3, seed=1) as loader:
        loader.load_state_dict(state)
        assert np.array_equal(next(loader).column("tokens"), after)
    assert len(np.unique(np.concatenate(rows), axis=0)) == 36


def test_a_shard_is_a_store():
    store = tokenfeed.open(DATA / "varying" / "shard.00000.mds")
    assert store.documents()[0].tokens.tolist() == write_mds.documents()[0].tolist()
    assert store.num_items < tokenfeed.open(DATA / "varying").num_items


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("bytes", ArgumentError, "stored as bytes, without their dtype"),
        ("text", FormatError, "no column is known to hold tokens among text: str"),
        ("square", FormatError, "not an array of one dimension"),
        ("zstd", FormatError, r"compressed \(zstd.*\), and cannot be read in place"),
    ],
)
def test_what_is_refused(kind, error, message):
    with pytest.raises(error, match=message):
        tokenfeed.open(DATA / kind)


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(DATA / "varying", tmp_path / "out")
    return tmp_path / "out"


def test_files_that_contradict_each_other(folder):
    index = json.loads((folder / "index.json").read_text())
    shard = folder / "shard.00000.mds"
    data = shard.read_bytes()

    def refused(error, message):
        with pytest.raises(error, match=message):
            tokenfeed.open(folder)

    shard.write_bytes(data[:-1])
    refused(CorruptionError, "size is")
    shard.write_bytes(b"\xff" + data[1:])
    refused(CorruptionError, "count is")
    shard.write_bytes(data[:8] + b"\0\0\0\0" + data[12:])
    refused(CorruptionError, "offset")
    shard.write_bytes(data)
    index["shards"][0]["raw_data"]["basename"] = "../x"
    (folder / "index.json").write_text(json.dumps(index))
    refused(CorruptionError, "is not the name of a file")
    index["shards"][0]["raw_data"]["basename"] = "none.mds"
    (folder / "index.json").write_text(json.dumps(index))
    refused(NotFoundError, "does not exist")


def test_damage_anywhere_is_an_error_or_other_tokens(folder):
    """Never a crash: bytes of a shard, flipped in turn."""
    shard = folder / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    for place in range(0, len(data), 11):
        shard.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            view = tokenfeed.open(folder).documents()
            view.read(np.arange(len(view)))
        except TokenfeedError:
            pass


@pytest.mark.slow
def test_what_the_real_package_writes_now(tmp_path):
    if find_spec("streaming") is None:
        pytest.skip("MDS is NOT TESTED here: it needs the package mosaicml-streaming")
    subprocess.run([sys.executable, write_mds.__file__, str(tmp_path)], check=True, timeout=200)
    check(tmp_path)
