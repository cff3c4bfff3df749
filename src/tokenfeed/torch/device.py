"""Batches as tensors on a device: `for batch in tokenfeed.torch.to_device(loader, "cuda")`.

The stored dtype crosses the bus, once: a batch of uint16 tokens is 2 bytes a token there, and is widened on the device.
Copies run on a stream of their own, from pinned memory, one batch ahead of the one being trained on.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.loader.delivery import Delivery, PlacedBatch, PlacedLoader, check_loader
from tokenfeed.store.batch import HostBatch
from tokenfeed.types import Ints

__all__ = ["DeviceBatch", "DeviceLoader", "to_device"]

_WIDENED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
_SAME_WIDTH = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def to_device(
    loader: Delivery, device: "str | torch.device", *, dtypes: Mapping[str, torch.dtype] | None = None
) -> "DeviceLoader":
    """The batches of a loader as contiguous tensors on a device. State, rank and everything else stay the loader's.

    `dtypes` gives the dtype of "inputs" (int32 unless given), "targets" (int64) and columns by name (the stored one;
    unsigned numbers, with which torch can do little, become signed ones of twice the width).
    """
    try:
        where, count = torch.device(device), torch.cuda.device_count()
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f'device is {device!r}; it must be one that torch knows, such as "cuda" or "cpu"'
        ) from error
    if where.type == "cuda" and (where.index or 0) >= count:
        raise ArgumentError(
            f'there is no device "{where}": torch finds {quantity(count, "CUDA device")} here. Use "cpu", or check the '
            "driver, CUDA_VISIBLE_DEVICES, and that this torch was built for CUDA"
        )
    check_loader(loader, "to_device")
    return DeviceLoader(loader, where, {"inputs": torch.int32, "targets": torch.int64, **(dtypes or {})})


class DeviceBatch(PlacedBatch):
    """A batch on a device: contiguous tensors, inputs of int32 and targets of int64 unless `dtypes` says otherwise."""

    def __init__(self, host: HostBatch, move: Callable[[Any], torch.Tensor], dtypes: Mapping[str, torch.dtype]) -> None:
        """Everything is moved now, on the stream that is current."""
        super().__init__(host)
        self._dtypes = dtypes
        self._narrow = {name: move(host.column(name)) for name in host.rows.layout.columns}
        """Columns as they crossed the bus."""
        length, primary = host.rows.layout.length, host.rows.layout.primary
        self._inputs = self._targets = None
        if length is not None and primary is not None:
            tokens = self._narrow[primary]
            self._inputs = _widen(tokens[:, :length], dtypes["inputs"])
            self._targets = _widen(tokens[:, 1 : length + 1], dtypes["targets"]) if host.has_targets else None
        elif primary is not None:  # documents, padded to the longest
            self._inputs = _widen(move(host.inputs), dtypes["inputs"])
            self._targets = _widen(move(host.targets), dtypes["targets"])
        mask = host.loss_mask
        self._mask = None if mask is None else move(mask)
        self.data = pytree.tree_map_only(np.ndarray, lambda array: _widen_column(move(array)), host.data)

    @property
    def inputs(self) -> torch.Tensor:
        return self._host.inputs if self._inputs is None else self._inputs  # the host raises: there are none

    @property
    def targets(self) -> torch.Tensor:
        return self._host.targets if self._targets is None else self._targets

    @property
    def loss_mask(self) -> torch.Tensor | None:
        return self._mask

    def _place_column(self, name: str) -> torch.Tensor:
        return _widen_column(self._narrow[name], self._dtypes.get(name))

    def _as_array(self, numbers: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers))

    def __repr__(self) -> str:
        where = {str(tensor.device) for tensor in self._narrow.values()}
        return f"DeviceBatch({self._host}, on {', '.join(where)})"

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that the tensors, made on another stream, are used on this one."""
        tensors = self._narrow, self._inputs, self._targets, self._columns, self._mask, self.data
        for tensor in pytree.tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(stream)


class DeviceLoader(PlacedLoader[DeviceBatch]):
    """Keeps a copy to the device under way while the training loop works. A batch that is held stays as it is."""

    def __init__(self, loader: Delivery, device: torch.device, dtypes: Mapping[str, torch.dtype]) -> None:
        super().__init__(loader)
        self._device = device
        self._dtypes = dtypes
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._under_way: deque[tuple[DeviceBatch, Any]] = deque()
        self._copying: deque[tuple[HostBatch, Any]] = deque()
        """Host memory that must not be used again before its copy is done."""
        if self._stream is not None:
            loader.use_memory(_pinned)

    def __next__(self) -> DeviceBatch:
        while self._under_way and not self.loader.is_current(self._under_way[0][0].host):
            self._under_way.popleft()  # fetched before the loader was sent elsewhere
        try:
            if not self._under_way:
                self._send()
            batch, copied = self._under_way.popleft()
            if self.loader.is_ready():
                self._send()
        except StopIteration:
            raise
        except BaseException:
            self.loader.close()  # the next call begins after the last batch delivered
            raise
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            batch.record_stream(current)
        self.loader.deliver(batch.host)
        return batch

    def __repr__(self) -> str:
        return f"to_device({self.loader}, {str(self._device)!r})"

    def _send(self) -> None:
        """Begin to copy the next batch."""
        host = self.loader.fetch()
        if self._stream is None:
            self._under_way.append((DeviceBatch(host, self._move, self._dtypes), None))
            return
        with torch.cuda.stream(self._stream):
            batch = DeviceBatch(host, self._move, self._dtypes)
            copied = self._stream.record_event()
        self._under_way.append((batch, copied))
        while self._copying and self._copying[0][1].query():
            self._copying.popleft()
        self._copying.append((host, copied))

    def _move(self, array: Any) -> torch.Tensor:
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if self._stream is not None and not tensor.is_pinned():
            tensor = tensor.contiguous().pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _widen_column(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _widen(tensor, dtype or _WIDENED.get(tensor.dtype, tensor.dtype))


def _widen(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of that dtype, converted on the device. Always a copy, unless there is nothing to do."""
    if tensor.dtype in (torch.uint16, torch.uint32) and dtype in (torch.int32, torch.int64):
        # torch has few operations on unsigned numbers, but these work everywhere.
        bits = 8 * tensor.element_size()
        signed = tensor.view(_SAME_WIDTH[tensor.dtype]).to(dtype, memory_format=torch.contiguous_format)
        return signed if tensor.element_size() == dtype.itemsize else signed.bitwise_and_((1 << bits) - 1)
    return tensor.to(dtype).contiguous()


def _pinned(num_bytes: int) -> Any:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
