"""Vocabularies that ranks do not describe: any tokenizer of Hugging Face's `tokenizers`, and of SentencePiece.

What such a tokenizer does is in its definition, and its own library does it (`general_engines.py`). Here is what we
must know of it beyond that: which tokens are special, and the bytes of text that each token stands for.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, DependencyError, FormatError
from tokenfeed.text.tokenizer.byte_pairs import BYTE_CHARACTERS, NotBytePairsError, read_byte_pairs
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["GeneralVocabulary", "open_model", "read_definition", "read_model", "vocab_of"]

_SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PARTS = ("added_tokens", "normalizer", "pre_tokenizer", "decoder", "model")
"""Fields of a `tokenizer.json` that say what tokens a text has, and what text tokens have. The post-processor puts
special tokens around texts, and truncation and padding change their number: that is done here, or not at all."""


@dataclass(frozen=True)
class GeneralVocabulary:
    """A tokenizer that its own library must run."""

    library: str
    """Package that runs it: tokenizers or sentencepiece."""
    definition: bytes
    """JSON with the fields of a `tokenizer.json`, or the bytes of a SentencePiece model."""
    tokens: Sequence[bytes | None]
    """Bytes each id stands for (for a special token, its name); None for unused ids."""
    special_tokens: Mapping[str, int]
    """Tokens that no text has, however it is written, but for the one that stands for what is unknown."""
    unknown: int | None
    """Id of the token that stands for text the vocabulary cannot express."""
    adds_space: bool
    """Whether a space is put before every text, so that a word has the same tokens at its start."""
    plain: Vocabulary | None = None
    """Ranks that give a text the same tokens, if no added token occurs in it and NFC would not change it."""
    bos: str | None = None
    eos: str | None = None

    def __post_init__(self) -> None:
        for role, given in (("bos", self.bos), ("eos", self.eos)):
            if given is not None and given not in self.special_tokens:
                raise ArgumentError(f"{role} {given!r} is not a special token; those are {list(self.special_tokens)}")

    @property
    def size(self) -> int:
        """The largest id plus one."""
        return len(self.tokens)

    @cached_property
    def token_bytes(self) -> npt.NDArray[np.int32]:
        """Number of bytes of text that each id stands for; 0 for special tokens and unused ids."""
        lengths = np.array([len(token or b"") for token in self.tokens], np.int32)
        lengths[list(self.special_tokens.values())] = 0
        lengths.flags.writeable = False
        return lengths

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for equal definitions and special tokens."""
        digest = hashlib.blake2b(f"tokenfeed {self.library} 1".encode(), digest_size=8)
        special = json.dumps(sorted(self.special_tokens.items(), key=lambda item: item[1])).encode()
        for part in (special, self.definition):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()


def read_definition(
    fields: Mapping[str, Any], special_tokens: Mapping[str, int], bos: str | None, eos: str | None
) -> GeneralVocabulary:
    """The vocabulary of a parsed `tokenizer.json`, of any kind. What cannot be done faithfully is a FormatError."""
    definition: dict[str, Any] = {part: fields.get(part) for part in _PARTS}
    model = definition["model"]
    if model.get("dropout"):
        raise FormatError(f"its merges are random (dropout = {model['dropout']!r}); set dropout to null in the file")
    if model.get("merges"):  # older files write a pair as one text
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        definition["model"] = model = {**model, "merges": pairs}
    definition["decoder"] = decoder = definition["decoder"] or _implied_decoder(fields)
    ids = vocab_of(model)
    unknown = _unknown(model, ids)
    added = {token["content"]: token["id"] for token in definition["added_tokens"]}
    everything = {**ids, **added, **special_tokens}
    if not everything or any(type(number) is not int or number < 0 for number in everything.values()):
        raise FormatError("expected a vocabulary of texts with whole numbers from 0 on")
    if max(everything.values()) >= 4 * len(everything):
        raise FormatError(f"the largest id is {max(everything.values())}, but there are only {len(everything)} tokens")
    to_bytes = _bytes_of(decoder)
    tokens: list[bytes | None] = [None] * (max(everything.values()) + 1)
    for text, number in everything.items():
        tokens[number] = text.encode() if text in added or text in special_tokens else to_bytes(text)
    if unknown is not None and tokens[unknown] is not None and unknown not in special_tokens.values():
        special_tokens = {**special_tokens, next(text for text, number in ids.items() if number == unknown): unknown}
    data = json.dumps(definition, sort_keys=True).encode()
    adds_space = any(map(_adds_space, _steps(fields.get("normalizer"), fields.get("pre_tokenizer"))))
    plain = _read_plain(definition, special_tokens)
    return GeneralVocabulary("tokenizers", data, tokens, special_tokens, unknown, adds_space, plain, bos, eos)


def _read_plain(definition: Mapping[str, Any], special_tokens: Mapping[str, int]) -> Vocabulary | None:
    """Byte pairs behind NFC and added tokens, as in Qwen and GPT-NeoX: most texts need neither."""
    if definition["normalizer"] not in (None, {"type": "NFC"}):
        return None
    special = [token for token in definition["added_tokens"] if token["content"] in special_tokens]
    try:
        fields = {**definition, "normalizer": None, "added_tokens": special}
        return read_byte_pairs(fields, special_tokens, None, None)
    except (NotBytePairsError, ArgumentError):
        return None


def vocab_of(model: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of a model: an object, or for Unigram a list of texts and scores."""
    vocab = model["vocab"]
    return dict(vocab) if isinstance(vocab, dict) else {text: number for number, (text, _) in enumerate(vocab)}


def _unknown(model: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    if isinstance(model["vocab"], list):
        number = model.get("unk_id")
        if number is not None and not (type(number) is int and 0 <= number < len(ids)):
            raise FormatError(f"unk_id is {number!r}; there are {len(ids)} tokens")
        return number
    name = model.get("unk_token")
    if name is not None and name not in ids:
        raise FormatError(f"unk_token {name!r} is not in its vocabulary")
    return None if name is None else ids[name]


def _steps(*described: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of normalizers, pre-tokenizers or decoders, those within sequences too."""
    for one in described:
        if isinstance(one, dict):
            lists = [value for key, value in one.items() if key in ("normalizers", "pretokenizers", "decoders")]
            yield from _steps(*lists[0]) if lists else (one,)


def _adds_space(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if kind == "Prepend":
        return step.get("prepend") in (" ", _SPACE)
    if kind == "Metaspace":
        return bool(step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never")
    return kind == "ByteLevel" and bool(step.get("add_prefix_space", True))


def _implied_decoder(fields: Mapping[str, Any]) -> Any:
    """What undoes the pre-tokenizer, for a file without a decoder."""
    for step in _steps(fields.get("pre_tokenizer")):
        if step.get("type") == "Metaspace":
            return step
        if step.get("type") == "ByteLevel":
            return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    prefix = fields["model"].get("continuing_subword_prefix") or "\ufdd0"  # which no token begins with
    return {"type": "WordPiece", "prefix": prefix, "cleanup": False}


def _bytes_of(decoder: Any) -> Callable[[str], bytes]:
    """The function from a token as it is written to the bytes of text it stands for."""
    steps = list(_steps(decoder))
    for step in steps:
        is_known = step.get("type") in ("ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip")
        is_known |= step.get("type") in ("WordPiece", "BPEDecoder")
        if not is_known or (step["type"] == "Replace" and "String" not in step.get("pattern", {})):
            raise FormatError(f"its decoder {step.get('type')!r} does not say what text a token stands for")
    byte_of = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}

    def to_bytes(token: str) -> bytes:
        for step in steps:
            kind = step["type"]
            if kind == "ByteLevel":
                is_known = all(character in byte_of for character in token)
                return bytes(byte_of[character] for character in token) if is_known else token.encode()
            if kind == "ByteFallback" and (match := _BYTE.fullmatch(token)):
                return bytes.fromhex(match[1])
            if kind == "Metaspace":
                token = token.replace(step.get("replacement", _SPACE), " ")
            elif kind == "Replace":
                token = token.replace(step["pattern"]["String"], step["content"])
            elif kind == "WordPiece":
                token = token.removeprefix(step["prefix"])
            elif kind == "BPEDecoder":
                token = token.replace(step["suffix"], "")
        return token.encode()

    return to_bytes


def open_model(data: bytes) -> Any:
    """SentencePiece's processor of a model."""
    try:
        import sentencepiece
    except ImportError as error:
        raise DependencyError(
            f"a SentencePiece model needs the package sentencepiece: pip install 'tokenfeed[tokenizers]' ({error})"
        ) from error
    if not data:
        raise FormatError("it is empty; expected a SentencePiece model")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=data)
    except (RuntimeError, OSError, ValueError) as error:
        raise FormatError(f"it is not a SentencePiece model: {error}") from error


def read_model(data: bytes, added: Mapping[str, int]) -> GeneralVocabulary:
    """The vocabulary of a SentencePiece model. Its control symbols are special, and so are the `added` tokens.

    What the model calls user-defined symbols are ordinary tokens: text that is written so.
    """
    model = open_model(data)
    size = model.get_piece_size()
    special = {model.id_to_piece(number): number for number in range(size) if model.is_control(number)}
    unknown = model.unk_id() if model.unk_id() >= 0 else None
    if unknown is not None:
        special[model.id_to_piece(unknown)] = unknown
    for name, number in added.items():
        if number < size and model.id_to_piece(number) != name:
            raise FormatError(f"added token {name!r} has id {number}, which is {model.id_to_piece(number)!r} in it")
        if number < size and name not in special and number in model.encode(name):
            raise FormatError(
                f"special token {name!r} is a user-defined symbol of the model, which would find it in ordinary text. "
                "Use the tokenizer.json of this tokenizer (transformers makes one: AutoTokenizer, save_pretrained)"
            )
        special[name] = number
    tokens: list[bytes | None] = [None] * max(size, 1 + max(special.values(), default=0))
    for number in range(size):
        piece = model.id_to_piece(number)
        if model.is_byte(number):
            tokens[number] = bytes.fromhex(piece[3:5])
        elif not model.is_unused(number):
            tokens[number] = piece.replace(_SPACE, " ").encode()
    for name, number in special.items():
        tokens[number] = name.encode()
    first = model.encode("a", out_type=str)
    if len(first) > 0 and first[-1].endswith(_SPACE):
        raise FormatError("it puts the space after words (treat_whitespace_as_suffix), which is not supported")
    adds_space = len(first) > 0 and first[0].startswith(_SPACE)
    bos, eos = (model.id_to_piece(number) if number >= 0 else None for number in (model.bos_id(), model.eos_id()))
    return GeneralVocabulary("sentencepiece", data, tokens, special, unknown, adds_space, bos=bos, eos=eos)
