"""Forms of a batch on a device (see `tokenfeed.store.forms`): runs of items are sent, and become arrays there."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from tokenfeed.store.batch import HostBatch
from tokenfeed.store.forms import Arrays, Cut, weigh

__all__ = ["Send", "Sent", "widen", "widen_column"]

Send = Callable[[Any], torch.Tensor]
"""Sends an array to the device."""

_WIDENED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
_SAME_WIDTH = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Sent(NamedTuple):
    """A batch that was sent in a form."""

    arrays: Arrays
    columns: dict[str, torch.Tensor]
    """Runs of all columns as they crossed the bus."""
    items: torch.Tensor
    """Where the items beside the inputs lie in them."""

    @classmethod
    def send(
        cls, host: HostBatch, cut: Cut, send: Send, dtypes: Mapping[str, torch.dtype], *, columns: bool = True
    ) -> "Sent":
        """Send the pairs of a cut: the narrow items of each run once, and some numbers a run; no padding that is not in
        the cut. All else is made on the device. `columns` says whether those beside the primary one are sent, too.
        """
        layout, total = host.rows.layout, int(cut.counts.sum())
        runs, starts = cut.take(host.items)
        table = send(np.stack([starts, cut.first_places, cut.counts, cut.real]).astype(np.int32)).long()
        firsts, first_places, counts, real = table
        bounds = send(cut.bounds.astype(np.int32))
        padded = bounds if cut.padded is cut.bounds else send(cut.padded.astype(np.int32))
        slots = torch.arange(total, device=table.device)
        shifts = counts.cumsum(0) - counts
        items, places, within = (
            slots + torch.repeat_interleave(each - shifts, counts, output_size=total)
            for each in (firsts, first_places, torch.zeros_like(firsts))
        )
        begins = torch.repeat_interleave(padded[:-1], padded.diff(), output_size=int(cut.padded[-1]))
        tokens = send(runs)
        sides = [
            widen(take(tokens, items + shift), dtypes["targets" if shift else "inputs"])
            for shift in range(1 + cut.extra)
        ]
        if cut.is_padded:
            is_padding = within >= torch.repeat_interleave(real, counts, output_size=total)
            sides = [side.masked_fill_(is_padding, 0) for side in sides]
        mask, weights = weigh(host, cut)
        mask = None if mask is None else send(mask)
        if weights is not None:
            weights = send(weights)
        elif mask is not None:
            weights = mask.to(torch.float32)
        inputs, targets = (*sides, None)[:2]
        arrays = Arrays(
            inputs.view(cut.shape),
            None if targets is None else targets.view(cut.shape),
            mask,
            weights,
            (places - begins[places]).to(dtypes.get("position_ids", torch.int32)).view(cut.shape),
            bounds,
            padded,
            cut.max_seqlen,
        )
        sent = {} if layout.primary is None else {layout.primary: tokens}
        for name in layout.columns if columns else ():
            if name != layout.primary:
                whole = host.column(name)
                flat = whole if layout.length is None else whole.reshape(-1, *whole.shape[2:])
                sent[name] = send(cut.take(flat)[0])
        return cls(arrays, sent, items)

    def column(self, name: str, dtype: torch.dtype | None) -> torch.Tensor:
        """The items of a column beside the inputs."""
        chosen = widen_column(take(self.columns[name], self.items), dtype)
        return chosen.view(*self.arrays.inputs.shape, *chosen.shape[1:])


def take(tensor: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Items by number. torch cannot index unsigned numbers everywhere."""
    return tensor.view(_SAME_WIDTH.get(tensor.dtype, tensor.dtype))[items].view(tensor.dtype)


def widen_column(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return widen(tensor, dtype or _WIDENED.get(tensor.dtype, tensor.dtype))


def widen(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of that dtype, converted on the device. Always a copy, unless there is nothing to do."""
    if tensor.dtype in (torch.uint16, torch.uint32) and dtype in (torch.int32, torch.int64):
        # torch has few operations on unsigned numbers, but these work everywhere.
        bits = 8 * tensor.element_size()
        signed = tensor.view(_SAME_WIDTH[tensor.dtype]).to(dtype, memory_format=torch.contiguous_format)
        return signed if tensor.element_size() == dtype.itemsize else signed.bitwise_and_((1 << bits) - 1)
    return tensor.to(dtype).contiguous()
