"""The source that each place of a table draws from, so that every prefix has its share of every source.

Source i is due cᵢ samples in every P places, and is owed aᵢ before the first. After t places, x of them its own, it is
aᵢ + cᵢ·t/P − x samples behind. Giving each place to the source that is most overdue fails by more than one sample (so
does Webster's rule); Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32, 1980) does not.
Number the places t = 1, 2, …, and let e be the slack; the draw that follows x earlier ones of source i

    may not come before  t = ⌈P·(x + e − aᵢ) / cᵢ⌉              else the source is more than 1 − e ahead
    must have come at    ⌊P·(x + 1 − e − aᵢ) / cᵢ⌋ + 1          else it is more than 1 − e behind

and of the draws that may come, the one that must come first is taken; on a tie, that of the lower source. Where nothing
is owed, e = 1/(2n − 2) of n sources holds, by the theorem. Else e = 0: earliest deadlines keep every source within one
sample if anything does. A table may give a source another count than cᵢ·t/P, rounded: its draws then end there.

    counts (3, 2), P 5:  table 0 1 0 1 0;  ranks 0 0 1 1 2;  positions of source 0: 0 2 4, of source 1: 1 3

What is computed here must never change: a checkpoint holds a number of samples, and means these.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel, step

_BITS = 32  # a key of the heap is (deadline << 32) + source
_LOW = (1 << _BITS) - 1
_RANK_BITS = 20  # an entry of many tables is (source << 20) + rank, in 32 bits
_RANK = (1 << _RANK_BITS) - 1
_UNIT = 1 << 20  # what is owed is counted in 2**-20 of a sample
_MOST_OWED = _UNIT << 10
_MOST_PLACES = 1 << 20


@inlined
def _push(heap, size, key):
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent] <= key:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = key


@inlined
def _drop_first(heap, size):
    """Take out heap[0]; of `size` keys, size − 1 are left."""
    size -= 1
    key = heap[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key


@inlined
def _release(x, rate, phase, period, slack, share, unit):
    """The first place that the draw after x earlier ones may have; e is share / slack. Nothing exceeds 2**62."""
    return -(period * (slack * (phase - x * unit) - share * unit) // (slack * unit * rate))


@inlined
def _deadline(x, rate, phase, period, slack, share, unit):
    """The last place at which the draw after x earlier ones need not have come."""
    return period * (slack * ((x + 1) * unit - phase) - share * unit) // (slack * unit * rate)


@inlined
def _fill(counts, rates, phases, table):
    """table[t] becomes the source that place t draws from. Source i is drawn counts[i] times in all.

    It is due rates[i] samples in every Σ rates places, and phases[i] · 2**-20 samples before the first. Of Σ counts
    places those that fit are made. O(P log n): 0.1 s for a thousand sources and P = 2**20, the largest for which
    nothing overflows whatever n.
    """
    n, places, period, size = counts.size, table.size, 0, 0
    is_wrong, is_owed, is_far = n == 0, False, False
    for i in range(n):  # sum, min and their like take Numba 2 s to compile
        period += rates[i]
        size += counts[i]
        is_wrong |= counts[i] < 0 or rates[i] < 1
        is_owed |= phases[i] != 0
        is_far |= not -_MOST_OWED <= phases[i] <= _MOST_OWED
    if is_wrong or not 0 < places <= size or size > period:
        raise ValueError("rates must be positive, and counts add up to the places of a table, a period at most")
    if period > _MOST_PLACES or is_far:
        raise ValueError("a period has at most 2**20 places, and no source is owed 2**10 samples")
    if n == 1:
        for t in range(places):
            table[t] = 0
        return
    slack, share, unit = 2 * n - 2, 1, 1
    if is_owed:
        slack, share, unit = 1, 0, _UNIT
    drawn = np.zeros(n, np.int64)
    heap = np.empty(n, np.int64)  # of the sources that may be drawn: when they must be, and which
    num_open = 0
    waiting = np.empty(places + 2, np.int32)  # the last source that may be drawn from place t on, not before …
    before = np.empty(n, np.int32)  # … and the one put there before it; those after the table are in one place
    for t in range(waiting.size):
        waiting[t] = -1
    for i in range(n):
        if counts[i] > 0:
            release = max(min(_release(0, rates[i], phases[i], period, slack, share, unit), size, places + 1), 1)
            before[i] = waiting[release]
            waiting[release] = i
    for t in range(1, places + 1):
        i = waiting[t]
        while i >= 0:
            _push(heap, num_open, (_deadline(drawn[i], rates[i], phases[i], period, slack, share, unit) << _BITS) + i)
            num_open += 1
            i = before[i]
        if num_open > 0:
            i = heap[0] & _LOW
            _drop_first(heap, num_open)
            num_open -= 1
        else:  # all are ahead: take the next that may be drawn
            later = t + 1
            while later <= places and waiting[later] < 0:
                later += 1
            i = waiting[later]
            if later > places:
                first, j = size + 1, i
                while j >= 0:
                    release = min(_release(drawn[j], rates[j], phases[j], period, slack, share, unit), size)
                    if release < first:
                        first, i = release, j
                    j = before[j]
            if waiting[later] == i:
                waiting[later] = before[i]
            else:
                j = waiting[later]
                while before[j] != i:
                    j = before[j]
                before[j] = before[i]
        table[t - 1] = i
        drawn[i] += 1
        if drawn[i] < counts[i]:
            release = _release(drawn[i], rates[i], phases[i], period, slack, share, unit)
            if release <= t:
                _push(
                    heap, num_open, (_deadline(drawn[i], rates[i], phases[i], period, slack, share, unit) << _BITS) + i
                )
                num_open += 1
            else:
                release = min(release, size, places + 1)
                before[i] = waiting[release]
                waiting[release] = i


@inlined
def _fill_active(counts, rates, phases, table):
    """As `_fill`, where a source with a rate of 0 is never drawn from."""
    active = np.empty(rates.size, np.int64)
    known = np.empty((3, rates.size), np.int64)
    n = 0
    for i in range(rates.size):
        if rates[i] != 0:
            active[n] = i
            known[0, n], known[1, n], known[2, n] = counts[i], rates[i], phases[i]
            n += 1
    if table.size > 0:
        _fill(known[0, :n], known[1, :n], known[2, :n], table)
    for t in range(table.size):
        table[t] = active[table[t]]


@kernel
def build_table(counts, rates, phases, table):
    """As `_fill`, for calls from Python."""
    _fill(counts, rates, phases, table)


@kernel
def follow(starts, rates, bases, carry):
    """The samples that sources had, and were owed in 2**-32 of a sample, where many changes of weights follow another.

    Change i draws from sample starts[i] on by rates[i]; bases[0] and carry[0] are given, and the others are set.
    """
    one = 1 << 32
    owed = np.empty(rates.shape[1], np.int64)
    for i in range(starts.size - 1):
        period = 0
        for j in range(owed.size):
            period += rates[i, j]
            owed[j] = (carry[i, j] + (1 << 11)) >> 12
        periods = (starts[i + 1] - starts[i]) // period
        places = (starts[i + 1] - starts[i]) - periods * period
        drawn = np.zeros(rates.shape[1], np.int64)
        table = np.empty(places, np.int32)
        _fill_active(rates[i], rates[i], owed, table)
        for t in range(places):
            drawn[table[t]] += 1
        largest, total = 0, 0
        for j in range(drawn.size):
            whole = rates[i, j] * places // period
            due = whole * one + (rates[i, j] * places - whole * period) * one // period
            total += due
            if rates[i, j] > rates[i, largest]:
                largest = j
            bases[i + 1, j] = bases[i, j] + rates[i, j] * periods + drawn[j]
            carry[i + 1, j] = carry[i, j] + due - drawn[j] * one
        carry[i + 1, largest] += places * one - total


@step
def _segment(k, starts, buckets, shift):
    """The last segment that begins at k or before; buckets[b] is that of sample b << shift."""
    bucket = min(k >> shift, buckets.size - 2)
    low, high = buckets[bucket], buckets[bucket + 1]
    while low < high:
        middle = (low + high + 1) // 2
        if starts[middle] <= k:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def make_many(samples, shift, stop, starts, buckets, offsets, counts, rates, phases, tables, is_made):
    """Make the tables of the segments that samples lie in: source << 20 | rank, see `index_table`."""
    for row in range(samples.size):
        if not 0 <= samples[row] < stop:
            continue
        i = _segment(samples[row], starts, buckets, shift)
        if not is_made[i]:
            table = np.empty(offsets[i + 1] - offsets[i], np.int32)
            _fill_active(counts[i], rates[i], phases[i], table)
            seen = np.zeros(rates.shape[1], np.int64)
            for t in range(table.size):
                tables[offsets[i] + t] = np.int64(table[t]) << _RANK_BITS | seen[table[t]]
                seen[table[t]] += 1
            is_made[i] = True


@kernel
def locate_many(samples, shift, stop, starts, buckets, offsets, known, tables, is_made, sources, numbers):
    """As `locate`, for samples of any of many segments; known[i, j] is (base, count) of source j in segment i.

    Returns −1 if a table is not made yet, else how many rows were set.
    """
    found = 0
    i = np.int64(0)
    for row in range(samples.size):  # first where to look, then all looks: those do not wait for each other
        k = samples[row]
        numbers[row] = -1
        if 0 <= k < stop:
            if k < starts[i] or (i + 1 < starts.size and k >= starts[i + 1]):
                i = _segment(k, starts, buckets, shift)
            if not is_made[i]:
                return -1
            numbers[row] = i
            found += 1
    for row in range(samples.size):
        i = numbers[row]
        if i >= 0:
            period, place = offsets[i + 1] - offsets[i], samples[row] - starts[i]
            periods = place // period if place >= period else 0
            entry = np.int64(tables[offsets[i] + place - periods * period])
            j = entry >> _RANK_BITS
            sources[row] = j
            numbers[row] = known[i, j, 0] + periods * known[i, j, 1] + (entry & _RANK)
    return found


@kernel
def index_table(table, offsets, ranks, positions):
    """ranks[t]: how often table[t] stood before place t. positions[offsets[i] + r]: where source i stands with rank r.

    `offsets` are the cumulated counts, beginning with 0.
    """
    seen = np.zeros(offsets.size, np.int64)
    for t in range(table.size):
        i = table[t]
        ranks[t] = seen[i]
        positions[offsets[i] + seen[i]] = t
        seen[i] += 1


@kernel
def count_before(t, period, offsets, positions, out):
    """out[i] becomes how often source i stands in the first t < period places. O(1) each.

    It is near the source's share, so few places are looked at, whatever the counts.
    """
    for i in range(out.size):
        first, count = offsets[i], offsets[i + 1] - offsets[i]
        x = count * t // period
        while x < count and positions[first + x] < t:
            x += 1
        while x > 0 and positions[first + x - 1] >= t:
            x -= 1
        out[i] = x


@kernel
def locate(samples, start, stop, names, bases, counts, table, ranks, sources, numbers):
    """The samples k in [start, stop): sources[j] and numbers[j] become which source, and which of its own samples.

    Period after period of the table is repeated from `start` on. Its i-th source is source names[i], which had bases[i]
    samples before. Rows with another k are left alone. Returns how many rows were set. About 10 ns a row, 20 where they
    are far apart.

        start 100, names (4, 7), bases (60, 40), table 0 1 0 1 0:
        k = 112 = 100 + 2·5 + 2 → the source at place 2, 4; its number 60 + 2·3 + 1 = 67
    """
    period = table.size
    found = 0
    for row in range(samples.size):
        k = samples[row]
        if start <= k < stop:
            found += 1
            periods = (k - start) // period
            place = (k - start) - periods * period
            i = table[place]
            sources[row] = names[i]
            numbers[row] = bases[i] + periods * counts[i] + ranks[place]
    return found


@kernel
def invert(numbers, start, stop, base, limit, positions, period, samples):
    """Undo `locate` for one source: samples[j] becomes the k of its own numbers[j], for those in [base, limit).

    `positions` are those of this source in the period. Where k would be `stop` or more, it becomes -1.
    """
    count = positions.size
    for row in range(numbers.size):
        if base <= numbers[row] < limit:
            periods = (numbers[row] - base) // count
            rank = (numbers[row] - base) - periods * count
            samples[row] = -1
            if periods <= (stop - start) // period:  # else the product could be beyond 2**63
                first = start + periods * period
                if positions[rank] < stop - first:
                    samples[row] = first + positions[rank]
