"""Lance datasets as sources of text and of ids, written by the real package; without it, an error that names it."""

import pickle
import sys
from importlib.util import find_spec

import pyarrow as pa
import pytest

import tokenfeed
from golden import golden_tokenizer
from oracle import Leg, run
from tokenfeed.errors import ArgumentError, DependencyError, FormatError, MissingError, NotAStoreError
from tokenfeed.preparation.prepare import prepare
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.lance import LanceTable

ROWS = [{"id": n, "text": f"document {n} é " + "word " * (n % 7), "input_ids": [n] * (n % 5)} for n in range(40)]


def stream(source, **options):
    how = {"batch_size": 2, "length": 16, "buffer_size": 4, "refill_size": 4, "split": "all"}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), **{**how, **options})


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)
    (tmp_path / "a.lance").mkdir()
    for act in (TextFiles.find, stream):
        with pytest.raises(DependencyError, match=r"a\.lance: Lance datasets need pip install pylance"):
            act(tmp_path / "a.lance")
    with pytest.raises(ArgumentError, match=r"Lance datasets are read from a disk\. Download it; or give a function"):
        TextFiles.find("s3://bucket/a.lance")
    with pytest.raises(NotAStoreError, match=r"is a Lance dataset: prepare it first: `tokenfeed prepare .*a\.lance"):
        tokenfeed.open(tmp_path / "a.lance")


@pytest.fixture
def source(tmp_path):
    if find_spec("lance") is None:
        pytest.skip("Lance is NOT TESTED here: it needs the package pylance")
    import lance

    lance.write_dataset(pa.Table.from_pylist(ROWS), tmp_path / "a.lance", max_rows_per_file=16)
    return tmp_path / "a.lance"


@pytest.mark.slow
def test_text_and_its_resume(source):
    assert list(TextFiles.find(source).documents()) == [row["text"] for row in ROWS]
    whole = run([Leg(1, 2, 40)], lambda **how: stream(source, **how), per_rank=True)
    stopped = run([Leg(1, 2, 13), Leg(1, 2, 27, 2)], lambda **how: stream(source, **how), per_rank=True)
    assert stopped == whole
    with pytest.raises(MissingError, match=r"no column 'body'; there are id, text, input_ids"):
        next(stream(source, text_column="body", rank=0, world_size=1, prefetch=0))


@pytest.mark.slow
def test_prepare_text_and_ids(source, tmp_path):
    tokenizer = golden_tokenizer("tiktoken")
    prepare(source, tmp_path / "text", tokenizer=tokenizer, keep=["id"], val=None)
    store = tokenfeed.open(tmp_path / "text")
    assert [tokenizer.decode(store.documents()[n].tokens[1:]) for n in range(40)] == [row["text"] for row in ROWS]
    assert store.spans["documents"][7].payload == {"id": 7}
    prepare(source, tmp_path / "ids", tokens_column="input_ids", val=None)
    documents = tokenfeed.open(tmp_path / "ids").documents()
    assert [documents[n].tokens.tolist() for n in range(40)] == [row["input_ids"] for row in ROWS]


@pytest.mark.slow
def test_a_table_stays_at_its_version(source):
    import lance

    table = LanceTable(str(source))
    digest = TextFiles.find(source).digest(0)
    lance.dataset(source).delete("id = 5")
    for each in (table, pickle.loads(pickle.dumps(table)), table.select_columns(["text"])):
        assert (len(each), each[5]["text"]) == (40, ROWS[5]["text"])
    assert TextFiles.find(source).digest(0) != digest
    (source / "_versions").rename(source / "_other")
    with pytest.raises(FormatError, match="cannot be read as a Lance dataset"):
        TextFiles.find(source)
