"""Batches as tensors on a device: `for batch in tokenfeed.torch.to_device(loader, "cuda")`.

The stored dtype crosses the bus, once: a batch of uint16 tokens is 2 bytes a token there, and is widened on the device.
Copies run on a stream of their own, from pinned memory, one batch ahead of the one being trained on.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.batch import LoadedBatch, TokenRows
from tokenfeed.loader.delivery import Delivery, Stats
from tokenfeed.store.spans import BatchSpans

__all__ = ["DeviceBatch", "DeviceLoader", "to_device"]

Move = Callable[[Any], torch.Tensor]

_WIDENED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
_SAME_WIDTH = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def to_device(
    loader: Delivery, device: "str | torch.device", *, dtypes: Mapping[str, torch.dtype] | None = None
) -> "DeviceLoader":
    """The batches of a loader as contiguous tensors on a device. State, rank and everything else stay the loader's.

    `dtypes` gives the dtype of "inputs" (int32 unless given), "targets" (int64) and columns by name (the stored one;
    unsigned numbers, with which torch can do little, become signed ones of twice the width).
    """
    return DeviceLoader(loader, torch.device(device), {"inputs": torch.int32, "targets": torch.int64, **(dtypes or {})})


class DeviceBatch:
    """A batch on a device. `inputs, targets = batch`, where the view is one of windows."""

    def __init__(
        self, host: LoadedBatch, move: Callable[[Any], torch.Tensor], dtypes: Mapping[str, torch.dtype]
    ) -> None:
        self.host = host
        """The same batch in host memory."""
        self._dtypes = dtypes
        self._narrow = {name: move(host.column(name)) for name in host.rows.column_names}
        self._wide: dict[str, torch.Tensor] = {}
        rows = host.rows
        if isinstance(rows, TokenRows) and rows.primary in self._narrow:
            tokens = self._narrow[rows.primary]
            self._wide["inputs"] = _widen(tokens[:, : rows.length], dtypes["inputs"])
            if rows.extra:
                self._wide["targets"] = _widen(tokens[:, 1 : rows.length + 1], dtypes["targets"])
            elif "targets" in self._narrow:
                self._wide["targets"] = _widen(self._narrow["targets"], dtypes["targets"])
        mask = host.loss_mask
        self.loss_mask = None if mask is None else move(mask)
        """Which targets count: (rows, length); None where all do."""
        self.data = pytree.tree_map_only(np.ndarray, lambda array: _widen_column(move(array)), host.data)
        """What the collate function made, with tensors for arrays."""

    @property
    def inputs(self) -> torch.Tensor:
        """On the device, contiguous, int32 unless `dtypes` says otherwise."""
        return self._get("inputs")

    @property
    def targets(self) -> torch.Tensor:
        """On the device, contiguous, int64 unless `dtypes` says otherwise."""
        return self._get("targets")

    def has(self, name: str) -> bool:
        """Whether there are such: "inputs", "targets"."""
        return name in self._wide

    def _get(self, name: str) -> torch.Tensor:
        if name not in self._wide:
            raise ArgumentError(f"the batch has no {name}: windows of a primary column have (targets with extra=1)")
        return self._wide[name]

    def column(self, name: str) -> torch.Tensor:
        """The rows of a column that the view was told of."""
        if name not in self._narrow:
            raise ArgumentError(f"column {name!r} was not read with the batch; name it when you make the view")
        if name not in self._wide:
            self._wide[name] = _widen_column(self._narrow[name], self._dtypes.get(name))
        return self._wide[name]

    @property
    def samples(self) -> Any:
        """The numbers k of its rows, on the host."""
        return self.host.samples

    @property
    def epoch(self) -> int:
        """That of its first row."""
        return self.host.epoch

    @property
    def spans(self) -> Mapping[str, BatchSpans]:
        """The spans that the rows touch, by table, on the host."""
        return self.host.spans

    @property
    def state(self) -> dict[str, Any]:
        """The checkpoint after this batch."""
        return self.host.state

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.inputs
        yield self.targets

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that the tensors, made on another stream, are used on this one."""
        leaves = pytree.tree_leaves((self._narrow, self._wide, self.loss_mask, self.data))
        for tensor in leaves:
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(stream)


class DeviceLoader:
    """Keeps a copy to the device under way while the training loop works. A batch that is held stays as it is."""

    def __init__(self, loader: Delivery, device: torch.device, dtypes: Mapping[str, torch.dtype]) -> None:
        self.loader = loader
        self._device = device
        self._dtypes = dtypes
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._under_way: deque[tuple[DeviceBatch, Any]] = deque()
        self._copying: deque[tuple[LoadedBatch, Any]] = deque()
        """Host memory that must not be used again before its copy is done."""
        if self._stream is not None:
            loader.use_memory(_pinned)

    def __iter__(self) -> "DeviceLoader":
        iter(self.loader)
        return self

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
            self.loader.close()  # so that the next call begins behind the last batch delivered
            raise
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            batch.record_stream(current)
        self.loader.deliver(batch.host)
        return batch

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

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint after the last batch delivered."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a checkpoint."""
        self.loader.load_state_dict(state)

    def stats(self) -> Stats:
        """Counters of the loader. Batches that are on their way to the device are not among those delivered."""
        return self.loader.stats()

    def close(self) -> None:
        """Stop working ahead, and forget what was not delivered. Iterating goes on where it was."""
        self.loader.close()


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
