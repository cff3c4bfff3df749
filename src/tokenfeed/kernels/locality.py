"""A keyed bijection on [0, n) in O(1) that keeps close in time what lies close in the data.

The data is cut into blocks of `block` samples (the last may be short), and the blocks are permuted. The sequence of
places that this gives is cut into tiles of `tile` blocks, and samples are permuted within tiles; then once more within
tiles that begin half a tile later (the first and the last are shorter). From a position to a sample:

    position ──within its shifted tile──► ──within its tile──► slot · block + place ──block of the slot──► sample

    n = 11, block 2, tile 2: blocks ab cd ef gh ij k
    blocks permuted            efab kij ghcd
    within tiles              |bfae|jki|dhcg|      the tile with the short block is short: tiles end where blocks end
    within shifted tiles      |fb|jae|hkdi|gc|

So the samples of one shifted tile come from two tiles, that is from 2 · tile blocks, whatever n.

The short block leaves a gap. *Padded* places count it, a place x does not: padded = x + gap from the gap on. All blocks
and tiles begin at multiples of their size in padded places, and x becomes padded by one comparison.

The network is that of `kernels.permutation`; its keys are the same for all tiles of an epoch, xored with a word that is
a tile's own. What is computed here must never change: a checkpoint holds a position, and means this order.
"""

import numpy as np

from tokenfeed.kernels import permutation
from tokenfeed.kernels.jit import inlined, kernel, step
from tokenfeed.kernels.permutation import GOLDEN, num_rounds, permute_block, round_keys, scramble, split, two_rounds

_U = np.uint64
_ZERO, _ONE = _U(0), _U(1)
_SMALL = _U(1 << 52)
_CHUNK = 1024  # indices that are swept together: with what is known of their tiles 32 KiB


@inlined
def _lay_out(n, block, tile):
    """(samples in a block, blocks, samples in a tile, in half a tile, length of the gap). None larger than the data."""
    size = min(_U(block), _U(n))
    num_blocks = (_U(n) - _ONE) // size + _ONE
    per_tile = min(_U(tile), num_blocks)
    return size, num_blocks, per_tile * size, (per_tile >> _ONE) * size, num_blocks * size - _U(n)


@inlined
def _num_rounds(tile_size):
    """As many rounds as it takes for no statistic to tell tiles from random permutations: fewer for large tiles."""
    return 6 if tile_size >= _U(1 << 16) else 8 if tile_size >= _U(1 << 12) else 12


@inlined
def _make_keys(layout, n, seed, epoch):
    """(keys of the blocks, keys of the tiles and of the shifted ones, where the gap begins) in an epoch."""
    size, num_blocks, tile_size, _, gap = layout
    block_keys = np.empty(num_rounds(num_blocks), np.uint64)
    round_keys(seed, epoch, num_blocks, block_keys)
    keys = np.empty((2, _num_rounds(tile_size)), np.uint64)
    for stage in range(2):
        round_keys(scramble(_U(seed) + _U(stage + 1) * GOLDEN), epoch, tile_size, keys[stage])
    a, bits = split(num_blocks)
    last = permutation.walk(num_blocks - _ONE, num_blocks, a, bits, block_keys, _ZERO, True)
    return block_keys, keys, (last + _ONE) * size - gap


@inlined
def _divide(number, divisor, inverse, is_small):
    """number // divisor; where `is_small` (below 2**52), by one multiplication with 1 / divisor, one off at most."""
    if not is_small:
        return number // divisor
    quotient = _U(np.int64(np.float64(np.int64(number)) * inverse))
    rest = np.int64(number - quotient * divisor)
    if rest < 0:
        quotient -= _ONE
    if rest >= np.int64(divisor):
        quotient += _ONE
    return quotient


@inlined
def _find_tiles(places, first, layout, n, gap_at, known):
    """Make places count within their tiles; all before the padded place `first` is one tile.

    Rows of `known` become the old places, the numbers of their tiles, and a word for each tile. Returns whether all
    tiles are of full size: neither the first nor the last, and without a gap.
    """
    _, _, tile_size, _, gap = layout
    ahead = tile_size - first
    padded = _U(n) + gap
    is_small, inverse = padded + tile_size < _SMALL, 1.0 / np.float64(tile_size)
    wholes, numbers, words = known[0], known[1], known[2]
    for i in range(places.size):
        wholes[i] = places[i]
    for i in range(places.size):
        at = wholes[i] + (gap if wholes[i] >= gap_at else _ZERO) + ahead
        numbers[i] = _divide(at, tile_size, inverse, is_small)
    last = (padded - _ONE + ahead) // tile_size
    with_gap = (gap_at + ahead) // tile_size if gap > _ZERO else last
    are_full = True
    for i in range(places.size):
        at = wholes[i] + (gap if wholes[i] >= gap_at else _ZERO) + ahead
        number = numbers[i]
        places[i] = at - number * tile_size
        are_full &= (number != _ZERO) & (number != last) & (number != with_gap)
    for i in range(places.size):
        words[i] = scramble(numbers[i] + GOLDEN)
    return are_full


@inlined
def _bounds(number, first, layout, n, gap_at):
    """(first place, size) of a tile."""
    _, _, tile_size, _, gap = layout
    padded = _U(n) + gap
    stop = number * tile_size + first
    start = max(stop, tile_size) - tile_size
    stop = min(stop, padded)
    start -= gap if start >= gap_at else _ZERO
    return start, stop - (gap if stop >= gap_at else _ZERO) - start


@step
def _sweep(places, a, bits, words, left_key, right_key, back):
    for i in range(places.size):
        places[i] = two_rounds(places[i], a, bits, left_key ^ words[i], right_key ^ words[i], back)


@inlined
def _mix(places, first, layout, n, gap_at, keys, known, back):
    """Permute places within their tiles, or undo that."""
    _, _, tile_size, _, gap = layout
    are_full = _find_tiles(places, first, layout, n, gap_at, known)
    wholes, numbers, words = known[0], known[1], known[2]
    a, bits = split(tile_size)
    for i in range(0, keys.size, 2):
        r = keys.size - 2 - i if back else i
        _sweep(places, a, bits, words, keys[r], keys[r + 1], back)
    for i in range(places.size):
        if places[i] >= tile_size:
            places[i] = permutation.walk(places[i], tile_size, a, bits, keys, words[i], back)
    for i in range(places.size):  # from the beginning again
        start = numbers[i] * tile_size - (tile_size - first)
        places[i] += start - (gap if start >= gap_at else _ZERO)
    if not are_full:
        like = tile_size
        for i in range(places.size):
            start, size = _bounds(numbers[i], first, layout, n, gap_at)
            if size != tile_size:
                if size != like:
                    like = size
                    a, bits = split(size)
                places[i] = start + permutation.walk(wholes[i] - start, size, a, bits, keys, words[i], back)


@inlined
def _to_samples(places, layout, gap_at, keys, known):
    """From places in the sequence of permuted blocks to samples."""
    size, num_blocks, _, _, gap = layout
    slots, within = known[0, : places.size], known[1, : places.size]
    low, high = num_blocks, _ZERO
    inverse, is_small = 1.0 / np.float64(size), num_blocks * size < _SMALL
    for i in range(places.size):
        at = places[i] + (gap if places[i] >= gap_at else _ZERO)
        slots[i] = _divide(at, size, inverse, is_small)
        within[i] = at - slots[i] * size
        low, high = min(low, slots[i]), max(high, slots[i])
    a, bits = split(num_blocks)
    is_run = high - low < _U(places.size)  # its samples come from few blocks: one evaluation for each block
    blocks = known[2, : high - low + _ONE] if is_run else slots
    if is_run:
        for j in range(blocks.size):
            blocks[j] = low + _U(j)
    permute_block(blocks, num_blocks, a, bits, keys, False)
    for i in range(places.size):
        places[i] = blocks[slots[i] - low if is_run else _U(i)] * size + within[i]


@inlined
def _to_places(samples, layout, gap_at, keys, known):
    """Undo `_to_samples`."""
    size, num_blocks, _, _, gap = layout
    blocks, within = known[0, : samples.size], known[1, : samples.size]
    for i in range(samples.size):
        blocks[i] = samples[i] // size
        within[i] = samples[i] - blocks[i] * size
    a, bits = split(num_blocks)
    permute_block(blocks, num_blocks, a, bits, keys, True)
    for i in range(samples.size):
        at = blocks[i] * size + within[i]
        samples[i] = at - gap if at >= gap_at else at


@inlined
def _permute_epoch(places, layout, n, seed, epoch, known):
    block_keys, keys, gap_at = _make_keys(layout, n, seed, epoch)
    for start in range(0, places.size, _CHUNK):
        chunk = places[start : start + _CHUNK]
        for stage in range(1, -1, -1):
            _mix(chunk, layout[3] if stage else _ZERO, layout, n, gap_at, keys[stage], known, False)
        _to_samples(chunk, layout, gap_at, block_keys, known)


@inlined
def _invert_epoch(samples, layout, n, seed, epoch, known):
    block_keys, keys, gap_at = _make_keys(layout, n, seed, epoch)
    for start in range(0, samples.size, _CHUNK):
        chunk = samples[start : start + _CHUNK]
        _to_places(chunk, layout, gap_at, block_keys, known)
        for stage in range(2):
            _mix(chunk, layout[3] if stage else _ZERO, layout, n, gap_at, keys[stage], known, True)


@kernel
def permute_local(numbers, n, block, tile, seed, epoch, back, out):
    """As `permutation.permute`, in this order."""
    bad = permutation.copy_checked(numbers, n, out)
    if bad < 0 and out.size > 0:
        known = np.empty((3, _CHUNK), np.uint64)
        layout = _lay_out(n, block, tile)
        if back:
            _invert_epoch(out.view(np.uint64), layout, n, seed, epoch, known)
        else:
            _permute_epoch(out.view(np.uint64), layout, n, seed, epoch, known)
    return bad


@inlined
def _run(samples, n, block, tile, seed, epochs, indices, known):
    layout = _lay_out(n, block, tile)
    places = indices.view(np.uint64)
    start = 0
    while start < samples.size:
        epoch, stop = permutation.take_epoch(samples, start, n, epochs, indices)
        if epoch >= 0:
            _permute_epoch(places[start:stop], layout, n, seed, epoch, known)
        start = stop


@kernel
def permute_local_run(samples, n, block, tile, seed, epochs, indices):
    """As `permutation.permute_run`, in this order. About 30 ns an index and 1.5 µs a call."""
    permutation.check_run(samples, n, epochs, indices)
    _run(samples, n, block, tile, seed, epochs, indices, np.empty((3, _CHUNK), np.uint64))


@kernel
def permute_local_sources(sources, numbers, sizes, block, tile, seeds, epochs, indices):
    """Row j is number numbers[j] of the run over source sources[j] alone: the epoch and index of each.

    Rows are put in order of their sources, so that those of one source are swept together.
    """
    ends = np.zeros(sizes.size + 1, np.int64)
    for row in range(sources.size):
        ends[sources[row] + 1] += 1
    for source in range(sizes.size):
        ends[source + 1] += ends[source]
    rows, sorted_numbers = np.empty(sources.size, np.int64), np.empty(sources.size, np.int64)
    for row in range(sources.size):
        place = ends[sources[row]]
        rows[place] = row
        sorted_numbers[place] = numbers[row]
        ends[sources[row]] += 1
    sorted_epochs = np.empty(sources.size, np.int64)
    known = np.empty((3, _CHUNK), np.uint64)
    start = 0
    for source in range(sizes.size):
        stop = ends[source]
        if stop > start:
            part = sorted_numbers[start:stop]
            _run(part, sizes[source], block, tile, seeds[source], sorted_epochs[start:stop], part, known)
        start = stop
    for place in range(rows.size):
        epochs[rows[place]] = sorted_epochs[place]
        indices[rows[place]] = sorted_numbers[place]
