"""Memory that arrays are sent from, with arrivals that the test decides."""

import threading
import weakref

import numpy as np
import pytest
import torch

from tokenfeed.torch.bus import Bus, Staging


class Arrival:
    """Stands in for a mark in a stream of a GPU."""

    has_come = False

    def query(self):
        return self.has_come


@pytest.fixture
def allocated():
    return []


@pytest.fixture
def staging(allocated):
    def allocate(num_bytes):
        allocated.append(num_bytes)
        return np.zeros(num_bytes, np.uint8)

    return Staging(allocate)


def batch(number):
    """A mask, weights and bounds, as a batch has them: of several sizes, one of them not contiguous."""
    grid = np.random.default_rng(number).integers(0, 2, (8, 65 + number % 3)).astype(bool)
    return grid[:, 1:], grid.astype(np.float32), np.arange(number % 5, dtype=np.int32), np.array(number)


def test_what_is_under_way_is_never_written_over(staging):
    under_way = []
    for number in range(50):
        arrays = batch(number)
        staged = [staging.copy(array) for array in arrays]
        arrival = Arrival()
        staging.hold(arrival)
        under_way.append((arrival, arrays, staged))
        if number % 3 == 2:  # two at a time arrive, in their order
            for arrival, _, _ in under_way[:2]:
                arrival.has_come = True
            under_way = under_way[2:]
        for _, arrays, staged in under_way:
            for expected, found in zip(arrays, staged, strict=True):
                assert found.dtype == expected.dtype
                assert found.flags.c_contiguous
                np.testing.assert_array_equal(found, expected)


def test_nothing_is_allocated_after_the_first_batches(staging, allocated):
    def send(number):
        for array in batch(number):
            staging.copy(array)
        arrival = Arrival()
        staging.hold(arrival)
        arrival.has_come = True

    for number in range(15):
        send(number)
    count = len(allocated)
    for number in range(500):
        send(number)
    assert len(allocated) == count


def test_what_is_held_stays_until_it_has_arrived(staging, allocated):
    class Rows:
        """Anything that the host keeps for a copy."""

    rows, gone = Rows(), threading.Event()
    weakref.finalize(rows, gone.set)
    first = Arrival()
    staging.hold(first, rows)
    del rows
    staging.hold(Arrival())
    assert not gone.is_set()
    first.has_come = True
    staging.hold(Arrival())
    assert gone.is_set()


def test_read_only_arrays_are_copied():
    array = np.arange(4)
    array.flags.writeable = False
    tensor = Bus(torch.device("cpu")).send(array)
    tensor[0] = 9
    assert array.tolist() == [0, 1, 2, 3]
