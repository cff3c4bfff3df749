"""The order of a run: a permutation as a picture, how random it is, and the samples of each rank."""

import numpy as np

from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.steps import rows_of
from tokenfeed.store.spec import WindowsSpec
from tokenfeed.types import Floats
from tokenfeed.ui.messages import Json, Query
from tokenfeed.ui.subject import Subject

__all__ = ["scatter", "show_steps"]

_MOST_POINTS = 4096
_MOST_CELLS = 2048
_LARGEST = (1 << 62) - 1
_CELLS = 16


def scatter(subject: Subject, query: Query) -> Json:
    """Values of a permutation at evenly spread positions, and how random they are, with what chance would give."""
    order = _permutation(query)
    step = -(-order.n // _MOST_POINTS)
    values = order(np.arange(0, order.n, step)).astype(float)
    told = {"n": order.n, "seed": order.seed, "epoch": order.epoch, "step": step, "values": values.tolist()}
    return {**told, "measured": _measure(values, order.n)}


def _measure(values: Floats, n: int) -> list[Json]:
    """Statistics of the values, each as a distance from its mean over true random orders, in standard deviations."""
    count = values.size
    if count < 8 * _CELLS:
        return []
    places = np.arange(count)
    correlation = np.corrcoef(places, values)[0, 1] * np.sqrt(count)
    distance = np.abs(np.diff(values)).mean() / n
    neighbours = (distance - 1 / 3) / np.sqrt(1 / 18 / count)
    cells, _, _ = np.histogram2d(places * _CELLS // count, values * _CELLS // n, bins=_CELLS)
    expected, freedom = count / _CELLS**2, (_CELLS - 1) ** 2
    chi_square = (((cells - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)
    odd = ((values % 2).mean() - (n // 2) / n) * 2 * np.sqrt(count)
    names = (
        ("position and value are correlated", correlation),
        ("neighbours lie apart", neighbours),
        (f"{_CELLS} × {_CELLS} cells are filled evenly", chi_square),
        ("odd and even values alternate", odd),
    )
    return [{"name": name, "deviation": round(float(value), 2)} for name, value in names]


def _permutation(query: Query) -> Permutation:
    n = query.whole("n", 1000, least=1, most=_LARGEST)
    return Permutation(n, seed=query.whole("seed", 0), epoch=query.whole("epoch", 0))


def show_steps(subject: Subject, query: Query) -> Json:
    """The samples each rank gets in the steps after `resume` samples, computed by the plan itself."""
    source = PlanSource("", query.whole("n", 1000, least=1, most=_LARGEST), "", WindowsSpec(1))
    plan = Plan([source], seed=query.whole("seed", 0))
    world_size = query.whole("world_size", 4, least=1, most=64)
    batch_size = query.whole("batch_size", 2, least=1, most=64)
    resume = query.whole("resume", 0, most=1 << 60)
    steps = []
    for step in range(min(query.whole("steps", 8, least=1, most=32), max(1, _MOST_CELLS // (world_size * batch_size)))):
        start = resume + step * world_size * batch_size
        ranks = []
        for rank in range(world_size):
            samples = rows_of(start, batch_size, rank, world_size)
            ranks.append(np.stack((samples, *plan.locate(samples)[1:]), axis=1).tolist())
        steps.append({"start": start, "ranks": ranks})
    return {"n": source.num_samples, "world_size": world_size, "batch_size": batch_size, "steps": steps}
