"""Several lists as one, each spread evenly over all of it: what is left of an epoch of a source that grew.

A binary tree over the lists; the order of a list stays. Of the first q elements of a node with `left` and `right`
elements below it,

    f(q) = max(q − right, min(left, (alpha · q + phase) >> shift)),    alpha ≈ left / (left + right) · 2**shift

are of its left side, the others of its right side: both f and q − f grow by 0 or 1 with q, whatever was rounded. So an
element is found from the root in one step a node, and its place from the leaf. Lists are split where both sides are as
equal as can be, so that a list that is half of all is found in one step.

    lists of 4 and 2, phase 0:  f = 0 0 1 2 2 3 4;  elements  right 0, left 0, left 1, right 1, left 2, left 3

What is computed here must never change: a checkpoint holds a number of samples, and means this order.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel, step
from tokenfeed.kernels.permutation import GOLDEN, scramble

COLUMNS = 8
"""int64 numbers of a node: one line of the cache."""
_ALPHA, _PHASE, _SHIFT, _LEFT, _RIGHT, _LEFT_CHILD, _RIGHT_CHILD, _PARENT = range(COLUMNS)
_REST, _BEGIN, _NODE, _SLOT, _WHOLE, _SIZE, _EPOCH = range(7)  # of a chapter: see `place_numbers`
# A child below 0 is a list, ~child. A parent is 2 · node + 1 for its right child, + 0 for its left one; −1 for none.


@step
def _passed(nodes, node, q):
    """f(q) of a node."""
    share = (q * nodes[node, _ALPHA] + nodes[node, _PHASE]) >> nodes[node, _SHIFT]
    return max(q - nodes[node, _RIGHT], min(nodes[node, _LEFT], share))


@inlined
def _middle(ends, low, high):
    """Where lists [low, high) are cut in two that are as equal as can be; `ends` are cumulated sizes."""
    twice = ends[low] + ends[high]
    middle, top = low + 1, high - 1
    while middle < top:
        between = (middle + top) // 2
        if 2 * ends[between] >= twice:
            top = between
        else:
            middle = between + 1
    if middle > low + 1 and twice - 2 * ends[middle - 1] <= 2 * ends[middle] - twice:
        middle -= 1
    return middle


@kernel
def build_tree(sizes, is_even, key, nodes, parents):
    """Fill the nodes of a tree over lists of these positive sizes, one fewer than there are lists; node 0 is the root.

    Unless `is_even`, every list comes before all after it. parents[i] becomes the parent of list i.
    """
    ends = np.zeros(sizes.size + 1, np.int64)
    for i in range(sizes.size):
        ends[i + 1] = ends[i] + sizes[i]
    waiting = np.empty((sizes.size + 1, 3), np.int64)
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, sizes.size, -1
    count, made = 1, 0
    while count > 0:
        count -= 1
        low, high, parent = waiting[count, 0], waiting[count, 1], waiting[count, 2]
        child = made
        if high - low == 1:
            child = ~low
            parents[low] = parent
        if parent >= 0:
            nodes[parent >> 1, _RIGHT_CHILD if parent & 1 else _LEFT_CHILD] = child
        if high - low == 1:
            continue
        middle = _middle(ends, low, high)
        left, right = ends[middle] - ends[low], ends[high] - ends[middle]
        shift = 61
        while shift > 0 and (left + right) >> (61 - shift) > 0:
            shift -= 1
        alpha, phase = np.int64(1) << shift, np.int64(0)
        if is_even:
            alpha = max(np.int64(1), (left << shift) // (left + right))
            word = scramble(np.uint64(key) + GOLDEN * np.uint64(middle + 1))
            phase = np.int64(word >> np.uint64(3)) & ((1 << shift) - 1)
        nodes[made, _ALPHA], nodes[made, _PHASE], nodes[made, _SHIFT] = alpha, phase, shift
        nodes[made, _LEFT], nodes[made, _RIGHT], nodes[made, _PARENT] = left, right, parent
        waiting[count, 0], waiting[count, 1], waiting[count, 2] = middle, high, 2 * made + 1
        waiting[count + 1, 0], waiting[count + 1, 1], waiting[count + 1, 2] = low, middle, 2 * made
        count += 2
        made += 1


@kernel
def find_elements(places, nodes, lists, ranks):
    """Element ranks[j] of list lists[j] stands at places[j]."""
    for row in range(places.size):
        q, node = places[row], np.int64(0)
        while node >= 0:
            passed = _passed(nodes, node, q)
            if _passed(nodes, node, q + 1) > passed:
                q, node = passed, nodes[node, _LEFT_CHILD]
            else:
                q, node = q - passed, nodes[node, _RIGHT_CHILD]
        lists[row], ranks[row] = ~node, q


@kernel
def find_places(lists, ranks, nodes, parents, places):
    """Undo `find_elements`. Negative ranks give −1."""
    for row in range(lists.size):
        q, parent = ranks[row], parents[lists[row]]
        while q >= 0 and parent >= 0:
            node = parent >> 1
            alpha, phase, one = nodes[node, _ALPHA], nodes[node, _PHASE], np.int64(1) << nodes[node, _SHIFT]
            if parent & 1:
                found = q + 1 + nodes[node, _LEFT]
                if alpha < one:
                    found = min(found, (q * one + phase) // (one - alpha) + 1)
            else:
                found = min(q + 1 + nodes[node, _RIGHT], -((phase - (q + 1) * one) // alpha))
            q, parent = found - 1, nodes[node, _PARENT]
        places[row] = q


@kernel
def count_elements(place, nodes, counts):
    """counts[i] becomes how many elements of list i stand before a place."""
    before = np.empty(nodes.shape[0], np.int64)
    before[0] = place
    for node in range(nodes.shape[0]):  # children come after their parents
        passed = _passed(nodes, node, before[node])
        for side in range(2):
            child = nodes[node, _LEFT_CHILD + side]
            count = before[node] - passed if side else passed
            if child < 0:
                counts[~child] = count
            else:
                before[child] = count


@kernel
def place_numbers(sources, numbers, bounds, starts, chapters, nodes, slots, streams, turns, offsets):
    """Row j is number numbers[j] of source sources[j]: turns[j] becomes its number in the run over streams[j] alone.

    At place p of the stream stands sample p + offsets[j] of the source.

    Chapters [bounds[i], bounds[i + 1]) are those of source i. A chapter begins at number `starts`, and has

        rest     samples that it delivers in the epoch that it begins in
        begin    the first of them, in places of the epoch
        node     its first node, or −1 where it has one slot
        slot     its first slot
        whole    the stream of later epochs
        size     samples of a later epoch
        epoch    the first of them

    A slot is (stream, number of its first element in the run over the stream, first sample of the stream); nodes count
    slots, and nodes, from the chapter's own on.
    """
    chapter = np.int64(-1)
    for row in range(numbers.size):
        number = numbers[row]
        low, high = bounds[sources[row]], bounds[sources[row] + 1]
        is_same = low <= chapter < high and starts[chapter] <= number
        if not is_same or (chapter + 1 < high and starts[chapter + 1] <= number):
            chapter, top = low, high - 1
            while chapter < top:
                between = (chapter + top + 1) // 2
                if starts[between] <= number:
                    chapter = between
                else:
                    top = between - 1
        rest, size = chapters[chapter, _REST], chapters[chapter, _SIZE]
        q = number - starts[chapter]
        is_rest = q < rest
        periods = 0 if is_rest else (q - rest) // size
        q = q + chapters[chapter, _BEGIN] if is_rest else q - rest - periods * size
        if is_rest:
            first, slot = chapters[chapter, _NODE], chapters[chapter, _SLOT]
            if first >= 0:
                node = np.int64(0)
                while node >= 0:
                    passed = _passed(nodes, first + node, q)
                    if _passed(nodes, first + node, q + 1) > passed:
                        q, node = passed, nodes[first + node, _LEFT_CHILD]
                    else:
                        q, node = q - passed, nodes[first + node, _RIGHT_CHILD]
                slot += ~node
            streams[row], turns[row] = slots[slot, 0], slots[slot, 1] + q
            offsets[row] = slots[slot, 2]
        else:
            streams[row], offsets[row] = chapters[chapter, _WHOLE], 0
            turns[row] = (chapters[chapter, _EPOCH] + periods) * size + q
