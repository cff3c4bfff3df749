"""Engines: what turns text into tokens. All give the same tokens; they differ in speed and memory.

tokenfeed   our own, in Numba: the default for every pattern that `automata.py` compiles, which are all usual ones
tiktoken    the reference, and the default for other patterns; imported when its engine is made
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import count, pairwise
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, DependencyError, FormatError
from tokenfeed.kernels.bpe import ROOM, allocate, encode, make_cache
from tokenfeed.kernels.merging import MOST_TOKENS, PADDING, TABLES, fill_pairs, fill_ranks
from tokenfeed.kernels.posix import record
from tokenfeed.text.tokenizer.automata import Automaton, compile_pattern
from tokenfeed.text.tokenizer.vocabulary import Vocabulary
from tokenfeed.types import Array, Ints

__all__ = [
    "ENGINES",
    "Encoded",
    "TokenIds",
    "TokenizerEngine",
    "available_cores",
    "choose_engine",
    "join",
    "make_engine",
]

ENGINES = ("tokenfeed", "tiktoken")

TokenIds = npt.NDArray[np.uint32]
Encoded = tuple[TokenIds, Ints]
"""The tokens of all texts one after the other, and the offset of each text's first token, plus the end."""
Item = TypeVar("Item")
Result = TypeVar("Result")

_GROUP = 1 << 17  # characters that are encoded in one call: their bytes and tokens stay in the processor's cache
_ROOM_BYTES = 8 * _GROUP  # of a thread's room for UTF-8, and for tokens; pages of it that nothing needs are no memory
_SLICE = 1 << 12  # characters that are converted to UTF-8 at once: on the way, they are in a thread's heap


def choose_engine(vocabulary: Vocabulary, name: str | None = None) -> str:
    """The given name, checked; by default our own engine if it can use the vocabulary, else tiktoken."""
    is_ours = len(vocabulary.ranks) < MOST_TOKENS and compile_pattern(vocabulary.pattern) is not None
    if name is None:
        name = "tokenfeed" if is_ours else "tiktoken"
    if name not in ENGINES:
        raise ArgumentError(f"there is no engine {name!r}; choose one of {', '.join(ENGINES)}, or leave engine out")
    if name == "tokenfeed" and not is_ours:
        raise ArgumentError(
            f"engine 'tokenfeed' cannot use this vocabulary with pattern {vocabulary.pattern!r}: it knows common "
            f"patterns, and fewer than {MOST_TOKENS:,} tokens. Leave engine out"
        )
    if name == "tiktoken" and not find_spec(name):
        raise DependencyError(
            f"pattern {vocabulary.pattern[:40]!r} needs the engine tiktoken, which is not installed: pip install "
            "'tokenfeed[text]'"
            if not is_ours
            else "engine 'tiktoken' is not installed: pip install 'tokenfeed[text]', or leave engine out"
        )
    return name


def make_engine(vocabulary: Vocabulary, name: str | None = None) -> "TokenizerEngine":
    """The engine of that name, or the default one. Takes tens of milliseconds."""
    return (_Tokenfeed if choose_engine(vocabulary, name) == "tokenfeed" else _Tiktoken)(vocabulary)


def available_cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class TokenizerEngine(ABC):
    """One vocabulary, ready to encode. Safe to call from several threads, and in a process forked from this one."""

    is_parallel = False
    """Whether it divides work among threads itself, better than several calls at once would."""
    longest_run = 65_536
    """Characters after which `pieces.py` cuts a run, so that the engine takes no more than linear time and memory."""
    takes_utf8 = False
    """Whether texts may be UTF-8 that has been checked, in place of strings."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # kept between calls; a forked process starts its own
        self._pool_size, self._pool_process = 0, -1

    def encode(self, texts: Sequence[Any], threads: int, /) -> Encoded:
        """The tokens of all texts. Releases the GIL; special tokens written out in a text are ordinary text.

        Texts are encoded one by one on `threads` threads, the caller's included. The longest go first, so that all end
        together. They come from `pieces.py`; surrogates raise UnicodeEncodeError or TypeError.
        """
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number])) if threads > 1 else range(len(texts))
        done = dict(
            zip(order, self._in_threads(lambda number: self._encode_one(texts[number]), order, threads), strict=True)
        )
        return join([done[number] for number in range(len(texts))])

    def _in_threads(self, work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
        """The results of all items, in their order, on so many threads, the caller's included."""
        results: dict[int, Result] = {}
        numbers = iter(range(len(items)))

        def run() -> None:
            for number in numbers:
                results[number] = work(items[number])

        others = [self._threads(threads - 1).submit(run) for _ in range(min(threads, len(items)) - 1)]
        run()
        for other in others:
            other.result()
        return [results[number] for number in range(len(items))]

    @abstractmethod
    def _encode_one(self, text: str) -> TokenIds: ...

    def _threads(self, size: int) -> ThreadPoolExecutor:
        if self._pool is None or size > self._pool_size or self._pool_process != os.getpid():
            self._pool = ThreadPoolExecutor(size, thread_name_prefix="tokenfeed-encode")
            self._pool_size, self._pool_process = size, os.getpid()
        return self._pool


class _Tiktoken(TokenizerEngine):
    """Texts one at a time on our own threads, into arrays: twice as fast as through lists."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import tiktoken

        super().__init__()
        self._vocabulary = vocabulary
        try:
            self._encoding = tiktoken.Encoding(
                "tokenfeed",
                pat_str=vocabulary.pattern,
                mergeable_ranks=dict(vocabulary.ranks),
                # Without any special token it searches for the empty one at every character: 30% slower.
                special_tokens=dict(vocabulary.special_tokens) or {"<|none|>": vocabulary.size},
            )
        except ValueError as error:
            raise ArgumentError(
                f"tiktoken cannot use this vocabulary with pattern {vocabulary.pattern!r}: {error}"
            ) from error

    def _encode_one(self, text: str) -> TokenIds:
        try:
            tokens: TokenIds = self._encoding.encode_to_numpy(text, disallowed_special=())
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # not an Exception, and not importable from anywhere
                raise
            pattern = self._vocabulary.pattern[:200]
            raise FormatError(f"tiktoken cannot encode with the pattern {pattern!r}: {error}") from error
        return tokens


class _Tokenfeed(TokenizerEngine):
    """Our own engine: an automaton cuts words off, and a kernel merges them (`kernels/bpe.py`).

    Every thread that works at the same time has a cache of words of its own, and shares no line of it; `make_cache`
    says how large they are. Beyond these, what texts and tokens need on the way is given back after every call.
    """

    longest_run = 1 << 24
    takes_utf8 = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        automaton = compile_pattern(vocabulary.pattern)
        assert automaton is not None, "choose_engine checks it"
        self._tables, self._arrays = _make_tables(vocabulary, automaton)
        self._idle: list[tuple[Array, ...]] = []  # caches, their memory, room for text and for tokens
        self._numbers = count()  # of the caches that were made

    def encode(self, texts: Sequence[str | bytes], threads: int, /) -> Encoded:
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        most = min(_GROUP, sizes.sum() // (4 * threads) + 1)
        groups = np.flatnonzero(np.diff(np.cumsum(sizes) // most, prepend=-1, append=-1)).tolist()
        parts = self._in_threads(
            lambda group: self._encode_group(texts[group[0] : group[1]], threads > 1), list(pairwise(groups)), threads
        )
        ends = [np.zeros(1, np.int64)]
        for _, group_ends in parts:
            ends.append(group_ends + ends[-1][-1])
        return np.concatenate([np.empty(0, np.uint32), *(ids for ids, _ in parts)]), np.concatenate(ends)

    def _encode_one(self, text: str) -> TokenIds:
        return self._encode_group((text,))[0]

    def _encode_group(self, texts: Sequence[str | bytes], is_shared: bool = False) -> Encoded:
        """The tokens of some texts, and where those of each end.

        The tokens are copied to the heap of this thread, which is a tenth faster than fresh pages of the system. With
        `is_shared`, where many threads work for one caller, they go to such pages: each of these heaps would keep what
        it held.
        """
        try:
            kept = self._idle.pop()
        except IndexError:
            kept = *make_cache(next(self._numbers)), allocate(_ROOM_BYTES), allocate(_ROOM_BYTES).view(np.uint32)
        try:
            cache, _, text, out = kept
            most = 4 * sum(map(len, texts)) + PADDING
            text = text if most <= len(text) else allocate(most)
            bounds = _put_utf8(texts, text.data)
            room = bounds[-1] + ROOM
            is_own = is_shared or room > len(out)
            out = allocate(4 * room).view(np.uint32) if is_own else out
            ends = np.empty(len(texts), np.int64)
            encode(self._tables, cache, text, bounds, out, ends)
            return out[: ends[-1]] if is_own else out[: ends[-1]].copy(), ends
        finally:
            self._idle.append(kept)


def _put_utf8(texts: Sequence[str | bytes], room: "memoryview[int]") -> Ints:
    """Write texts as UTF-8, one after the other; where each begins, and the end. Long strings are encoded in parts."""
    bounds, end = [0], 0
    for text in texts:
        parts = [text] if isinstance(text, bytes) else _in_utf8(text)
        for part in parts:
            room[end : end + len(part)] = part
            end += len(part)
        bounds.append(end)
    return np.array(bounds)


def _in_utf8(text: str) -> Iterator[bytes]:
    for first in range(0, len(text), _SLICE):
        yield text[first : first + _SLICE].encode()


def _make_tables(vocabulary: Vocabulary, automaton: Automaton) -> tuple[Array, Array]:
    """A record of `merging.TABLES`, and the memory that it refers to."""
    tokens, ids = zip(*sorted(vocabulary.ranks.items(), key=itemgetter(1)), strict=True)
    starts = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)), out=starts[1:])
    byte_ranks, byte_pairs = np.zeros(256, np.int32), np.full(65_536, -1, np.int32)
    for rank in np.flatnonzero(np.diff(starts) <= 2).tolist():
        (byte_ranks if len(tokens[rank]) == 1 else byte_pairs)[int.from_bytes(tokens[rank])] = rank
    ranks = np.zeros(_power_of_two(2 * len(tokens)), np.uint64)
    arrays: dict[str, Array | int] = {
        **vars(automaton),
        "token_bytes": np.frombuffer(b"".join((*tokens, bytes(PADDING))), np.uint8),
        "starts": starts,
        "ranks": ranks,
        "last_rank": len(ranks) - 1,
        "byte_ranks": byte_ranks,
        "byte_pairs": byte_pairs,
        "tokens": np.array(ids, np.int32),
    }
    fill_ranks(arrays["token_bytes"], starts, ranks)
    num_pairs = 2 * len(tokens)  # as many as there usually are
    while True:
        pairs = np.zeros(_power_of_two(2 * num_pairs), np.uint64)
        bits = np.zeros(len(pairs) // 16 + 1, np.uint64)
        arrays |= {"pairs": pairs, "last_pair": len(pairs) - 1, "filter": bits}
        arrays["filter_shift"] = 65 - (4 * len(pairs)).bit_length()
        num_pairs = fill_pairs(_addresses(arrays), len(tokens), pairs, bits)
        if 2 * num_pairs <= len(pairs):
            break
    # All in one piece of memory, so that its pages are large: 0.15 of the time with 100,000 tokens.
    tables = {name: table for name, table in arrays.items() if not isinstance(table, int)}
    starts = np.cumsum([0, *(-(-table.nbytes // 64) * 64 for table in tables.values())])
    room = allocate(int(starts[-1]))
    for start, (name, table) in zip(starts.tolist(), tables.items(), strict=False):
        arrays[name] = copy = room[start : start + table.nbytes].view(table.dtype)
        copy[:] = table
    return _addresses(arrays), room


def _addresses(arrays: dict[str, Array | int]) -> Array:
    fields = {name: value if isinstance(value, int) else value.ctypes.data for name, value in arrays.items()}
    addresses: Array = record(TABLES, **fields)
    return addresses


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


def join(parts: Sequence[TokenIds]) -> Encoded:
    """The tokens of each text as tokens of all."""
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return np.concatenate((np.empty(0, np.uint32), *parts)), offsets
