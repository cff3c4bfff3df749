"""Bits per byte: a loss that does not depend on the vocabulary."""

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed

from tokenfeed.errors import ArgumentError
from tokenfeed.store.batch import Batch
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["evaluate_bpb"]


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate_bpb(model: Any, batches: Iterable[Any], steps: int | None, tokenizer: Any) -> float:
    """Bits that the model needs per byte of text, over the next `steps` batches of all ranks together, as nanochat's.

    `steps` may be None where batches end, such as those of `stream(…, epochs=1)`: then all of them count. Where
    torch.distributed is initialised, every rank must take equally many steps, as finite loaders and streams do.

    `model(inputs, targets, loss_reduction="none")` gives nats per target, in any shape. `tokenizer` is what made the
    tokens, or its `token_bytes`, the bytes of each token; for one that puts a space before every text, as SentencePiece
    does, only the tokenizer itself can tell that those spaces are not of the text. Bytes are those of the text as the
    tokenizer sees it (see `Tokenizer.token_bytes`). Targets that the batch's `loss_mask` leaves out, that are negative,
    or that stand for no bytes (special tokens) count neither way; infinity where none counts. `batches` yields batches,
    or pairs of inputs and targets; NumPy arrays are moved to the model's device. Sums are float64, and stay on the
    device until the end.
    """
    token_bytes = tokenizer.token_bytes if isinstance(tokenizer, Tokenizer) else tokenizer
    edges = tokenizer.edges if isinstance(tokenizer, Tokenizer) and tokenizer.adds_space else None
    table = nats = num_bytes = None
    step = 0
    for batch in batches if steps is None else islice(batches, steps):
        step += 1
        inputs, targets = (_tensor(each, model) for each in batch)
        if len(inputs) == 0:
            continue
        mask = batch.loss_mask if isinstance(batch, Batch) else None
        loss = model(inputs, targets, loss_reduction="none").reshape(-1)
        if loss.device.type == "mps":  # which has no float64
            loss = loss.cpu()
        if table is None or nats is None or num_bytes is None:
            table = torch.as_tensor(np.array(token_bytes) if isinstance(token_bytes, np.ndarray) else token_bytes)
            table = table.to(loss.device, torch.int64)
            nats = torch.zeros((), dtype=torch.float64, device=loss.device)
            num_bytes = torch.zeros((), dtype=torch.int64, device=loss.device)
        targets = targets.reshape(-1).to(loss.device, torch.int64)
        counted = targets >= 0
        if mask is not None:
            counted &= torch.as_tensor(mask).reshape(-1).to(loss.device)
        known = targets.clamp(min=0)
        lengths = torch.where(counted, table[known], 0)
        nats += torch.where(lengths > 0, loss.double(), 0.0).sum()
        if edges is not None:
            ends, spaces = (torch.as_tensor(each).to(loss.device) for each in edges)
            before = inputs.reshape(-1).to(loss.device, torch.int64)
            num_bytes -= (ends[before] & spaces[known] & (lengths > 0)).sum()
        num_bytes += lengths.sum()
    if steps is not None and step < max(1, steps):
        raise ArgumentError(
            f"steps is {steps}; at least 1 is needed"
            if step == steps
            else f"batches ended after {step}; steps is {steps}"
        )
    if nats is None or num_bytes is None:  # this rank had empty batches alone; the others wait for its sums
        nats, num_bytes = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        nats, num_bytes = _reduced(nats), _reduced(num_bytes)
    total = int(num_bytes.item())
    return float(nats.item()) / (math.log(2) * total) if total else math.inf


def _reduced(value: Any) -> Any:
    """The sum over all ranks; NCCL reduces on its own devices only."""
    if torch.distributed.get_backend() == "nccl":
        value = value.cuda()
    torch.distributed.all_reduce(value)
    return value


def _tensor(values: Any, model: Any) -> Any:
    """A tensor as it is; an array as int64 on the model's device."""
    if isinstance(values, torch.Tensor):
        return values
    first = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    return torch.as_tensor(np.asarray(values).astype(np.int64)).to("cpu" if first is None else first.device)
