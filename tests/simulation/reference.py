"""What a run must deliver, in plain Python: integers that cannot overflow, fractions, dictionaries and loops.

Written from the definitions (`docs/mixtures.md`, `docs/locality.md`, `docs/decisions/2026-11-15-permutation.md`); it
imports nothing of tokenfeed. Sources of up to `SMALL` samples are walked through one by one; larger ones by search.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import xxhash

SMALL = 20_000
WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
LARGEST_SUM = 2**49
UNIT = 2**32  # what is owed is counted in 2**-32 of a sample
FOREVER = 2**63 - 1


# The shuffle: a network over a × 2**bits places, halves taking turns, until what comes out is below n.


def scramble(word: int) -> int:
    word = ((word ^ word >> 30) * MIX_1) % WORD
    word = ((word ^ word >> 27) * MIX_2) % WORD
    return word ^ word >> 31


@lru_cache(4096)
def make_keys(seed: int, epoch: int, n: int, rounds: int) -> list[int]:
    state = scramble((seed + GOLDEN) % WORD)
    state = scramble((state + epoch) % WORD)
    state = scramble((state + n) % WORD)
    return [scramble((state + (number + 1) * GOLDEN) % WORD) for number in range(rounds)]


def spread(half: int, key: int) -> int:
    word = (half ^ key) * GOLDEN % WORD
    return (word ^ word >> 32) * MIX_1 % WORD


def through_network(place: int, n: int, keys: Sequence[int]) -> int:
    bits = n.bit_length() // 2
    a = -(-n // (1 << bits))
    while True:
        left, right = place >> bits, place % (1 << bits)
        for number in range(0, len(keys), 2):
            left = (left + (spread(right, keys[number]) * a >> 64)) % a
            right = (right + (spread(left, keys[number + 1]) << bits >> 64)) % (1 << bits)
        place = left << bits | right
        if place < n:
            return place


def back_through_network(place: int, n: int, keys: Sequence[int]) -> int:
    bits = n.bit_length() // 2
    a = -(-n // (1 << bits))
    while True:
        left, right = place >> bits, place % (1 << bits)
        for number in range(len(keys) - 2, -1, -2):
            right = (right - (spread(left, keys[number + 1]) << bits >> 64)) % (1 << bits)
            left = (left - (spread(right, keys[number]) * a >> 64)) % a
        place = left << bits | right
        if place < n:
            return place


def keys_of(seed: int, epoch: int, n: int) -> list[int]:
    return make_keys(seed, epoch, n, 12 if n >= 4096 else 32)


class Order(NamedTuple):
    """How the samples of a source are shuffled: not at all, all with all, or with a locality (block, tile)."""

    seed: int | None
    locality: tuple[int, int] | None = None

    def at(self, n: int, epoch: int, place: int) -> int:
        """What stands at a place of an epoch of n."""
        if self.seed is None:
            return place
        if self.locality is None:
            return through_network(place, n, keys_of(self.seed, epoch, n))
        return Tiles(n, *self.locality, self.seed, epoch).at(place)

    def find(self, n: int, epoch: int, index: int) -> int:
        """Where something stands."""
        if self.seed is None:
            return index
        if self.locality is None:
            return back_through_network(index, n, keys_of(self.seed, epoch, n))
        return Tiles(n, *self.locality, self.seed, epoch).find(index)


@lru_cache(512)
def whole_order(order: Order, n: int, epoch: int) -> tuple[int, ...]:
    return tuple(order.at(n, epoch, place) for place in range(n))


class Tiles:
    """Blocks of samples in random order, then samples in random order within tiles of blocks."""

    def __init__(self, n: int, block: int, tile: int, seed: int, epoch: int) -> None:
        self.block, self.seed, self.epoch = min(block, n), seed, epoch
        self.num_blocks = -(-n // self.block)
        self.tile = min(tile, self.num_blocks)
        self.block_keys = keys_of(seed, epoch, self.num_blocks)
        self.short_slot = back_through_network(self.num_blocks - 1, self.num_blocks, self.block_keys)
        self.missing = self.num_blocks * self.block - n

    def begin(self, slot: int) -> int:
        """The first place of a slot; all blocks before it are whole, but perhaps one."""
        return min(slot, self.num_blocks) * self.block - self.missing * (slot > self.short_slot)

    def tile_of(self, place: int) -> tuple[int, int, list[int]]:
        """(first place, size, keys) of the tile that a place lies in. Its seed is its number, permuted."""
        number = bisect_right(range(self.num_blocks), place, key=lambda tile: self.begin(tile * self.tile)) - 1
        start, stop = (self.begin(each * self.tile) for each in (number, number + 1))
        seed = through_network(number, 2**62, keys_of(self.seed, self.epoch, 2**62))
        return start, stop - start, keys_of(seed, self.epoch, stop - start)

    def at(self, place: int) -> int:
        start, size, keys = self.tile_of(place)
        place = start + through_network(place - start, size, keys)
        slot = bisect_right(range(self.num_blocks), place, key=self.begin) - 1
        block = through_network(slot, self.num_blocks, self.block_keys)
        return block * self.block + place - self.begin(slot)

    def find(self, index: int) -> int:
        block, within = divmod(index, self.block)
        place = self.begin(back_through_network(block, self.num_blocks, self.block_keys)) + within
        start, size, keys = self.tile_of(place)
        return start + back_through_network(place - start, size, keys)


# One source: its own samples 0, 1, 2, … without end.


@dataclass
class Source:
    """`growths` are (own number from which on, samples added). With some, samples are dealt from a list of what is left
    of the epoch: what is added is shuffled together with it, or where samples are not shuffled all with all, follows.
    """

    size: int
    order: Order
    growths: list[tuple[int, int]] = field(default_factory=list)
    walks: bool = False
    """Whether it is dealt out from the beginning though nothing was added yet."""
    _dealt: list[tuple[int, int]] = field(default_factory=list)
    _left: list[int] = field(default_factory=list)
    _epoch: int = -1
    _passed: int = 0
    """How many were dealt since the order under way began."""

    def deliver(self, number: int) -> tuple[int, int]:
        """(epoch, index) of its own sample `number`."""
        if not (self.growths or self._dealt or self.walks):
            epoch, place = divmod(number, self.size)
            small = self.size <= SMALL
            order = (
                whole_order(self.order, self.size, epoch)[place] if small else self.order.at(self.size, epoch, place)
            )
            return epoch, order
        while len(self._dealt) <= number:
            if not self._left:
                self._epoch, self._passed = self._epoch + 1, 0
                self._left = list(whole_order(self.order, self.size, self._epoch))
            while self.growths and self.growths[0][0] <= len(self._dealt):
                self._grow(self.growths.pop(0)[1])
            self._dealt.append((self._epoch, self._left.pop(0)))
            self._passed += 1
        return self._dealt[number]

    def _grow(self, added: int) -> None:
        new = list(range(self.size, self.size + added))
        if self.order.seed is not None:
            seed = through_network(self._passed, 2**62, keys_of(self.order.seed, self.size, 2**62))
            new = [new[place] for place in whole_order(Order(seed, self.order.locality), added, self._epoch)]
            if self.order.locality is None:
                both = [*self._left, *range(self.size, self.size + added)]
                new = [both[place] for place in whole_order(Order(seed), len(both), self._epoch)]
                self._left = []
        self._left += new
        self.size, self._passed = self.size + added, 0


# Whose turn it is.


class Stage(NamedTuple):
    weights: tuple[float, ...]
    samples: int | None = None


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The same proportions in whole numbers, of at most 2**49 in sum."""
    exact = [Fraction(weight) for weight in weights]
    whole = [int(each * math.lcm(*(one.denominator for one in exact))) for each in exact]
    whole = [each // math.gcd(*whole) for each in whole]
    most, total = max(LARGEST_SUM, sum(whole)), sum(whole)
    return whole if most == LARGEST_SUM else [max(each * LARGEST_SUM // total, 1) if each else 0 for each in whole]


class Piece(NamedTuple):
    """[start, stop) of the run; the weights there; what each source had before, and was owed."""

    start: int
    stop: int
    weights: list[int]
    had: list[int]
    owed: list[int]

    def cut(self, group: list[int]) -> tuple[list[int], list[int]]:
        """The two sides of a group of sources, which weigh as much alike as can be; of equals, the larger left one."""
        half = sum(self.weights[i] for i in group) // 2
        place = min(range(1, len(group)), key=lambda n: (abs(half - sum(self.weights[i] for i in group[:n])), -n))
        return group[:place], group[place:]

    def left_of(self, group: list[int], m: int) -> int:
        """Of the first m samples of a group, those of its left side: its share, and what it is owed beyond that."""
        left, _ = self.cut(group)
        drawn = [i for i, weight in enumerate(self.weights) if weight]
        common = sum(self.owed[i] for i in drawn) // len(drawn)  # what the sources that went took along
        part, whole = (sum(self.weights[i] for i in each) for each in (left, group))
        debt, all_debts = (sum(self.owed[i] - common for i in each) for each in (left, group))
        phase = whole // 2 + (debt * whole - all_debts * part) // UNIT
        return min(max((m * part + min(max(phase, -whole), 2 * whole - 1)) // whole, 0), m)

    def draw(self, k: int) -> tuple[int, int]:
        group, m = [i for i, weight in enumerate(self.weights) if weight], k - self.start
        while len(group) > 1:
            now, then = self.left_of(group, m), self.left_of(group, m + 1)
            left, right = self.cut(group)
            group, m = (left, now) if then > now else (right, m - now)
        return group[0], self.had[group[0]] + m

    def count(self, stop: int) -> list[int]:
        counts, waiting = list(self.had), [([i for i, weight in enumerate(self.weights) if weight], stop - self.start)]
        while waiting:
            group, m = waiting.pop()
            if len(group) == 1:
                counts[group[0]] += m
            else:
                left, right = self.cut(group)
                waiting += [(left, self.left_of(group, m)), (right, m - self.left_of(group, m))]
        return counts

    def owe(self, stop: int) -> list[int]:
        total, length = sum(self.weights), stop - self.start
        each = zip(self.owed, self.weights, self.had, self.count(stop), strict=True)
        return [owed + length * UNIT * weight // total - (now - had) * UNIT for owed, weight, had, now in each]


class Turns:
    """k → (source, its own number), for chapters of stages: [(at, stages)], each replacing what came before."""

    def __init__(self, chapters: Sequence[tuple[int, Sequence[Stage]]], num_sources: int) -> None:
        self.pieces: list[Piece] = []
        had, owed = [0] * num_sources, [0] * num_sources
        for number, (at, stages) in enumerate(chapters):
            end = chapters[number + 1][0] if number + 1 < len(chapters) else FOREVER
            start = at
            for stage in stages:
                weights = whole_weights([*stage.weights, *[0.0] * (num_sources - len(stage.weights))])
                stop = min(start + (stage.samples or FOREVER), end)
                if start < stop:
                    self.pieces.append(Piece(start, stop, weights, had, owed))
                    if stop < FOREVER:
                        had, owed = self.pieces[-1].count(stop), self.pieces[-1].owe(stop)
                start = stop
        self.total = None if self.pieces[-1].stop == FOREVER else self.pieces[-1].stop

    def _piece(self, k: int) -> Piece:
        return self.pieces[bisect_right(self.pieces, k, key=lambda piece: piece.start) - 1]

    def draw(self, k: int) -> tuple[int, int]:
        return self._piece(k).draw(k)

    def count(self, k: int) -> list[int]:
        return self._piece(max(0, k - 1)).count(k)


# The run.


class Drawn(NamedTuple):
    """What sample k of the run is."""

    source: int
    epoch: int
    index: int


class Growth(NamedTuple):
    source: int
    samples: int
    at: int


class Run:
    """k → what it is."""

    def __init__(
        self,
        sizes: Sequence[int],
        orders: Sequence[Order],
        chapters: Sequence[tuple[int, Sequence[Stage]]],
        growths: Sequence[Growth] = (),
    ) -> None:
        self.turns = Turns(chapters, len(sizes))
        self.sources = [Source(*each) for each in zip(sizes, orders, strict=True)]
        for growth in sorted(growths, key=lambda each: each.at):
            own = self.turns.count(growth.at)[growth.source]
            self.sources[growth.source].growths.append((own, growth.samples))

    def deliver(self, k: int) -> Drawn:
        source, number = self.turns.draw(k)
        return Drawn(source, *self.sources[source].deliver(number))


def source_seed(seed: int, name: str) -> int:
    """Every source of a mixture is shuffled by itself."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{name}".encode()) >> 1
