"""Steering by loss: the loss of every source on the device, and a policy that makes weights of it.

losses, policy = LossBySource(), OnlineMixing(["web", "code"])
for step, batch in enumerate(tokenfeed.torch.to_device(loader, "cuda")):
    loss = model(batch.inputs, batch.targets, reduction="none")    # (rows, length), or one number a row
    losses.add(loss, batch)                                        # no wait for the device
    …
    if step % 100 == 99:
        loader.amend(weights=policy.update(losses.take()))         # one wait; the same on every rank
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed

from tokenfeed.errors import ArgumentError
from tokenfeed.store.batch import Batch
from tokenfeed.store.forms import cut_flat

__all__ = ["LossBySource", "OnlineMixing"]


class LossBySource:
    """Mean losses of targets, by source, over the batches since `take`. Sums stay on the device until then."""

    def __init__(self) -> None:
        self._sums: Any = None
        """(2, sources): nats, and how many targets count."""
        self._names: tuple[str, ...] = ()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def add(self, loss: Any, batch: Batch) -> None:
        """Add a batch: `loss` is (rows, length), of which the targets count that `batch.loss_mask` has; or (rows,); or
        that of the targets of `batch.flat`.
        """
        mask, rows = batch.loss_mask if loss.ndim == 2 else None, np.arange(len(batch))
        if loss.ndim == 1 and loss.shape[0] != len(batch):
            mask, cut = batch.flat.loss_mask, cut_flat(batch.host)
            rows = np.repeat(np.searchsorted(batch.host.offsets, cut.first_items, side="right") - 1, cut.counts)
        if loss.ndim not in (1, 2) or loss.shape[0] != rows.size:
            raise ArgumentError(
                f"the loss has shape {tuple(loss.shape)}; expected one for each of {len(batch)} rows, or for each "
                "target of batch.flat"
            )
        self._names = batch.source_names
        if self._sums is None or self._sums.shape[1] != len(self._names):
            sums = torch.zeros((2, len(self._names)), dtype=torch.float32, device=loss.device)
            if self._sums is not None:  # a source was added
                sums[:, : self._sums.shape[1]] = self._sums
            self._sums = sums
        counts = torch.ones_like(loss, dtype=torch.float32)
        if mask is not None:
            counts = torch.as_tensor(mask).to(loss.device, torch.float32, non_blocking=True)
        both = torch.stack([loss.float() * counts, counts])
        both = both.sum(2) if loss.ndim == 2 else both
        sources = torch.as_tensor(batch.host.sources[rows]).to(loss.device, non_blocking=True)
        self._sums.index_add_(1, sources, both)

    def take(self) -> dict[str, float]:
        """Mean loss of every source that had a target, over all ranks where torch.distributed is initialised."""
        if self._sums is None:
            raise ArgumentError("no batch was added; call add(loss, batch) at every step")
        sums, self._sums = self._sums, None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        nats, counts = sums.tolist()
        return {name: nat / count for name, nat, count in zip(self._names, nats, counts, strict=True) if count}


class OnlineMixing:
    """A bandit whose reward is the loss of a source, after online data mixing (arXiv 2312.02406), in our words:

    With K sources, after update t: R becomes smoothing · R + (1 − smoothing) · loss / share, for every source that was
    drawn; shares become (1 − K·e) · softmax(e′ · R) + e, where e = min(1/K, sqrt(ln K / (K·t))) and e′ is the e before.
    In the paper one source is drawn at random for each batch; here a schedule draws all by their shares.
    """

    def __init__(self, sources: Sequence[str], *, smoothing: float = 0.9) -> None:
        if len(sources) < 2 or not 0 <= smoothing < 1:
            raise ArgumentError(f"{len(sources)} sources, smoothing {smoothing}; expected two or more, and [0, 1)")
        count = len(sources)
        self.weights = dict.fromkeys(sources, 1 / count)
        """Shares of samples, by source."""
        self._smoothing = smoothing
        self._rewards = dict.fromkeys(sources, 0.0)
        self._updates, self._explored = 0, 1 / count

    def update(self, losses: Mapping[str, float]) -> dict[str, float]:
        """The shares after losses by source were seen."""
        unknown = sorted(losses.keys() - self.weights.keys())
        if unknown or not all(map(math.isfinite, losses.values())):
            raise ArgumentError(f"losses are {dict(losses)}; expected finite ones of {', '.join(self.weights)}")
        count = len(self.weights)
        self._updates += 1
        for name, loss in losses.items():
            reward = loss / self.weights[name]
            self._rewards[name] = self._smoothing * self._rewards[name] + (1 - self._smoothing) * reward
        explore = min(1 / count, math.sqrt(math.log(count) / (count * self._updates)))
        largest = max(self._rewards.values())
        powers = {name: math.exp(self._explored * (each - largest)) for name, each in self._rewards.items()}
        total = math.fsum(powers.values())
        self.weights = {name: (1 - count * explore) * each / total + explore for name, each in powers.items()}
        self._explored = explore
        return dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {"weights": self.weights, "rewards": self._rewards, "updates": self._updates, "explored": self._explored}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after a checkpoint."""
        self.weights, self._rewards = dict(state["weights"]), dict(state["rewards"])
        self._updates, self._explored = int(state["updates"]), float(state["explored"])
