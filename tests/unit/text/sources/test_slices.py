"""TextRules slices of files: what is refused, what is left out and counted, how much memory it takes."""

import gzip
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slices import lines_of, read, texts, zstd
from tiers import slow
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, MissingError, ReadError, TokenfeedError
from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources import columns, jsonl, memory, plain
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.portions import LARGEST_DOCUMENT, TextRules


def test_the_line_is_named_wherever_it_stands(tmp_path):
    """Also in a later slice, whose reader has not seen the lines before."""
    path = tmp_path / "a.jsonl"
    good = lines_of({"text": "a" * 50})
    for bad in (b"bad\n", b"bad"):
        path.write_bytes(good * 5 + b"\n" + bad)
        with pytest.raises(FormatError, match=r"a\.jsonl, line 7: the line is not JSON"):
            read(path, slice_bytes=100)
    portions = read(path, TextRules(on_error="skip"), slice_bytes=100)
    (problem,) = [problem for portion in portions for problem in portion.problems]
    assert "a.jsonl, line 7: the line is not JSON" in problem


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_data_that_is_tokenised_already_is_said_to_be(tmp_path, ending):
    path, rows = tmp_path / f"a.{ending}", [{"input_ids": [1, 2], "id": "a"}, {"input_ids": [3], "id": "b"}]
    if ending == "jsonl":
        path.write_bytes(lines_of(*rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    advice = r"'input_ids' holds tokens: .* Prepare it with tokens_column='input_ids'"
    for column in ("text", "input_ids"):
        files = TextFiles.find(path, text_column=column)
        with pytest.raises(TokenfeedError, match=advice):
            list(files.documents())
        with pytest.raises(TokenfeedError, match=advice):
            read(path, TextRules(column))


def test_of_many_problems_ten_are_told_and_all_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines_of({"text": "a"}) + b"bad\n" * 3000 + lines_of({"text": None}, {"id": 1}) * 50)
    portions = read(path, TextRules(on_error="skip", portion_bytes=1000))
    assert sum(portion.num_malformed for portion in portions) == 3050
    assert sum(portion.num_null for portion in portions) == 50
    assert sum(len(portion.problems) for portion in portions) == 10
    assert texts(portions) == ["a"]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.zst"])
def test_a_key_that_no_line_has_is_an_error_though_lines_are_skipped(tmp_path, ending):
    """A key that some lines lack is None for a value to keep, and a malformed line for the text."""
    path = tmp_path / f"a.{ending}"
    compress = zstd if ending.endswith("zst") else bytes
    path.write_bytes(compress(lines_of({"body": "a", "id": 1}, {"body": "b", "id": 2})))
    with pytest.raises(MissingError, match=r"none of the first 2 lines has 'text'; .* are body, id.*text_column="):
        read(path, TextRules(on_error="skip"))
    with pytest.raises(MissingError, match=r"has 'url'.*keep="):
        read(path, TextRules("body", ("url",)), slice_bytes=1)
    path.write_bytes(compress(lines_of({"body": "a", "id": 1}, {"id": 2}, {"body": "c", "url": None}, {"body": None})))
    with pytest.raises(FormatError, match="line 2: there is no 'body'; the keys are id"):
        read(path, TextRules("body", ("id", "url")), slice_bytes=1)
    portions = read(path, TextRules("body", ("id", "url"), on_error="skip"), slice_bytes=1)
    assert texts(portions) == ["a", "c"]
    assert [kept for one in portions for kept in one.kept] == [{"id": 1, "url": None}, {"id": None, "url": None}]
    assert sum(portion.num_null for portion in portions) == sum(portion.num_malformed for portion in portions) == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.txt.zst", "a.parquet", "a.arrow"])
def test_a_document_has_at_most_one_gibibyte(tmp_path, monkeypatch, name):
    """It is refused by its file and place, or left out and counted. (The bound is 1 GiB; here it is 5,000 bytes.)"""
    assert LARGEST_DOCUMENT == 1 << 30
    for module in (jsonl, plain, columns):
        monkeypatch.setattr(module, "LARGEST_DOCUMENT", 5000)
    path, rows = tmp_path / name, ["a" * 4900, "b" * 5001, "c" * 99]
    if ".jsonl" in name:
        content, where = lines_of(*({"text": row} for row in rows)), ", line 2"
    elif ".txt" in name:
        content, where = rows[1].encode(), ""
    else:
        content, where = None, f", {'row group' if name == 'a.parquet' else 'record batch'} 0, row 1"
        write_rows(path, rows)
    if content is not None:
        path.write_bytes({"gz": gzip.compress, "st": zstd}.get(name[-2:], bytes)(content))
    with pytest.raises(FormatError, match=r"5,00\d bytes.*most of a document") as caught:
        read(path, slice_bytes=1000)
    assert str(caught.value).startswith(f"{path}{where}: ")
    portions = read(path, TextRules(on_error="skip"), slice_bytes=1000)
    assert texts(portions) == ([] if ".txt" in name else rows[::2])
    assert sum(portion.num_malformed for portion in portions) == 1
    if ".jsonl" not in name:  # of which a stream bounds a thousand lines together
        with pytest.raises(FormatError, match="most of a document") as caught:
            list(TextFiles.find(path).documents())
        assert str(caught.value).startswith(f"{path}{where}: ")


def write_rows(path, rows):
    table = pa.table({"text": pa.array(rows, pa.large_string())})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def test_a_document_of_the_program_has_at_most_one_gibibyte(monkeypatch):
    monkeypatch.setattr(memory, "LARGEST_DOCUMENT", 5)
    with pytest.raises(FormatError, match="group 0, row 1: the text has 6 characters; the most of a document is 5"):
        list(TextFiles.find([{"text": "aaaaa"}, {"text": "bbbbbb"}]).documents())


@pytest.mark.parametrize("ending", ["jsonl.gz", "jsonl.zst", "txt.gz", "txt.zst"])
def test_damaged_compression_is_an_error_in_both_modes(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    data = lines_of(*({"text": os.urandom(40).hex()} for _ in range(2000)))
    good = gzip.compress(data) if ending.endswith("gz") else zstd(data)
    for damaged in (good[: len(good) // 2], good[:-20], b"nonsense" * 9, b""):
        path.write_bytes(damaged)
        with pytest.raises((CorruptionError, ReadError)) as caught:
            read(path, TextRules(on_error="skip"))
        assert str(path) in str(caught.value)


def test_damaged_parquet_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [os.urandom(500).hex() for _ in range(2000)]}), path, use_dictionary=False)
    good = path.read_bytes()
    (file,) = find_inputs(path)
    path.write_bytes(good[:5000] + os.urandom(2000) + good[7000:])
    with pytest.raises((CorruptionError, ReadError), match=r"a\.parquet"):
        list(read_slice(file, cut(0, file)[0], TextRules(on_error="skip")))
    path.write_bytes(good[:-100])
    with pytest.raises(FormatError, match="cut short"):
        find_inputs(path)


def test_parquet_rows_without_text_are_left_out(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([b"a", None, b"\xff", b"d"]), "id": [1, 2, 3, 4]}), path)
    with pytest.raises(FormatError, match="row group 0, row 2: 'text' is not UTF-8"):
        read(path)
    portions = read(path, TextRules(keep=("id",), on_error="skip"))
    assert texts(portions) == ["a", "d"]
    assert [kept for portion in portions for kept in portion.kept] == [{"id": 1}, {"id": 4}]
    assert sum(portion.num_malformed for portion in portions) == sum(portion.num_null for portion in portions) == 1
    with pytest.raises(MissingError, match="its columns are text, id"):
        read(path, TextRules("body"))
    with pytest.raises(MissingError, match=r"no column 'url'.*keep="):
        read(path, TextRules(keep=("url",)))


def test_what_parquet_columns_become_in_json(tmp_path):
    import datetime
    import decimal

    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "text": ["a"],
            "time": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "day": [datetime.date(2024, 5, 1)],
            "price": [decimal.Decimal("1.50")],
            "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "list": [[{"x": [None, 1.5]}]],
            "blob": [b"\xff"],
            "times": pa.array([[1]], pa.list_(pa.timestamp("s"))),
        }
    )
    pq.write_table(table, path)
    portions = read(path, TextRules(keep=("time", "day", "price", "map", "list")))
    kept = portions[0].kept[0]
    assert json.loads(json.dumps(kept)) == {
        "time": "2023-11-14 22:13:20.123456789",
        "day": "2024-05-01",
        "price": "1.50",
        "map": [["a", 1]],
        "list": [{"x": [None, 1.5]}],
    }
    for name in ("blob", "times"):
        with pytest.raises(FormatError, match=f"{name!r} is .*, which JSON cannot hold"):
            read(path, TextRules(keep=(name,)))


def test_a_text_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * 5000 + b"\xff")
    with pytest.raises(FormatError, match=r"a\.txt: it is not UTF-8"):
        read(path)
    portions = read(path, TextRules(on_error="skip"))
    assert texts(portions) == []
    assert sum(portion.num_malformed for portion in portions) == 1


def test_rules_that_cannot_be_meant():
    with pytest.raises(ArgumentError, match="'fail' or 'skip'"):
        TextRules(on_error="ignore")
    for keep in (("text",), ("a", "a")):
        with pytest.raises(ArgumentError, match="twice, or is the text column 'text'"):
            TextRules(keep=keep)


MEMORY = """
import resource, sys
from pathlib import Path
from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.portions import TextRules

def read(path):
    (file,) = find_inputs(path)
    parts = cut(0, file)
    portions = (portion for part in parts for portion in read_slice(file, part, TextRules(on_error="skip")))
    return sum(len(text) for portion in portions for text in portion.texts)

warm, path = sys.argv[1:]
read(warm)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
print(read(path), (peak() - before) >> 20)
"""


@pytest.mark.parametrize("name", ["many.jsonl", *slow("many.jsonl.zst", "many.parquet")])
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    """64 MB of text in many documents: at most 40 MB more than a small file needs."""
    text = "Some text, \u00e9 and \U0001f600.\n" * (2 << 20)
    data = lines_of({"id": 1, "text": text[:5000]}) * (len(text) // 5000)
    small = lines_of({"text": "a" * 5000}) * 2000
    for path, content in ((tmp_path / name, data), (tmp_path / f"small_{name}", small)):
        if name.endswith("parquet"):
            documents = [text[:5000]] * (len(text) // 5000 if content is data else 100)
            pq.write_table(pa.table({"text": documents}), path, use_dictionary=False)
            continue
        path.write_bytes(zstd(content) if name.endswith("zst") else content)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / f"small_{name}"), str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    characters, megabytes = map(int, done.stdout.split())
    assert characters == len(text) // 5000 * 5000
    assert megabytes <= 40
