"""Recognition of plain byte-level byte pairs in a `tokenizer.json` of Hugging Face, for the fast engines.

A tokenizer is taken only if ranks describe it, which is proven token by token: the library merges pairs in the order of
its list, and the fast engines merge any neighbours that make a token, lowest id first. Both do the same if the list is
in the order of ids and every token's pair is the one that merging leaves of its bytes (`_is_last_pair`).
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from tokenfeed.errors import FormatError
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

__all__ = ["BYTE_CHARACTERS", "NotBytePairsError", "read_byte_pairs"]

# The default pattern of the ByteLevel pre-tokenizer.
_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SEQUENCES = {
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): PATTERNS["deepseek"]
}
"""Patterns that split one after the other, and the one that does the same."""
_IN_CONTEXT = ("(?=", "(?!", "(?<", "(?>", "++", "*+", "?+", "}+", "^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G")


class NotBytePairsError(FormatError):
    """Why ranks do not describe a tokenizer."""


def _byte_characters() -> list[str]:
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
"""The character that GPT-2's vocabulary files use for each byte: the byte itself if it is printable."""


def read_byte_pairs(
    fields: Mapping[str, Any], special_tokens: Mapping[str, int], bos: str | None, eos: str | None
) -> Vocabulary:
    """The vocabulary of a parsed `tokenizer.json`; raises `NotBytePairsError` if it is of another kind."""
    model = fields["model"]
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise NotBytePairsError(f"its model is {model.get('type')!r}, not BPE")
    for key in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise NotBytePairsError(f"its model has {key} = {model[key]!r}")
    normalizer = fields.get("normalizer")
    if normalizer is not None:
        kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
        raise NotBytePairsError(f"it changes the text first (normalizer {kind!r})")
    if plain := [one["content"] for one in fields["added_tokens"] if one["content"] not in special_tokens]:
        raise NotBytePairsError(f"added token {plain[0]!r} is not special: it is one token wherever a text has it")
    pattern = _pattern(fields.get("pre_tokenizer"))
    byte_of = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    ranks: dict[bytes, int] = {}
    for text, number in model["vocab"].items():
        if text in special_tokens:
            continue
        try:
            ranks[bytes(byte_of[character] for character in text)] = number
        except KeyError as error:
            raise NotBytePairsError(f"token {text!r} is not written in byte-level characters") from error
    _check_merges(model, byte_of, ranks)
    flags = {one["content"]: (bool(one.get("lstrip")), bool(one.get("rstrip"))) for one in fields["added_tokens"]}
    strips = {name: sides for name, sides in flags.items() if any(sides)}
    return Vocabulary(ranks, pattern, special_tokens, bos, eos, strips)


def _pattern(pre_tokenizer: Any) -> str:
    """The regular expression of `ByteLevel`, or of `Sequence([Split(…), …, ByteLevel(use_regex=False)])`."""
    described = pre_tokenizer if isinstance(pre_tokenizer, dict) else {}
    steps = described.get("pretokenizers", []) if described.get("type") == "Sequence" else [described]
    kinds = [step.get("type") for step in steps]
    if kinds and kinds[-1] == "ByteLevel" and set(kinds[:-1]) <= {"Split"}:
        byte_level = steps[-1]
        if byte_level.get("add_prefix_space", True):
            raise NotBytePairsError("it puts a space before every text (add_prefix_space)")
        uses_regex = byte_level.get("use_regex", True)
        if len(steps) == 1 and uses_regex:
            return _BYTE_LEVEL
        splits = [split.get("pattern", {}).get("Regex") for split in steps[:-1]]
        is_isolating = all(one.get("behavior") == "Isolated" and not one.get("invert") for one in steps[:-1])
        if not uses_regex and is_isolating and all(isinstance(regex, str) for regex in splits):
            if tuple(splits) in _SEQUENCES:
                return _SEQUENCES[tuple(splits)]
            if len(splits) == 1:
                if splits[0] not in PATTERNS.values() and not _matches_everything(splits[0]):
                    raise NotBytePairsError(f"its pattern may leave out characters: {splits[0]!r}")
                return str(splits[0])
    raise NotBytePairsError(
        f"it splits text by {kinds}, expected ByteLevel, or one isolating regular expression and ByteLevel"
    )


def _matches_everything(pattern: str) -> bool:
    """Whether the pattern matches every character wherever it stands: engines differ in what they do with others.

    Asked of alternatives that look at nothing around them, about 30,000 characters, each on its own.
    """
    import regex

    try:
        regex.compile(pattern)
        plain = [one for one in _alternatives(pattern) if not any(sign in one for sign in _IN_CONTEXT)]
        found = regex.compile("|".join(plain))
    except regex.error:
        return False  # the library has another dialect
    code_points = chain(range(0x3000), range(0x3000, 0xD800, 64), range(0xE000, 0x110000, 64))
    return bool(plain) and all(found.fullmatch(chr(code)) for code in code_points)


def _alternatives(pattern: str) -> Iterator[str]:
    """The alternatives of a regular expression: what `|` divides, outside of groups and classes."""
    import regex

    part, depth = "", 0
    for token in regex.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, regex.DOTALL):  # a class is one token
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "|" and depth == 0:
            yield part
            part = ""
        else:
            part += token
    yield part


def _check_merges(model: dict[str, Any], byte_of: dict[str, int], ranks: dict[bytes, int]) -> None:
    """Check that ranks alone make the same merges: see the module."""
    parts: dict[int, tuple[int, int]] = {}
    tokens = {rank: token for token, rank in ranks.items()}
    last = -1
    for number, merge in enumerate(model.get("merges", [])):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        what = f"merge {number} ({left} {right})"
        try:
            first, second = (ranks[bytes(byte_of[character] for character in part)] for part in (left, right))
            rank = ranks[tokens[first] + tokens[second]]
        except KeyError as error:
            raise NotBytePairsError(f"{what} makes no token of the vocabulary, or is of none") from error
        if rank < last:
            raise NotBytePairsError(f"{what} makes token {rank}, after one that made token {last}")
        for part in (first, second):
            if len(tokens[part]) > 1 and (part not in parts or part >= rank):
                raise NotBytePairsError(f"{what} needs token {part}, which no merge before it makes")
        if rank not in parts:
            parts[rank] = first, second
            if not _is_last_pair(first, second, rank, parts, tokens, ranks):
                raise NotBytePairsError(f"{what} is not what merging by rank leaves of token {rank}")
        last = rank
    # With ignore_merges a piece that is a token is kept whole, as in the fast engines.
    for token, rank in ranks.items():
        if len(token) > 1 and rank not in parts:
            if not model.get("ignore_merges"):
                raise NotBytePairsError(f"no merge makes token {rank}, {token!r}")
            if _num_parts(token, ranks) < 3:
                raise NotBytePairsError(f"no merge makes token {rank}, {token!r}, but merging by rank would")


def _is_last_pair(
    left: int,
    right: int,
    made: int,
    parts: Mapping[int, tuple[int, int]],
    tokens: Mapping[int, bytes],
    ranks: Mapping[bytes, int],
) -> bool:
    """Whether merging the bytes of token `made` by all lower ranks leaves `left` and `right`.

    That fails only if something merges across the border before. So go back in time from the end: undo the later of the
    last merges on both sides, and see whether the two tokens at the border would have merged while they were there.

    "abab" from "ab" "ab", with "ba" of lower rank than "ab": a b|a b, "b" and "a" merge first, so it is not.
    """
    left_until = right_until = made
    while True:
        left_made, right_made = (one if one in parts else -1 for one in (left, right))
        if left_made < 0 and right_made < 0:
            return True
        if left_made > right_made:
            left, left_until = parts[left][1], left
        else:  # of the same token twice, the left one was made first
            right, right_until = parts[right][0], right
        across = ranks.get(tokens[left] + tokens[right])
        if across is not None and across < left_until and across <= right_until:
            return False


def _num_parts(token: bytes, ranks: Mapping[bytes, int]) -> int:
    """The number of tokens that merging by rank makes of a token's bytes, if it were no token itself."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        joined = [(ranks.get(parts[i] + parts[i + 1], -1), i) for i in range(len(parts) - 1)]
        rank, i = min(((r, i) for r, i in joined if r >= 0 and r != ranks[token]), default=(-1, -1))
        if rank < 0:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return len(parts)
