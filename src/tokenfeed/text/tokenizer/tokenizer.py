"""`Tokenizer`: converts text to arrays of tokens and back."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, FormatError, MissingError
from tokenfeed.kernels.packing import NONE, surround
from tokenfeed.text.tokenizer.engines import TokenizerEngine, choose_engine, make_engine
from tokenfeed.text.tokenizer.patterns import NANOCHAT_SPECIAL_TOKENS, PATTERNS, find_pattern
from tokenfeed.text.tokenizer.pieces import encode_texts
from tokenfeed.text.tokenizer.training import train_vocabulary
from tokenfeed.text.tokenizer.vocabulary import Vocabulary
from tokenfeed.text.tokenizer.vocabulary_files import PathLike, read_ranks, read_vocabulary, write_vocabulary
from tokenfeed.types import Array, Ints

__all__ = ["Tokenizer"]


class Tokenizer:
    """A vocabulary and an engine that encodes with it.

    Tokens are those of tiktoken's `encode_ordinary`, whatever the engine (for exceptions see gigatoken in `engines/`,
    and `pieces.py` for texts with runs of more than 65,536 characters). Special tokens written out in a text are
    ordinary text. A tokenizer may be shared by threads, pickled, and used after a fork.
    """

    def __init__(self, vocabulary: Vocabulary, *, engine: str | None = None) -> None:
        self._vocabulary = vocabulary
        self._engine_name = choose_engine(vocabulary, engine)
        self._engine: TokenizerEngine | None = make_engine(vocabulary, self._engine_name)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int = 32768,
        *,
        pattern: str = "nanochat",
        special_tokens: Sequence[str] = NANOCHAT_SPECIAL_TOKENS,
        bos: str | None = "<|bos|>",
        doc_cap: int | None = None,
        max_chars: int | None = None,
        engine: str | None = None,
        progress: bool = False,
    ) -> "Tokenizer":
        """Learn a vocabulary of `vocab_size` tokens, special tokens included, in one pass over the texts.

        `pattern` is nanochat, gpt2, gpt4, gpt4o or a regular expression. Only the first `doc_cap` characters of each
        text are used, and reading stops after the text with which the total exceeds `max_chars`. If the texts hold too
        few pairs, the vocabulary is smaller. The result depends on the texts alone. Memory grows with the distinct
        pieces of text, not with the texts. Needs rustbpe.
        """
        vocabulary = train_vocabulary(
            texts,
            vocab_size,
            pattern=find_pattern(pattern),
            special_tokens=special_tokens,
            bos=bos,
            doc_cap=doc_cap,
            max_chars=max_chars,
            progress=progress,
        )
        return cls(vocabulary, engine=engine)

    @classmethod
    def load(cls, path: PathLike, *, bos: str | None = None, engine: str | None = None) -> "Tokenizer":
        """Open a file written by `save`, a `tokenizer.json` of Hugging Face, or a folder that holds either.

        `bos` names the special token that begins a document, which Hugging Face's files do not record.
        """
        vocabulary = read_vocabulary(path)
        if bos is not None:
            vocabulary = Vocabulary(vocabulary.ranks, vocabulary.pattern, vocabulary.special_tokens, bos)
        return cls(vocabulary, engine=engine)

    @classmethod
    def from_ranks(
        cls,
        path: PathLike,
        *,
        pattern: str,
        special_tokens: Mapping[str, int],
        bos: str | None = None,
        engine: str | None = None,
    ) -> "Tokenizer":
        """Open a rank file of tiktoken, which holds ranks only: give its pattern and special tokens."""
        ranks, regex = read_ranks(path), find_pattern(pattern)
        try:
            Vocabulary(ranks, regex, {})
        except ArgumentError as error:
            raise FormatError(f"{path}: {error}") from error
        return cls(Vocabulary(ranks, regex, dict(special_tokens), bos), engine=engine)

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        threads: int = 2,
        prepend: str | int | None = None,
        append: str | int | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> tuple[Array, Ints]:
        """All tokens one after the other, and offsets: text i has `ids[offsets[i]:offsets[i + 1]]`.

        `prepend` and `append` go around the tokens of every text: names of special tokens, or ids. The result is a new
        array of `dtype`, by default `self.dtype`. At most `threads` threads work, without the GIL, and no Python object
        is made per token. Work beyond the engine's takes 1 to 3% of its time.
        """
        if isinstance(texts, str):
            raise ArgumentError("texts is one str; encode_batch expects a list of them. Use encode for one text")
        if threads < 1:
            raise ArgumentError(f"threads is {threads}; expected 1 or more")
        out_dtype = self.dtype if dtype is None else self._check_dtype(dtype)
        first, last = self._resolve(prepend, "prepend"), self._resolve(append, "append")
        if not isinstance(texts, (list, tuple)):
            texts = list(texts)
        ids, offsets = encode_texts(self._ready_engine(), texts, threads)
        if first == last == NONE:
            return ids.astype(out_dtype), offsets.copy()
        extra = (first != NONE) + (last != NONE)
        out = np.empty(len(ids) + extra * len(texts), out_dtype)
        out_offsets = np.empty(len(offsets), np.int64)
        for array in (ids, offsets):
            array.flags.writeable = False  # the kernel is compiled for read-only arrays
        surround(ids, offsets, first, last, out, out_offsets)
        return out, out_offsets

    def encode(self, text: str, *, prepend: str | int | None = None, append: str | int | None = None) -> Array:
        """The tokens of one text."""
        return self.encode_batch([text], threads=1, prepend=prepend, append=append)[0]

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of these tokens; special tokens appear by name, and bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf8", "replace")

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The bytes of these tokens."""
        numbers = np.atleast_1d(np.asarray(ids))
        if numbers.size == 0:
            return b""
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ArgumentError(f"ids has shape {numbers.shape} and dtype {numbers.dtype}; expected a row of integers")
        tokens = self._vocabulary.tokens
        outside = (numbers < 0) | (numbers >= len(tokens))
        if outside.any():
            raise ArgumentError(f"{numbers[outside][0]} is not a token; ids go from 0 to {len(tokens) - 1}")
        found = [token for number in numbers.tolist() if (token := tokens[number]) is not None]
        if len(found) < numbers.size:
            unused = next(number for number in numbers.tolist() if tokens[number] is None)
            raise ArgumentError(f"id {unused} is not used by any token of the vocabulary")
        return b"".join(found)

    def save(self, path: PathLike) -> None:
        """Write the vocabulary as JSON: to `path` if it ends in `.json`, else into that folder."""
        write_vocabulary(self._vocabulary, path)

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return self._vocabulary.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Narrowest dtype for tokens: uint16 for up to 65,536 tokens, else uint32."""
        return np.dtype(np.uint16 if self.vocab_size <= 65_536 else np.uint32)

    @property
    def token_bytes(self) -> npt.NDArray[np.int32]:
        """Number of bytes of text each token stands for, 0 for special tokens: the divisor of bits per byte."""
        return self._vocabulary.token_bytes

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for vocabularies with equal ranks, pattern and special tokens."""
        return self._vocabulary.digest

    @property
    def engine_name(self) -> str:
        """Name of the engine: fastokens, tiktoken or gigatoken."""
        return self._engine_name

    @property
    def bos_id(self) -> int:
        """Id of the token that begins a document."""
        if self._vocabulary.bos is None:
            raise MissingError(
                "this tokenizer does not say which token begins a document; open it with bos=…, one of "
                f"{list(self._vocabulary.special_tokens)}"
            )
        return self._vocabulary.special_tokens[self._vocabulary.bos]

    def special_id(self, name: str) -> int:
        """Id of a special token."""
        known = self._vocabulary.special_tokens
        if name not in known:
            raise MissingError(f"there is no special token {name!r}; the vocabulary has {list(known)}")
        return known[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    def __repr__(self) -> str:
        names = {regex: name for name, regex in PATTERNS.items()}
        pattern = names.get(self._vocabulary.pattern, "own")
        return (
            f"Tokenizer({self.vocab_size:,} tokens, {pattern} pattern, bos {self._vocabulary.bos!r}, "
            f"engine {self._engine_name})"
        )

    @property
    def is_parallel(self) -> bool:
        """Whether one call of `encode_batch` with many threads is faster than many calls at once with one thread."""
        return self._ready_engine().is_parallel

    def _ready_engine(self) -> TokenizerEngine:
        """The engine; made again after unpickling."""
        if self._engine is None:
            self._engine = make_engine(self._vocabulary, self._engine_name)
        return self._engine

    def _resolve(self, token: str | int | None, what: str) -> int:
        if token is None:
            return NONE
        if isinstance(token, str):
            return self.special_id(token)
        number = int(token)
        if not 0 <= number < self.vocab_size:
            raise ArgumentError(f"{what} is {number}, which is not a token; ids go from 0 to {self.vocab_size - 1}")
        return number

    def _check_dtype(self, dtype: npt.DTypeLike) -> np.dtype[Any]:
        checked = np.dtype(dtype)
        if checked.kind not in "iu" or np.iinfo(checked).max < self.vocab_size - 1:
            raise ArgumentError(
                f"dtype {checked} cannot hold ids up to {self.vocab_size - 1}; use {self.dtype} or a wider integer"
            )
        return checked
