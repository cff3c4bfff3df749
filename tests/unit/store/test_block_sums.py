"""Checksums of blocks against their plain twin."""

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.format.layout import CHECKED_BYTES
from tokenfeed.store.shard_writer import BlockSums


def plain_sums(data):
    starts = range(0, len(data), CHECKED_BYTES)
    return np.array([xxhash.xxh3_64_intdigest(data[i : i + CHECKED_BYTES]) for i in starts], "<u8")


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
