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
from typing import Any, NamedTuple

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
        if n <= SMALL:
            return whole_order(self, n, epoch)[0][place]
        return self.compute(n, epoch, place)

    def find(self, n: int, epoch: int, index: int) -> int:
        """Where something stands."""
        if n <= SMALL:
            return whole_order(self, n, epoch)[1][index]
        if self.seed is None:
            return index
        if self.locality is None:
            return back_through_network(index, n, keys_of(self.seed, epoch, n))
        return Tiles(n, *self.locality, self.seed, epoch).find(index)

    def compute(self, n: int, epoch: int, place: int) -> int:
        if self.seed is None:
            return place
        if self.locality is None:
            return through_network(place, n, keys_of(self.seed, epoch, n))
        return Tiles(n, *self.locality, self.seed, epoch).at(place)


@lru_cache(512)
def whole_order(order: Order, n: int, epoch: int) -> tuple[list[int], dict[int, int]]:
    values = [order.compute(n, epoch, place) for place in range(n)]
    return values, {value: place for place, value in enumerate(values)}


class Tiles:
    """Blocks of samples in random order, mixed within tiles of blocks, and again within tiles half a tile later."""

    def __init__(self, n: int, block: int, tile: int, seed: int, epoch: int) -> None:
        self.n, self.block = n, min(block, n)
        self.num_blocks = -(-n // self.block)
        self.tile = min(tile, self.num_blocks)
        self.block_keys = keys_of(seed, epoch, self.num_blocks)
        size = self.tile * self.block
        rounds = 6 if size >= 2**16 else 8 if size >= 2**12 else 12
        self.keys = [make_keys(scramble((seed + stage * GOLDEN) % WORD), epoch, size, rounds) for stage in (1, 2)]
        self.short_slot = back_through_network(self.num_blocks - 1, self.num_blocks, self.block_keys)
        self.missing = self.num_blocks * self.block - n

    def begin(self, slot: int) -> int:
        """The first place of a slot; all blocks before it are whole, but perhaps one."""
        return min(slot, self.num_blocks) * self.block - self.missing * (slot > self.short_slot)

    def tile_of(self, place: int, stage: int) -> tuple[int, int, int]:
        """(number, first place, size) of the tile that a place lies in. Tile 0 ends where whole ones begin."""
        first = self.tile // 2 if stage else 0
        num_tiles = -(-(self.num_blocks - first) // self.tile) + 1
        ends = range(num_tiles)
        number = bisect_right(ends, place, key=lambda tile: self.begin(first + tile * self.tile))
        start = self.begin(max(0, first + (number - 1) * self.tile))
        return number, start, self.begin(first + number * self.tile) - start

    def at(self, place: int) -> int:
        for stage in (1, 0):
            number, start, size = self.tile_of(place, stage)
            word = scramble((number + GOLDEN) % WORD)
            place = start + through_network(place - start, size, [key ^ word for key in self.keys[stage]])
        slot = bisect_right(range(self.num_blocks), place, key=self.begin) - 1
        block = through_network(slot, self.num_blocks, self.block_keys)
        return block * self.block + place - self.begin(slot)

    def find(self, index: int) -> int:
        block, within = divmod(index, self.block)
        place = self.begin(back_through_network(block, self.num_blocks, self.block_keys)) + within
        for stage in (0, 1):
            number, start, size = self.tile_of(place, stage)
            word = scramble((number + GOLDEN) % WORD)
            place = start + back_through_network(place - start, size, [key ^ word for key in self.keys[stage]])
        return place


# One source: its own samples 0, 1, 2, … without end, less what was taken out of it.


@dataclass
class Source:
    """`removals` are (own number from which on, indices), in the order in which they were made."""

    num_samples: int
    order: Order
    removals: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    _walked: list[tuple[int, int]] = field(default_factory=list)
    _position: int = 0

    def at(self, position: int) -> tuple[int, int]:
        """(epoch, index) at a place of the endless stream from which nothing is missing."""
        epoch, place = divmod(position, self.num_samples)
        return epoch, self.order.at(self.num_samples, epoch, place)

    def find(self, epoch: int, index: int) -> int:
        return epoch * self.num_samples + self.order.find(self.num_samples, epoch, index)

    def deliver(self, number: int) -> tuple[int, int]:
        """(epoch, index) of its own sample `number`."""
        if not self.removals:
            return self.at(number)
        if self.num_samples > SMALL:
            return self.at(self.search(number))
        while len(self._walked) <= number:
            gone = [indices for start, indices in self.removals if start <= len(self._walked)]
            found = self.at(self._position)
            self._position += 1
            if not any(found[1] in indices for indices in gone):
                self._walked.append(found)
        return self._walked[number]

    def search(self, number: int) -> int:
        """The place of own sample `number`: the first before which, itself included, more than `number` are left."""
        most = (number // (self.num_samples - len(set().union(*(gone for _, gone in self.removals)))) + 2) * (
            self.num_samples
        )
        return bisect_right(range(most), number, key=lambda place: self.left_before(place + 1))

    def left_before(self, place: int) -> int:
        """How many samples before a place are not missing."""
        gone: dict[int, int] = {}
        for stage, (start, indices) in enumerate(self.removals):
            begin = self._begin(stage, start)
            for index in indices:
                gone[index] = min(begin, gone.get(index, begin))
        return place - sum(self._count(index, begin, place) for index, begin in gone.items())

    def _begin(self, stage: int, start: int) -> int:
        """The place from which on a removal holds: behind `start` samples of the source with those before it."""
        if start == 0:
            return 0
        earlier = Source(self.num_samples, self.order, self.removals[:stage])
        return (earlier.search(start - 1) if stage else start - 1) + 1

    def _count(self, index: int, begin: int, end: int) -> int:
        """How often a sample stands in [begin, end)."""

        def before(place: int) -> int:
            epoch = place // self.num_samples
            return epoch + (find_cached(self.num_samples, self.order, epoch, index) < place)

        return max(0, before(end) - before(begin))


@lru_cache(1 << 16)
def find_cached(num_samples: int, order: Order, epoch: int, index: int) -> int:
    return Source(num_samples, order).find(epoch, index)


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


class Removal(NamedTuple):
    """Samples of a source that are missing from sample `at` on."""

    source: int
    indices: frozenset[int]
    at: int


class Growth(NamedTuple):
    source: int
    samples: int
    at: int


Change = Removal | Growth


class Run:
    """k → what it is. `changes` as they were made."""

    def __init__(
        self,
        sizes: Sequence[int],
        orders: Sequence[Order],
        chapters: Sequence[tuple[int, Sequence[Stage]]],
        changes: Sequence[Change] = (),
    ) -> None:
        self.turns = Turns(chapters, len(sizes))
        self.sources = [Source(*each) for each in zip(sizes, orders, strict=True)]
        changes = sorted(changes, key=lambda change: change.at)
        self.dealt: list[Any] = []
        if all(isinstance(change, Removal) for change in changes):
            for change in changes:
                own = self.turns.count(change.at)[change.source]
                self.sources[change.source].removals.append((own, change.indices))
            return
        from simulation.dealing import Dealt  # which needs orders of this module

        self.dealt = [Dealt(*each) for each in zip(sizes, orders, strict=True)]
        for change in changes:
            counts = self.turns.count(change.at)
            what = ("remove", change.indices) if isinstance(change, Removal) else ("grow", change.samples)
            self.dealt[change.source].changes.append((counts[change.source], *what))

    def deliver(self, k: int) -> Drawn:
        source, number = self.turns.draw(k)
        return Drawn(source, *(self.dealt or self.sources)[source].deliver(number))


def source_seed(seed: int, name: str) -> int:
    """Every source of a mixture is shuffled by itself."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{name}".encode()) >> 1
