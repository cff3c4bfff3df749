"""Batches as tensors on a device: `for batch in tokenfeed.torch.to_device(loader, "cuda")`.

The stored dtype crosses the bus, once: a batch of uint16 tokens is 2 bytes a token there, and is widened on the device.
Copies run on a stream of their own, from pinned memory, one batch ahead of the one being trained on.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.loader.delivery import Delivery, PlacedBatch, PlacedLoader, check_loader
from tokenfeed.loader.launch import find_rank
from tokenfeed.store.batch import HostBatch
from tokenfeed.store.forms import Arrays, ContextParallel, Cut, cut_flat
from tokenfeed.torch.bus import Bus, pinned
from tokenfeed.torch.forms import Sent, widen, widen_column
from tokenfeed.types import Ints

__all__ = ["DeviceBatch", "DeviceLoader", "to_device"]

Form = Callable[[HostBatch], Cut]
"""Which pairs of inputs and targets are sent, and how they are laid out."""


def to_device(
    loader: Delivery,
    device: "str | torch.device",
    *,
    dtypes: Mapping[str, torch.dtype] | None = None,
    flat: bool = False,
    cp: Any = None,
) -> "DeviceLoader":
    """The batches of a loader as contiguous tensors on a device. State, rank and everything else stay the loader's.

    `dtypes` gives the dtype of "inputs" (int32 unless given), "targets" (int64) and columns by name (the stored one;
    unsigned numbers, with which torch can do little, become signed ones of twice the width).

    `flat` lays rows end to end, so that no padding is sent: `inputs`, `targets`, `loss_mask`, `loss_weights` and
    `position_ids` are those of `batch.flat`, of shape (total,). `cp`, a `ContextParallel` or one dimension of a
    DeviceMesh, sends the slice of this rank alone: they are those of `batch.slice(cp)`. In both forms a column holds
    the items beside the inputs.
    """
    try:
        where, count = torch.device(device), torch.cuda.device_count()
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f'device is {device!r}; expected one of torch, such as "cuda", "cuda:1" or "cpu"'
        ) from error
    if where.type == "cuda" and (where.index or 0) >= count:
        raise ArgumentError(
            f'there is no device {where}: torch {torch.__version__} finds {quantity(count, "CUDA device")}. Use "cpu", '
            "or check the driver, CUDA_VISIBLE_DEVICES, and that this torch was built for CUDA"
        )
    check_loader(loader, "to_device")
    if flat and cp is not None:
        raise ArgumentError('flat=True goes without cp; ContextParallel(…, by="document") is flat, and divided')
    form: Form | None = cut_flat if flat else None
    if cp is not None:
        form = _check_cp(cp if isinstance(cp, ContextParallel) else ContextParallel.of(cp), loader).cut
    return DeviceLoader(loader, where, {"inputs": torch.int32, "targets": torch.int64, **(dtypes or {})}, form)


def _check_cp(cp: ContextParallel, loader: Delivery) -> ContextParallel:
    """Refuse a loader that gives the ranks of a context-parallel group rows of their own."""
    launched = find_rank(None, None)[1]
    needed = loader.world_size * cp.size
    if launched > 1 and launched % needed:
        raise ArgumentError(
            f"the loader has {quantity(loader.world_size, 'rank')}, and {cp.size} context-parallel ranks share the "
            f"rows of each: {needed} processes, but there are {launched}. Give the loader data-parallel ranks alone: "
            'Loader(…, **tokenfeed.torch.data_parallel(mesh, "dp")), or rank= and world_size='
        )
    return cp


class DeviceBatch(PlacedBatch):
    """A batch on a device: contiguous tensors, inputs of int32 and targets of int64 unless `dtypes` says otherwise."""

    def __init__(self, host: HostBatch, bus: Bus, dtypes: Mapping[str, torch.dtype], form: Form | None = None) -> None:
        """Everything is sent now, on the stream that is current; with a `form`, only what that has."""
        super().__init__(host)
        send = bus.send
        self._bus = bus
        self._dtypes = dtypes
        self._sent: Sent | None = None
        self._inputs = self._targets = self._mask = self._weights = self._bounds = self._positions = None
        self.data = pytree.tree_map_only(np.ndarray, lambda array: widen_column(send(array)), host.data)
        if form is not None:
            self._sent = Sent.send(host, form(host), send, dtypes)
            self._narrow = self._sent.columns
            self._inputs, self._targets, self._mask, self._weights, self._positions, self._bounds = self._sent.arrays[
                :6
            ]
            self._flat = self._sent.arrays if form is cut_flat else None
            return
        self._narrow = {name: send(host.column(name)) for name in host.rows.layout.columns}
        """Columns as they crossed the bus."""
        length, primary = host.rows.layout.length, host.rows.layout.primary
        if length is not None and primary is not None:
            tokens = self._narrow[primary]
            self._inputs = widen(tokens[:, :length], dtypes["inputs"])
            self._targets = widen(tokens[:, 1 : length + 1], dtypes["targets"]) if host.has_targets else None
        elif primary is not None:  # documents, padded to the longest
            self._inputs = widen(send(host.inputs), dtypes["inputs"])
            self._targets = widen(send(host.targets), dtypes["targets"])
        mask = host.loss_mask
        self._mask = None if mask is None else send(mask)
        weights = host.loss_weights if host.rows.layout.is_weighted else None
        self._weights = None if weights is None else send(weights)

    @property
    def inputs(self) -> torch.Tensor:
        return self._host.inputs if self._inputs is None else self._inputs  # the host raises: there are none

    @property
    def targets(self) -> torch.Tensor:
        return self._host.targets if self._targets is None else self._targets

    @property
    def loss_mask(self) -> torch.Tensor | None:
        return self._mask

    @property
    def loss_weights(self) -> torch.Tensor | None:
        if self._weights is None and self._mask is not None:
            self._weights = self._mask.to(torch.float32)
        return self._weights

    @property
    def cu_seqlens(self) -> torch.Tensor:
        if self._bounds is None:
            self._bounds = self._bus.send_alone(self._host.cu_seqlens)
        return self._bounds

    @property
    def cu_seqlens_padded(self) -> torch.Tensor:
        return self.cu_seqlens if self._sent is None else self._sent.arrays.cu_seqlens_padded

    @property
    def max_seqlen(self) -> int:
        return super().max_seqlen if self._sent is None else self._sent.arrays.max_seqlen

    @property
    def position_ids(self) -> torch.Tensor:
        if self._positions is None:
            shape = len(self), self.length
            bounds, total = self.cu_seqlens, math.prod(shape)
            begins = torch.repeat_interleave(bounds[:-1], bounds.diff(), output_size=total)
            places = torch.arange(total, dtype=torch.int32, device=bounds.device) - begins
            self._positions = places.to(self._dtypes.get("position_ids", torch.int32)).view(shape)
        return self._positions

    def _arrange(self, cut: Cut) -> Arrays:
        return Sent.send(self._host, cut, self._bus.send_alone, self._dtypes, columns=False).arrays

    def _place_column(self, name: str) -> torch.Tensor:
        dtype = self._dtypes.get(name)
        return widen_column(self._narrow[name], dtype) if self._sent is None else self._sent.column(name, dtype)

    def as_dict(self) -> dict[str, Any]:
        values = super().as_dict()
        if self._sent is not None:  # without these, rows laid end to end cannot be told apart
            names = "position_ids", "cu_seqlens", "cu_seqlens_padded", "max_seqlen"
            values |= dict(zip(names, self._sent.arrays[4:], strict=True))
        return values

    def _as_array(self, numbers: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers))

    def __repr__(self) -> str:
        where = {str(tensor.device) for tensor in self._narrow.values()}
        return f"DeviceBatch({self._host}, on {', '.join(where)})"

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that the tensors, made on another stream, are used on this one."""
        tensors = self._narrow, self._inputs, self._targets, self._columns, self._mask, self._weights, self._sent
        for tensor in pytree.tree_leaves((tensors, self.data)):
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(stream)


class DeviceLoader(PlacedLoader[DeviceBatch]):
    """Keeps a copy to the device under way while the training loop works. A batch that is held stays as it is."""

    def __init__(
        self, loader: Delivery, device: torch.device, dtypes: Mapping[str, torch.dtype], form: Form | None = None
    ) -> None:
        super().__init__(loader)
        self._device = device
        self._dtypes = dtypes
        self._form = form
        self._bus = Bus(device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._under_way: deque[tuple[DeviceBatch, Any]] = deque()
        if self._stream is not None:
            loader.use_memory(pinned)

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

    @property
    def bytes_sent(self) -> int:
        """Bytes that went to the device so far."""
        return self._bus.bytes_sent

    def __repr__(self) -> str:
        return f"to_device({self.loader}, {str(self._device)!r})"

    def _send(self) -> None:
        """Begin to copy the next batch."""
        host = self.loader.fetch()
        if self._stream is None:
            self._under_way.append((DeviceBatch(host, self._bus, self._dtypes, self._form), None))
            return
        with torch.cuda.stream(self._stream):
            batch = DeviceBatch(host, self._bus, self._dtypes, self._form)
        self._under_way.append((batch, self._bus.hold(self._stream, host)))
