"""Engines for tokenizers of any kind: their own libraries, told that special tokens in a text are ordinary text.

tokenizers      Hugging Face's. It would find special tokens in texts, be it because they are listed as such or because
                the model has them among its words. So they get names here that no text has: 32 random hexadecimal
                digits, new for every engine. All other results are the library's own.
sentencepiece   finds control symbols in no text.

Texts are encoded whole, whatever runs they have: both take time in proportion to a text's length.
"""

import json
import secrets
import sys
from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, DependencyError, FormatError
from tokenfeed.text.tokenizer.engines import TokenIds, TokenizerEngine
from tokenfeed.text.tokenizer.general import GeneralVocabulary, open_model, vocab_of

__all__ = ["GeneralEngine", "make_general_engine"]


class GeneralEngine(TokenizerEngine):
    """A library with its tokenizer."""

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


def make_general_engine(vocabulary: GeneralVocabulary, name: str | None = None) -> GeneralEngine:
    """The engine of a vocabulary; `name` may only be that of its library."""
    if name not in (None, vocabulary.library):
        raise ArgumentError(
            f"engine is {name!r}, but this tokenizer is no plain byte-level BPE: only {vocabulary.library} can run it. "
            "Leave engine out"
        )
    return (_Tokenizers if vocabulary.library == "tokenizers" else _SentencePiece)(vocabulary)


class _Tokenizers(GeneralEngine):
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
        text.encode()  # surrogates raise UnicodeEncodeError here; the library says TypeError
        try:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)
        except Exception as error:  # as above
            raise FormatError(f"the library tokenizers cannot encode {text[:80]!r}…: {error}") from error

    def _decode_run(self, ids: list[int]) -> str:
        text: str = self._decoder.decode([self._written[number] for number in ids])
        return text


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
    def __init__(self, vocabulary: GeneralVocabulary) -> None:
        super().__init__(vocabulary)
        self._processor = open_model(vocabulary.definition)

    def _encode_one(self, text: str) -> TokenIds:
        text.encode()  # surrogates raise UnicodeEncodeError here; the library says RuntimeError
        return np.array(self._processor.encode(text), np.uint32)

    def _decode_run(self, ids: list[int]) -> str:
        text: str = self._processor.decode(ids)
        return text
