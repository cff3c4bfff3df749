"""The order of a run: a permutation as a picture, the path of one index through it, and which rank gets which sample.

`Walk` computes in Python what `kernels/permutation.py` computes in one call, so that every intermediate value can be
shown. The tests compare it with the kernel, round by round.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenfeed.kernels import permutation as kernels
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.steps import rows_of
from tokenfeed.store.spec import WindowsSpec
from tokenfeed.ui.query import Query
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json

__all__ = ["Round", "Walk", "scatter", "show_rounds", "show_steps"]

_MOST_POINTS = 4096
_MOST_CELLS = 2048
_WORD = (1 << 64) - 1
_GOLDEN, _MIX_1, _MIX_2 = int(kernels.GOLDEN), int(kernels.MIX_1), int(kernels.MIX_2)
_LARGEST = (1 << 62) - 1


def scatter(subject: Subject, query: Query) -> Json:
    """Values of a permutation: at all positions, or at as many evenly spread ones as can be drawn."""
    order = _permutation(query)
    step = -(-order.n // _MOST_POINTS)
    positions = np.arange(0, order.n, step)
    return {
        "n": order.n,
        "seed": order.seed,
        "epoch": order.epoch,
        "step": step,
        "values": [float(value) for value in order(positions).tolist()],
    }


def _permutation(query: Query) -> Permutation:
    n = query.whole("n", 1000, least=1, most=_LARGEST)
    return Permutation(n, seed=query.whole("seed", 0), epoch=query.whole("epoch", 0))


class Round(NamedTuple):
    """One round: adds to one half a number that depends on the other half and on a key."""

    left: int
    right: int
    """The halves after the round."""
    moves_left: bool
    key: int
    shift: int
    """The number added."""


@dataclass(frozen=True)
class Walk:
    """The path of one position through the rounds of a permutation, repeated until the result is below n."""

    n: int
    a: int
    bits: int
    passes: list[list[Round]]

    @classmethod
    def of(cls, order: Permutation, position: int) -> "Walk":
        a, bits = _split(order.n)
        keys = _round_keys(order)
        left, right = position >> bits, position & ((1 << bits) - 1)
        passes: list[list[Round]] = []
        while not passes or (left << bits | right) >= order.n:
            rounds = []
            for number, key in enumerate(keys):
                if number % 2 == 0:
                    shift = (_mix(right, key) * a) >> 64
                    left = (left + shift) % a
                else:
                    shift = (_mix(left, key) >> 32) >> (32 - bits)
                    right = (right + shift) & ((1 << bits) - 1)
                rounds.append(Round(left, right, number % 2 == 0, key, shift))
            passes.append(rounds)
        return cls(order.n, a, bits, passes)

    def place(self, one: Round) -> int:
        """The two halves as one number."""
        return one.left << self.bits | one.right

    @property
    def value(self) -> int:
        """The value of the permutation at the position."""
        return self.place(self.passes[-1][-1])


def _split(n: int) -> tuple[int, int]:
    """(a, bits): places are a × 2**bits >= n."""
    bits = n.bit_length() // 2
    return (n + (1 << bits) - 1) >> bits, bits


def _scramble(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _round_keys(order: Permutation) -> list[int]:
    state = _scramble((order.seed + _GOLDEN) & _WORD)
    state = _scramble((state + order.epoch) & _WORD)
    state = _scramble((state + order.n) & _WORD)
    keys = []
    for _ in range(kernels.num_rounds.py_func(order.n)):
        state = (state + _GOLDEN) & _WORD
        keys.append(_scramble(state))
    return keys


def _mix(half: int, key: int) -> int:
    word = ((half ^ key) * _GOLDEN) & _WORD
    return ((word ^ (word >> 32)) * _MIX_1) & _WORD


def show_rounds(subject: Subject, query: Query) -> Json:
    """One position, bit by bit and round by round. Numbers are sent as text: JavaScript is exact up to 2**53 only."""
    order = _permutation(query)
    position = query.whole("position", 0, most=order.n - 1)
    walk = Walk.of(order, position)
    left_bits = max(1, (walk.a - 1).bit_length())
    return {
        "n": str(order.n),
        "position": str(position),
        "value": str(walk.value),
        "a": str(walk.a),
        "bits": walk.bits,
        "places": str(walk.a << walk.bits),
        "start": _halves(position >> walk.bits, position & ((1 << walk.bits) - 1), left_bits, walk.bits),
        "passes": [
            [
                {
                    **_halves(each.left, each.right, left_bits, walk.bits),
                    "moves": "left" if each.moves_left else "right",
                    "key": f"{each.key:016x}",
                    "shift": str(each.shift),
                    "place": str(walk.place(each)),
                }
                for each in rounds
            ]
            for rounds in walk.passes
        ],
    }


def _halves(left: int, right: int, left_bits: int, right_bits: int) -> Json:
    return {"left": f"{left:0{left_bits}b}", "right": f"{right:0{right_bits}b}" if right_bits else ""}


def show_steps(subject: Subject, query: Query) -> Json:
    """The samples each rank gets in the steps after `resume` samples, computed by the plan itself."""
    source = PlanSource("", query.whole("n", 1000, least=1, most=_LARGEST), "", WindowsSpec(1).to_json())
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
            _, epochs, indices = plan.locate(samples)
            rows = zip(samples.tolist(), epochs.tolist(), indices.tolist(), strict=True)
            ranks.append([[k, epoch, index] for k, epoch, index in rows])
        steps.append({"start": start, "ranks": ranks})
    return {"n": source.num_samples, "world_size": world_size, "batch_size": batch_size, "steps": steps}
