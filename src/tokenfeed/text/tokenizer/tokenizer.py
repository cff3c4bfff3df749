"""`Tokenizer`: converts text to arrays of tokens and back."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, FormatError, MissingError
from tokenfeed.kernels.packing import NONE, surround
from tokenfeed.text.tokenizer.engines import TokenizerEngine, choose_engine, make_engine
from tokenfeed.text.tokenizer.general import GeneralVocabulary
from tokenfeed.text.tokenizer.general_engines import GeneralEngine, make_general_engine
from tokenfeed.text.tokenizer.hub import find_on_hub
from tokenfeed.text.tokenizer.pieces import byte_places, encode_texts, swallow
from tokenfeed.text.tokenizer.training import train_vocabulary
from tokenfeed.text.tokenizer.vocabulary import NANOCHAT_SPECIAL_TOKENS, PATTERNS, Vocabulary, find_pattern
from tokenfeed.text.tokenizer.vocabulary_files import (
    AnyVocabulary,
    PathLike,
    read_ranks,
    read_vocabulary,
    write_vocabulary,
)
from tokenfeed.types import Array, Bools, Ints

__all__ = ["Tokenizer", "name_tokens"]

_DIGEST = re.compile(r"[0-9a-f]{16}")
_NO_SPECIAL_TOKENS = "this tokenizer has no special tokens"
_GET_SPECIAL_TOKENS = "Train one that has some (Tokenizer.train(…, special_tokens=['<|bos|>'])), or load another"


def name_tokens(digest: str, bos: int | None, eos: int | None) -> str:
    """`"0123456789abcdef bos=1 eos=2"`: a digest, and the ids before and after every document, if there are."""
    around = [f"{role}={number}" for role, number in (("bos", bos), ("eos", eos)) if number is not None]
    return " ".join((digest, *(around or ("no-separator",))))


def _offsets(counts: Sequence[int] | Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))


class Tokenizer:
    """A vocabulary and an engine that encodes with it.

    For plain byte-level BPE, tokens are those of tiktoken's `encode_ordinary`, whatever the engine (but see `pieces.py`
    for runs of more than 2^24 characters, with tiktoken 65,536). For any other kind, they are those of its own library,
    tokenizers or sentencepiece, for the whole text. Special tokens written out in a text are ordinary text in every
    case. A tokenizer may be shared by threads, pickled, and used after a fork.
    """

    def __init__(self, vocabulary: AnyVocabulary, *, engine: str | None = None) -> None:
        self.vocabulary = vocabulary
        self._engine: TokenizerEngine
        if isinstance(vocabulary, Vocabulary):
            self.engine_name = choose_engine(vocabulary, engine)
            """Name of the engine: one of `ENGINES`, or the library of a tokenizer that is no plain byte-level BPE."""
            self._engine = make_engine(vocabulary, self.engine_name)
        else:
            general = self._engine = make_general_engine(vocabulary, engine)
            self.engine_name = general.name
        self.vocab_size = vocabulary.size
        """The largest id plus one."""
        self.dtype: np.dtype[Any] = np.dtype(np.uint16 if self.vocab_size <= 65_536 else np.uint32)
        """Narrowest dtype for tokens: uint16 for up to 65,536 tokens, else uint32."""

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

        `pattern` is the name of one in `vocabulary.PATTERNS`, or a regular expression. Only the first `doc_cap`
        characters of each text are used, and reading stops after the text with which the total exceeds `max_chars`. If
        the texts hold too few pairs, the vocabulary is smaller. The result depends on the texts alone. Memory grows
        with the distinct pieces of text, not with the texts. Needs rustbpe.
        """
        regex, limits = find_pattern(pattern), {"doc_cap": doc_cap, "max_chars": max_chars}
        vocabulary = train_vocabulary(texts, vocab_size, regex, special_tokens, bos, limits, progress=progress)
        return cls(vocabulary, engine=engine)

    @classmethod
    def load(
        cls, path: PathLike, *, bos: str | None = None, eos: str | None = None, engine: str | None = None
    ) -> "Tokenizer":
        """Open a tokenizer of any kind: a file, a folder that holds one, or `hf://owner/name[@revision]` of the hub.

        Files are those of `save`, Hugging Face's `tokenizer.json` and SentencePiece's `tokenizer.model`. Plain
        byte-level BPE runs on our engines, anything else on its own library, which must be installed: `pip install
        'tokenfeed[tokenizers]'`.

        `bos` and `eos` name the special tokens that begin and end a document, where the file does not (Hugging Face's
        `tokenizer_config.json` beside it counts), or where others are wanted.
        """
        if isinstance(path, str) and path.startswith("hf://"):
            path = find_on_hub(path)
        vocabulary = read_vocabulary(path, bos=bos, eos=eos)
        vocabulary = replace(vocabulary, bos=bos or vocabulary.bos, eos=eos or vocabulary.eos)
        try:
            return cls(vocabulary, engine=engine)
        except (FormatError, ArgumentError) as error:
            if isinstance(error, ArgumentError) and engine is not None:
                raise  # the caller's choice, not the file, may be what is wrong
            raise FormatError(f"{path}: {error}") from error

    @classmethod
    def from_pretrained(
        cls,
        name: PathLike,
        *,
        revision: str | None = None,
        bos: str | None = None,
        eos: str | None = None,
        engine: str | None = None,
    ) -> "Tokenizer":
        """Open the tokenizer of a model: a local folder, else the repository `owner/name` of the Hugging Face hub.

        The hub needs huggingface_hub (`pip install 'tokenfeed[hub]'`), which keeps what it fetched in its own cache and
        uses the token of `hf auth login` or HF_TOKEN. Only files of tokenizers are fetched.
        """
        is_local = Path(name).exists()
        if is_local and revision is not None:
            raise ArgumentError(f"revision is {revision!r}, but {name} is a local folder; leave one of them out")
        where = name if is_local else find_on_hub(f"hf://{name}" + (f"@{revision}" if revision else ""))
        return cls.load(where, bos=bos, eos=eos, engine=engine)

    @classmethod
    def of(cls, given: "Tokenizer | PathLike") -> "Tokenizer":
        """A tokenizer as it is, or loaded from its path. Anything else is refused with advice."""
        if isinstance(given, Tokenizer):
            return given
        if isinstance(given, str | os.PathLike):
            return cls.load(given)
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        advice = "pass a tokenfeed.Tokenizer, or a path for Tokenizer.load"
        if kind.startswith("tiktoken."):
            advice = "wrap it: tokenfeed.Tokenizer.from_tiktoken(encoding, bos='<|endoftext|>')"
        elif kind.startswith(("transformers.", "tokenizers.")):
            advice = "save it to a folder (save_pretrained), and pass the folder: tokenfeed.Tokenizer.load(folder)"
        elif kind.startswith("sentencepiece."):
            advice = "pass the path of its .model file"
        raise ArgumentError(f"tokenizer is a {kind}; {advice}")

    @classmethod
    def from_tiktoken(
        cls, encoding: Any, *, bos: str | None = None, eos: str | None = None, engine: str | None = None
    ) -> "Tokenizer":
        """Take over an `Encoding` of tiktoken, such as `tiktoken.get_encoding("gpt2")`.

        Its `<|endoftext|>` is the EOS, unless `eos` names another; none of its tokens is the BOS unless you name one.
        """
        if not type(encoding).__module__.startswith("tiktoken"):
            raise ArgumentError(
                f"encoding is {encoding!r:.100}; expected an Encoding of tiktoken: tiktoken.get_encoding('gpt2')"
            )
        special_tokens = dict(encoding._special_tokens)  # tiktoken has no other way to tell
        eos = eos or ("<|endoftext|>" if "<|endoftext|>" in special_tokens else None)
        vocabulary = Vocabulary(dict(encoding._mergeable_ranks), encoding._pat_str, special_tokens, bos, eos)
        return cls(vocabulary, engine=engine)

    @classmethod
    def from_ranks(
        cls,
        path: PathLike,
        *,
        pattern: str,
        special_tokens: Mapping[str, int],
        bos: str | None = None,
        eos: str | None = None,
        engine: str | None = None,
    ) -> "Tokenizer":
        """Open a rank file of tiktoken, which holds ranks only: give its pattern and special tokens."""
        ranks, regex = read_ranks(path), find_pattern(pattern)
        try:
            Vocabulary(ranks, regex, {})
        except ArgumentError as error:
            raise FormatError(f"{path}: {error}") from error
        return cls(Vocabulary(ranks, regex, dict(special_tokens), bos, eos), engine=engine)

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
        if set(map(type, texts)) - {str}:
            for number, text in enumerate(texts):
                if not isinstance(text, str):
                    raise ArgumentError(f"texts[{number}] is a {type(text).__name__}; expected a str")
        return self._encode(texts, threads, first, last, out_dtype)

    def encode_read(self, texts: Sequence[str | bytes], *, threads: int, prepend: int) -> tuple[Array, Ints]:
        """As `encode_batch`, for `stream`: of strings, and of UTF-8 that was checked when it was read.

        Where a subclass has an `encode_batch` of its own, that is called, with strings.
        """
        if type(self).encode_batch is not Tokenizer.encode_batch:
            strings = [text.decode() if isinstance(text, bytes) else text for text in texts]
            return self.encode_batch(strings, threads=threads, prepend=prepend)
        return self._encode(texts, threads, prepend, NONE, self.dtype)

    def _encode(
        self, texts: Sequence[str | bytes], threads: int, first: int, last: int, dtype: np.dtype[Any]
    ) -> tuple[Array, Ints]:
        ids, offsets = encode_texts(self._engine, texts, threads)
        if first == last == NONE:
            return ids.astype(dtype), offsets.copy()
        extra = (first != NONE) + (last != NONE)
        out = np.empty(len(ids) + extra * len(texts), dtype)
        out_offsets = np.empty(len(offsets), np.int64)
        for array in (ids, offsets):
            array.flags.writeable = False  # the kernel is compiled for read-only arrays
        surround(ids, offsets, first, last, out, out_offsets)
        return out, out_offsets

    def encode(self, text: str, *, prepend: str | int | None = None, append: str | int | None = None) -> Array:
        """The tokens of one text."""
        return self.encode_batch([text], threads=1, prepend=prepend, append=append)[0]

    def encode_parts(self, documents: Sequence[Sequence[str | int]]) -> tuple[Array, Ints, Ints, Ints]:
        """Documents of texts and special tokens, given as ids: `(ids, offsets, firsts, stops)`.

        Document i has tokens [offsets[i], offsets[i + 1]), and token k stands for characters [firsts[k], stops[k]) of
        its document, in which a special token is one character. Special tokens written out in a text are ordinary text;
        texts are UTF-8. With a tokenizer of another library, its rules hold for texts after special tokens, as if it
        had found these itself.

            [[1, "Hi you"]]  →  ids 1 "Hi" " you",  firsts 0 1 3,  stops 1 3 7
        """
        if isinstance(self.vocabulary, GeneralVocabulary):
            assert isinstance(self._engine, GeneralEngine)
            made = [self._engine.encode_parts(parts) for parts in documents]
            columns = zip(*made, strict=True) if made else [()] * 3
            ids, firsts, stops = (np.concatenate([np.empty(0, np.int64), *column]) for column in columns)
            return ids.astype(self.dtype), _offsets([len(one[0]) for one in made]), firsts, stops
        special = self.vocabulary.special_tokens
        strips = {special[name]: sides for name, sides in self.vocabulary.strips.items()}
        swallowed = [swallow(parts, strips) for parts in documents]
        flat = [part for parts, _ in swallowed for part in parts]
        is_text = np.array([isinstance(part, str) for part in flat], np.bool_)
        texts = [part for part in flat if isinstance(part, str)]
        encoded, text_offsets = self.encode_batch(texts, threads=1)
        num_characters = np.array([width for _, widths in swallowed for width in widths], np.int64)
        num_tokens = np.ones(len(flat), np.int64)
        num_tokens[is_text] = np.diff(text_offsets)
        of_text = np.repeat(is_text, num_tokens)
        ids = np.empty(of_text.size, self.dtype)
        ids[of_text] = encoded
        ids[~of_text] = [part for part in flat if isinstance(part, int)]
        # Characters of all texts laid end to end, then of all parts, then of each document.
        byte_of = byte_places("".join(texts))
        ends = np.cumsum(self.token_bytes[encoded], dtype=np.int64)
        firsts, stops = np.zeros((2, ids.size), np.int64)
        firsts[of_text] = np.searchsorted(byte_of, ends - self.token_bytes[encoded], side="right") - 1
        stops[of_text] = np.searchsorted(byte_of, ends, side="left")
        stops[~of_text] = num_characters[~is_text]
        first_parts = _offsets([len(parts) for parts in documents])
        part_places = _offsets(num_characters)
        of_document = np.repeat(part_places[first_parts[:-1]], np.diff(first_parts))
        shifts = part_places[:-1] - of_document - is_text * _offsets(num_characters * is_text)[:-1]
        shifts = np.repeat(shifts, num_tokens)
        return ids, _offsets(num_tokens)[first_parts], firsts + shifts, stops + shifts

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of these tokens; special tokens appear by name, and bytes that are not UTF-8 become U+FFFD.

        A tokenizer that is no plain byte-level BPE decodes by its own library. Where it changes a text before it
        encodes it (lower case, no accents), the changed text comes back.
        """
        found = self._find(ids)
        if isinstance(self._engine, GeneralEngine):
            return self._engine.decode(np.atleast_1d(np.asarray(ids)).tolist())
        return b"".join(found).decode("utf8", "replace")

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The bytes of these tokens, one after the other, as `token_bytes` counts them."""
        return b"".join(self._find(ids))

    def _find(self, ids: npt.ArrayLike) -> list[bytes]:
        numbers = np.atleast_1d(np.asarray(ids))
        if numbers.size == 0:
            return []
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ArgumentError(f"ids has shape {numbers.shape} and dtype {numbers.dtype}; expected a row of integers")
        tokens = self.vocabulary.tokens
        found = [tokens[number] if 0 <= number < len(tokens) else None for number in numbers.tolist()]
        known = [token for token in found if token is not None]
        if len(known) < len(found):
            missing = numbers[found.index(None)]
            raise ArgumentError(f"no token has id {missing}; ids go from 0 to {len(tokens) - 1}")
        return known

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write the tokenizer as JSON: to `path` if it ends in `.json`, else into that folder.

        If another one is there, it is replaced only with `overwrite=True`.
        """
        write_vocabulary(self.vocabulary, path, overwrite=overwrite)

    @property
    def token_bytes(self) -> npt.NDArray[np.int32]:
        """Number of bytes of text each token stands for, 0 for special tokens: the divisor of bits per byte.

        They are bytes of the text as the tokenizer sees it: after its normalizer, if it has one, and for WordPiece
        without white space, which it drops. Where it puts a space before every text (SentencePiece, see `adds_space`),
        the first token of a document counts that space too; `count_bytes` and `torch.evaluate_bpb` leave it out.
        """
        return self.vocabulary.token_bytes

    @property
    def adds_space(self) -> bool:
        """Whether a space is put before every text, as SentencePiece does."""
        return isinstance(self.vocabulary, GeneralVocabulary) and self.vocabulary.adds_space

    @cached_property
    def edges(self) -> tuple[Bools, Bools]:
        """Which tokens end a text, so that another begins after them (special ones), and which begin with a space that
        is not the text's own if they begin a text. Arrays over all ids; the second is False where none is added."""
        ends, spaces = np.zeros(self.vocab_size, np.bool_), np.zeros(self.vocab_size, np.bool_)
        special = set(self.vocabulary.special_tokens.values())
        if isinstance(self.vocabulary, GeneralVocabulary):
            special.discard(-1 if self.vocabulary.unknown is None else self.vocabulary.unknown)
        ends[sorted(special)] = True
        if self.adds_space:
            spaces[:] = [token is not None and token.startswith(b" ") for token in self.vocabulary.tokens]
        return ends, spaces & ~ends

    def count_bytes(self, ids: npt.ArrayLike) -> Ints:
        """Bytes of text that each of these tokens stands for where it is: documents, and special tokens around them.

        As `token_bytes`, less the space that was put before each document. The sum is the size of the texts in UTF-8
        wherever the tokenizer changes nothing else in them.
        """
        tokens = np.atleast_1d(np.asarray(ids, np.int64))
        ends, spaces = self.edges
        begins = np.concatenate(([True], ends[tokens[:-1]]))[: len(tokens)]
        return self.token_bytes[tokens].astype(np.int64) - (begins & spaces[tokens])

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for tokenizers that give every text the same tokens, with equal special tokens.

        For byte-level BPE: equal ranks, pattern and special tokens; for others: an equal definition.
        """
        return self.vocabulary.digest

    @property
    def pattern(self) -> str | None:
        """Regular expression by which a text is split; None where there is more to it, so that no part of a text can be
        encoded on its own."""
        return self.vocabulary.pattern if isinstance(self.vocabulary, Vocabulary) else None

    @property
    def bos_id(self) -> int:
        """Id of the token that begins a document: the BOS, or the EOS where there is only that, as in GPT-2."""
        name = self.vocabulary.bos or self.vocabulary.eos
        if name is None and not self.vocabulary.special_tokens:
            raise MissingError(f"{_NO_SPECIAL_TOKENS}, so none can begin a document. {_GET_SPECIAL_TOKENS}")
        if name is None:
            raise MissingError(
                "this tokenizer does not say which token begins a document; open it with Tokenizer.load(…, bos=…), one "
                f"of {list(self.vocabulary.special_tokens)}"
            )
        return self.vocabulary.special_tokens[name]

    @property
    def eos_id(self) -> int:
        """Id of the token that ends a document."""
        if self.vocabulary.eos is None:
            raise MissingError(
                "this tokenizer does not say which token ends a document; open it with Tokenizer.load(…, eos=…), one "
                f"of {list(self.vocabulary.special_tokens)}"
            )
        return self.vocabulary.special_tokens[self.vocabulary.eos]

    def separators(
        self, bos: str | None = None, eos: str | None = None, separator: str | None = "auto"
    ) -> tuple[int | None, int | None]:
        """Ids of the tokens before and after every document: those that are named, else its own BOS, else its own EOS.

        Without any, documents would run into each other: that needs `separator=None`.
        """
        if separator not in ("auto", None):
            raise ArgumentError(f"separator is {separator!r}; it must be 'auto', or None for nothing between documents")
        if separator is None and (bos or eos):
            raise ArgumentError(f"separator is None, but {'bos' if bos else 'eos'} is given: leave one of them out")
        if bos or eos or separator is None:
            return (self.special_id(bos) if bos else None), (self.special_id(eos) if eos else None)
        if self.vocabulary.bos is not None:
            return self.bos_id, None
        if self.vocabulary.eos is not None:
            return None, self.special_id(self.vocabulary.eos)
        if not self.vocabulary.special_tokens:
            raise ArgumentError(
                f"{_NO_SPECIAL_TOKENS}, so documents would run into each other. {_GET_SPECIAL_TOKENS}; or put nothing "
                "between documents: separator=None (--no-separator)"
            )
        raise ArgumentError(
            "this tokenizer does not say which token begins or ends a document, so documents would run into each "
            f"other. Name one of {list(self.vocabulary.special_tokens)}: bos=… (--bos) puts it before every document, "
            "eos=… (--eos) after; or say separator=None (--no-separator)"
        )

    def identity(self, bos: str | None = None, eos: str | None = None, separator: str | None = "auto") -> str:
        """What `prepare` with these separators records in a store: the digest, and the tokens around documents.

        Give it to a `Writer` of your own (`tokenizer=`) whose documents have them: stores that differ in it are not
        mixed or combined.
        """
        return name_tokens(self.digest, *self.separators(bos, eos, separator))

    def check_made(self, recorded: str | None, what: str) -> None:
        """Refuse tokens of another tokenizer. `recorded` is `Store.tokenizer`; no digest in it says nothing."""
        digest = (recorded or "").partition(" ")[0]
        if _DIGEST.fullmatch(digest) and digest != self.digest:
            raise ArgumentError(
                f"{what} was made with another tokenizer: its digest is {digest}, that of this one {self.digest}. The "
                "text would be nonsense; name the tokenizer that made it"
            )

    def special_id(self, name: str) -> int:
        """Id of a special token."""
        known = self.vocabulary.special_tokens
        if name not in known:
            raise MissingError(f"there is no special token {name!r}; the vocabulary has {list(known) or 'none'}")
        return known[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Tokenizer, engine=self.engine_name), (self.vocabulary,)

    def __repr__(self) -> str:
        names: dict[str | None, str] = {regex: name for name, regex in PATTERNS.items()}
        kind = "" if self.pattern is None else f" {names.get(self.pattern, 'own')} pattern,"
        return (
            f"Tokenizer({self.vocab_size:,} tokens,{kind} bos {self.vocabulary.bos!r}, "
            f"eos {self.vocabulary.eos!r}, engine {self.engine_name})"
        )

    @property
    def is_parallel(self) -> bool:
        """Whether one call of `encode_batch` with many threads is faster than many calls at once with one thread."""
        return self._engine.is_parallel

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
