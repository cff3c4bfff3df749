"""`prepare`: what is damaged is left out when that was asked for, and nothing is sent or lost in silence."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
from golden import golden_tokenizer
from preparing import compress, contents, expected_tokens, jsonl, make_documents, write_jsonl
from tokenfeed.errors import ArgumentError, CorruptionError, MissingError

DOCUMENTS = make_documents(30)
FIRST, MIDDLE, LAST = DOCUMENTS[:10], DOCUMENTS[10:20], DOCUMENTS[20:]


def prepare(inputs, out, *, workers=0, engine="local", tokens=None, on_error="fail", map=None):  # noqa: A002
    """The one call of `prepare` in this file; its report."""
    tokenizer = golden_tokenizer("tiktoken")
    options = {"tokens_column": tokens, "on_error": on_error, "map": map, "val": None}
    return tokenfeed.prepare(inputs, out, tokenizer=tokenizer, workers=workers, engine=engine, **options)


def cut_gzip(path):
    data = compress(jsonl(MIDDLE))
    path.write_bytes(data[: len(data) // 2])


def cut_parquet(path):
    """The footer is at the end, so nothing of it can be read."""
    pq.write_table(pa.Table.from_pylist(MIDDLE), path)
    path.write_bytes(path.read_bytes()[:-100])


def overwritten_parquet(path):
    """The footer is whole; the pages are not."""
    pq.write_table(pa.Table.from_pylist(MIDDLE), path)
    data = path.read_bytes()
    path.write_bytes(data[:40] + b"\xff" * 400 + data[440:])


@pytest.fixture
def three_inputs(tmp_path):
    """The paths of three inputs; the second one is to be made."""

    def make(name):
        folder = tmp_path / "text"
        folder.mkdir()
        write_jsonl(folder / "a.jsonl", FIRST)
        write_jsonl(folder / "c.jsonl", LAST)
        return [folder / "a.jsonl", folder / name, folder / "c.jsonl"]

    return make


DAMAGED = pytest.mark.parametrize(
    ("damage", "name"),
    [(cut_gzip, "b.jsonl.gz"), (cut_parquet, "b.parquet"), (overwritten_parquet, "b.parquet")],
    ids=["cut gzip", "cut parquet", "overwritten parquet"],
)


@DAMAGED
@pytest.mark.xfail(
    strict=True, raises=CorruptionError, reason="floor 5: on_error='skip' covers lines, not files: one stops all"
)
def test_a_damaged_file_is_left_out_and_counted(damage, name, three_inputs, tmp_path):
    """A damaged file is left out with `on_error="skip"`, counted and named; the other files are whole."""
    paths = three_inputs(name)
    damage(paths[1])
    report = prepare(paths, tmp_path / "store", on_error="skip")
    assert report.is_complete
    assert report.left_out >= 1
    assert any(name in problem for problem in report.problems)
    made = [tokens for tokens, _ in contents(tmp_path / "store")]
    assert made[:10] == expected_tokens(FIRST)
    assert made[-10:] == expected_tokens(LAST)
    assert len(made) < len(DOCUMENTS)


@pytest.mark.xfail(strict=True, raises=ArgumentError, reason="floor 5: an unfinished store asks for all its inputs")
def test_an_unsealed_store_drops_an_input(three_inputs, tmp_path):
    """An input may be left out of the next run while the store is unsealed, for instance because it is damaged."""
    paths = three_inputs("b.jsonl.gz")
    cut_gzip(paths[1])
    with pytest.raises(CorruptionError, match=r"b\.jsonl\.gz"):
        prepare(paths, tmp_path / "store")
    report = prepare([paths[0], paths[2]], tmp_path / "store")
    assert report.is_complete
    assert [tokens for tokens, _ in contents(tmp_path / "store")] == expected_tokens(FIRST + LAST)


@pytest.mark.xfail(strict=True, raises=MissingError, reason="floor 5: a line without the token key stops, asked or not")
def test_a_line_without_tokens_is_left_out_and_counted(tmp_path):
    """A line of JSONL that lacks the key of the tokens is malformed: `on_error="skip"` leaves it out and counts it."""
    path = tmp_path / "tokens.jsonl"
    path.write_text('{"ids": [1, 2, 3]}\n{"text": "no ids here"}\n{"ids": [4, 5]}\n')
    report = prepare([path], tmp_path / "store", tokens="ids", on_error="skip")
    assert report.total.malformed == 1
    assert "line 2" in report.problems[0]
    assert [tokens for tokens, _ in contents(tmp_path / "store")] == [[1, 2, 3], [4, 5]]


class Watched(dict):
    """A document that notes how often it is pickled; at the other end it is a plain dictionary."""

    times_pickled = 0

    def __reduce__(self):
        Watched.times_pickled += 1
        return dict, (dict(self),)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 5: every task is sent all documents of the program"
)
def test_a_task_has_its_own_documents(tmp_path, monkeypatch):
    """Documents of the program travel once: a task that goes to another process takes those it is made of."""
    monkeypatch.setattr(Watched, "times_pickled", 0)
    documents = [{"text": "a"}] * (3 << 15)  # two tasks, of 65,536 documents and the rest
    documents[::1024] = [Watched(text="b") for _ in range(96)]
    report = prepare(documents, tmp_path / "store", workers=2, engine="processes")
    assert report.total.documents == len(documents)
    assert report.num_slices >= 2
    assert 0 < Watched.times_pickled <= 96


PRINTS = """
from tokenfeed.preparation import annotates

@annotates()
def annotate(text, kept, tokens):
    print("made", len(tokens))
    return {}
"""


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 5: worker processes end without flushing what was printed"
)
def test_what_a_map_function_prints_arrives(tmp_path, monkeypatch, capfd):
    """Every line that a map function prints in another process arrives, whether or not output is buffered."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it, nothing is ever held back
    (tmp_path / "mine.py").write_text(PRINTS)
    write_jsonl(tmp_path / "text.jsonl", DOCUMENTS)
    prepare(
        [tmp_path / "text.jsonl"], tmp_path / "store", workers=2, engine="processes", map=f"{tmp_path}/mine.py:annotate"
    )
    out, err = capfd.readouterr()
    assert (out + err).count("made") == len(DOCUMENTS)
