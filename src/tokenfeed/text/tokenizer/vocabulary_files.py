"""Vocabularies in files: our own format, tiktoken's, Hugging Face's and SentencePiece's.

Our format is JSON, one token per line:

{
"format": "tokenfeed-tokenizer", "version": 1,
"special_tokens": {"<|bos|>": 32759}, "bos": "<|bos|>", "eos": null,
"pattern": "…", "ranks": ["AA==", …]   bytes of tokens 0, 1, … in base64; null for an id without an ordinary token
}

For a tokenizer that ranks do not describe, the last line is

"library": "tokenizers", "definition": {…}     the fields of a tokenizer.json; for sentencepiece, its model in base64
"""

import base64
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, FormatError, NotFoundError
from tokenfeed.storage.local import read_bytes, reading, replace_bytes, writing
from tokenfeed.text.tokenizer.byte_pairs import NotBytePairsError, read_byte_pairs
from tokenfeed.text.tokenizer.general import GeneralVocabulary, read_definition, read_model, vocab_of
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["AnyVocabulary", "check_place", "read_ranks", "read_vocabulary", "write_vocabulary"]

PathLike = str | os.PathLike[str]
AnyVocabulary = Vocabulary | GeneralVocabulary
_NAME = "tokenizer.json"
_NAMES = (_NAME, "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json")
"""Files of a folder that may be its tokenizer; the first that is there is it."""
_LISTED = 20
_FORMAT = "tokenfeed-tokenizer"
_OF_TOKENIZERS = ("tokenizer", "special_tokens_map.", "added_tokens.", "vocab.", "merges.", "tekken", ".")
"""How names of files begin that a folder of a tokenizer may hold."""
_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
"""An entry of `added_tokens` in a `tokenizer.json`, but for its id and content."""


def read_vocabulary(path: PathLike, *, bos: str | None = None, eos: str | None = None) -> AnyVocabulary:
    """Read a tokenizer from a file, or from a folder that holds one.

    Hugging Face says in a `tokenizer_config.json` beside it which tokens are BOS and EOS; that is not asked where
    the caller has a `bos` or `eos` of its own.
    """
    file = Path(path)
    if file.is_dir():
        file /= next((name for name in _NAMES if (file / name).exists()), _NAME)
    if not file.exists():
        others = [name for name in ("vocab.json", "vocab.txt") if (file.parent / name).exists()]
        advice = f" (transformers makes one of {others[0]}: AutoTokenizer, save_pretrained)" if others else ""
        if not Path(path).exists():
            advice = (
                ". One of the Hugging Face hub is loaded by hf://owner/name, one of tiktoken by "
                "Tokenizer.from_tiktoken(tiktoken.get_encoding('gpt2'))"
            )
        raise NotFoundError(f"there is no tokenizer at {path}: {file} does not exist{advice}")
    given = {"bos": bos, "eos": eos}
    try:
        if file.suffix == ".model":
            return _from_sentencepiece(file, read_bytes(file), given)
        fields = _read_object(file, ". If it is a rank file of tiktoken, use Tokenizer.from_ranks")
        if fields.get("format") == _FORMAT:
            return _from_fields(fields)
        if "model" in fields:
            return _from_hugging_face(file, fields, given)
    except (ArgumentError, FormatError) as error:
        raise (error if str(file) in str(error) else FormatError(f"{file}: {error}")) from error
    except (AttributeError, KeyError, TypeError, ValueError, LookupError) as error:
        raise FormatError(f"{file} is not a tokenizer: {type(error).__name__} {error}") from error
    if "config" in fields and "vocab" in fields:
        raise FormatError(f"{file} is a tekken file: ranks and a pattern, of which examples/tekken makes a tokenizer")
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


def write_vocabulary(vocabulary: AnyVocabulary, path: PathLike, *, overwrite: bool = False) -> Path:
    """Write our own format atomically: to `path` if it ends in `.json`, else into that folder. Returns the file.

    Another tokenizer, or anything else that is there, is replaced only with `overwrite`.
    """
    file = _file_at(path)
    fields: dict[str, Any] = {
        "format": _FORMAT,
        "version": 1,
        "special_tokens": dict(vocabulary.special_tokens),
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
    }
    if isinstance(vocabulary, Vocabulary):
        ranks: list[str | None] = [None] * (max(vocabulary.ranks.values()) + 1)
        for token, rank in vocabulary.ranks.items():
            ranks[rank] = base64.b64encode(token).decode()
        fields |= {"pattern": vocabulary.pattern, "ranks": ranks}
        fields |= {"strips": dict(vocabulary.strips)} if vocabulary.strips else {}
    else:
        is_json, data = vocabulary.library == "tokenizers", vocabulary.definition
        definition = json.loads(data) if is_json else base64.b64encode(data).decode()
        fields |= {"library": vocabulary.library, "definition": definition}
    written = (json.dumps(fields, indent=0) + "\n").encode()
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and not overwrite:
        if read_bytes(file) == written:
            return file
        raise ArgumentError(
            f"{file} exists already, and is not this tokenizer. Choose another place, or replace it with overwrite=True"
        )
    replace_bytes(file, written)
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


def _from_fields(fields: dict[str, Any]) -> AnyVocabulary:
    if fields.get("version") != 1:
        raise FormatError(f"version is {fields.get('version')!r}; this version of tokenfeed reads version 1")
    special_tokens, bos, eos = (fields.get(key) for key in ("special_tokens", "bos", "eos"))
    if "library" in fields:
        return _from_library(fields["library"], fields["definition"], special_tokens, bos, eos)
    pattern, tokens = fields.get("pattern"), fields.get("ranks")
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
    strips = {name: (bool(left), bool(right)) for name, (left, right) in fields.get("strips", {}).items()}
    return Vocabulary(ranks, pattern, special_tokens, bos, eos, strips)


def _from_library(library: Any, definition: Any, special_tokens: Any, bos: Any, eos: Any) -> GeneralVocabulary:
    if library == "tokenizers":
        return read_definition(definition, special_tokens, bos, eos)
    if library == "sentencepiece":
        return replace(read_model(base64.b64decode(definition, validate=True), special_tokens), bos=bos, eos=eos)
    raise FormatError(f"library is {library!r}; expected tokenizers or sentencepiece")


def _from_hugging_face(file: Path, fields: dict[str, Any], given: Mapping[str, str | None]) -> AnyVocabulary:
    """The vocabulary of a parsed `tokenizer.json`, by ranks if they describe it. `given`: the caller's BOS and EOS."""
    config = _read_config(file)
    if not isinstance(fields["model"], dict):
        raise FormatError(f"its model is {fields['model']!r:.80}; expected an object")
    listed = {token["content"]: token for token in fields.get("added_tokens") or []}
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        listed.setdefault(token["content"], {**_ADDED, **token, "id": int(number)})
    words = vocab_of(fields["model"])
    roles = _roles(config, given)
    for name in filter(None, roles.values()):
        if name in listed or name in words:  # special, because it has a role, whatever the list says
            listed[name] = {**_ADDED, "id": words.get(name), "content": name, **listed.get(name, {}), "special": True}
    special = {name: token["id"] for name, token in listed.items() if token.get("special") is not False}
    if blank := [name for name in special if not name.strip()]:
        raise FormatError(f"special token {blank[0]!r} is white space, which occurs in ordinary text")
    roles = _check_roles(roles, special, given)
    fields = {**fields, "added_tokens": sorted(listed.values(), key=lambda token: token["id"])}
    try:
        return read_byte_pairs(fields, special, **roles)
    except NotBytePairsError:
        return read_definition(fields, special, **roles)


def _from_sentencepiece(file: Path, data: bytes, given: Mapping[str, str | None]) -> GeneralVocabulary:
    config = _read_config(file)
    added: dict[str, int] = {}
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        if token.get("special") is False:
            raise FormatError(
                f"tokenizer_config.json adds token {token['content']!r}, which is not special, and the model does not "
                "know it. Use the tokenizer.json of this tokenizer (transformers makes one: save_pretrained)"
            )
        added[token["content"]] = int(number)
    plain = read_model(data, added)
    roles = _check_roles(_roles(config, given), plain.special_tokens, given)
    own_bos = None if _ends_only(config) else plain.bos
    return replace(plain, bos=roles["bos"] or own_bos, eos=roles["eos"] or plain.eos)


def _read_config(file: Path) -> dict[str, Any]:
    """`tokenizer_config.json` beside a file; BOS and EOS may be in the older `special_tokens_map.json`."""
    beside = [file.with_name(name) for name in ("special_tokens_map.json", "tokenizer_config.json")]
    config: dict[str, Any] = {}
    for one in beside:
        if one.exists():
            config |= _read_object(one)
    return config


def _roles(config: Mapping[str, Any], given: Mapping[str, str | None]) -> dict[str, str | None]:
    """BOS and EOS: the caller's, else those that the configuration names."""
    named = {role: config.get(f"{role}_token") for role in ("bos", "eos")}
    roles = {role: name.get("content") if isinstance(name, dict) else name for role, name in named.items()}
    if _ends_only(config):
        roles["bos"] = None
    return {role: given[role] or name for role, name in roles.items()}


def _ends_only(config: Mapping[str, Any]) -> bool:
    """Whether it would end documents, and not begin them."""
    return bool(config.get("add_eos_token") and not config.get("add_bos_token", True))


def _check_roles(
    roles: Mapping[str, str | None], special: Mapping[str, int], given: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Refuse names of the configuration that there are no tokens of; leave out such of the caller, which come later."""
    unknown = [
        f"{role}_token {name!r}"
        for role, name in roles.items()
        if name is not None and name not in special and given[role] is None
    ]
    if unknown:
        raise FormatError(
            f"tokenizer_config.json names {' and '.join(unknown)}, not among its special tokens: "
            f"{_list_some(special)}. Correct either file, or name others: Tokenizer.load(…, bos=…, eos=…)"
        )
    return {role: name if name in special else None for role, name in roles.items()}


def _list_some(names: Iterable[str]) -> str:
    first = list(islice(names, _LISTED + 1))
    return ", ".join(map(repr, first[:_LISTED])) + (", …" if first[_LISTED:] else "") if first else "there are none"
