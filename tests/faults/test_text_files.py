"""Damaged and changing files of text: a typed error that names the file; never one of Arrow's, never a crash."""

import contextlib
import gzip
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opening import as_nobody
from slices import strings
from tokenfeed.errors import CorruptionError, FormatError, ReadError, TokenfeedError
from tokenfeed.text.sources.files import TextFiles

RANDOM = random.Random(7)
TEXTS = ["".join(RANDOM.choices("abcdefgh ü", k=200)) for _ in range(3000)]


def parquet_bytes(**options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": TEXTS}), sink, row_group_size=1000, **options)
    return sink.getvalue().to_pybytes()


LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
CONTENT = {
    "zstd.parquet": parquet_bytes(compression="zstd"),
    "plain.parquet": parquet_bytes(compression="none", use_dictionary=False),
    "a.jsonl": LINES,
    "a.jsonl.gz": gzip.compress(LINES),
    "a.jsonl.zst": pa.Codec("zstd").compress(LINES, asbytes=True),
}


def read_all(path: Path) -> list[str | None]:
    files = TextFiles.find(path)
    try:
        return [text for texts in files.iter_row_groups() for text in texts]
    finally:
        files.close()


@pytest.mark.parametrize("name", [name for name in CONTENT if name != "a.jsonl"])
@pytest.mark.parametrize("kept", [0, 1, 4, 11, 0.3, 0.9, -9, -1])
def test_a_file_that_was_cut_short(tmp_path, name, kept):
    data = CONTENT[name]
    (tmp_path / name).write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(FormatError, match=name):
        read_all(tmp_path / name)
    if name.endswith(".parquet"):
        with pytest.raises(FormatError, match=name):
            TextFiles.find(tmp_path / name).digest(0)


def test_what_is_said_of_files_that_are_not_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    for data, message in [
        (b"", "is empty: 0 bytes are no Parquet file"),
        (b"<!DOCTYPE html><title>404", r"is no Parquet file: it begins with b'<!DO', expected b'PAR1'"),
        (CONTENT["zstd.parquet"][:5000], "its end is missing: the last of its 5,000 bytes are .* It was cut short"),
        (b"PAR1" + b"\0" * 50 + b"PAR1", "its footer cannot be understood"),
    ]:
        path.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            read_all(path)


def test_an_empty_jsonl_file_has_no_documents(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"\n \n")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b""))
    assert read_all(tmp_path) == []
    (tmp_path / "d.jsonl.gz").write_bytes(b"")
    with pytest.raises(CorruptionError, match=r"d\.jsonl\.gz is empty"):
        read_all(tmp_path)


@given(
    st.sampled_from(sorted(CONTENT)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=5)
)
def test_changed_bytes(name, changes):
    """Formats without checksums may give other text; whatever is not noticed, is of our errors or no error."""
    data = bytearray(CONTENT[name])
    for place, value in changes:
        data[min(len(data) - 1, int(place * len(data)))] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            texts = read_all(path)
        except TokenfeedError as error:
            assert name in str(error)
        else:
            assert all(text is None or isinstance(text, str) for text in texts)


@given(st.sampled_from(["zstd.parquet", "plain.parquet"]), st.integers(0, 7), st.data())
def test_changed_bits_of_a_footer(name, bit, data):
    content = bytearray(CONTENT[name])
    footer = int.from_bytes(content[-8:-4], "little") + 8
    content[-data.draw(st.integers(1, footer))] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            read_all(path)
        except TokenfeedError as error:
            assert name in str(error)


def test_damaged_pages_are_placed(tmp_path):
    data = bytearray(CONTENT["zstd.parquet"])
    column = pq.ParquetFile(pa.BufferReader(CONTENT["zstd.parquet"])).metadata.row_group(1).column(0)
    place = column.dictionary_page_offset + column.total_compressed_size // 3
    data[place : place + 100] = bytes(100)
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    files = TextFiles.find(path)
    assert [text for _, texts in strings(files.read(0, 0), 100) for text in texts] == TEXTS[:1000]
    with pytest.raises(CorruptionError, match=r"a\.parquet, row group 1 after row 0: the data is damaged"):
        list(strings(files.read(0, 1), 100))
    assert [text for _, texts in strings(files.read(0, 2), 100) for text in texts] == TEXTS[2000:]


def test_damaged_compression_is_placed(tmp_path):
    for ending in ("gz", "zst"):
        path = tmp_path / f"a.jsonl.{ending}"
        path.write_bytes(CONTENT[f"a.jsonl.{ending}"][:-5])
        files = TextFiles.find(path)
        with pytest.raises(
            CorruptionError, match=rf"a\.jsonl\.{ending}, after byte [\d,]+ of what is in it: the compressed data"
        ):
            list(files.iter_row_groups())
        with pytest.raises(CorruptionError):
            files.num_groups(0)


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("way", ["read", "num_groups", "digest"])
def test_a_file_that_vanishes(tmp_path, name, way):
    path = tmp_path / name
    path.write_bytes(CONTENT[name])
    files = TextFiles.find(path)
    files.read(0, 0)
    path.unlink()
    with pytest.raises(ReadError, match=f"cannot read .*{name}: No such file") as caught:
        files.read(0, 1) if way == "read" else getattr(files, way)(0)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("way", ["replaced", "rewritten", "shorter", "longer", "touched"])
def test_a_file_that_changes_between_reads(tmp_path, name, way):
    path = tmp_path / name
    path.write_bytes(CONTENT[name])
    os.utime(path, ns=(10**18, 10**18))  # clocks of file systems may be coarse
    files = TextFiles.find(path)
    list(strings(files.read(0, 0), 100))
    if way == "replaced":
        other = tmp_path / "other"
        other.write_bytes(CONTENT[name][::-1])
        other.replace(path)
    elif way == "rewritten":
        path.write_bytes(CONTENT[name])
    elif way == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(CONTENT[name][:-1] if way == "shorter" else CONTENT[name] + b" ")
    with pytest.raises(CorruptionError, match=rf"{name} has changed since it was first read"):
        files.read(0, 1)


def test_a_file_moved_away_and_back_is_the_same(tmp_path):
    path = tmp_path / "zstd.parquet"
    path.write_bytes(CONTENT["zstd.parquet"])
    files = TextFiles.find(path)
    files.read(0, 0)
    shutil.copy2(path, tmp_path / "copy")
    path.unlink()
    with pytest.raises(ReadError):
        files.read(0, 1)
    (tmp_path / "copy").rename(path)
    assert [text for _, texts in strings(files.read(0, 1), 1000) for text in texts] == TEXTS[1000:2000]


@pytest.mark.parametrize("name", ["zstd.parquet", "plain.parquet"])
def test_a_file_truncated_while_a_group_is_read(tmp_path, name, monkeypatch):
    """What was read ahead may still come; then an error of ours, and no text that was not there."""
    from tokenfeed.text.sources import parquet

    monkeypatch.setattr(parquet, "_BUFFER_BYTES", 4096)
    path = tmp_path / name
    content = parquet_bytes(data_page_size=1000, write_batch_size=10, use_dictionary=False)
    path.write_bytes(content)
    batches = strings(TextFiles.find(path).read(0, 0), 10)
    assert next(batches) == (0, TEXTS[:10])
    os.truncate(path, 20_000)
    with pytest.raises((CorruptionError, ReadError), match=rf"{name}, row group 0 after row \d+"):
        for first, texts in batches:
            assert texts == TEXTS[first : first + 10]


def test_a_footer_that_counts_wrong(tmp_path):
    """A row group with fewer rows than the footer says is not silently shorter."""
    path = tmp_path / "a.parquet"
    content, at = CONTENT["plain.parquet"], -1
    while True:  # 1,000 as a number of Thrift stands for several things; one of them is the rows of row group 0
        at = content.index(b"\x16\xd0\x0f", at + 1)
        path.write_bytes(content[:at] + b"\x16\xd2\x0f" + content[at + 3 :])
        with contextlib.suppress(pa.ArrowException, OSError):
            if pq.read_metadata(path).row_group(0).num_rows == 1001:
                break
    with pytest.raises(CorruptionError, match="row group 0 has 1,000 rows; its footer says 1,001"):
        list(strings(TextFiles.find(path).read(0, 0), 100))


def test_a_file_that_may_not_be_read():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "zstd.parquet")
        path.write_bytes(CONTENT["zstd.parquet"])
        path.chmod(0)
        with as_nobody(), pytest.raises(ReadError, match="Permission denied"):
            read_all(path)


def test_an_input_output_error_is_a_read_error(monkeypatch, tmp_path):
    """A number of the operating system is never taken for damage."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(CONTENT["a.jsonl.gz"])
    files = TextFiles.find(path)

    class Failing:
        def readinto(self, buffer):
            raise OSError(5, "Input/output error")

        def close(self):
            pass

    monkeypatch.setattr(pa, "CompressedInputStream", lambda *_: Failing())
    with pytest.raises(ReadError, match=r"cannot read .*a\.jsonl\.gz: Input/output error \(EIO\)"):
        files.read(0, 0)
