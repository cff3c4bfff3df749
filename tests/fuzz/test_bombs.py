"""Files that say they are large, or become large when unpacked: memory stays bounded, and time does."""

import gzip
import json
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

import tokenfeed
from tokenfeed.errors import CorruptionError, FormatError, TokenfeedError
from tokenfeed.format.codecs import SHIPPED
from tokenfeed.format.npy import parse_header
from tokenfeed.text.sources import jsonl
from tokenfeed.text.sources.stored import StoredFile

MEBIBYTE = 1 << 20

CODE = """
import resource, sys
from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources import jsonl
from tokenfeed.text.sources.portions import TextRules
(file,) = find_inputs(sys.argv[1])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
def read(rules):
    count = 0
    for part in cut(0, file):
        for portion in read_slice(file, part, rules):
            count += sum(map(len, portion.texts))
    return count
before = peak()
jsonl.LARGEST_DOCUMENT = 16 << 20
print(read(TextRules(on_error="skip")), peak() - before)
"""


def write_bomb(path: Path, piece: bytes, pieces: int, before: bytes = b"", after: bytes = b"") -> None:
    """A file of `pieces` times the same piece, a thousandth of it when compressed."""
    codec = {".gz": "gzip", ".zst": "zstd"}[path.suffix]
    with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), codec) as file:
        file.write(before)
        for _ in range(pieces):
            file.write(piece)
        file.write(after)


@pytest.mark.parametrize(
    ("name", "before", "piece", "after"),
    [
        pytest.param("a.jsonl.gz", b'{"text": "', b"x", b'"}\n', id="one string", marks=pytest.mark.slow),
        pytest.param("a.jsonl.zst", b"", b" ", b"", id="one line of nothing"),
    ],
)
def test_what_prepare_reads_is_bounded(tmp_path, name, before, piece, after):
    """128 MiB out of 130 KB. A line with more than a document may have is left out. (That is 1 GiB; here, 16 MiB.)"""
    first = b'{"text": "first"}\n'
    write_bomb(tmp_path / name, piece * MEBIBYTE, 128, first + before, after)
    assert (tmp_path / name).stat().st_size < MEBIBYTE
    done = subprocess.run([sys.executable, "-c", CODE, tmp_path / name], capture_output=True, text=True, check=True)
    characters, grown = map(int, done.stdout.split())
    assert characters == 5
    assert grown < 100, f"{grown} MiB"


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_a_stream_holds_is_bounded(tmp_path, kind, monkeypatch):
    """A stream holds 1,024 lines; those of a bomb are refused. (The bound is 1 GiB; here it is 8 MiB.)"""
    monkeypatch.setattr(jsonl, "LARGEST_GROUP", 8 * MEBIBYTE)
    path = tmp_path / f"a.jsonl.{kind}"
    write_bomb(path, b"x" * MEBIBYTE, 64, b'{"text": "', b'"}\n')
    tracemalloc.start()
    try:
        text = jsonl.JsonlText(StoredFile(str(path)), "text")
        with pytest.raises(FormatError, match="prepare"):
            text.read(0)
        with pytest.raises(FormatError, match="prepare"):
            text.num_groups()
        text.close()
        assert tracemalloc.get_traced_memory()[1] < 40 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_a_group_that_fits_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LARGEST_GROUP", 1000)
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n' * 3000)
    text = jsonl.JsonlText(StoredFile(str(tmp_path / "a.jsonl")), "text")
    with pytest.raises(FormatError):  # 1,024 lines have 16,384 bytes
        text.read(0)
    monkeypatch.setattr(jsonl, "LARGEST_GROUP", 16_385)
    assert text.read(0).num_rows == 1024
    assert text.num_groups() == 3
    text.close()


def write_olmo(folder: Path, rows: bytes, times: int) -> Path:
    (folder / "a.npy").write_bytes(bytes(200))
    with gzip.open(folder / "a.csv.gz", "wb", 1) as file:
        for _ in range(times):
            file.write(rows)
    return folder / "a.npy"


@pytest.mark.parametrize("rows", [b"0,0\n" * 250_000, b"x" * MEBIBYTE, b'"' * MEBIBYTE])
def test_tables_of_documents_are_bounded(tmp_path, rows):
    """Rows without end that say nothing, and one row without end."""
    path = write_olmo(tmp_path, rows, 32)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            tokenfeed.open(path, dtype="uint16").documents().read([0])
        assert tracemalloc.get_traced_memory()[1] < 4 * MEBIBYTE
    finally:
        tracemalloc.stop()


def claim(shape: str, descr: str = "<u2") -> bytes:
    body = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(body)) + body


@pytest.mark.parametrize(
    "shape", ["(1099511627776,)", "(2147483648,)", "(100000, 100000)", f"({2**61},)", "(300000000,)"]
)
def test_a_payload_that_claims_more_than_it_has(shape):
    """NumPy allocates what the header claims before it reads."""
    tracemalloc.start()
    try:
        with pytest.raises(TokenfeedError):
            SHIPPED["numpy"].decode(memoryview(claim(shape) + bytes(16)))
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("items", [2**40, 2**55, 2**61])
def test_a_manifest_that_claims_more_than_there_is(store_path, items):
    """Opening allocates nothing for it, and reading finds out before it allocates."""
    path = store_path / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in manifest["spans"]:
        manifest["shards"][0]["spans"][name] = [items, items]
    manifest["shards"][0]["items"] = items
    path.write_text(json.dumps(manifest))
    tokenfeed.open(store_path)
    tracemalloc.start()
    try:
        store = tokenfeed.open(store_path)
        for act in (
            lambda: store.windows(100).read([0]),
            lambda: store.documents().read([0]),
            lambda: store.documents()[2**39],
            lambda: store.spans["concepts"][0].payload,
            lambda: store.pack(100),
        ):
            with pytest.raises(TokenfeedError):
                act()
        assert tracemalloc.get_traced_memory()[1] < 128 * MEBIBYTE  # packing works with arrays of 85 MiB, always
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [[2**32, 2**32], [2**61], [2**31, 3], [2**62 - 1]])
def test_items_of_absurd_size(store_path, shape):
    """The product of a shape may not wrap around."""
    path = store_path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["columns"]["frame"]["shape"] = shape
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match="an item has"):
        tokenfeed.open(store_path)


def test_a_header_of_hostile_python(tmp_path):
    """What `ast.literal_eval` is given is bounded; whatever it raises is told as what it is."""
    for text in (
        "(" * 60_000,
        "-" * 60_000 + "1",
        "1+" * 30_000 + "1",
        "[" * 3000 + "]" * 3000,
        "9" * 60_000,
        "{" * 99,
    ):
        for width in (1, 2):
            body = text.encode()
            size = struct.pack("<H" if width == 1 else "<I", len(body))
            path = tmp_path / "a.npy"
            path.write_bytes(b"\x93NUMPY" + bytes((width, 0)) + size + body)
            with path.open("rb") as file, pytest.raises(FormatError):
                parse_header(file, str(path))
