"""The order of a run: a permutation as a picture, the path of one index through it, and the samples of each rank."""

from typing import NamedTuple

import numpy as np

from tokenfeed.kernels import permutation as kernels
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.steps import rows_of
from tokenfeed.store.spec import WindowsSpec
from tokenfeed.ui.messages import Json, Query
from tokenfeed.ui.subject import Subject

__all__ = ["Walk", "scatter", "show_rounds", "show_steps", "walk"]

_MOST_POINTS = 4096
_MOST_CELLS = 2048
_LARGEST = (1 << 62) - 1


def scatter(subject: Subject, query: Query) -> Json:
    """Values of a permutation: at all positions, or at as many evenly spread ones as can be drawn."""
    order = _permutation(query)
    step = -(-order.n // _MOST_POINTS)
    values = order(np.arange(0, order.n, step)).astype(float).tolist()
    return {"n": order.n, "seed": order.seed, "epoch": order.epoch, "step": step, "values": values}


def _permutation(query: Query) -> Permutation:
    n = query.whole("n", 1000, least=1, most=_LARGEST)
    return Permutation(n, seed=query.whole("seed", 0), epoch=query.whole("epoch", 0))


class Walk(NamedTuple):
    """The path of one position through the rounds of a permutation, repeated until the place is below n."""

    a: int
    bits: int
    """There are a × 2**bits places; a place is left << bits | right."""
    passes: list[list[tuple[int, int]]]
    """(key, place after it) of each round."""


def walk(order: Permutation, position: int) -> Walk:
    """Run the kernel's rounds a pair at a time: the first of a pair moves only the left half, the second the right."""
    a, bits = kernels.split(order.n)
    keys = np.empty(kernels.num_rounds(order.n), np.uint64)
    kernels.round_keys(order.seed, order.epoch, order.n, keys)
    mask, place = (1 << bits) - 1, position
    passes: list[list[tuple[int, int]]] = []
    while not passes or place >= order.n:
        rounds = []
        for left_key, right_key in keys.reshape(-1, 2):
            words = np.uint64(place), np.uint64(a), np.uint64(bits), left_key, right_key
            moved = int(kernels.two_rounds(*words, False))
            rounds += [(int(left_key), moved & ~mask | place & mask), (int(right_key), moved)]
            place = moved
        passes.append(rounds)
    return Walk(int(a), int(bits), passes)


def show_rounds(subject: Subject, query: Query) -> Json:
    """One position, bit by bit and round by round. Numbers are sent as text: JavaScript is exact up to 2**53 only."""
    order = _permutation(query)
    position = query.whole("position", 0, most=order.n - 1)
    a, bits, passes = walk(order, position)
    mask, left_bits = (1 << bits) - 1, max(1, (a - 1).bit_length())

    def halves(place: int) -> Json:
        return {"left": f"{place >> bits:0{left_bits}b}", "right": f"{place & mask:0{bits}b}" if bits else ""}

    before = position
    told: list[list[Json]] = []
    for rounds in passes:
        told.append([])
        for number, (key, place) in enumerate(rounds):
            is_left = number % 2 == 0
            shift = ((place >> bits) - (before >> bits)) % a if is_left else (place - before) & mask
            moves = {"moves": "left" if is_left else "right", "key": f"{key:016x}", "shift": str(shift)}
            told[-1].append({**halves(place), **moves, "place": str(place)})
            before = place
    return {
        "n": str(order.n),
        "position": str(position),
        "value": str(before),
        "a": str(a),
        "bits": bits,
        "places": str(a << bits),
        "start": halves(position),
        "passes": told,
    }


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
