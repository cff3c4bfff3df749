"""Kernels that work with plain addresses, on memory that ends where the next page cannot be touched.

Indices of arrays are checked where `NUMBA_BOUNDSCHECK` is set (`make bounds`); addresses never are. What takes them:

    items      the buffer of a batch        its size is compared first             batches with a guard page
    fetch      a file in memory             offset + size against SIZE             a file with a guard page
    blocks     slots of the cache           slot < NUM_SLOTS, one block each       slots with a guard page
    checksum   the data                     a block at a time while one is left    every size with a guard page
    packing    rows of tokens               lengths that add up to the width       rows with a guard page
    spans      arrays made in the kernel    grown to what is read into them        fuzz targets `spans`, `payloads`
    pieces     the same                     the same                               fuzz target `packing-plan`
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

import tokenfeed
from fuzz.guarded import guarded
from plain import make_documents
from tokenfeed.kernels import blocks, posix
from tokenfeed.kernels.checksum import Checksum, block_checksum, checksum
from tokenfeed.kernels.items import COLUMN, make_request, read_ragged

TESTS = Path(__file__).parents[1]


def run_child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]), **environment}
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **paths}, capture_output=True, text=True)


@pytest.mark.parametrize(("offset", "status"), [(4, 0), (5, -11)])
def test_one_byte_too_far_is_the_end(offset, status):
    """What all the others here rest on."""
    code = "import ctypes; from fuzz.guarded import guarded; array = guarded(b'abcde')"
    look = f"ctypes.c_uint8.from_address(array.ctypes.data + {offset}).value"
    assert run_child(f"{code}; {look}").returncode == status


def test_bounds_are_checked_where_it_is_asked_for(tmp_path):
    """Else `make bounds` would prove nothing."""
    code = (
        "import numpy as np\nfrom tokenfeed.kernels.packing import surround\n"
        "values, offsets = np.arange(4), np.array([0, 4])\n"
        "surround(values, offsets, -1, -1, np.empty(2, np.int64), np.empty(1, np.int64))\n"
    )
    done = run_child(code, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "IndexError" in done.stderr


@pytest.mark.parametrize("backend", ["pread", "mmap"])
@pytest.mark.parametrize("columns", [[], ["frame"]])
def test_batches_fill_their_buffers_and_no_more(store_path, backend, columns):
    store = tokenfeed.open(store_path, backend=backend)
    store.pack(50, cache=store_path.parent / "plan")
    views = [
        store.windows(33, columns=columns),
        store.documents(columns=columns),
        store.packed(50, columns=columns, cache=store_path.parent / "plan"),
    ]
    for view in views:
        for numbers in (np.arange(len(view)), np.arange(len(view))[::-7].copy(), np.array([len(view) - 1])):
            batch = view.read(numbers, allocate=lambda size: guarded(b"\xaa" * size))
            expected = view.read(numbers)
            for name in ("tokens", *columns):
                np.testing.assert_array_equal(batch.column(name), expected.column(name))


def test_a_buffer_that_is_too_small_is_refused(store_path):
    """By one byte, and where sizes would overflow."""
    store = tokenfeed.open(store_path)
    reader = store.reader
    for column in ("tokens", "frame"):
        item_bytes = store.columns[column].item_bytes
        request = store.windows(1, columns=[column]).choose([column]).request
        first, offsets = np.array([0]), np.array([0, 10])
        with pytest.raises(tokenfeed.errors.TokenfeedError):
            reader.read_ragged(first, offsets, request, guarded(bytes(10 * item_bytes - 1)))


def test_files_in_memory_end_where_they_end():
    """The last item, and one more."""
    data = guarded(np.arange(10).tobytes())
    files = posix.record(posix.FILE, address=data.ctypes.data, size=data.size, start=1, handle=posix.TRANSIENT)
    for num_items, status in ((10, posix.OK), (11, posix.END_OF_FILE)):
        starts = np.array([0, num_items])
        request = make_request(starts, files, 1, np.array([(0, 8)], COLUMN))
        out = guarded(bytes(8 * num_items))
        found = read_ragged(np.array([0]), np.array([0, num_items]), request, out)
        assert found[0] == status
    assert out.view(np.int64)[:5].tolist() in ([0] * 5, list(range(5)))


def test_blocks_stay_in_their_slots():
    size, slots = 512, 5
    arrays = {
        "slots": guarded(bytes(slots * size)),
        "keys": guarded(np.full(slots, blocks.EMPTY).tobytes()),
        "index": guarded(np.full(8, blocks.EMPTY).tobytes()),
        "log": guarded(bytes(8 * 4)),
    }
    addresses = {field: array.ctypes.data for field, array in arrays.items()}
    header = posix.record(blocks.CACHE, block_bytes=size, num_slots=slots, index_size=8, log_size=3, **addresses)
    data = np.random.default_rng(0).integers(0, 256, 12 * size - 100).astype(np.uint8)
    for first in range(0, 12, 3):
        keys = np.arange(first, first + 3)
        blocks.put_blocks(header, keys, guarded(data[first * size : (first + 3) * size].tobytes()))
        out = guarded(bytes(size + 300))
        assert blocks.read_through(header.ctypes.data, 0, first * size + 100, out.size, out.ctypes.data) == posix.OK
        np.testing.assert_array_equal(out, data[first * size + 100 :][: out.size])
    out = guarded(bytes(8 * size))  # more is missing than the log can take
    assert blocks.read_through(header.ctypes.data, 0, 0, out.size, out.ctypes.data) == posix.MISSING
    assert arrays["log"].view(np.int64)[0] == 3


def test_checksums_read_no_byte_too_many():
    data = np.random.default_rng(0).bytes(5000)
    for size in [*range(300), *range(1000, 1100), 2047, 2048, 2049, 5000]:
        array = guarded(data[:size], writable=False)
        assert checksum(array) == xxhash.xxh3_64_hexdigest(data[:size])
        assert int(block_checksum(guarded(data[:size]))) == xxhash.xxh3_64_intdigest(data[:size])
        later = Checksum()
        later.update(b"some bytes before")
        later.update(array)
        assert later.hexdigest() == xxhash.xxh3_64_hexdigest(b"some bytes before" + data[:size])


def test_streams_fill_their_rows_and_no_more(tmp_path):
    from fuzz.text_targets import byte_tokenizer

    lengths = np.random.default_rng(0).integers(0, 300, 200)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{"x" * length}"}}\n' for length in lengths))
    for packing in ("best_fit", "concat"):
        feed = tokenfeed.stream(
            tmp_path / "a.jsonl", byte_tokenizer(), batch_size=3, length=61, packing=packing, prefetch=0, split="all"
        )
        feed.use_memory(lambda size: guarded(b"\xaa" * size))
        for _ in range(20):
            inputs, targets = next(feed)
            assert set(np.unique(inputs).tolist()) <= {ord("x"), 300}
            np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])


def test_a_store_with_nothing_in_it(tmp_path):
    make_documents([0, 0, 0]).write(tmp_path / "store")
    store = tokenfeed.open(tmp_path / "store")
    found = store.documents().read(np.arange(3), allocate=lambda size: guarded(bytes(size)))
    assert found.tokens.size == 0
