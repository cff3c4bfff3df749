"""Vocabularies in files: our own format, tiktoken's rank files, and Hugging Face's `tokenizer.json`.

Our format is JSON, one token per line:

{
"format": "tokenfeed-tokenizer", "version": 1,
"pattern": "…", "special_tokens": {"<|bos|>": 32759}, "bos": "<|bos|>", "eos": null,
"ranks": ["AA==", …]       bytes of tokens 0, 1, … in base64; null for an id without an ordinary token
}
"""

import base64
import json
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, FormatError, NotFoundError
from tokenfeed.storage.local import read_bytes, reading, replace_bytes, writing
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["check_place", "read_ranks", "read_vocabulary", "write_vocabulary"]

PathLike = str | os.PathLike[str]
_NAME = "tokenizer.json"
_LISTED = 20
_FORMAT = "tokenfeed-tokenizer"
_OF_TOKENIZERS = ("tokenizer", "special_tokens_map.", "added_tokens.", "vocab.", "merges.", ".")
"""How names of files begin that a folder of a tokenizer may hold."""
# The default pattern of the ByteLevel pre-tokenizer.
_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def read_vocabulary(path: PathLike, *, bos: str | None = None, eos: str | None = None) -> Vocabulary:
    """Read our own format or Hugging Face's, from a file or from the `tokenizer.json` in a folder.

    Hugging Face says in a `tokenizer_config.json` beside it which tokens are BOS and EOS; that is not asked where
    the caller has a `bos` or `eos` of its own.
    """
    file = Path(path)
    if file.is_dir():
        file /= _NAME
    if not file.exists():
        others = [name for name in ("tokenizer.model", "vocab.json") if (file.parent / name).exists()]
        advice = f" (transformers makes one of {others[0]}: AutoTokenizer, save_pretrained)" if others else ""
        raise NotFoundError(f"there is no tokenizer at {path}: {file} does not exist{advice}")
    fields = _read_object(file, ". If it is a rank file of tiktoken, use Tokenizer.from_ranks")
    try:
        if fields.get("format") == _FORMAT:
            return _from_fields(fields)
        if "model" in fields:
            beside = file.with_name("tokenizer_config.json")
            config = _read_object(beside) if beside.exists() else {}
            replaced = {key for key, name in (("bos_token", bos), ("eos_token", eos)) if name is not None}
            return _from_hugging_face(fields, {key: config[key] for key in config.keys() - replaced})
    except (ArgumentError, FormatError) as error:
        raise FormatError(f"{file}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file} is not a tokenizer: {type(error).__name__} {error}") from error
    raise FormatError(f'{file} is not a tokenizer of tokenfeed (no "format") or of Hugging Face (no "model")')


def _read_object(file: Path, advice: str = "") -> dict[str, Any]:
    try:
        fields = json.loads(read_bytes(file))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is not JSON ({error}){advice}") from error
    if not isinstance(fields, dict):
        raise FormatError(f"{file} holds a JSON {type(fields).__name__}; expected an object")
    return fields


def check_place(path: PathLike, *, overwrite: bool) -> None:
    """Refuse to write a tokenizer over another one, or into a folder of other things, such as a store or text."""
    file = _file_at(path)
    if file != Path(path) and file.parent.is_dir():
        with reading(file.parent):
            others = sorted(one.name for one in file.parent.iterdir() if not one.name.startswith(_OF_TOKENIZERS))
        if others:
            raise ArgumentError(
                f"{path} is a folder that holds other things than a tokenizer, such as {others[0]}. Choose a folder of "
                f"its own, or name the file to write: {file}"
            )
    if file.exists() and not overwrite:
        raise ArgumentError(f"{file} exists already. Choose another place, or replace it with overwrite=True")


def _file_at(path: PathLike) -> Path:
    return Path(path) if Path(path).suffix == ".json" else Path(path) / _NAME


def write_vocabulary(vocabulary: Vocabulary, path: PathLike) -> Path:
    """Write our own format atomically: to `path` if it ends in `.json`, else into that folder. Returns the file."""
    file = _file_at(path)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    ranks: list[str | None] = [None] * (max(vocabulary.ranks.values()) + 1)
    for token, rank in vocabulary.ranks.items():
        ranks[rank] = base64.b64encode(token).decode()
    fields = {
        "format": _FORMAT,
        "version": 1,
        "pattern": vocabulary.pattern,
        "special_tokens": dict(vocabulary.special_tokens),
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
        "ranks": ranks,
    }
    replace_bytes(file, (json.dumps(fields, indent=0) + "\n").encode())
    return file


def read_ranks(path: PathLike) -> dict[bytes, int]:
    """Read a rank file of tiktoken: on every line the bytes of a token in base64, a space, its rank."""
    if not Path(path).exists():
        raise NotFoundError(f"there is no rank file {path}")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(Path(path)).splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            decoded, value = base64.b64decode(token, validate=True), int(rank)
        except ValueError as error:
            where = f"{path}, line {number}"
            raise FormatError(f"{where}: expected base64, a space and a rank, got {line[:60]!r}") from error
        if decoded in ranks:
            raise FormatError(f"{path}, line {number}: token {decoded!r} already has rank {ranks[decoded]}")
        ranks[decoded] = value
    return ranks


def _from_fields(fields: dict[str, Any]) -> Vocabulary:
    if fields.get("version") != 1:
        raise FormatError(f"version is {fields.get('version')!r}; this version of tokenfeed reads version 1")
    pattern, special_tokens, bos, tokens = (fields.get(key) for key in ("pattern", "special_tokens", "bos", "ranks"))
    if not isinstance(pattern, str) or not isinstance(special_tokens, dict) or not isinstance(tokens, list):
        raise FormatError("expected pattern (text), special_tokens (an object) and ranks (a list)")
    ranks: dict[bytes, int] = {}
    for rank, token in enumerate(tokens):
        if token is None:
            continue
        try:
            decoded = base64.b64decode(token, validate=True)
        except (TypeError, ValueError) as error:
            raise FormatError(f"token {rank} is {token!r}; expected base64 or null") from error
        if decoded in ranks:
            raise FormatError(f"tokens {ranks[decoded]} and {rank} are both {decoded!r}")
        ranks[decoded] = rank
    return Vocabulary(ranks, pattern, special_tokens, bos, fields.get("eos"))


def _from_hugging_face(fields: dict[str, Any], config: dict[str, Any]) -> Vocabulary:
    """The vocabulary of a parsed `tokenizer.json` and its configuration. Added tokens become special tokens."""
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
    added = fields.get("added_tokens") or []
    special_tokens = {token["content"]: token["id"] for token in added}
    if blank := [token for token in special_tokens if not token.strip()]:  # GPT-NeoX has runs of spaces
        raise _refused(f"added token {blank[0]!r} is white space, which occurs in ordinary text")
    if plain := [token["content"] for token in added if token.get("special") is False]:
        raise _refused(
            f"added token {plain[0]!r} is not special, so it would be one token wherever a text has these characters. "
            'If it should be ordinary text there, mark it "special": true in the file'
        )
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
    named = [config.get(key) for key in ("bos_token", "eos_token")]
    bos, eos = (name.get("content") if isinstance(name, dict) else name for name in named)
    if config.get("add_eos_token") and not config.get("add_bos_token", True):
        bos = None  # it would end documents, and not begin them
    unknown = [
        f"{key} {name!r}"
        for key, name in (("bos_token", bos), ("eos_token", eos))
        if name is not None and name not in special_tokens
    ]
    if unknown:
        raise FormatError(
            f"tokenizer_config.json names {' and '.join(unknown)}, not among the added tokens of tokenizer.json: "
            f"{_list_some(special_tokens)}. Correct either file, or name others: Tokenizer.load(…, bos=…, eos=…)"
        )
    return Vocabulary(ranks, _pattern(fields.get("pre_tokenizer")), special_tokens, bos, eos)


def _list_some(names: Iterable[str]) -> str:
    first = list(islice(names, _LISTED + 1))
    return ", ".join(map(repr, first[:_LISTED])) + (", …" if first[_LISTED:] else "") if first else "there are none"


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


def _check_merges(model: dict[str, Any], byte_of: dict[str, int], ranks: dict[bytes, int]) -> None:
    """Check that the merges make every token in the order of ids, so that the id of a token is its rank."""
    made: set[int] = set()
    last = -1
    for number, merge in enumerate(model.get("merges", [])):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        try:
            rank = ranks[bytes(byte_of[character] for character in left + right)]
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
