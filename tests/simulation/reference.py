"""What a run must deliver, in plain Python: integers that cannot overflow, fractions, dictionaries and loops.

Written from the definitions (`docs/mixtures.md`, `docs/locality.md`, `docs/decisions/2026-11-15-permutation.md`); it
imports nothing of tokenfeed. Sources of up to `SMALL` samples are walked through one by one; larger ones by search.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

import xxhash

SMALL = 20_000
WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
LONGEST_PERIOD = 2**20
UNIT = 2**32  # rounding is carried from stage to stage in 2**-32 of a sample
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


@cache
def draw_table(counts: tuple[int, ...], rates: tuple[int, ...], owed: tuple[int, ...], most: int) -> list[int]:
    """The first places of a table: of the draws that may come, the one that must come first; of equals the first.

    After t places source i is due its share of t, and what it was owed before (in 2**-20). It may be drawn once that is
    e more than it had, and must be drawn before it is more than 1 − e behind: e is 1/(2n − 2) where nothing is owed.
    """
    drawn = [i for i, rate in enumerate(rates) if rate]
    period, size = sum(rates), sum(counts)
    if len(drawn) == 1:
        return drawn * min(size, most)
    phases = [Fraction(each, 1 << 20) for each in owed]
    slack = Fraction(0) if any(phases[i] for i in drawn) else Fraction(1, 2 * len(drawn) - 2)
    had, put = [0] * len(rates), {i: (0, i) for i in drawn}
    table = []
    for t in range(1, min(size, most) + 1):
        left = [i for i in drawn if had[i] < counts[i]]
        first = {i: min(size, math.ceil((had[i] + slack - phases[i]) * period / rates[i])) for i in left}
        may = [i for i in left if first[i] <= t]
        if may:
            chosen = min(may, key=lambda i: (math.floor((had[i] + 1 - slack - phases[i]) * period / rates[i]), i))
        else:  # all are ahead: the one that may be drawn first, of equals the one that was drawn last
            chosen = max(left, key=lambda i: (-first[i], put[i]))
        table.append(chosen)
        had[chosen] += 1
        put[chosen] = (t, chosen)
    return table


def normalise(weights: Sequence[float]) -> list[Fraction]:
    exact = [Fraction(weight).limit_denominator(10**6) for weight in weights]
    return [weight / sum(exact) for weight in exact]


def whole_counts(shares: Sequence[Fraction]) -> list[int]:
    """Shares as whole counts of the smallest period in which they are exact, else of the longest."""
    period = math.lcm(*(share.denominator for share in shares))
    if period <= LONGEST_PERIOD:
        return [int(share * period) for share in shares]
    lifted = [max(share, Fraction(1, LONGEST_PERIOD)) if share else share for share in shares]
    wanted = [share * LONGEST_PERIOD / sum(lifted) for share in lifted]
    counts = [max(int(want), want > 0) for want in wanted]
    missing = LONGEST_PERIOD - sum(counts)
    order = sorted(range(len(counts)), key=lambda i: counts[i] - wanted[i] if missing > 0 else -counts[i])
    for i in order[: abs(missing)]:
        counts[i] += 1 if missing > 0 else -1
    return counts


def due(rates: Sequence[int], places: int) -> list[int]:
    """What is due to sources after less than a period, in 2**-32 of a sample."""
    period = sum(rates)
    owed = [rate * places * UNIT // period for rate in rates]
    owed[rates.index(max(rates))] += places * UNIT - sum(owed)
    return owed


def apportion(owed: Sequence[int], size: int) -> list[int]:
    """Place after place to whom most is owed, in 2**-32 of a place; the first of equals."""
    counts = [max(0, due // UNIT) for due in owed]
    while (missing := size - sum(counts)) > 0:
        order = sorted(range(len(owed)), key=lambda i: (counts[i] * UNIT - owed[i], i))
        for i in order[:missing]:
            counts[i] += 1
    while sum(counts) > size:
        takers = [i for i in range(len(owed)) if counts[i]]
        order = sorted(takers, key=lambda i: (owed[i] - counts[i] * UNIT, i))
        for i in order[: sum(counts) - size]:
            counts[i] -= 1
    return counts


class Stage(NamedTuple):
    weights: tuple[float, ...]
    samples: int | None = None


class Piece(NamedTuple):
    """[start, stop) of the run, which repeats a table; and what each source had, and was owed, before."""

    start: int
    stop: int
    counts: tuple[int, ...]
    rates: tuple[int, ...]
    had: tuple[int, ...]
    owed: tuple[int, ...]

    def table(self) -> list[int]:
        owed = tuple((each + (1 << 11)) >> 12 for each in self.owed)
        return draw_table(self.counts, self.rates, owed, min(self.stop - self.start, 1 << 14))

    def count(self, stop: int) -> list[int]:
        periods, places = divmod(stop - self.start, sum(self.counts))
        begun = self.table()[:places] if places else []
        return [
            had + periods * count + begun.count(i)
            for i, (had, count) in enumerate(zip(self.had, self.counts, strict=True))
        ]

    def owe(self, stop: int) -> list[int]:
        periods, places = divmod(stop - self.start, sum(self.rates))
        each = zip(self.owed, self.rates, due(self.rates, places), self.had, self.count(stop), strict=True)
        return [owed + (rate * periods - (now - had)) * UNIT + more for owed, rate, more, had, now in each]


class Turns:
    """k → (source, its own number), for chapters of stages: [(at, stages)], each replacing what came before."""

    def __init__(self, chapters: Sequence[tuple[int, Sequence[Stage]]], num_sources: int) -> None:
        self.pieces: list[Piece] = []
        had, owed = [0] * num_sources, [0] * num_sources
        for number, (at, stages) in enumerate(chapters):
            end = chapters[number + 1][0] if number + 1 < len(chapters) else FOREVER
            start = at
            for stage in stages:
                weights = [*stage.weights, *[0.0] * (num_sources - len(stage.weights))]
                rates = whole_counts(normalise(weights))
                length = stage.samples or FOREVER
                tail = 0 if length == FOREVER else length % sum(rates)
                for size in (length - tail, tail):
                    stop = min(start + size, end)
                    if start >= stop:
                        continue
                    counts = rates
                    if size == tail:
                        wanted = [a + b for a, b in zip(owed, due(rates, tail), strict=True)]
                        drawn = [i for i, rate in enumerate(rates) if rate]
                        places = apportion([wanted[i] for i in drawn], tail)
                        counts = [places[drawn.index(i)] if rate else 0 for i, rate in enumerate(rates)]
                    piece = Piece(start, stop, tuple(counts), tuple(rates), tuple(had), tuple(owed))
                    self.pieces.append(piece)
                    start = stop
                    if stop < FOREVER:
                        had, owed = piece.count(stop), piece.owe(stop)
        self.total = None if self.pieces[-1].stop == FOREVER else self.pieces[-1].stop

    def _piece(self, k: int) -> Piece:
        return self.pieces[bisect_right(self.pieces, k, key=lambda piece: piece.start) - 1]

    def draw(self, k: int) -> tuple[int, int]:
        piece = self._piece(k)
        period = sum(piece.counts)
        periods, place = divmod(k - piece.start, period)
        table = piece.table()
        source = table[place]
        return source, piece.had[source] + periods * piece.counts[source] + table[:place].count(source)

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
