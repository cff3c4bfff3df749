"""The cache on disk, used by many threads at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tokenfeed.kernels import blocks
from tokenfeed.storage.disk_cache import DiskCache
from tokenfeed.storage.files import Part

BLOCK = 512


def test_threads_that_begin_with_the_same_files(tmp_path):
    """All of them find the folder of a file missing, and one makes it."""
    files = {number: Part(f"file{number}", 4 * BLOCK) for number in range(60)}
    cache = DiskCache(tmp_path, 1 << 30, BLOCK)
    data = np.arange(4 * BLOCK, dtype=np.uint8)
    keys = np.array([number << blocks.BLOCK_BITS | block for number in files for block in range(4)], np.int64)
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(cache.store, files[number], block, data[block * BLOCK : (block + 1) * BLOCK])
                for number in files for block in range(4)]  # fmt: skip
        for done in work:
            done.result()
    assert not cache.is_full
    good, damaged, found = cache.load(keys, files)
    assert good.all()
    assert not damaged.any()
    assert (found.reshape(60, -1) == data).all()
