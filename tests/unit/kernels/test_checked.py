"""Checked reads and block checksums against their plain twins."""

import tempfile
from pathlib import Path

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.kernels import posix
from tokenfeed.kernels.checked import CHECKED_BYTES, BlockSums, read_whole
from tokenfeed.kernels.jit import kernel
from tokenfeed.kernels.posix import fetch
from tokenfeed.storage.files import FileTable, Part


def plain_sums(data):
    starts = range(0, len(data), CHECKED_BYTES)
    return np.array([xxhash.xxh3_64_intdigest(data[i : i + CHECKED_BYTES]) for i in starts], "<u8")


@kernel
def fetch_bytes(files, file, offset, size, out):
    return fetch(files, file, offset, size, out.ctypes.data)


@given(
    header=st.sampled_from([0, 128, 4032, 4096, 4160, 9024]),
    cuts=st.lists(st.one_of(st.integers(0, 300), st.integers(4000, 4200), st.integers(0, 20_000)), max_size=8),
)
def test_sums_do_not_depend_on_how_data_was_cut(header, cuts):
    rng = np.random.default_rng(0)
    front, data = rng.bytes(header), rng.integers(0, 256, sum(cuts), np.uint8)
    sums = BlockSums(header)
    for stop, size in zip(np.cumsum(cuts), cuts, strict=True):
        sums.update(data[stop - size : stop])
    np.testing.assert_array_equal(sums.finish(front), plain_sums(front + data.tobytes()))


@given(
    size=st.one_of(st.integers(1, 10_000), st.integers(120_000, 300_000)),
    start=st.sampled_from([0, 128]),
    before=st.integers(0, 3),
    how=st.sampled_from([{}, {"backend": "mmap"}, {"max_open_files": 0}, {"kept": 1.0}]),
    data=st.data(),
)
def test_a_checked_read_is_a_slice_or_an_error(size, start, before, how, data):
    """`before` sums of another file come first. Damage in a block that is read is told, any other is not looked at."""
    start = min(start, size)
    content = np.random.default_rng(size).bytes(size)
    with tempfile.TemporaryDirectory() as folder:
        file, sums = Path(folder, "file"), Path(folder, "sums")
        file.write_bytes(content)
        sums.write_bytes(b"head" + np.concatenate([np.arange(before, dtype="<u8"), plain_sums(content)]).tobytes())
        sums_part = Part(str(sums), sums.stat().st_size, 4, b"head")
        part = Part(str(file), size, start, content[:start], how.get("kept", 0.0), "", sums_part, before)
        options = {name: value for name, value in how.items() if name != "kept"}
        table = FileTable(1, lambda number: part, **options)
        table.open(0)
        first = data.draw(st.integers(0, size - start))
        count = data.draw(st.integers(0, size - start - first))
        out = np.zeros(count, np.uint8)
        assert fetch_bytes(table.rows, 0, first, count, out) == posix.OK
        assert out.tobytes() == content[start + first : start + first + count]
        assert fetch_bytes(table.rows, 0, size - start, 1, np.zeros(1, np.uint8)) in (posix.END_OF_FILE, posix.OK)
        place = data.draw(st.integers(0, size - 1))
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(bytes([content[place] ^ 4]))
        blocks = range((start + first) // CHECKED_BYTES, -(-(start + first + count) // CHECKED_BYTES))
        out[:] = 0
        status = fetch_bytes(table.rows, 0, first, count, out)
        if count == 0 or place // CHECKED_BYTES not in blocks or "kept" in how:
            assert status == posix.OK
            assert out.tobytes() == content[start + first : start + first + count]
        else:
            assert status == posix.DAMAGED
            block = place // CHECKED_BYTES
            assert f"block {block:,}, bytes [{block * CHECKED_BYTES:,}, " in str(table.failure(status, 0))
            same = np.frombuffer(content[start + first : start + first + count], np.uint8)
            assert ((out == same) | (out == 0)).all()  # not one byte of a damaged block


def test_a_whole_file_is_checked(tmp_path):
    content = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "sums").write_bytes(plain_sums(content).tobytes())
    sums = Part(str(tmp_path / "sums"), 8 * len(plain_sums(content)))
    table = FileTable(1, lambda number: Part(str(tmp_path / "file"), len(content), sums=sums))
    table.open(0)
    check = table._checks[0]
    assert read_whole(check, len(content)) == posix.OK
    (tmp_path / "file").write_bytes(content[:-1] + b"?")
    assert read_whole(check, len(content)) == posix.DAMAGED
