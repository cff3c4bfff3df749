"""Text in Arrow files, as `datasets` saves them to disk."""

import datetime
import itertools

import datasets
import pyarrow as pa
import pytest

import tokenfeed
from golden import golden_tokenizer
from oracle import Leg, run
from tokenfeed.errors import FormatError, MissingError
from tokenfeed.preparation.prepare import prepare
from tokenfeed.text.sources.arrow import ArrowText
from tokenfeed.text.sources.files import TextFiles, first_record
from tokenfeed.text.sources.portions import TextRules
from tokenfeed.text.sources.stored import StoredFile

ROWS = [{"id": number, "text": f"document {number} \u00e9 " + "word " * (number % 7)} for number in range(40)]


@pytest.fixture
def source(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    return tmp_path / "saved"


def make(source, **options):
    how = {"batch_size": 2, "length": 16, "buffer_size": 4, "refill_size": 4, "split": "all"}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), **{**how, **options})


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


def write(path, rows, **options):
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


def test_compressed_batches_and_values_to_keep_as_in_parquet(tmp_path):
    """A time is kept as it is written, bytes that are no UTF-8 are one malformed row."""
    rows = [{**row, "when": datetime.datetime(2026, 1, 1 + row["id"] % 28)} for row in ROWS]
    path = write(tmp_path / "a.arrow", rows, compression="zstd")
    assert list(TextFiles.find(path).documents()) == [row["text"] for row in ROWS]
    text = ArrowText(StoredFile(str(path)), "text")
    rules = TextRules(keep=("when",), portion_bytes=10)
    portions = [
        portion for start, stop in itertools.pairwise(text.cut(600)) for portion in text.read_slice(start, stop, rules)
    ]
    assert "".join(text for portion in portions for text in portion.texts) == "".join(row["text"] for row in ROWS)
    assert [kept["when"][:10] for portion in portions for kept in portion.kept][3] == "2026-01-04"
    bad = write(tmp_path / "b.arrow", [{"text": b"good"}, {"text": b"\xff"}])
    with pytest.raises(FormatError, match=r"b\.arrow, record batch 0, row 1: 'text' is not UTF-8"):
        list(TextFiles.find(bad).documents())
    (portion,) = ArrowText(StoredFile(str(bad)), "text").read_slice(0, 1, TextRules(on_error="skip"))
    assert (portion.texts, portion.num_malformed) == (["good"], 1)


def test_conversations(tmp_path):
    rows = [{"messages": [{"role": "user", "content": f"question {n}"}]} for n in range(9)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "chat")
    record, name = first_record(tmp_path / "chat")
    assert record == rows[0]
    assert name.endswith(".arrow")
