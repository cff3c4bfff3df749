"""Parquet: every layout of row groups is read as plain slices of a list, in bounded memory."""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slices import strings
from tokenfeed.errors import CorruptionError, FormatError, MissingError
from tokenfeed.text.sources.columns import utf8_of
from tokenfeed.text.sources.parquet import ParquetText
from tokenfeed.text.sources.portions import as_str
from tokenfeed.text.sources.stored import StoredFile

TEXT = st.one_of(st.none(), st.just(""), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
GROUPS = st.lists(st.lists(TEXT, max_size=40), max_size=5)
KINDS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary of binary": pa.dictionary(pa.int32(), pa.binary()),
}


def write(path: Path, groups, kind=None, **options):
    kind = KINDS["string"] if kind is None else kind
    schema = pa.schema({"id": pa.int64(), "text": kind, "texts": pa.string()})
    with pq.ParquetWriter(path, schema, **options) as writer:
        for texts in groups:
            values = [text.encode() if text is not None and "binary" in str(kind) else text for text in texts]
            columns = [pa.array(range(len(texts))), pa.array(values, kind), pa.array(["other"] * len(texts))]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=max(1, len(texts)))


def parquet_text(path: Path, column: str) -> ParquetText:
    return ParquetText(StoredFile(str(path)), column)


def slices(texts, size, start):
    """What `batches` promises, by plain slicing."""
    return [
        (max(first, start), texts[max(first, start) : first + size])
        for first in range(0, len(texts), size)
        if first + size > start and texts[max(first, start) : first + size]
    ]


@given(
    GROUPS, st.integers(1, 50), st.sampled_from(sorted(KINDS)), st.booleans(), st.sampled_from([64, 1 << 20]), st.data()
)
def test_batches_are_slices(groups, size, kind, dictionary, page_bytes, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        write(path, groups, KINDS[kind], use_dictionary=dictionary, data_page_size=page_bytes)
        groups = groups if pq.read_metadata(path).num_row_groups == len(groups) else [g for g in groups if g]
        text = parquet_text(path, "text")
        assert text.num_groups() == len(groups)
        assert text.read(len(groups)) is None
        for number, texts in enumerate(groups):
            start = data.draw(st.integers(0, len(texts)))
            group = text.read(number, start)
            assert group.num_rows == len(texts)
            assert list(strings(group, size)) == slices(texts, size, start)
        text.close()


@pytest.mark.parametrize("size", [1, 3, 127, 128, 129, 1000, 1024, 1025, 5000, 10_000])
@pytest.mark.parametrize("start", [0, 1, 1023, 1024, 2999, 4999, 5000])
def test_sizes_around_what_arrow_decodes_at_once(tmp_path, size, start):
    texts = [f"text {number}" if number % 7 else None for number in range(5000)]
    write(tmp_path / "a.parquet", [texts])
    group = parquet_text(tmp_path / "a.parquet", "text").read(0, start)
    assert list(strings(group, size)) == slices(texts, size, start)


def test_a_file_without_row_groups_and_one_with_an_empty_one(tmp_path):
    write(tmp_path / "none.parquet", [])
    none = parquet_text(tmp_path / "none.parquet", "text")
    assert none.num_groups() == 0
    assert none.read(0) is None
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    empty = parquet_text(tmp_path / "empty.parquet", "text")
    assert empty.num_groups() == 1
    assert empty.read(0).num_rows == 0
    assert list(strings(empty.read(0), 4)) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_file_replaced_before_a_group_is_iterated_is_noticed(tmp_path):
    write(tmp_path / "a.parquet", [["a", "b"]])
    group = parquet_text(tmp_path / "a.parquet", "text").read(0)
    assert list(strings(group, 2)) == [(0, ["a", "b"])]
    write(tmp_path / "b.parquet", [["c", "d", "e"]])
    (tmp_path / "b.parquet").rename(tmp_path / "a.parquet")
    with pytest.raises(CorruptionError, match=r"a\.parquet has changed since it was first read"):
        next(strings(group, 2))


def test_no_descriptor_stays_open(tmp_path):
    write(tmp_path / "a.parquet", [["a", "b"], ["c"]])
    text = parquet_text(tmp_path / "a.parquet", "text")

    def num_open() -> int:
        return sum(Path(link).resolve() == tmp_path / "a.parquet" for link in Path("/proc/self/fd").iterdir())

    assert [list(strings(text.read(group), 9)) for group in (0, 1)] == [[(0, ["a", "b"])], [(0, ["c"])]]
    assert num_open() == 0
    under_way = strings(text.read(0), 1)
    assert next(under_way) == (0, ["a"])
    assert num_open() == 1
    assert next(under_way) == (1, ["b"])
    assert next(under_way, None) is None
    abandoned = strings(text.read(0), 1)
    next(abandoned)
    del abandoned
    assert num_open() == 0


def test_a_missing_column_and_one_that_is_there_twice(tmp_path):
    write(tmp_path / "a.parquet", [["a"]])
    with pytest.raises(MissingError, match=r"a\.parquet has no column 'content'; its columns are id, text, texts"):
        parquet_text(tmp_path / "a.parquet", "content").read(0)
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(MissingError, match="has 2 columns 'text'"):
        parquet_text(tmp_path / "twice.parquet", "text").num_groups()


@pytest.mark.parametrize("values", [[1, 2], [["a"], ["b"]], [{"text": "a"}, {"text": "b"}], [1.5, 2.0]])
def test_a_column_that_is_no_text(tmp_path, values):
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet")
    with pytest.raises(FormatError, match=r"a\.parquet: column 'text' is .*, not text"):
        parquet_text(tmp_path / "a.parquet", "text").read(0)


def test_a_column_whose_name_begins_another(tmp_path):
    """Arrow takes a name as the beginning of nested ones; only the column itself is meant."""
    table = pa.table({"text.more": ["x"], "text": ["a"], "meta": [{"text": "y"}]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert list(strings(parquet_text(tmp_path / "a.parquet", "text").read(0), 1)) == [(0, ["a"])]
    assert list(strings(parquet_text(tmp_path / "a.parquet", "text.more").read(0), 1)) == [(0, ["x"])]
    with pytest.raises(MissingError):
        parquet_text(tmp_path / "a.parquet", "meta.text").read(0)


@pytest.mark.parametrize("kind", ["string", "binary", "dictionary of binary"])
def test_text_that_is_not_utf8_is_named(tmp_path, kind):
    values = pa.array([b"good"] * 300 + [None, b"bad \xff\xfe"] + [b"good"] * 300, pa.binary())
    if kind == "dictionary of binary":
        values = values.dictionary_encode()
    if kind == "string":
        values = pa.Array.from_buffers(pa.string(), len(values), values.buffers())
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet", row_group_size=200)
    text = parquet_text(tmp_path / "a.parquet", "text")
    assert list(strings(text.read(0), 200)) == [(0, ["good"] * 200)]
    with pytest.raises(FormatError, match=r"a\.parquet, row group 1, row 101: 'text' is not UTF-8 .* at byte 4"):
        list(strings(text.read(1), 64))


def test_digest_tells_contents_apart_and_not_places(tmp_path):
    write(tmp_path / "a.parquet", [["a", "b"]])
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    write(tmp_path / "c.parquet", [["a", "c"]])
    write(tmp_path / "d.parquet", [["a"], ["b"]])
    digests = [parquet_text(tmp_path / f"{name}.parquet", "text").digest() for name in "abcd"]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert all(len(bytes.fromhex(digest)) == 8 for digest in digests)


def test_a_large_row_group_is_not_decoded_as_a_whole(tmp_path):
    """80 MB of text in one row group, in pages of 2 MB; what Arrow holds at a time is a few of these."""
    words = "".join(chr(97 + number * number % 23) for number in range(2_000))
    texts = [f"{number} {words}" for number in range(40_000)]
    for name, options in {
        "dictionary": {},
        "plain": {"use_dictionary": False, "compression": "none"},
        "v2": {"use_dictionary": False, "compression": "zstd", "data_page_version": "2.0"},
    }.items():
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{name}.parquet", row_group_size=10**6, **options)
        code = f"""
import pyarrow as pa
from tokenfeed.text.sources.parquet import ParquetText
from tokenfeed.text.sources.stored import StoredFile
count = 0
for first, texts in ParquetText(StoredFile({str(tmp_path)!r} + "/{name}.parquet"), "text").read(0).batches(128):
    assert first == count and texts[0].startswith(str(first).encode())
    count += len(texts)
assert count == 40_000
print(pa.default_memory_pool().max_memory())
"""
        assert pq.read_metadata(tmp_path / f"{name}.parquet").num_row_groups == 1
        peak = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        assert peak < 12e6, name


def test_another_writers_layout(tmp_path):
    """Format version 1.0, pages of one row, no statistics, no Arrow schema."""
    buffer = io.BytesIO()
    texts = [f"{'x' * number}ü" for number in range(200)]
    table = pa.table({"text": texts})
    pq.write_table(
        table, buffer, version="1.0", write_statistics=False, store_schema=False, data_page_size=1, write_batch_size=1
    )
    (tmp_path / "a.parquet").write_bytes(buffer.getvalue())
    assert list(strings(parquet_text(tmp_path / "a.parquet", "text").read(0, 7), 64)) == slices(texts, 64, 7)


BROKEN = st.sampled_from(
    [
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"a\xe2\x82",
    ]
)
"""Half a surrogate pair, forms that are too long, what is beyond the last code point, a character that is cut."""


@given(st.lists(st.one_of(st.none(), st.text(max_size=4).map(str.encode), st.binary(max_size=5), BROKEN), max_size=9))
def test_what_is_not_utf8_never_passes_for_text(values):
    """The engine trusts these bytes, so Arrow must refuse whatever Python does."""
    for kind in (pa.string(), pa.large_string()):
        binary = pa.array(values, pa.binary() if kind == pa.string() else pa.large_binary())
        column = pa.Array.from_buffers(kind, len(binary), binary.buffers(), binary.null_count)
        for value, found in zip(values, utf8_of(column), strict=True):
            try:
                expected = None if value is None else value.decode()
            except UnicodeDecodeError:
                assert isinstance(found, UnicodeDecodeError)
            else:
                assert (found if found is None else as_str(found)) == expected
