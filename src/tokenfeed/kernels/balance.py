"""Dealing the samples of a step to bins, one for each rank and micro-batch, so that the largest load is small.

Every sample goes to the bin with the smallest load so far (of equal loads, the one with fewer rows, then the lower
number). Given samples from the costliest down, that is the rule of longest processing time first. Then the largest bin
gives: in each round it moves one sample to another bin, or swaps one for a cheaper one, whichever leaves the largest of
the two loads smallest. All numbers are integers, so that every rank on any machine finds the same bins.

    costs 7 6 5 4 3 2, two bins:  7 → A, 6 → B, 5 → B, 4 → A, 3 → A, 2 → B:  14 and 13
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel

NONE = -1
CLOSE_ENOUGH = 2048
"""Rounds end when the largest load is above the mean by less than this part of it."""


@inlined
def _nothing(size):
    array = np.empty(size, np.int64)
    for i in range(size):
        array[i] = NONE
    return array


@inlined
def _is_before(loads, rows, one, other):
    if loads[one] != loads[other]:
        return loads[one] < loads[other]
    if rows[one] != rows[other]:
        return rows[one] < rows[other]
    return one < other


@inlined
def _sift_down(heap, size, loads, rows):
    """Put the top of a heap of bins where it belongs."""
    place = 0
    top = heap[0]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(loads, rows, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(loads, rows, heap[child], top):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = top


@inlined
def _unlink(heads, following, held, sample):
    at = heads[held]
    if at == sample:
        heads[held] = following[sample]
        return
    while following[at] != sample:
        at = following[at]
    following[at] = following[sample]


@inlined
def _link(heads, following, held, sample):
    """Samples of a bin are linked in the order of their numbers, and so from the costliest down."""
    at = heads[held]
    if at == NONE or at > sample:
        following[sample] = at
        heads[held] = sample
        return
    while following[at] != NONE and following[at] < sample:
        at = following[at]
    following[sample] = following[at]
    following[at] = sample


@kernel
def deal(costs, alone, bins, loads, most_rows, rounds):
    """Fill `bins` with the bin of every sample, and `loads` with their loads.

    Samples marked `alone` come first, and each has a bin for itself; no bin has more than `most_rows` samples. `rounds`
    of improvement need costs that descend after those. O(samples · log bins), and up to O(samples) for a round.
    """
    num_bins = loads.size
    rows = np.zeros(num_bins, np.int64)
    heap = np.empty(num_bins, np.int64)
    heads, tails = _nothing(num_bins), _nothing(num_bins)
    following = _nothing(costs.size)
    size = num_bins
    total = 0
    for held in range(num_bins):
        heap[held] = held
        loads[held] = 0
    for i in range(costs.size):
        held = heap[0]
        bins[i] = held
        loads[held] += costs[i]
        total += costs[i]
        rows[held] += 1
        if alone[i]:
            rows[held] = most_rows
        elif tails[held] == NONE:
            heads[held] = i
        else:
            following[tails[held]] = i
        tails[held] = i
        if rows[held] >= most_rows:
            size -= 1
            heap[0] = heap[size]
        _sift_down(heap, size, loads, rows)
    mean = total // num_bins
    for _ in range(rounds):
        largest = 0
        for held in range(1, num_bins):
            if loads[held] > loads[largest]:
                largest = held
        if heads[largest] == NONE or loads[largest] - mean <= mean // CLOSE_ENOUGH:
            break
        best = loads[largest]
        giver, taken, taker = NONE, NONE, NONE
        for held in range(num_bins):
            gap = loads[largest] - loads[held]
            if gap - gap // 2 + loads[held] >= best or (heads[held] == NONE and rows[held] >= most_rows):
                continue  # no better, whatever moves; or a sample that is to be alone
            before, after = NONE, heads[held]
            given = heads[largest]
            while given != NONE:
                while after != NONE and costs[after] > costs[given] - gap // 2:
                    before = after
                    after = following[after]
                for choice in range(3):
                    back = before if choice == 0 else after if choice == 1 else NONE
                    if back == NONE and (choice < 2 or rows[held] >= most_rows):
                        continue
                    moved = costs[given] - (costs[back] if back != NONE else 0)
                    worse = max(loads[largest] - moved, loads[held] + moved)
                    if worse < best:
                        best = worse
                        giver, taken, taker = given, back, held
                given = following[given]
        if giver == NONE:
            break
        moved = costs[giver]
        _unlink(heads, following, largest, giver)
        if taken != NONE:
            moved -= costs[taken]
            _unlink(heads, following, taker, taken)
            _link(heads, following, largest, taken)
            bins[taken] = largest
        else:
            rows[largest] -= 1
            rows[taker] += 1
        _link(heads, following, taker, giver)
        bins[giver] = taker
        loads[largest] -= moved
        loads[taker] += moved
