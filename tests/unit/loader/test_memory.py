"""Memory of batches has an owner: it is used again when the last array that views it is gone, and not before."""

import gc
import threading

import numpy as np

from tokenfeed.loader.memory import Buffers


def address_of(array):
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_its_last_view_goes():
    buffers = Buffers()
    first = buffers.take(1000)
    place = address_of(first)
    view = np.ndarray((5, 10), np.uint16, first.data, 0)[1:, ::2].view(np.int16)
    del first
    gc.collect()
    assert address_of(buffers.take(1000)) != place or view.base is None
    held = [buffers.take(1000) for _ in range(4)]
    assert place not in map(address_of, held)
    del view
    assert place in {address_of(array) for array in [*held, buffers.take(1000), buffers.take(1000)]}


def test_a_reference_that_python_does_not_count_keeps_memory(monkeypatch):
    """The number of references to an array says nothing: a memoryview of it is enough."""
    buffers = Buffers()
    array = buffers.take(64)
    array[:] = 7
    kept = memoryview(array)
    del array
    others = [buffers.take(64) for _ in range(3)]
    for other in others:
        other[:] = 9
    assert bytes(kept) == b"\x07" * 64


def test_sizes_that_change():
    allocated = []

    def allocate(num_bytes):
        allocated.append(num_bytes)
        return np.empty(num_bytes, np.uint8)

    buffers = Buffers(allocate)
    for size in (100, 50, 100, 0, 70, 120, 60, 120):
        assert buffers.take(size).size == size
    assert allocated == [100, 120]


def test_leases_that_end_in_other_threads():
    buffers, rounds = Buffers(), 300
    wrong = []

    def use(mark):
        for _ in range(rounds):
            array = buffers.take(256)
            array[:] = mark
            if not (array == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
