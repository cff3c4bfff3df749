"""Memory for batches, used again when nobody holds it any more."""

import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from tokenfeed.store.data import new_bytes
from tokenfeed.types import Bytes

__all__ = ["Buffers"]


class _Lease(np.ndarray):
    """Memory that is in use. Every array of a batch views it; when the last of them goes, so does this object."""


class Buffers:
    """Buffers for batches. A buffer is given out again once nothing refers to its lease: no batch, no array, no tensor.

    So a batch that is held never changes, and memory grows with what is held alone. Threads may share this: leases end
    in any thread, at any time, and only append to a deque.
    """

    def __init__(self, allocate: Callable[[int], Bytes] = new_bytes) -> None:
        self._allocate = allocate
        self._free: deque[Bytes] = deque()
        self._largest = 0

    def take(self, num_bytes: int) -> Bytes:
        """A buffer of that many bytes; memory that is free and large enough, or new memory."""
        memory = self._find(num_bytes)
        # NumPy lets a view refer to the array that owns its memory and skips arrays in between, but not a memoryview.
        lease = _Lease(num_bytes, np.uint8, memory.data)
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return np.ndarray(num_bytes, np.uint8, lease.data)

    def _find(self, num_bytes: int) -> Bytes:
        while self._free:
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if memory.size >= num_bytes:
                return memory  # a smaller one is dropped: batches have grown
        self._largest = max(self._largest, num_bytes)  # documents differ in size; what fits the largest fits the next
        return self._allocate(self._largest)
