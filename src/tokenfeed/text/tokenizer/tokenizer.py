"""`Tokenizer`: text to tokens and back, in arrays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, FormatError, MissingError
from tokenfeed.kernels.ragged import NOTHING, surround
from tokenfeed.text.tokenizer.engines import Engine, choose_engine, make_engine
from tokenfeed.text.tokenizer.patterns import NANOCHAT_SPECIAL_TOKENS, PATTERNS, find_pattern
from tokenfeed.text.tokenizer.pieces import encode_texts
from tokenfeed.text.tokenizer.training import train_vocabulary
from tokenfeed.text.tokenizer.vocabulary import Vocabulary
from tokenfeed.text.tokenizer.vocabulary_files import PathLike, read_ranks, read_vocabulary, write_vocabulary

__all__ = ["Tokenizer"]


class Tokenizer:
    """A vocabulary, and an engine that encodes with it.

    Tokens are those of tiktoken's `encode_ordinary`, whatever the engine (`engines/` says where gigatoken's are
    not, `pieces.py` what is done with texts that hold runs of more than 65,536 characters). Special tokens written out
    in a text are ordinary text. May be used by several threads, pickled, and carried over a fork.
    """

    def __init__(self, vocabulary: Vocabulary, *, engine: str | None = None) -> None:
        self._vocabulary = vocabulary
        self._engine_name = choose_engine(vocabulary, engine)
        self._engine: Engine | None = make_engine(vocabulary, self._engine_name)

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
        """Learn a vocabulary of `vocab_size` tokens, special tokens included, from texts, which are read once.

        `pattern` is nanochat, gpt2, gpt4, gpt4o or a regular expression. Of every text the first `doc_cap` characters
        count, and reading stops with the text that brings the total beyond `max_chars`. Where the texts hold fewer
        pairs than asked for, the vocabulary is smaller. The result depends on the texts alone. Memory is that of the
        distinct pieces of text, not of the texts. Needs rustbpe.
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
        """Open what `save` wrote, a `tokenizer.json` of Hugging Face, or a folder that holds either.

        `bos` names the special token that begins a document, which Hugging Face's files do not say.
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
        """Open a file of tiktoken's, which holds ranks alone: pattern and special tokens must be known."""
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
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """All tokens one behind the other, and offsets: those of text i are `ids[offsets[i]:offsets[i + 1]]`.

        `prepend` and `append` are put around the tokens of every text: the name of a special token, or an id. The
        array is a fresh one, of `self.dtype` unless another is asked for. At most `threads` threads work, without the
        GIL; no Python object is made per token. What is done beyond the engine's work takes 1 to 3% of its time.
        """
        if isinstance(texts, str):
            raise ArgumentError("texts is one str; encode_batch takes several, and encode takes one")
        if threads < 1:
            raise ArgumentError(f"threads is {threads}; at least 1 is needed")
        out_dtype = self.dtype if dtype is None else self._check_dtype(dtype)
        first, last = self._resolve(prepend, "prepend"), self._resolve(append, "append")
        if not isinstance(texts, (list, tuple)):
            texts = list(texts)
        ids, offsets = encode_texts(self._ready_engine(), texts, threads)
        if first == last == NOTHING:
            return ids.astype(out_dtype), offsets.copy()
        extra = (first != NOTHING) + (last != NOTHING)
        out = np.empty(len(ids) + extra * len(texts), out_dtype)
        out_offsets = np.empty(len(offsets), np.int64)
        for array in (ids, offsets):
            array.flags.writeable = False  # so that the kernel is compiled for one kind of array
        surround(ids, offsets, first, last, out, out_offsets)
        return out, out_offsets

    def encode(
        self, text: str, *, prepend: str | int | None = None, append: str | int | None = None
    ) -> npt.NDArray[Any]:
        """The tokens of one text."""
        return self.encode_batch([text], threads=1, prepend=prepend, append=append)[0]

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text that tokens stand for, special tokens by their names; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf8", "replace")

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The bytes that tokens stand for."""
        numbers = np.atleast_1d(np.asarray(ids))
        if numbers.size == 0:
            return b""
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ArgumentError(f"ids has shape {numbers.shape} and dtype {numbers.dtype}; expected a row of integers")
        tokens = self._vocabulary.tokens
        outside = (numbers < 0) | (numbers >= len(tokens))
        if outside.any():
            raise ArgumentError(f"{numbers[outside][0]} is not a token; the vocabulary has {len(tokens)}")
        try:
            return b"".join(map(tokens.__getitem__, numbers.tolist()))  # type: ignore[arg-type]
        except TypeError:
            unused = next(number for number in numbers.tolist() if tokens[number] is None)
            raise ArgumentError(f"{unused} is an id that no token has") from None

    def save(self, path: PathLike) -> None:
        """Write the vocabulary as JSON: to `path` where it ends in `.json`, else into that folder."""
        write_vocabulary(self._vocabulary, path)

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        """The largest id, and one."""
        return self._vocabulary.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest dtype for tokens: uint16 for up to 65,536 tokens, else uint32."""
        return np.dtype(np.uint16 if self.vocab_size <= 65_536 else np.uint32)

    @property
    def token_bytes(self) -> npt.NDArray[np.int32]:
        """How many bytes of text each token stands for, 0 for special tokens: what bits per byte are counted with."""
        return self._vocabulary.token_bytes

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that agree where ranks, pattern and special tokens do."""
        return self._vocabulary.digest

    @property
    def engine_name(self) -> str:
        """fastokens, tiktoken or gigatoken."""
        return self._engine_name

    @property
    def bos_id(self) -> int:
        """The id of the token that begins a document."""
        if self._vocabulary.bos is None:
            raise MissingError(
                f"this tokenizer has no token that begins a document; open it with bos=…, one of "
                f"{list(self._vocabulary.special_tokens)}"
            )
        return self._vocabulary.special_tokens[self._vocabulary.bos]

    def special_id(self, name: str) -> int:
        """The id of a special token."""
        if name not in self._vocabulary.special_tokens:
            raise MissingError(
                f"no special token is called {name!r}; there are {list(self._vocabulary.special_tokens)}"
            )
        return self._vocabulary.special_tokens[name]

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
        """Whether one call of `encode_batch` with several threads does better than several calls at once with one."""
        return self._ready_engine().is_parallel

    def _ready_engine(self) -> Engine:
        """The engine, made anew after unpickling."""
        if self._engine is None:
            self._engine = make_engine(self._vocabulary, self._engine_name)
        return self._engine

    def _resolve(self, token: str | int | None, what: str) -> int:
        if token is None:
            return NOTHING
        if isinstance(token, str):
            return self.special_id(token)
        number = int(token)
        if not 0 <= number < self.vocab_size:
            raise ArgumentError(f"{what} is {number}, which is not a token; the vocabulary has {self.vocab_size}")
        return number

    def _check_dtype(self, dtype: npt.DTypeLike) -> np.dtype[Any]:
        checked = np.dtype(dtype)
        if checked.kind not in "iu" or np.iinfo(checked).max < self.vocab_size - 1:
            raise ArgumentError(
                f"dtype {checked} cannot hold {self.vocab_size} tokens; {self.dtype} can, or any wider integer"
            )
        return checked
