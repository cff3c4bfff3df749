"""Which source a sample of a mixture is drawn from, and back, by a tree over the sources.

A node divides the samples of a range of sources between its two sides. Of its first m samples, its left side has

    (m · left weight + phase) // weight        kept within 0 and m

which grows by 0 or 1 with m, so sample m belongs to one side, and is there the sample of that number. From the root
down, sample k of a stage becomes a source and a number of its own; from the source up, the number becomes k again.

    weights 3 (a) and 1 (b), phase 2:   m         0 1 2 3 4 5 6 7 8
                                        a had     0 1 2 2 3 4 5 5 6      b had 0 0 0 1 1 1 1 2 2
                                        drawn     a a b a a a b a

The trees of all stages lie in one array. A vertex v >= 0 is a source, v < 0 is node ~v.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel

LEFT_WEIGHT, WEIGHT, PHASE, LEFT, RIGHT, PARENT = range(6)
"""Columns of a node. The node above it is -1 for a root."""
COLUMNS = 6
_END = 1 << 62
"""Samples from there on are never reached."""
_FAR = 1.5 * 2.0**62
"""Beyond the end, however the division was rounded; and what is less fits 64 bits."""


@inlined
def _divide(m, a, phase, both):
    """(m · a + phase) // both and the remainder, exact for m < 2**62, a and both <= 2**50, |phase| <= 2**51.

    m · a has up to 112 bits. The estimate is less than 2**11 off, so what it leaves fits 64 bits: the difference of the
    two wrapped products is right.
    """
    estimate = np.int64(m * (a / both))
    rest = m * a + phase - estimate * both
    return estimate + rest // both, rest % both


@kernel
def find_sources(samples, starts, total, roots, nodes, before, sources, numbers):
    """The source of every sample of the run, and the number that it has there. Returns -1, or a row outside [0, total).

    Stage j begins with sample starts[j]; then source s has had before[j, s] samples. At most 2**62 samples.
    """
    for row in range(samples.size):
        if samples[row] < 0 or samples[row] >= total:
            return row
        stage = np.searchsorted(starts, samples[row], side="right") - 1
        m = samples[row] - starts[stage]
        vertex = roots[stage]
        while vertex < 0:
            node = nodes[~vertex]
            now, rest = _divide(m, node[LEFT_WEIGHT], node[PHASE], node[WEIGHT])
            then = min(max(now + (rest + node[LEFT_WEIGHT] >= node[WEIGHT]), 0), m + 1)
            now = min(max(now, 0), m)
            if then > now:
                m, vertex = now, node[LEFT]
            else:
                m, vertex = m - now, node[RIGHT]
        sources[row] = vertex
        numbers[row] = before[stage, vertex] + m
    return -1


@kernel
def find_samples(source, numbers, starts, roots, nodes, before, parents, samples):
    """The samples of the run that are these numbers of a source; -1 where they never come.

    parents[j, s] is the node above source s in stage j, -1 where there is none.
    """
    for row in range(numbers.size):
        samples[row] = -1
        stage = np.searchsorted(before[:, source], numbers[row], side="right") - 1
        if stage < 0 or numbers[row] < 0:
            continue
        m = numbers[row] - before[stage, source]
        vertex, parent = np.int64(source), parents[stage, source]
        while parent >= 0:
            node = nodes[parent]
            is_left = node[LEFT] == vertex
            weight = node[LEFT_WEIGHT] if is_left else node[WEIGHT] - node[LEFT_WEIGHT]
            if m * (node[WEIGHT] / weight) >= _FAR:
                break
            # The first place at which the side has had m + 1 samples, less one.
            shift = node[WEIGHT] - 1 - node[PHASE] if is_left else node[PHASE]
            m = max(m, _divide(m, node[WEIGHT], shift, weight)[0])
            vertex, parent = ~parent, node[PARENT]
        if vertex == roots[stage] and m < _END - starts[stage]:
            samples[row] = starts[stage] + m
