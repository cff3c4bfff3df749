"""Engines: libraries that turn text into tokens. All give the same tokens; they differ in speed and memory.

fastokens   3 to 6 times as fast as tiktoken, any pattern, made exact here; the default if it is installed
tiktoken    the reference, always installed
gigatoken   used only if named: the fastest for the patterns it knows (gpt2, gpt4, gpt4o), but its Unicode tables are
            older than tiktoken's, and its caches grow without limit

A library is imported when its engine is made.
"""

import base64
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, DependencyError, FormatError
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary
from tokenfeed.types import Ints

__all__ = ["ENGINES", "Encoded", "TokenIds", "TokenizerEngine", "available_cores", "choose_engine", "make_engine"]

ENGINES = ("fastokens", "tiktoken", "gigatoken")

TokenIds = npt.NDArray[np.uint32]
Encoded = tuple[TokenIds, Ints]
"""The tokens of all texts one after the other, and the offset of each text's first token, plus the end."""

_LONGEST_TOKEN = 2048  # fastokens takes 0.4 s to load a token of 2,048 bytes, 6 s for 8,192, and fails from 65,536 on

# The threads of fastokens belong to the process that first calls any tokenizer. A process forked after that has none of
# them, and would wait for them for ever.
_fastokens_process: int | None = None


def choose_engine(vocabulary: Vocabulary, name: str | None = None) -> str:
    """The given name, checked; by default fastokens if it is installed, else tiktoken.

    The default is also tiktoken for a vocabulary with tokens of more than 2,048 bytes, which fastokens loads slowly.
    """
    if name is None:
        is_short = max(map(len, vocabulary.ranks)) <= _LONGEST_TOKEN
        return "fastokens" if is_short and find_spec("fastokens") else "tiktoken"
    if name not in ENGINES:
        raise ArgumentError(f"there is no engine {name!r}; choose one of {', '.join(ENGINES)}, or leave engine out")
    if not find_spec(name):
        package = "'tokenfeed[text]'" if name == "fastokens" else name
        raise DependencyError(f"engine {name!r} is not installed: pip install {package}, or leave engine out")
    return name


def make_engine(vocabulary: Vocabulary, name: str | None = None) -> "TokenizerEngine":
    """The engine of that name, or the default one. Imports the library and takes tens of milliseconds."""
    kinds: dict[str, Callable[[Vocabulary], TokenizerEngine]]
    kinds = {"fastokens": _Fastokens, "tiktoken": _Tiktoken, "gigatoken": _Gigatoken}
    return kinds[choose_engine(vocabulary, name)](vocabulary)


def available_cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class TokenizerEngine(ABC):
    """One vocabulary, ready to encode. Safe to call from several threads, and in a process forked from this one."""

    is_parallel = False
    """Whether it divides work among threads itself, better than several calls at once would."""
    longest_run = 65_536
    """Characters after which `pieces.py` cuts a run, so that the engine takes no more than linear time and memory."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # kept between calls; a forked process starts its own
        self._pool_size, self._pool_process = 0, -1

    def encode(self, texts: Sequence[str], threads: int, /) -> Encoded:
        """The tokens of all texts. Releases the GIL; special tokens written out in a text are ordinary text.

        Texts are encoded one by one on `threads` threads, the caller's included. The longest go first, so that all end
        together. They come from `pieces.py`; surrogates raise UnicodeEncodeError or TypeError.
        """
        parts: list[TokenIds] = [np.empty(0, np.uint32)] * len(texts)
        threads = min(threads, len(texts))
        order = range(len(texts))
        numbers = iter(order if threads <= 1 else sorted(order, key=lambda number: len(texts[number]), reverse=True))

        def work() -> None:
            for number in numbers:
                parts[number] = self._encode_one(texts[number])

        others = [self._threads(threads - 1).submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()
        return _join(parts)

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
            raise _unusable("tiktoken", vocabulary, error) from error

    def _encode_one(self, text: str) -> TokenIds:
        try:
            tokens: TokenIds = self._encoding.encode_to_numpy(text, disallowed_special=())
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # not an Exception, and not importable from anywhere
                raise
            pattern = self._vocabulary.pattern[:200]
            raise FormatError(f"tiktoken cannot encode with the pattern {pattern!r}: {error}") from error
        return tokens


class _RankFileEngine(TokenizerEngine):
    """An engine that loads a file of ranks, and encodes a whole batch on all cores or one text on one.

    With fewer threads than cores, texts are encoded one at a time on that many threads.
    """

    is_parallel = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        # The file holds ordinary tokens only, numbered from 0 without holes: engines then find no special token in a
        # text. `_table` gives the ids of those numbers, if they differ.
        super().__init__()
        self._vocabulary = vocabulary
        tokens = sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
        lines = [b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
        with tempfile.TemporaryDirectory(prefix="tokenfeed-") as folder:
            path = Path(folder, "ranks.tiktoken")
            path.write_bytes(b"".join(lines))
            self._load(str(path), vocabulary.pattern)
        ids = np.fromiter((vocabulary.ranks[token] for token in tokens), np.uint32, len(tokens))
        self._table = None if ids[-1] == len(ids) - 1 else ids
        self._cores = available_cores()

    @abstractmethod
    def _load(self, path: str, pattern: str) -> None: ...

    @abstractmethod
    def _encode_all(self, texts: Sequence[str]) -> Encoded: ...

    def encode(self, texts: Sequence[str], threads: int, /) -> Encoded:
        ids, offsets = super().encode(texts, threads) if threads < self._cores else self._encode_all(texts)
        return (ids if self._table is None else self._table[ids]), offsets


class _Fastokens(_RankFileEngine):
    """fastokens, made exact. One text of megabytes may use several cores whatever `threads` is.

    By itself it differs from tiktoken in two cases: it treats U+180E, the Mongolian vowel separator, as white space, as
    Unicode did before 6.3; and in GPT-4o's pattern it does not treat `'ſ` as a way to write `'s`. A comparison of all
    code points, and of strings of them, found these two. Texts that contain either are encoded by tiktoken, and so is
    everything in a process forked after the first call.
    """

    _exact: _Tiktoken | None = None

    def _load(self, path: str, pattern: str) -> None:
        import fastokens

        try:
            self._tokenizer = fastokens.Tokenizer.from_tiktoken(path, pattern=pattern)
        except ValueError as error:
            raise _unusable("fastokens", self._vocabulary, error) from error

    def encode(self, texts: Sequence[str], threads: int, /) -> Encoded:
        global _fastokens_process
        if _fastokens_process is None:
            _fastokens_process = os.getpid()
        elif _fastokens_process != os.getpid():
            return self._encode_exactly(texts, threads)
        inexact = [n for n, text in enumerate(texts) if not text.isascii() and ("\u180e" in text or "'ſ" in text)]
        if not inexact:
            return super().encode(texts, threads)
        parts: list[TokenIds] = [np.empty(0, np.uint32)] * len(texts)
        others = sorted(set(range(len(texts))) - set(inexact))
        for numbers, encode in ((others, super().encode), (inexact, self._encode_exactly)):
            ids, offsets = encode([texts[number] for number in numbers], threads)
            for i, number in enumerate(numbers):
                parts[number] = ids[offsets[i] : offsets[i + 1]]
        return _join(parts)

    def _encode_exactly(self, texts: Sequence[str], threads: int) -> Encoded:
        self._exact = self._exact or _Tiktoken(self._vocabulary)
        return self._exact.encode(texts, threads)

    def _encode_one(self, text: str) -> TokenIds:
        return np.frombuffer(self._tokenizer.encode_batch_flat((text,))[0], np.uint32)

    def _encode_all(self, texts: Sequence[str]) -> Encoded:
        data, ends = self._tokenizer.encode_batch_flat(texts)
        return np.frombuffer(data, np.uint32), np.frombuffer(ends, np.int64)


class _Gigatoken(_RankFileEngine):
    """It does not know about 4,700 letters, marks and digits of Unicode 17 (4,298 of them ideographs of extension J).

    In 73 MB of real text in ten languages and code, all tokens are the same.
    """

    def _load(self, path: str, pattern: str) -> None:
        import gigatoken

        schemes = {PATTERNS["gpt2"]: "gpt2", PATTERNS["gpt4"]: "gpt4", PATTERNS["gpt4o"]: "o200k"}
        if pattern not in schemes:
            raise ArgumentError(
                f"gigatoken knows the patterns gpt2, gpt4 and gpt4o, not {pattern!r}; choose another engine, or leave "
                "engine out"
            )
        self._tokenizer = gigatoken.Tokenizer.from_tiktoken(path, schemes[pattern])

    def _encode_one(self, text: str) -> TokenIds:
        ids: TokenIds = self._tokenizer.encode(text)
        return ids

    def _encode_all(self, texts: Sequence[str]) -> Encoded:
        layout = self._tokenizer.encode_batch(texts).layout  # it works sequentially in a forked process by itself
        return np.asarray(layout.content.data), np.asarray(layout.offsets.data)


def _join(parts: Sequence[TokenIds]) -> Encoded:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return np.concatenate((np.empty(0, np.uint32), *parts)), offsets


def _unusable(engine: str, vocabulary: Vocabulary, error: Exception) -> ArgumentError:
    return ArgumentError(f"{engine} cannot use this vocabulary with pattern {vocabulary.pattern!r}: {error}")
