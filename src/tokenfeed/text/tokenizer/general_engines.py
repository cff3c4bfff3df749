"""Engines for tokenizers of any kind: their own libraries, told that special tokens in a text are ordinary text.

tokenizers      Hugging Face's. It would find special tokens in texts, be it because they are listed as such or because
                the model has them among its words, which its `encode_special_tokens` does not change. So they get names
                here that no text has: 32 random hexadecimal digits, new for every engine. All other results are the
                library's own. Where it is byte-level BPE but for NFC and added tokens, texts that need neither go to
                our own engine: the tokens are the same.
sentencepiece   finds control symbols in no text.

Texts are encoded whole, whatever runs they have: both take time in proportion to a text's length.
"""

import json
import re
import secrets
import sys
import unicodedata
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, DependencyError, FormatError
from tokenfeed.text.tokenizer.engines import Encoded, TokenIds, TokenizerEngine, join, make_engine
from tokenfeed.text.tokenizer.general import GeneralVocabulary, open_model, vocab_of
from tokenfeed.types import Bools, Ints

__all__ = ["GeneralEngine", "make_general_engine"]


class GeneralEngine(TokenizerEngine):
    """A library with its tokenizer."""

    name: str
    longest_run = sys.maxsize

    def __init__(self, vocabulary: GeneralVocabulary) -> None:
        super().__init__()
        unknown = vocabulary.unknown
        self._names = {number: name for name, number in vocabulary.special_tokens.items() if number != unknown}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special tokens by name. A space that was put before the text is left out."""
        parts = []
        for name, grouped in groupby(ids, key=self._names.get):
            run = list(grouped)
            parts.append(self._decode_run(run) if name is None else name * len(run))
        return "".join(parts)

    @abstractmethod
    def _decode_run(self, ids: list[int]) -> str: ...

    @abstractmethod
    def encode_parts(self, parts: Sequence[str | int]) -> tuple[TokenIds, Ints, Ints]:
        """As `Tokenizer.encode_parts`, of one document: ids, and the first character and the end of each."""


def make_general_engine(vocabulary: GeneralVocabulary, name: str | None = None) -> GeneralEngine:
    """The engine of a vocabulary; `name` may only be that of its library."""
    fast = f"tokenfeed+{vocabulary.library}"
    if name not in (None, vocabulary.library, fast) or (name == fast and vocabulary.plain is None):
        raise ArgumentError(
            f"engine is {name!r}, but this tokenizer is no plain byte-level BPE: only {vocabulary.library} can run it. "
            "Leave engine out"
        )
    if vocabulary.library == "sentencepiece":
        return _SentencePiece(vocabulary)
    return _Tokenizers(vocabulary) if vocabulary.plain is None or name == vocabulary.library else _Mostly(vocabulary)


class _Tokenizers(GeneralEngine):
    name = "tokenizers"

    def __init__(self, vocabulary: GeneralVocabulary) -> None:
        super().__init__(vocabulary)
        try:
            import tokenizers
        except ImportError as error:
            raise DependencyError(
                "this tokenizer is no plain byte-level BPE, so that it needs the package tokenizers: pip install "
                f"'tokenfeed[tokenizers]' ({error})"
            ) from error
        definition = json.loads(vocabulary.definition)
        self._written: dict[int, str] = {number: text for text, number in vocab_of(definition["model"]).items()}
        self._written |= {token["id"]: token["content"] for token in definition["added_tokens"]}
        hidden = {name: f"\ufdd0{secrets.token_hex(16)} {number}" for name, number in vocabulary.special_tokens.items()}
        self._hidden = {vocabulary.special_tokens[name]: text for name, text in hidden.items()}
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(_hide(definition, hidden)))
            self._decoder = self._tokenizer.decoder
        except Exception as error:  # the library raises no other class
            raise FormatError(f"the library tokenizers cannot use this tokenizer: {error}") from error
        for token in definition["added_tokens"]:
            number = self._tokenizer.token_to_id(hidden.get(token["content"], token["content"]))
            if number != token["id"]:
                raise FormatError(
                    f"added token {token['content']!r} has id {token['id']}; the library tokenizers gives it {number}"
                )

    def _encode_one(self, text: str) -> TokenIds:
        return np.array(self._encode_by_library(text).ids, np.uint32)

    def _encode_by_library(self, text: str) -> Any:
        text.encode()  # surrogates raise UnicodeEncodeError here; the library says TypeError
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # as above
            raise FormatError(f"the library tokenizers cannot encode {text[:80]!r}…: {error}") from error

    def encode_parts(self, parts: Sequence[str | int]) -> tuple[TokenIds, Ints, Ints]:
        """By one call, in which special tokens have their hidden names: what they do to the space around them, and
        whether a text after them gets a space, is up to the library."""
        texts = [self._hidden[part] if isinstance(part, int) else part for part in parts]
        encoded = self._encode_by_library("".join(texts))
        # Character i of the text for the library is character places[i] of the document.
        widths = np.ones(sum(map(len, texts)), np.int64)
        end = 0
        for part, text in zip(parts, texts, strict=True):
            if isinstance(part, int):
                widths[end + 1 : end + len(text)] = 0
            end += len(text)
        places = np.concatenate(([0], np.cumsum(widths)))
        spans = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        return np.array(encoded.ids, np.uint32), places[spans[:, 0]], places[spans[:, 1]]

    def _decode_run(self, ids: list[int]) -> str:
        text: str = self._decoder.decode([self._written[number] for number in ids])
        return text


class _Mostly(_Tokenizers):
    """Our own engine for most texts, and the library for those that have an added token, or that NFC may change."""

    name = "tokenfeed+tokenizers"

    def __init__(self, vocabulary: GeneralVocabulary) -> None:
        super().__init__(vocabulary)
        assert vocabulary.plain is not None
        self._plain = make_engine(vocabulary.plain)
        definition = json.loads(vocabulary.definition)
        added = {one["content"] for one in definition["added_tokens"]} - vocabulary.special_tokens.keys()
        added |= {unicodedata.normalize("NFC", name) for name in added}
        self._added = re.compile("|".join(map(re.escape, sorted(added)))) if added else None
        self._is_normalized = definition["normalizer"] is not None

    def encode(self, texts: Sequence[str], threads: int, /) -> Encoded:
        kinds = [self._is_plain(text) for text in texts]
        if all(kinds):
            return self._plain.encode(texts, threads)
        parts: list[TokenIds] = [np.empty(0, np.uint32)] * len(texts)
        for kind, encode in ((True, self._plain.encode), (False, super().encode)):
            numbers = [number for number, one in enumerate(kinds) if one == kind]
            ids, offsets = encode([texts[number] for number in numbers], threads)
            for i, number in enumerate(numbers):
                parts[number] = ids[offsets[i] : offsets[i + 1]]
        return join(parts)

    def _is_plain(self, text: str) -> bool:
        if len(text) > self._plain.longest_run or (self._added is not None and self._added.search(text)):
            return False
        if not self._is_normalized or text.isascii():
            return True
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        return unicodedata.is_normalized("NFC", text) and not bool(_unassigned()[codes].any())


@cache
def _unassigned() -> Bools:
    """Which code points Python's Unicode tables do not have, and the library's may. Made in 0.2 s."""
    return np.array([unicodedata.category(chr(code)) == "Cn" for code in range(sys.maxunicode + 1)])


def _hide(definition: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A definition with other names for some tokens, and without merges that make them."""
    model = definition["model"]
    if isinstance(model["vocab"], dict):
        vocab: Any = {names.get(text, text): number for text, number in model["vocab"].items()}
    else:
        vocab = [[names.get(text, text), score] for text, score in model["vocab"]]
    hidden = {**model, "vocab": vocab}
    if "unk_token" in model:
        hidden["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        prefix = len(model.get("continuing_subword_prefix") or "")
        hidden["merges"] = [
            [left, right] for left, right in model["merges"] if not {left, right, left + right[prefix:]} & names.keys()
        ]
    added = [
        {**token, "content": names.get(token["content"], token["content"])} for token in definition["added_tokens"]
    ]
    return {"version": "1.0", **definition, "added_tokens": added, "model": hidden}


class _SentencePiece(GeneralEngine):
    name = "sentencepiece"

    def __init__(self, vocabulary: GeneralVocabulary) -> None:
        super().__init__(vocabulary)
        self._processor = open_model(vocabulary.definition)

    def _encode_one(self, text: str) -> TokenIds:
        text.encode()  # surrogates raise UnicodeEncodeError here; the library says RuntimeError
        return np.array(self._processor.encode(text), np.uint32)

    def _decode_run(self, ids: list[int]) -> str:
        text: str = self._processor.decode(ids)
        return text

    def encode_parts(self, parts: Sequence[str | int]) -> tuple[TokenIds, Ints, Ints]:
        found, at = [np.empty((0, 3), np.int64)], 0
        for part in parts:
            if isinstance(part, int):
                found.append(np.array([[part, at, at + 1]]))
                at += 1
            else:
                part.encode()
                pieces = self._processor.encode(part, out_type="immutable_proto").pieces
                rows = [[piece.id, at + piece.begin, at + piece.end] for piece in pieces]
                found.append(np.array(rows, np.int64).reshape(-1, 3))
                at += len(part)
        ids, firsts, stops = np.concatenate(found).T
        return ids.astype(np.uint32), firsts, stops
