"""One source of a run as a list of what is left of its epoch: samples are dealt out one by one, whatever changes."""

from collections.abc import Sequence

import xxhash

from simulation.reference import Order, scramble

__all__ = ["Dealt"]


class Dealt:
    """`changes` are (own number, what, value): `grow` by samples, samples to `remove`."""

    def __init__(self, num_samples: int, order: Order) -> None:
        self.num_samples, self.plan = num_samples, order
        self.changes: list[tuple[int, str, object]] = []
        self.removed: set[int] = set()
        self.epoch, self.count = -1, 0
        self.walked: list[tuple[int, int]] = []
        self.begin_epoch()

    def deliver(self, number: int) -> tuple[int, int]:
        """(epoch, index) of its own sample `number`."""
        while len(self.walked) <= number:
            while self.changes and self.changes[0][0] <= self.count:
                _, what, value = self.changes.pop(0)
                getattr(self, what)(value)
            self.walked.append(self.deal())
        return self.walked[number]

    def order(self, size: int, seed: int | None) -> list[int]:
        return [Order(seed, self.plan.locality).at(size, self.epoch, place) for place in range(size)]

    def begin_epoch(self) -> None:
        self.epoch += 1
        self.left, self.is_fresh = self.order(self.num_samples, self.plan.seed), True
        self.streams = [self.left[:]]

    def advance(self) -> None:
        self.is_fresh = False
        del self.left[0]
        if not self.left:
            self.begin_epoch()

    def peek(self) -> tuple[int, int]:
        while (index := self.left[0]) in self.removed:
            self.advance()
        return self.epoch, index

    def deal(self) -> tuple[int, int]:
        dealt = self.peek()
        self.advance()
        self.count += 1
        return dealt

    def grow(self, added: int) -> None:
        self.peek()
        new = range(self.num_samples, self.num_samples + added)
        self.num_samples += added
        if self.is_fresh:
            self.epoch -= 1
            self.begin_epoch()
            return
        left = set(self.left)
        seed, key = (None if self.plan.seed is None else keyed(f"{self.plan.seed}{mark}{self.count}") for mark in "+:")
        self.streams = [[each for each in stream if each in left] for stream in self.streams]
        self.streams.append([new[place] for place in self.order(added, seed)])
        streams = [stream for stream in self.streams if stream]
        self.left = merge(streams, None if self.plan.locality else key, 0)

    def remove(self, indices: Sequence[int]) -> None:
        self.removed |= set(indices)


def keyed(text: str) -> int:
    return int(xxhash.xxh3_64_intdigest(text.encode())) >> 1


def merge(lists: list[list[int]], key: int | None, first: int) -> list[int]:
    """Lists as one, in the order of each: spread evenly by a key, or without one, one after the other.

    `first` is the number of the first list, from which phases follow.
    """
    if len(lists) == 1:
        return lists[0]
    total = sum(map(len, lists))
    cut = min(range(1, len(lists)), key=lambda place: abs(2 * sum(map(len, lists[:place])) - total))
    left, right = merge(lists[:cut], key, first), merge(lists[cut:], key, first + cut)
    shift = 61 - total.bit_length()
    alpha, phase = 1 << shift, 0
    if key is not None:
        word = scramble((key + 0x9E3779B97F4A7C15 * (first + cut + 1)) % 2**64)
        alpha, phase = max(1, (len(left) << shift) // total), (word >> 3) & ((1 << shift) - 1)
    merged = []
    for q in range(total):
        passed, then = (max(k - len(right), min(len(left), (k * alpha + phase) >> shift)) for k in (q, q + 1))
        merged.append(left[passed] if then > passed else right[q - passed])
    return merged
