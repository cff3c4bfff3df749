"""What a loader does, in W&B, MLflow or TensorBoard, by one call: `log(loader, run, step, losses=…)`.

    losses = tokenfeed.torch.LossBySource()
    …
    log(batches, wandb.run, step, losses=losses.take())

`run` is a run of W&B, the module mlflow (or its client, with run_id), a SummaryWriter of TensorBoard, such as
`tensorboard(folder)`, or any function of a dictionary and a step.
"""

import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, DependencyError
from tokenfeed.loader.delivery import Stats
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.snapshots import find_loader

__all__ = ["log", "measure", "tensorboard"]

_last: "weakref.WeakKeyDictionary[Any, Stats]" = weakref.WeakKeyDictionary()
"""Counters of every loader when it was last measured."""

_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]", re.ASCII)


def measure(loader: Any, *, losses: Mapping[str, float] | None = None, prefix: str = "data/") -> dict[str, float]:
    """Named numbers, over the time since the last call for this loader:

    `wait_share` of that time was spent waiting for batches; `tokens_per_second` of this rank; and since the beginning
    of the run, over all ranks: `samples`, and by source `share/NAME` of samples, `target_share/NAME`, `epochs/NAME`.
    `losses` by source, as `LossBySource.take` gives them, become `loss/NAME`. A run over one view has one source, which
    has no name.
    """
    found = find_loader(loader)
    now = found.stats()
    before = _last.get(found)
    _last[found] = now
    seconds = now.wall_seconds - (before.wall_seconds if before else 0.0)
    values: dict[str, float] = {}
    if seconds > 0:
        values["wait_share"] = (now.wait_seconds - (before.wait_seconds if before else 0.0)) / seconds
        values["tokens_per_second"] = (now.items - (before.items if before else 0)) / seconds
    values["headroom"] = min(now.headroom, 1e6)  # infinite before anything was made
    if isinstance(found, Loader):
        delivered = found.state_dict()["samples"]
        values["samples"] = delivered
        for each in found.plan.ledger(delivered):
            name = f"/{each.source}" if each.source else ""
            values[f"epochs{name}"] = each.epochs
            if each.source and delivered:
                values[f"share{name}"] = each.samples / delivered
                values[f"target_share{name}"] = each.target / delivered
    for source, loss in (losses or {}).items():
        values[f"loss/{source}" if source else "loss"] = loss
    return {prefix + name: float(value) for name, value in values.items()}


def log(
    loader: Any,
    run: Any,
    step: int,
    *,
    losses: Mapping[str, float] | None = None,
    prefix: str = "data/",
    run_id: str | None = None,
) -> dict[str, float]:
    """Write what `measure` gives, and return it. Call it on one rank, every so many steps.

    For a stream there are no shares by source. `run_id` is for an MlflowClient.
    """
    values = measure(loader, losses=losses, prefix=prefix)
    _find_writer(run, run_id)(values, step)
    return values


def tensorboard(folder: str | Path) -> Any:
    """A SummaryWriter for a folder of events: `tensorboard --logdir FOLDER` shows them."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DependencyError(f"events for TensorBoard need pip install tensorboard torch ({error})") from error
    return SummaryWriter(folder)


def _find_writer(run: Any, run_id: str | None) -> Callable[[dict[str, float], int], Any]:
    kind = getattr(run, "__name__", "") if type(run).__name__ == "module" else type(run).__module__
    package = kind.partition(".")[0]
    if package == "mlflow":
        if type(run).__name__ == "module":
            return lambda values, step: run.log_metrics(_for_mlflow(values), step=step)
        if run_id is None:
            raise ArgumentError("run is a client of MLflow, which does not know which run: give run_id=…, or mlflow")
        return lambda values, step: [
            run.log_metric(run_id, name, value, step=step) for name, value in _for_mlflow(values).items()
        ]
    if package == "wandb":
        return lambda values, step: run.log(values, step=step)
    if hasattr(run, "add_scalar"):  # SummaryWriter of torch, of tensorboardX, and others with their interface
        return lambda values, step: [run.add_scalar(name, value, step) for name, value in values.items()]
    if callable(run):
        return lambda values, step: run(values, step)
    raise ArgumentError(
        f"run is {run!r:.100}; expected a run of W&B, the module mlflow, a SummaryWriter, or a function of "
        "a dictionary and a step"
    )


def _for_mlflow(values: Mapping[str, float]) -> dict[str, float]:
    """MLflow allows few characters in names."""
    return {_NOT_IN_MLFLOW.sub("_", name): value for name, value in values.items()}
