"""`Vocabulary`: the bytes of each token, the pattern and the special tokens. Encoding depends on nothing else."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, quantity

__all__ = ["NANOCHAT_SPECIAL_TOKENS", "PATTERNS", "Vocabulary", "find_pattern"]

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

PATTERNS: Mapping[str, str] = {
    "nanochat": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "gpt4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    "gpt4o": "|".join(
        (*(word + _CONTRACTION + "?" for word in _CASED_WORDS), r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACES)
    ),
    "llama3": _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,
    "qwen2": _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,
    "tekken": "|".join((*_CASED_WORDS, r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACES)),
    # DeepSeek splits off numbers, then ideographs and kana, then both and the rest by one more pattern, and keeps what
    # that leaves out. This is all of it in one. U+3040, 3097 and 3098 are unassigned, among letters.
    "deepseek": "|".join(
        (
            r"\p{N}{1,3}|[GAPS]?[KANA]+|[゛゜゠・]+|(?:[GAPS](?![KANA]))+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
            r"[^\r\n\p{L}\p{P}\p{S}\p{N}CJK]?(?:(?![CJK])[\p{L}\p{M}])+",
            r" ?(?:(?![CJK])[\p{P}\p{S}])+[\r\n]*",
            r"\s*[\r\n]+|\s+(?![^\s\p{N}CJK])|\s+",
            r"(?:[^\s\p{L}\p{M}\p{N}\p{P}\p{S}CJK](?![^\P{L}CJK])(?![^\P{M}CJK]))+",
        )
    )
    .replace("KANA", "一-龥ぁ-ゖ\u3099\u309aゝ-ゟァ-ヺー-ヿ")
    .replace("GAPS", "\u3040\u3097\u3098")
    .replace("CJK", "一-龥\u3040-ヿ"),
}
"""Regular expressions that split text before tokens are formed. The three of GPT are tiktoken's r50k, cl100k and o200k.

A pattern must match every character of every text; engines differ in how they treat characters it leaves out.
"""

NANOCHAT_SPECIAL_TOKENS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level byte-pair vocabulary whose merges follow from the ranks alone, as in tiktoken.

    Among neighbours whose joined bytes are a token, the pair with the lowest rank is merged first. The rank of a token
    is its id. The constructor checks everything, in O(tokens).
    """

    ranks: Mapping[bytes, int]
    pattern: str
    """Regular expression that splits a text into pieces; bytes are merged within a piece only."""
    special_tokens: Mapping[str, int]
    bos: str | None = None
    """Special token that begins a document."""
    eos: str | None = None
    """Special token that ends a document."""
    strips: Mapping[str, tuple[bool, bool]] = field(default_factory=dict)
    """Special tokens that swallow white space before or after them, where a template writes them among text."""

    def __post_init__(self) -> None:
        missing = [byte for byte in range(256) if bytes((byte,)) not in self.ranks]
        if missing:
            raise ArgumentError(
                f"ranks lacks {quantity(len(missing), 'single byte')}, the first of them {missing[0]}; a vocabulary "
                "needs a token for each of the 256 bytes"
            )
        names: dict[int, bytes | str] = {}
        tokens: list[tuple[bytes | str, int]] = [*self.ranks.items(), *self.special_tokens.items()]
        for name, number in tokens:
            if type(number) is not int or number < 0:
                raise ArgumentError(f"token {name!r} has id {number!r}; expected a whole number from 0 on")
            if number in names:
                raise ArgumentError(f"tokens {names[number]!r} and {name!r} both have id {number}")
            if not name:
                raise ArgumentError(f"the token with id {number} is empty")
            if isinstance(name, str) and not _is_text(name):
                raise ArgumentError(
                    f"special token {name!r} contains half of a surrogate pair, which is not valid text"
                )
            names[number] = name
        if max(names) >= 4 * len(names):
            raise ArgumentError(
                f"token {names[max(names)]!r} has id {max(names)}, but there are only {len(names)} tokens; ids may not "
                "leave most numbers unused"
            )
        if not isinstance(self.pattern, str):
            raise ArgumentError(f"the pattern is {self.pattern!r:.80}; expected a regular expression")
        if not _is_text(self.pattern):
            raise ArgumentError("the pattern contains half of a surrogate pair, which is not valid text")
        for role, given in (("bos", self.bos), ("eos", self.eos)):
            if given is not None and given not in self.special_tokens:
                raise ArgumentError(f"{role} {given!r} is not a special token; those are {list(self.special_tokens)}")

    @cached_property
    def size(self) -> int:
        """The largest id plus one."""
        return max(max(self.ranks.values()), max(self.special_tokens.values(), default=0)) + 1

    @cached_property
    def tokens(self) -> list[bytes | None]:
        """The bytes of every id (for a special token, its name); None for unused ids."""
        tokens: list[bytes | None] = [None] * self.size
        for token, number in self.ranks.items():
            tokens[number] = token
        for name, number in self.special_tokens.items():
            tokens[number] = name.encode()
        return tokens

    @cached_property
    def token_bytes(self) -> npt.NDArray[np.int32]:
        """Number of bytes of text that each id stands for; 0 for special tokens and unused ids."""
        lengths = np.zeros(self.size, np.int32)
        lengths[list(self.ranks.values())] = [len(token) for token in self.ranks]
        lengths.flags.writeable = False
        return lengths

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for vocabularies with equal ranks, pattern and special tokens."""
        digest = hashlib.blake2b(b"tokenfeed vocabulary 1", digest_size=8)
        for token, number in sorted(self.ranks.items(), key=lambda item: item[1]):
            digest.update(struct.pack("<QQ", number, len(token)) + token)
        digest.update(struct.pack("<Q", len(self.pattern.encode())) + self.pattern.encode())
        for name, number in sorted(self.special_tokens.items(), key=lambda item: item[1]):
            digest.update(struct.pack("<QQ", number, len(name.encode())) + name.encode())
        return digest.hexdigest()


def find_pattern(name_or_regex: str) -> str:
    """The pattern of that name, or the argument itself if it is a regular expression (not just letters, digits, -_)."""
    if name_or_regex in PATTERNS:
        return PATTERNS[name_or_regex]
    if not name_or_regex or name_or_regex.replace("-", "").replace("_", "").isalnum():
        raise ArgumentError(
            f"there is no pattern {name_or_regex!r}; use one of {', '.join(PATTERNS)}, or pass a regular expression"
        )
    return name_or_regex


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
