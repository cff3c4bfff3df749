"""Regular expressions of well-known vocabularies, by name: they split text before tokens are formed.

A pattern must match every character of every text; engines differ in how they treat characters it leaves out.
"""

from collections.abc import Mapping

from tokenfeed.errors import ArgumentError

__all__ = ["NANOCHAT_SPECIAL_TOKENS", "PATTERNS", "find_pattern"]

_O200K_WORD_END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

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
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _O200K_WORD_END,
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _O200K_WORD_END,
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
}
"""Patterns by name. `gpt2`, `gpt4` and `gpt4o` are those of tiktoken (r50k_base, cl100k_base, o200k_base)."""

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


def find_pattern(name_or_regex: str) -> str:
    """The pattern of that name, or the argument itself if it is a regular expression (not just letters, digits, -_)."""
    if name_or_regex in PATTERNS:
        return PATTERNS[name_or_regex]
    if not name_or_regex or name_or_regex.replace("-", "").replace("_", "").isalnum():
        raise ArgumentError(
            f"there is no pattern {name_or_regex!r}; use one of {', '.join(PATTERNS)}, or pass a regular expression"
        )
    return name_or_regex
