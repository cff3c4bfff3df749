"""Training steps: how a run is cut into them, and how the samples of one are dealt to ranks and micro-batches.

A step takes the samples [K, K′). With a batch size B, K′ = K + B·W·M for W ranks and M micro-batches. With a budget of
N tokens, K′ is as far as N·W·M tokens reach, and at least K + 1. So the steps follow from K and from the budget of all
ranks together: however many ranks share it, every step has the same samples. Which rank takes which is computed from
the lengths of the samples of the step and nothing else, so all ranks find the same, and no message is sent.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tokenfeed.errors import ArgumentError, StateError, whole
from tokenfeed.kernels.balance import deal
from tokenfeed.plan.plan import Plan
from tokenfeed.store.view import View
from tokenfeed.types import Floats, Ints

__all__ = ["Balance", "Cost", "Step", "StepRule", "TokenCounts"]

_FIRST_LOOK, _LOOK = 256, 1 << 14
"""Samples whose lengths are looked up by one call: of the first, which somebody waits for, and of later ones."""
_ROUNDS = 4
"""Rounds of improvement for each bin, at most; the kernel ends when loads are as good as equal."""
_NO_LIMIT = 1 << 40


@dataclass(frozen=True)
class Cost:
    """What a sample of L tokens costs: a·L + b·L². `Cost(1, 0)` counts tokens; attention adds b.

    A layer of width d costs about 24·d²·L + 4·d·L² operations: `Cost(1, 1 / (6 * d))`.
    """

    a: float
    b: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ArgumentError(f"{name} of Cost is {value!r}; expected a number of at least 0")
        if not self.a + self.b:
            raise ArgumentError("Cost(0, 0) makes all samples equal: leave out balance, or give a > 0 or b > 0")

    def __call__(self, lengths: Ints) -> Floats:
        long = lengths.astype(np.float64)
        return self.a * long + self.b * (long * long)

    def to_json(self) -> Any:
        return [float(self.a), float(self.b)]


Balance: TypeAlias = bool | Cost | None
"""What `balance=` takes: True for equal tokens, or a `Cost`; None for samples dealt in turn."""


class TokenCounts:
    """Tokens of samples of a run, from lengths that lie in tables: no column is read. Threads may share it.

    The tokens of a sample are its inputs without padding, as `batch.flat` has them: a window of length 2048 has 2048, a
    document one fewer than items. Every sample counts as one at least, so that no step is without end.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._views = plan.views

    def __call__(self, samples: Ints) -> Ints:
        """About 0.1 µs each."""
        sources, _, indices = self._plan.locate(samples)
        views = self._views
        if len(views) == 1:
            return _tokens(views[0], indices)
        counts = np.empty_like(indices)
        for number in np.unique(sources).tolist():
            chosen = sources == number
            counts[chosen] = _tokens(views[number], indices[chosen])
        return counts

    def tell(self, sample: int) -> str:
        """A sample in words."""
        (trace,) = self._plan.trace([sample])
        spec, source = self._plan.sources[0].spec, f" of source {trace.source!r}" if trace.source else ""
        what = f"document {trace.index:,}" if spec.kind == "documents" else f"number {trace.index:,} of {spec}"
        return f"sample {sample:,} of the run ({what}{source})"


def _tokens(view: View, indices: Ints) -> Ints:
    return np.maximum(1, view.lengths(indices) - view.layout.extra)


class Step(NamedTuple):
    """The samples [start, start + len(tokens)) of a training step."""

    start: int
    tokens: Ints
    """Tokens of each of them."""

    @property
    def stop(self) -> int:
        return self.start + self.tokens.size


@dataclass(frozen=True)
class StepRule:
    """How a run is cut into training steps, and how the samples of a step are divided."""

    size: int
    """Rows, or tokens, of one rank and micro-batch."""
    by_tokens: bool = False
    accumulate: int = 1
    """Batches of one rank that are a training step."""
    cost: Cost | None = None
    """Cost of a sample that is the same for all ranks and micro-batches; None where samples are dealt in turn."""
    too_long: str = "error"
    """What to do with a sample of more tokens than one rank may have: "error", or "own" for a batch of its own."""

    @classmethod
    def of(
        cls,
        batch_size: int | None,
        tokens: int | None,
        accumulate: int = 1,
        balance: Balance = None,
        too_long: str = "error",
    ) -> "StepRule":
        if (batch_size is None) == (tokens is None):
            told = "neither is given" if batch_size is None else f"both are given: {batch_size!r} and {tokens!r}"
            raise ArgumentError(f"a Loader takes batch_size=… rows or tokens=… for each rank and batch; {told}")
        if too_long not in ("error", "own"):
            raise ArgumentError(f'too_long is {too_long!r}; it must be "error" or "own"')
        if too_long != "error" and tokens is None:
            raise ArgumentError(f"too_long={too_long!r} is for token budgets: batch_size=… limits no tokens")
        if tokens is not None:
            return cls(whole("tokens", tokens, 1), True, accumulate, as_cost(balance), too_long)
        return cls(whole("batch_size", batch_size, 1), False, accumulate, as_cost(balance))

    @property
    def is_dealt(self) -> bool:
        """Whether which rank takes a sample depends on lengths."""
        return self.by_tokens or self.cost is not None

    @property
    def parts(self) -> int:
        """Batches of one rank in which the state advances once: those of a training step, where it is dealt as one."""
        return self.accumulate if self.is_dealt else 1

    @property
    def rows(self) -> int:
        """Rows per rank and training step; or tokens."""
        return self.size * self.accumulate

    def spread(self, before: int, after: int) -> "StepRule":
        """The rule with which so many ranks have as much together as so many had before."""
        wide = self.size * before
        if wide % after:
            name, what = ("tokens", "tokens") if self.by_tokens else ("batch_size", "rows")
            raise ArgumentError(f"{wide} {what} of all ranks cannot be divided among {after}; give {name}=")
        return replace(self, size=wide // after)

    def walk(self, start: int, stop: int | None, world_size: int, counts: TokenCounts) -> Iterator[Step]:
        """The training steps from sample `start` on. Lengths are looked up many samples at a time."""
        tokens, totals, at = np.empty(0, np.int64), np.zeros(1, np.int64), 0
        width, look = self.rows * world_size, _FIRST_LOOK
        while stop is None or start < stop:
            left = None if stop is None else stop - start
            while True:
                known = tokens.size - at
                if self.by_tokens:
                    size = int(np.searchsorted(totals, totals[at] + width, side="right")) - 1 - at
                    is_known = size < known
                else:
                    size = width
                    is_known = size <= known
                if is_known or (left is not None and known >= left):
                    break
                first = start + known
                more = look if left is None else min(look, left - known)
                tokens = np.concatenate([tokens[at:], counts(np.arange(first, first + more))])
                totals = np.concatenate([[0], np.cumsum(tokens)])
                at, look = 0, min(2 * look, _LOOK)
            size = max(1, min(size, tokens.size - at))
            yield Step(start, tokens[at : at + size])
            at += size
            start += size

    def deal(self, step: Step, world_size: int, tell: Callable[[int], str]) -> Ints:
        """The bin of every sample of a step: micro-batch m of rank r is bin m·world_size + r. `tell` names a sample."""
        num_bins, size = world_size * self.accumulate, step.tokens.size
        alone = step.tokens > self.size if self.by_tokens else np.zeros(size, np.bool_)
        if self.too_long == "error" and alone.any():
            place = int(np.argmax(alone))
            raise ArgumentError(
                f"{tell(step.start + place)} has {step.tokens[place]:,} tokens; the budget of one rank is tokens="
                f'{self.size:,}. Give a larger budget, too_long="own" to give it a batch of its own, or skip it'
            )
        costs = step.tokens if self.cost is None else _as_integers(self.cost(step.tokens))
        order = np.arange(size) if self.cost is None else np.argsort(-costs, kind="stable")
        order = order[np.argsort(~alone[order], kind="stable")]
        most_rows = _NO_LIMIT if self.by_tokens else -(-size // num_bins)
        bins, loads = np.empty(size, np.int64), np.empty(num_bins, np.int64)
        rounds = 0 if self.cost is None else _ROUNDS * num_bins
        deal(costs[order], alone[order], bins, loads, most_rows, rounds)
        if self.cost is not None:
            bins = _spread(loads, world_size, step.start)[bins]
        dealt = np.empty(size, np.int64)
        dealt[order] = bins
        return dealt

    def rows_of(self, step: Step, rank: int, world_size: int, tell: Callable[[int], str]) -> list[Ints]:
        """The samples of one rank in a step, micro-batch by micro-batch, each in the order of the run."""
        bins = self.deal(step, world_size, tell)
        return [
            step.start + np.flatnonzero(bins == part * world_size + rank).astype(np.int64)
            for part in range(self.accumulate)
        ]

    def to_json(self) -> dict[str, Any]:
        """Fields of a line of the run file."""
        fields: dict[str, Any] = {"tokens" if self.by_tokens else "batch_sizes": [[0, self.size]]}
        fields |= {} if self.accumulate == 1 else {"accumulate": self.accumulate}
        fields |= {} if self.cost is None else {"balance": self.cost.to_json()}
        return fields if self.too_long == "error" else fields | {"too_long": self.too_long}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "StepRule":
        by_tokens = "tokens" in fields
        name = "tokens" if by_tokens else "batch_sizes"
        match fields[name]:
            case [[0, int(size)]]:
                whole(name, size, 1, kind=StateError)
            case wrong:
                raise StateError(f"{name} is {str(wrong)[:80]}; expected [[0, {name}]]")
        accumulate = whole("accumulate", fields.get("accumulate", 1), 1, 31, StateError)
        cost: Cost | None = None
        match fields.get("balance"):
            case None:
                pass
            case [a, b]:
                cost = Cost(a, b)
            case wrong:
                raise StateError(f"balance is {str(wrong)[:80]}; expected [a, b]")
        return cls(size, by_tokens, accumulate, cost, str(fields.get("too_long", "error")))

    def __repr__(self) -> str:
        return repr(self.size) + (" tokens" if self.by_tokens else "")


def as_cost(balance: Balance) -> Cost | None:
    """The cost that `balance=` asks for."""
    if balance is None or balance is False:
        return None
    if balance is True:
        return Cost(1)
    if isinstance(balance, Cost):
        return balance
    raise ArgumentError(f"balance is {balance!r}; it must be True, or tokenfeed.Cost(a, b) for a·L + b·L²")


def _as_integers(costs: Floats) -> Ints:
    """Costs as integers whose sum is below 2**62: scaled by a power of two, so that all machines agree."""
    shift = 61 - int(np.frexp(costs.max(initial=0.0))[1]) - int(costs.size).bit_length()
    return np.ldexp(costs, shift).astype(np.int64)


def _spread(loads: Ints, world_size: int, start: int) -> Ints:
    """New numbers for bins: those that are alike are one micro-batch on all ranks, and every rank has as much in all.

    loads 9 8 7 6 of two ranks:  9 8 are micro-batch 0 of ranks 0 1,  7 6 micro-batch 1 of ranks 1 0

    Ranks are turned by a number that looks random from step to step, or rank 0 would have the longest sample of each.
    """
    turn = (start * 0x9E3779B97F4A7C15 % (1 << 64) >> 32) % world_size
    part, rank = np.divmod(np.arange(loads.size), world_size)
    numbers = np.empty(loads.size, np.int64)
    order = np.argsort(-loads, kind="stable")
    numbers[order] = part * world_size + (np.where(part % 2, world_size - 1 - rank, rank) + turn) % world_size
    return numbers
