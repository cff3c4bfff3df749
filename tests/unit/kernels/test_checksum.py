"""The checksum kernel against its oracle: the xxhash package, which wraps the reference implementation."""

import mmap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import examples
from tokenfeed.kernels.checksum import Checksum, checksum

# Random bytes from an odd address on, so that no read is aligned by luck.
DATA = np.random.default_rng(20240229).integers(0, 256, (4 << 20) + 1, dtype=np.uint8)[1:]

# Where the algorithm changes its mind, and where a block or a stripe ends.
EDGES = [0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 256, 1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049]


def oracle(data: Any) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def test_every_short_length() -> None:
    for size in range(2101):
        assert checksum(DATA[:size]) == oracle(DATA[:size]), size


@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_extreme_bytes(fill: int) -> None:
    for size in [*range(300), *EDGES]:
        data = bytes([fill]) * size
        assert checksum(data) == oracle(data), size


@pytest.mark.parametrize("blocks", [3, 4, 7, 64, 1000, 4096])
def test_lengths_around_blocks(blocks: int) -> None:
    for size in range(blocks * 1024 - 66, blocks * 1024 + 67):
        if size <= DATA.size and (blocks < 64 or size % 11 in (0, 1)):
            assert checksum(DATA[:size]) == oracle(DATA[:size]), size
    assert checksum(DATA[: blocks * 1024]) == oracle(DATA[: blocks * 1024])


def test_every_pair_of_edges() -> None:
    for first in EDGES:
        for second in EDGES:
            ours = Checksum()
            ours.update(DATA[:first])
            ours.update(DATA[first : first + second])
            assert ours.hexdigest() == oracle(DATA[: first + second]), (first, second)


sizes = st.one_of(st.integers(0, 20), st.integers(0, 300), st.integers(900, 1200), st.integers(0, 9000))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(sizes, st.booleans()), max_size=25), st.integers(0, 1000))
def test_any_split(pieces: list[tuple[int, bool]], start: int) -> None:
    ours, at = Checksum(), start
    for size, digest in pieces:
        ours.update(DATA[at : at + size])
        at += size
        if digest:
            assert ours.hexdigest() == oracle(DATA[start:at])
    assert ours.hexdigest() == ours.hexdigest() == oracle(DATA[start:at])


@pytest.mark.parametrize("dtype", ["i1", "<u2", "<i4", ">i4", "<f8", "c16", "?", "S5", "U3", "M8[us]", "i4,f8", "f2"])
@pytest.mark.parametrize("shape", [(), (1,), (77,), (3, 5, 7), (0,), (4, 0, 2)])
def test_arrays_of_any_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    raw = DATA[: count * kind.itemsize].tobytes()
    array = np.frombuffer(raw, kind, count).reshape(shape)
    assert checksum(array) == oracle(raw)
    assert checksum(array.copy()) == oracle(raw)  # writable


def test_buffers_that_are_not_arrays() -> None:
    raw = DATA[:1500].tobytes()
    wanted = oracle(raw)
    assert checksum(bytearray(raw)) == wanted
    assert checksum(memoryview(raw)) == wanted
    assert checksum(memoryview(raw).cast("B", (30, 50))) == wanted
    assert checksum(memoryview(np.frombuffer(raw, "<i4").reshape(25, 15))) == wanted
    with mmap.mmap(-1, 1500) as mapped:
        mapped[:] = raw
        assert checksum(mapped) == wanted  # and no view of it is kept, or closing it would fail
    for empty in (b"", bytearray(), memoryview(b""), np.empty((0, 3), "<f4")):
        assert checksum(empty) == oracle(b"")


def test_an_array_subclass(tmp_path: Any) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA[:5000].tobytes())
    assert checksum(np.memmap(path, np.uint8, "r")) == oracle(DATA[:5000])


@pytest.mark.parametrize(
    "bad",
    [
        np.arange(10)[::2],
        np.arange(12).reshape(3, 4).T,
        np.arange(12).reshape(3, 4)[:, :2],
        memoryview(b"0123456789")[::2],
        memoryview(np.asfortranarray(np.arange(12).reshape(3, 4))),
    ],
)
def test_what_is_not_contiguous_is_refused_and_changes_nothing(bad: Any) -> None:
    ours = Checksum()
    ours.update(b"before")
    with pytest.raises((ValueError, BufferError)):
        ours.update(bad)
    ours.update(b"after")
    assert ours.hexdigest() == oracle(b"beforeafter")


@pytest.mark.parametrize("bad", ["text", 5, None, [1, 2], np.array([object()])])
def test_what_has_no_bytes_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError):
        checksum(bad)


def test_input_is_neither_changed_nor_kept() -> None:
    data = bytearray(DATA[:5000].tobytes())
    before = bytes(data)
    ours = Checksum()
    ours.update(data)
    assert data == before
    data.clear()  # BufferError if a view of it were kept
    assert ours.hexdigest() == oracle(before)


def test_streams_in_threads_do_not_meet() -> None:
    def work(index: int) -> str:
        ours = Checksum()
        for start in range(0, DATA.size, 99_991 + index):
            ours.update(DATA[start : start + 99_991 + index])
        return ours.hexdigest()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [oracle(DATA)] * 8
