"""Text in Arrow files, as `datasets` saves them to disk."""

import datasets
import pytest

import tokenfeed
from golden import golden_tokenizer
from oracle import Leg, run
from tokenfeed.errors import FormatError, MissingError
from tokenfeed.preparation.prepare import prepare
from tokenfeed.text.sources.files import TextFiles

ROWS = [{"id": number, "text": f"document {number} \u00e9 " + "word " * (number % 7)} for number in range(40)]


@pytest.fixture
def source(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    return tmp_path / "saved"


def make(source, **options):
    how = {"batch_size": 2, "length": 16, "buffer_size": 4, "refill_size": 4, "split": "all"}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), **{**how, **options})


def test_every_document_is_read(source):
    assert list(TextFiles.find(source).documents()) == [row["text"] for row in ROWS]


def test_resume(source):
    whole = run([Leg(1, 2, 40)], lambda **how: make(source, **how), per_rank=True)
    stopped = run([Leg(1, 2, 13), Leg(1, 2, 27, 2)], lambda **how: make(source, **how), per_rank=True)
    assert stopped == whole
    assert whole[-1].epoch >= 1


def test_prepare(source, tmp_path):
    tokenizer = golden_tokenizer("tiktoken")
    prepare(source, tmp_path / "store", tokenizer=tokenizer, keep=["id"], val=None)
    documents = tokenfeed.open(tmp_path / "store").documents()
    assert [tokenizer.decode(documents[n].tokens[1:]) for n in range(40)] == [row["text"] for row in ROWS]


def test_what_cannot_be_read(tmp_path, source):
    with pytest.raises(MissingError, match=r"no column 'body'; its columns are id, text"):
        next(make(source, text_column="body", rank=0, world_size=1, prefetch=0))
    (tmp_path / "a.arrow").write_bytes(b"no Arrow")
    with pytest.raises(FormatError, match="is no Arrow file"):
        make(tmp_path / "a.arrow", rank=0, world_size=1)
