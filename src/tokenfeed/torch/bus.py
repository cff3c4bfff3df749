"""`Bus`: arrays of the host become tensors on a device, sent from pinned memory that is used again."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tokenfeed.loader.memory import Buffers
from tokenfeed.types import Array, Bytes

__all__ = ["Bus", "Staging", "pinned"]


class Staging:
    """Copies arrays into memory that `allocate` makes, and holds it until they have reached the device.

    Memory comes in powers of two, so none is allocated after the first batches. NumPy copies in the calling thread:
    `Tensor.pin_memory` starts a thread for every core, and they spin.
    """

    def __init__(self, allocate: Callable[[int], Bytes]) -> None:
        self._allocate = allocate
        self._memory: dict[int, Buffers] = {}
        self._staged: list[Array] = []
        self._held: deque[tuple[Any, Any]] = deque()

    def copy(self, array: Array) -> Array:
        """The same array, contiguous, in this memory."""
        size = 1 << array.nbytes.bit_length()
        if size not in self._memory:
            self._memory[size] = Buffers(lambda _: self._allocate(size))
        staged = self._memory[size].take(array.nbytes).view(array.dtype).reshape(array.shape)
        np.copyto(staged, array)
        self._staged.append(staged)
        return staged

    def hold(self, sent: Any, *others: object) -> None:
        """Hold `others`, and what was copied since the last call, until the `torch.cuda.Event` `sent` is past."""
        self._held.append((sent, (self._staged, others)))
        self._staged = []
        while self._held and self._held[0][0].query():
            self._held.popleft()


class Bus:
    """The way to one device. Copies to a GPU go on beside the caller; whoever calls `send` calls `hold` afterwards."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes_sent = 0
        self.staging = Staging(pinned) if device.type == "cuda" else None

    def send(self, array: Array) -> torch.Tensor:
        """An array on the device, by the stream that is current."""
        self.bytes_sent += array.nbytes
        if self.staging is None:
            return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)
        tensor = torch.from_numpy(array) if array.flags.writeable and array.flags.c_contiguous else None
        if tensor is None or not tensor.is_pinned():
            tensor = torch.from_numpy(self.staging.copy(array))
        return tensor.to(self.device, non_blocking=True)

    def hold(self, stream: torch.cuda.Stream, *others: object) -> Any:
        """Hold `others`, and the memory of what was sent by a stream, until it has arrived, as the event says."""
        assert self.staging is not None
        arrived = stream.record_event()
        self.staging.hold(arrived, *others)
        return arrived

    def send_alone(self, array: Array) -> torch.Tensor:
        """Send an array that is not part of a batch under way."""
        tensor = self.send(array)
        if self.staging is not None:
            self.hold(torch.cuda.current_stream(self.device))
        return tensor


def pinned(num_bytes: int) -> Bytes:
    """New memory from which a GPU copies by itself."""
    memory: Bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memory
