"""A keyed bijection on [0, n) in O(1): a Feistel network over a × 2**bits, with a ≈ 2**bits ≈ sqrt(n).

A place x is the pair (left, right) = (x >> bits, x & (2**bits - 1)). Rounds alternate, each with a key of its own:

    left  = (left  + F(right)) mod a          F multiplies twice, so that all bits of its input reach all it gives
    right = (right + F(left )) mod 2**bits

A round can be undone whatever F is, so all of them are a bijection on [0, a·2**bits), which exceeds n by less than
2**bits places. A value that lands there goes through again until it is below n ("cycle walking"): 1 in 12,600 at
n = 10**8. One half is a power of two, so nothing is divided; rounds add instead of xor, so permutations are odd as
often as even.

    n = 10:  bits 2, a 3, 12 places;  position 7 = (1, 3) → say (2, 3) = 11, beyond 9 → say (0, 2) = 2;  so p[7] = 2

The measurements are in `docs/decisions/2026-11-15-permutation.md`. What is computed here must never change: a
checkpoint holds a position, and means this order.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel, step

_U = np.uint64  # Numba makes a float of int64 with uint64, so everything that meets a word is a word
_HALF, _LOW = _U(32), _U(0xFFFFFFFF)
GOLDEN, MIX_1, MIX_2 = _U(0x9E3779B97F4A7C15), _U(0xBF58476D1CE4E5B9), _U(0x94D049BB133111EB)  # of splitmix64

_FEW_ROUNDS, _MANY_ROUNDS = 12, 32
_LARGE = 1 << 12  # from this n on, few rounds do
_BLOCK = 1024  # indices that are swept together: 8 KiB, which the nearest cache holds


@inlined
def num_rounds(n):
    """The number of keys that `round_keys` makes: small halves need more rounds to be as random."""
    return _FEW_ROUNDS if n >= _LARGE else _MANY_ROUNDS


@inlined
def split(n):
    """(a, bits): the network's places are a × 2**bits >= n. Neither half is more than twice the other."""
    size = _U(n)
    bits = _U(0)
    while size >> (bits + bits + _U(1)) > _U(0):
        bits += _U(1)
    return (size + (_U(1) << bits) - _U(1)) >> bits, bits


@inlined
def scramble(word):
    word = (word ^ (word >> _U(30))) * MIX_1
    word = (word ^ (word >> _U(27))) * MIX_2
    return word ^ (word >> _U(31))


@inlined
def round_keys(seed, epoch, n, keys):
    """Fill `keys` (uint64, `num_rounds(n)` of them) for the permutation of (n, seed, epoch)."""
    state = scramble(scramble(scramble(_U(seed) + GOLDEN) + _U(epoch)) + _U(n))
    for r in range(keys.size):
        state += GOLDEN
        keys[r] = scramble(state)


@inlined
def _mix(half, key):
    word = (half ^ key) * GOLDEN
    return (word ^ (word >> _HALF)) * MIX_1


@inlined
def _shift_left_half(right, a, key):
    """The shift of the left half in a round: the upper 64 bits of word · a, a number below a <= 2**32."""
    word = _mix(right, key)
    return ((word >> _HALF) * a + (((word & _LOW) * a) >> _HALF)) >> _HALF


@inlined
def _shift_right_half(left, bits, key):
    return (_mix(left, key) >> _HALF) >> (_HALF - bits)  # two shifts: one by 64 is undefined


@step
def two_rounds(place, a, bits, left_key, right_key, back):
    """Two rounds, or what undoes them. `back` is a constant wherever it is given: LLVM drops the other branch."""
    mask = (_U(1) << bits) - _U(1)
    left, right = place >> bits, place & mask
    if back:
        right = (right - _shift_right_half(left, bits, right_key)) & mask
        left -= _shift_left_half(right, a, left_key)
        left = min(left, left + a)  # a negative difference has wrapped to a large number, and left + a wraps back
    else:
        left += _shift_left_half(right, a, left_key)
        left = min(left, left - a)  # modulo a: left - a wraps to a large number if left < a
        right = (right + _shift_right_half(left, bits, right_key)) & mask
    return (left << bits) | right


@inlined
def walk(place, n, a, bits, keys, word, back):
    """Through the network, at least once, until below n; keys are xored with `word`.

    It ends only if `place` was below n, or comes from one that was.
    """
    while True:
        for i in range(0, keys.size, 2):
            r = keys.size - 2 - i if back else i
            place = two_rounds(place, a, bits, keys[r] ^ word, keys[r + 1] ^ word, back)
        if place < n:
            return place


@inlined
def permute_block(places, n, a, bits, keys, back):
    """Permute uint64 `places` in place. All must be below n. Rounds are the outer loop, so that LLVM makes vectors."""
    for start in range(0, places.size, _BLOCK):
        block = places[start : start + _BLOCK]
        for i in range(0, keys.size, 2):
            r = keys.size - 2 - i if back else i
            _sweep(block, a, bits, keys[r], keys[r + 1], back)
        for i in range(block.size):
            if block[i] >= _U(n):
                block[i] = walk(block[i], _U(n), a, bits, keys, _U(0), back)


@step
def _sweep(block, a, bits, left_key, right_key, back):
    for i in range(block.size):
        block[i] = two_rounds(block[i], a, bits, left_key, right_key, back)


@inlined
def copy_checked(numbers, n, out):
    """Copy; the first row that is not in [0, n), or -1."""
    if out.size != numbers.size:
        raise ValueError("the output must have as many entries as the input")
    for row in range(numbers.size):
        if numbers[row] < 0 or numbers[row] >= n:
            return row
        out[row] = numbers[row]
    return -1


@kernel
def permute(numbers, n, seed, epoch, back, out):
    """out[j] becomes the value at position numbers[j]; if `back`, the position at which value numbers[j] stands.

    Returns -1, or the first row outside [0, n); `out` is then spoilt. `out` may be `numbers`. About 13 ns an index and
    0.5 µs a call.
    """
    bad = copy_checked(numbers, n, out)
    if bad < 0 and out.size > 0:
        a, bits = split(n)
        keys = np.empty(num_rounds(n), np.uint64)
        round_keys(seed, epoch, n, keys)
        if back:
            permute_block(out.view(np.uint64), n, a, bits, keys, True)
        else:
            permute_block(out.view(np.uint64), n, a, bits, keys, False)
    return bad


@inlined
def check_run(samples, n, epochs, indices):
    if epochs.size != samples.size or indices.size != samples.size:
        raise ValueError("the outputs must have as many entries as the input")
    if n < 1:
        raise ValueError("nothing to permute")


@inlined
def take_epoch(samples, start, n, epochs, indices):
    """(epoch, stop): samples [start, stop) lie in one epoch of n. Their epochs, and as indices their places, are set.

    A negative sample is one by itself, in epoch -1.
    """
    if samples[start] < 0:
        epochs[start] = indices[start] = -1
        return np.int64(-1), start + 1
    epoch = np.int64(samples[start] // n)
    first = epoch * n
    stop = start
    while stop < samples.size and samples[stop] >= first and samples[stop] - first < n:
        place = samples[stop] - first
        epochs[stop] = epoch
        indices[stop] = place
        stop += 1
    return epoch, stop


@kernel
def permute_run(samples, n, seed, epochs, indices):
    """The samples k of a run over n: epochs[j] becomes k // n, indices[j] the value at k % n in that epoch.

    Keys are derived again only where the epoch changes. A negative k gives epoch and index -1. `epochs` or `indices`
    may be `samples`.
    """
    check_run(samples, n, epochs, indices)
    a, bits = split(n)
    keys = np.empty(num_rounds(n), np.uint64)
    places = indices.view(np.uint64)
    start = 0
    while start < samples.size:
        epoch, stop = take_epoch(samples, start, n, epochs, indices)
        if epoch >= 0:
            round_keys(seed, epoch, n, keys)
            permute_block(places[start:stop], n, a, bits, keys, False)
        start = stop


@kernel
def permute_sources(sources, numbers, sizes, seeds, epochs, indices):
    """Row j is number numbers[j] of the run over source sources[j] alone: the epoch and index of each.

    Keys are derived again only where a source's epoch changes. About 40 ns a row.
    """
    keys = np.empty((sizes.size, _MANY_ROUNDS), np.uint64)
    known = np.full(sizes.size, -1, np.int64)
    for row in range(sources.size):
        source = sources[row]
        n = sizes[source]
        epoch = numbers[row] // n
        own_keys = keys[source, : num_rounds(n)]
        if known[source] != epoch:
            round_keys(seeds[source], epoch, n, own_keys)
            known[source] = epoch
        a, bits = split(n)
        epochs[row] = epoch
        indices[row] = np.int64(walk(_U(numbers[row] - epoch * n), _U(n), a, bits, own_keys, _U(0), False))


@kernel
def permute_each(numbers, sizes, seeds, epoch, back, out):
    """As `permute`, with a size and a seed for every row. Rows of one permutation side by side are swept together.

    Keys are derived again only where size or seed differ from the row before. Returns -1, or the first row outside its
    permutation; `out` is then spoilt.
    """
    if sizes.size != numbers.size or seeds.size != numbers.size:
        raise ValueError("every row needs a size and a seed")
    keys = np.empty(_MANY_ROUNDS, np.uint64)
    places = out.view(np.uint64)
    start = 0
    while start < numbers.size:
        n, seed = sizes[start], seeds[start]
        stop = start + 1
        while stop < numbers.size and sizes[stop] == n and seeds[stop] == seed:
            stop += 1
        bad = copy_checked(numbers[start:stop], n, out[start:stop])
        if bad >= 0:
            return start + bad
        a, bits = split(n)
        own_keys = keys[: num_rounds(n)]
        round_keys(seed, epoch, n, own_keys)
        if back:
            permute_block(places[start:stop], n, a, bits, own_keys, True)
        else:
            permute_block(places[start:stop], n, a, bits, own_keys, False)
        start = stop
    return -1
