"""Files that are read in pieces: the kernel against NumPy."""

import numpy as np
import pytest

from tokenfeed.kernels import posix
from tokenfeed.storage.files import Extents, FileTable, Part


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_any_range_is_that_of_the_pieces_joined(tmp_path, backend):
    """Pieces of any size, empty ones and the first and last bytes of the file included."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 4000).astype(np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())
    bounds = np.sort(rng.choice(4001, 60, replace=False))
    bounds[[0, -1]] = 0, 4000
    starts, stops = bounds[::2], bounds[1::2]
    stops[5] = starts[5]
    joined = np.concatenate([data[start:stop] for start, stop in zip(starts, stops, strict=True)])
    firsts = np.concatenate([[0], np.cumsum(stops - starts)])
    part = Part(str(tmp_path / "file"), 4000, extents=Extents(firsts, starts))
    table = FileTable(1, lambda _: part, backend=backend)
    table.open(0)
    out = np.zeros(joined.size, np.uint8)
    for _ in range(300):
        start, stop = np.sort(rng.integers(0, joined.size + 1, 2)).tolist()
        out[:] = 0
        assert posix.fetch(table.rows, 0, start, stop - start, out.ctypes.data) == posix.OK
        np.testing.assert_array_equal(out[: stop - start], joined[start:stop])
    assert posix.fetch(table.rows, 0, 0, joined.size + 1, out.ctypes.data) == posix.END_OF_FILE
    assert posix.fetch(table.rows, 0, 0, joined.size, 0) == posix.OK
