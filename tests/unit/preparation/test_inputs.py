"""Inputs: how they are found and cut into slices, and changes that are noticed."""

import gzip
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slices import lines_of, read, texts
from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError
from tokenfeed.preparation.inputs import Slice, cut, find_inputs, read_slice
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.portions import TextRules


def test_inputs_are_found_in_order_with_their_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.jsonl", "c.parquet", "sub/a.jsonl.gz", "d.json", ".hidden.txt", "e.csv"):
        data = lines_of({"text": "x"})
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "c.parquet")
    assert [file.name for file in find_inputs(tmp_path / "*")] == ["a.jsonl", "b.txt", "c.parquet"]
    found = find_inputs([tmp_path / "sub", tmp_path / "*.jsonl"])
    assert [file.name for file in found] == ["sub/a.jsonl.gz", "a.jsonl"]
    assert found[1].size == (tmp_path / "a.jsonl").stat().st_size
    assert find_inputs(f"file://{tmp_path}/a.jsonl")[0].digest == found[1].digest
    assert str(tmp_path) not in repr(found)


def test_a_note_beside_the_data_is_no_document(tmp_path):
    """It would be read as one; and where its name comes last, it would be all of `val`, on every road."""
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(lines_of({"text": "x"}))
    (tmp_path / "notes.txt").write_text("how this was made")
    for read_folder in (find_inputs, TextFiles.find):  # prepare; stream and train-tokenizer
        with pytest.raises(ArgumentError, match=r"also plain text, such as notes\.txt.*\*\.parquet"):
            read_folder(tmp_path)
    assert [file.name for file in find_inputs(tmp_path / "*.jsonl")] == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("sources", "kind", "message"),
    [
        ([], ArgumentError, "empty list"),
        ("{}/none.jsonl", NotFoundError, r"there is no file or folder .*none\.jsonl"),
        ("{}/*.parquet", NotFoundError, r"matches no file"),
        ("{}/empty", NotFoundError, r"in the folder .*empty there is no file ending in \.parquet, \.jsonl"),
        ("{}/a.csv", ArgumentError, r"a\.csv is not read: write it as Parquet or JSONL"),
        (["{}/a.jsonl", "s3://b/a.jsonl"], ArgumentError, r"local files and remote ones, such as s3://b/a\.jsonl"),
        (
            ["https://h/a.jsonl?x=SECRET", "https://u:SECRET@h/a.jsonl"],
            ArgumentError,
            "https://h/a.jsonl is given twice: ",
        ),
        ("https://user:SECRET@h/a.csv?sig=SECRET", ArgumentError, "https://h/a.csv is not read"),
        ("ftp://h/a.jsonl", ArgumentError, "known are s3://"),
    ],
)
def test_sources_that_cannot_be_meant(tmp_path, sources, kind, message):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "a.csv").write_bytes(b"")
    (tmp_path / "empty").mkdir()

    given = [sources] if isinstance(sources, str) else sources
    for find in (find_inputs, TextFiles.find):
        with pytest.raises(kind, match=message) as caught:
            find([source.replace("{}", str(tmp_path)) for source in given])
        assert "SECRET" not in str(caught.value)


def test_plain_jsonl_is_cut_into_equal_parts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 100)
    (file,) = find_inputs(path)
    assert cut(7, file, slice_bytes=40) == [Slice(7, 0, 0, 33), Slice(7, 1, 33, 66), Slice(7, 2, 66, 100)]
    assert cut(7, file, slice_bytes=100) == [Slice(7, 0, 0, 100)]
    assert len(cut(7, file, slice_bytes=1)) == 100
    with pytest.raises(ArgumentError, match="at least 1"):
        cut(7, file, slice_bytes=0)
    path.write_bytes(b"")
    assert cut(0, find_inputs(path)[0]) == []
    for name in ("a.jsonl.gz", "a.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"x" * 100))
        (file,) = find_inputs(tmp_path / name)
        assert cut(0, file, slice_bytes=1) == [Slice(0, 0, 0, file.size)]


def test_parquet_is_cut_between_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * 100] * 10}), path, row_group_size=2, use_dictionary=False)
    (file,) = find_inputs(path)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    assert [(part.start, part.stop) for part in cut(0, file, slice_bytes=2 * size)] == [(0, 2), (2, 4), (4, 5)]
    assert [part.stop for part in cut(0, file, slice_bytes=1)] == [1, 2, 3, 4, 5]
    assert len(cut(0, file)) == 1
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert texts(read(path)) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.parquet"])
def test_a_file_that_changes_is_noticed(tmp_path, name):
    path = tmp_path / name

    def write(text: str) -> None:
        if name == "a.parquet":
            pq.write_table(pa.table({"text": [text] * 5000}), path, use_dictionary=False)
        else:
            path.write_bytes(lines_of({"text": text}) * 5000)

    write("one")
    (file,) = find_inputs(path)
    (part,) = cut(0, file)
    write("two")
    with pytest.raises(CorruptionError, match="has changed since it was found"):
        list(read_slice(file, part, TextRules()))
    write("one")
    portions = read_slice(file, part, TextRules(portion_bytes=1000))
    next(portions)
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorruptionError, match="was changed while it was being read"):
        list(portions)
    path.unlink()
    with pytest.raises(NotFoundError, match="there is no file"):
        list(read_slice(file, part, TextRules()))
