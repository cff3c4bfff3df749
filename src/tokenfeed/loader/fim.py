"""Fill-in-the-middle: documents cut at two places and put together again so that their middle comes last.

    a b c d e f  →  prefix a b  suffix e f  middle c d      ("PSM")
                 →  prefix suffix e f  middle a b c d       ("SPM")

Which documents, where and how is a pure function of a seed and of the number k of the sample in the run: a resume, and
any number of ranks, gives the same rows, and an epoch gives others than the one before.
"""

from collections.abc import Callable, Mapping

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.collate import Padded
from tokenfeed.store.batch import HostBatch
from tokenfeed.store.spec import LOSS_MASK
from tokenfeed.types import Array, Ints

__all__ = ["fim"]

_SENTINELS = 3


def fim(
    *,
    prefix: int,
    suffix: int,
    middle: int,
    rate: float | Mapping[str, float] = 0.5,
    spm_rate: float = 0.5,
    bos: int | None = None,
    eos: int | None = None,
    seed: int = 0,
    multiple_of: int = 1,
    max_length: int | None = None,
    value: int = 0,
) -> Callable[[HostBatch], Padded]:
    """A collate function for batches of documents: `rate` of them are turned around, `spm_rate` of those as SPM.

    `prefix`, `suffix` and `middle` are ids of special tokens; a document that is turned around has these three more.
    `bos` and `eos` stay first and last where a document has them. `rate` may be one for each source of a mixture, by
    name; sources that are not named stay as they are. A document is first cut to what fits `max_length`. Rows are as
    wide as the longest, rounded up to a multiple, and filled with `value`, as by `pad`.

    All columns are turned around alike. At the three tokens they are 0, but `loss_mask` is 1.
    """
    rates = rate if isinstance(rate, Mapping) else {"": rate}
    if not all(0 <= one <= 1 for one in (*rates.values(), spm_rate)):
        raise ArgumentError(f"rate is {rate} and spm_rate {spm_rate}; they must be from 0 to 1")
    if max_length is not None and max_length <= _SENTINELS:
        raise ArgumentError(f"max_length is {max_length}; three tokens are added to a document, so it must be more")
    if multiple_of < 1:
        raise ArgumentError(f"multiple_of is {multiple_of}; it must be at least 1")
    sentinels = np.array([prefix, suffix, middle])

    def collate(batch: HostBatch) -> Padded:
        if batch.rows.layout.length is not None:
            raise ArgumentError("fim turns whole documents around; rows of one length hold parts of them")
        if isinstance(rate, Mapping) and (unknown := rates.keys() - set(batch.source_names)):
            raise ArgumentError(f"rate names {min(unknown)!r}; the sources are {', '.join(batch.source_names)}")
        tokens = batch.column(batch.rows.layout.primary or "tokens")
        draws = _draw(seed, batch.samples)
        orders = []
        for row, (start, stop) in enumerate(zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)):
            chance = rates.get(batch.source_names[batch.sources[row]], 0.0) if isinstance(rate, Mapping) else rate
            is_turned = bool(draws[row, 0] < chance)
            most = None if max_length is None else max_length - _SENTINELS * is_turned
            stop = stop if most is None else min(stop, start + most)
            first = start + (stop > start and tokens[start] == bos)
            last = stop - (stop > first and tokens[stop - 1] == eos)
            orders.append(
                _turn(start, first, last, stop, draws[row], spm_rate) if is_turned else np.arange(start, stop)
            )
        lengths = np.array([order.size for order in orders], np.int64)
        mask = np.arange(-(-int(lengths.max(initial=0)) // multiple_of) * multiple_of) < lengths[:, None]
        sources = np.concatenate([np.empty(0, np.int64), *orders])
        columns = {}
        for name, column in batch.columns.items():
            is_primary = name == batch.rows.layout.primary
            flat = column[np.maximum(sources, 0)] if len(column) else column
            flat[sources < 0] = sentinels[-1 - sources[sources < 0]] if is_primary else name == LOSS_MASK
            rows = np.full((*mask.shape, *column.shape[1:]), value if is_primary else 0, column.dtype)
            rows[mask] = flat
            columns[name] = rows
        return Padded(columns, lengths, mask)

    return collate


def _turn(start: int, first: int, last: int, stop: int, draws: Array, spm_rate: float) -> Ints:
    """Places of the items of a document that is turned around: −1, −2 and −3 stand for prefix, suffix and middle."""
    low, high = sorted(first + int(draw * (last - first + 1)) for draw in draws[2:4])
    parts = [np.arange(*bounds) for bounds in ((first, low), (low, high), (high, last))]
    before, between, after = parts
    prefix, suffix, middle = (np.array([-number]) for number in (1, 2, 3))
    if draws[1] < spm_rate:
        turned = [prefix, suffix, after, middle, before, between]
    else:
        turned = [prefix, before, suffix, after, middle, between]
    return np.concatenate([np.arange(start, first), *turned, np.arange(last, stop)])


def _draw(seed: int, samples: Ints) -> Array:
    """Four numbers from [0, 1) for each sample of a run."""
    key = _mix(np.array([seed], np.int64).view(np.uint64))
    words = _mix(_mix(samples.astype(np.uint64)[:, None] * np.uint64(4) + np.arange(4, dtype=np.uint64)) ^ key)
    shares: Array = (words >> np.uint64(11)) * 2.0**-53
    return shares


def _mix(words: Array) -> Array:
    """The finalizer of SplitMix64: every bit of a word changes half the bits of the result."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: Array = words ^ words >> np.uint64(31)
    return mixed
