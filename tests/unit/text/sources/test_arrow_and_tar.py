"""Text in Arrow files of `datasets`, and in archives that webdataset 1.0 wrote (tests/data/webdataset)."""

import contextlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import datasets
import pytest

import tokenfeed
import write_webdataset
from golden import golden_tokenizer
from oracle import Leg, run
from tokenfeed.errors import FormatError, MissingError, NotFoundError, TokenfeedError
from tokenfeed.preparation.prepare import prepare
from tokenfeed.text.sources import tar
from tokenfeed.text.sources.files import TextFiles

DATA = Path(__file__).parents[3] / "data" / "webdataset"
ROWS = write_webdataset.rows()


@pytest.fixture
def saved(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    return tmp_path / "saved"


@pytest.fixture(params=["arrow", "text.tar", "json.tar"])
def source(request, saved):
    return saved if request.param == "arrow" else DATA / request.param


def make(source, **options):
    how = {"batch_size": 2, "length": 16, "buffer_size": 4, "refill_size": 4, "split": "all"}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), **{**how, **options})


def test_every_document_is_read(source):
    assert list(TextFiles.find(source).documents()) == [row["text"] for row in ROWS]


def test_resume(source, monkeypatch):
    monkeypatch.setattr(tar, "GROUP_ROWS", 8)
    whole = run([Leg(1, 2, 40)], lambda **how: make(source, **how), per_rank=True)
    stopped = run([Leg(1, 2, 13), Leg(1, 2, 27, 2)], lambda **how: make(source, **how), per_rank=True)
    assert stopped == whole
    assert whole[-1].epoch >= 1


def test_prepare(source, tmp_path):
    tokenizer = golden_tokenizer("tiktoken")
    prepare(source, tmp_path / "store", tokenizer=tokenizer, keep=["id"], val=None)
    documents = tokenfeed.open(tmp_path / "store").documents()
    assert [tokenizer.decode(documents[n].tokens[1:]) for n in range(40)] == [row["text"] for row in ROWS]


def test_what_cannot_be_read(tmp_path, saved):
    with pytest.raises(MissingError, match=r"no column 'body'; its columns are id, text"):
        next(make(saved, text_column="body", rank=0, world_size=1, prefetch=0))
    with pytest.raises(MissingError, match="there is no 'body'"):
        next(make(DATA / "json.tar", text_column="body", rank=0, world_size=1, prefetch=0))
    (tmp_path / "a.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(FormatError, match="is no tar archive"):
        make(tmp_path / "a.tar", rank=0, world_size=1)
    (tmp_path / "a.arrow").write_bytes(b"no Arrow")
    with pytest.raises(FormatError, match="is no Arrow file"):
        make(tmp_path / "a.arrow", rank=0, world_size=1)
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped" / "a.tar.gz").write_bytes(b"")
    with pytest.raises(NotFoundError, match=r"unpack it to \.tar"):
        make(tmp_path / "zipped")


@pytest.mark.parametrize("name", ["json.tar", "text.tar"])
def test_an_archive_that_was_cut_short_or_damaged(tmp_path, name):
    data = (DATA / name).read_bytes()
    for place in range(0, 6000, 97):
        (tmp_path / name).write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        with contextlib.suppress(TokenfeedError):
            assert len(list(TextFiles.find(tmp_path / name).documents())) == 40
    for size in (20 * 512 + 100, 20 * 512, 21 * 512):
        (tmp_path / name).write_bytes(data[:size])
        with pytest.raises(FormatError):
            list(TextFiles.find(tmp_path / name).documents())


@pytest.mark.slow
def test_what_the_real_package_writes_now(tmp_path):
    if find_spec("webdataset") is None:
        pytest.skip("WebDataset is NOT TESTED here: it needs the package webdataset")
    subprocess.run([sys.executable, write_webdataset.__file__, str(tmp_path)], check=True, timeout=100)
    for name in ("text.tar", "json.tar"):
        assert list(TextFiles.find(tmp_path / name).documents()) == [row["text"] for row in ROWS]
