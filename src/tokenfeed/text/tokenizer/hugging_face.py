"""Vocabularies from Hugging Face's `tokenizer.json`, if ranks alone describe them.

Those are byte-level BPE without a normalizer, split by one regular expression, with merges in the order of the tokens
they make. Any other tokenizer is refused, because it would give other tokens here than there.
"""

from typing import Any

from tokenfeed.errors import FormatError
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["vocabulary_from_hugging_face"]

# The default pattern of the ByteLevel pre-tokenizer.
_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def vocabulary_from_hugging_face(fields: dict[str, Any]) -> Vocabulary:
    """The vocabulary of a parsed `tokenizer.json`, without `bos`. Added tokens become special tokens."""
    model = fields["model"]
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        kind = model.get("type") if isinstance(model, dict) else model
        raise _refused(f"its model is {kind!r}, not BPE")
    for key in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise _refused(f"its model has {key} = {model[key]!r}")
    normalizer = fields.get("normalizer")
    if normalizer is not None:
        kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
        raise _refused(f"it changes the text first (normalizer {kind!r})")
    special_tokens = _special_tokens(fields.get("added_tokens") or [])
    byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
    ranks: dict[bytes, int] = {}
    for text, number in model["vocab"].items():
        if text in special_tokens:
            continue
        try:
            ranks[bytes(byte_of[character] for character in text)] = number
        except KeyError as error:
            raise _refused(f"token {text!r} is not written in byte-level characters") from error
    _check_merges(model, byte_of, ranks)
    return Vocabulary(ranks, _pattern(fields.get("pre_tokenizer")), special_tokens)


def _pattern(pre_tokenizer: Any) -> str:
    """The regular expression of `ByteLevel`, or of `Sequence([Split(…), ByteLevel(use_regex=False)])`."""
    described = pre_tokenizer if isinstance(pre_tokenizer, dict) else {}
    steps = described.get("pretokenizers", []) if described.get("type") == "Sequence" else [described]
    kinds = [step.get("type") for step in steps]
    if kinds in (["ByteLevel"], ["Split", "ByteLevel"]):
        byte_level = steps[-1]
        if byte_level.get("add_prefix_space", True):
            raise _refused("it puts a space before every text (add_prefix_space)")
        uses_regex = byte_level.get("use_regex", True)
        if len(steps) == 1 and uses_regex:
            return _BYTE_LEVEL
        if len(steps) == 2 and not uses_regex:
            split = steps[0]
            regex = split.get("pattern", {}).get("Regex")
            if isinstance(regex, str) and split.get("behavior") == "Isolated" and not split.get("invert"):
                return regex
    raise _refused(f"it splits text by {kinds}, expected ByteLevel, or one isolating regular expression and ByteLevel")


def _special_tokens(added: list[dict[str, Any]]) -> dict[str, int]:
    for token in added:
        # Added tokens that are runs of spaces (GPT-NeoX) match in ordinary text, before anything is merged.
        if not token["content"].strip():
            raise _refused(f"added token {token['content']!r} is white space, which occurs in ordinary text")
    return {token["content"]: token["id"] for token in added}


def _check_merges(model: dict[str, Any], byte_of: dict[str, int], ranks: dict[bytes, int]) -> None:
    """Check that the merges make every token in the order of ids, so that the id of a token is its rank."""
    made: set[int] = set()
    last = -1
    for number, merge in enumerate(model.get("merges", [])):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        try:
            parts = [bytes(byte_of[character] for character in part) for part in (left, right)]
            rank = ranks[parts[0] + parts[1]]
        except KeyError as error:
            raise _refused(f"merge {number} ({left} {right}) makes no token of the vocabulary") from error
        if rank < last:
            raise _refused(f"merge {number} ({left} {right}) makes token {rank}, after one that made token {last}")
        made.add(rank)
        last = rank
    # With ignore_merges a piece that is a token is kept whole, as in tiktoken.
    unmade = [token for token, rank in ranks.items() if len(token) > 1 and rank not in made]
    if unmade and not model.get("ignore_merges"):
        raise _refused(f"no merge makes token {ranks[unmade[0]]}, {unmade[0]!r}")


def _byte_characters() -> list[str]:
    """The character that GPT-2's vocabulary files use for each byte: the byte itself if it is printable."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _refused(why: str) -> FormatError:
    return FormatError(f"this tokenizer cannot be used, because ranks alone do not describe it: {why}")
