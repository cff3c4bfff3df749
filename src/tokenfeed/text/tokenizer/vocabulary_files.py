"""Vocabularies in files: our own format, tiktoken's rank files, and Hugging Face's `tokenizer.json`.

Our format is JSON, one token per line:

{
"format": "tokenfeed-tokenizer", "version": 1,
"pattern": "…", "special_tokens": {"<|bos|>": 32759}, "bos": "<|bos|>",
"ranks": [
"AA==",       bytes of token 0 in base64
null,         an id without an ordinary token
…]
}
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, FormatError, NotFoundError
from tokenfeed.storage.local import read_bytes, replace_bytes, writing
from tokenfeed.text.tokenizer.hugging_face import vocabulary_from_hugging_face
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["read_ranks", "read_vocabulary", "write_vocabulary"]

PathLike = str | os.PathLike[str]
_NAME = "tokenizer.json"
_FORMAT = "tokenfeed-tokenizer"


def read_vocabulary(path: PathLike) -> Vocabulary:
    """Read our own format or Hugging Face's, from a file or from the `tokenizer.json` in a folder."""
    file = Path(path)
    if file.is_dir():
        file /= _NAME
    if not file.exists():
        raise NotFoundError(f"there is no tokenizer at {path}: {file} does not exist")
    try:
        fields = json.loads(read_bytes(file))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{file} is not JSON ({error}). If it is a rank file of tiktoken, use Tokenizer.from_ranks"
        ) from error
    if not isinstance(fields, dict):
        raise FormatError(f"{file} holds a JSON {type(fields).__name__}; expected an object")
    try:
        if fields.get("format") == _FORMAT:
            return _from_fields(fields)
        if "model" in fields:
            return vocabulary_from_hugging_face(fields)
    except (ArgumentError, FormatError) as error:
        raise FormatError(f"{file}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file} is not a tokenizer: {type(error).__name__} {error}") from error
    raise FormatError(f'{file} is not a tokenizer of tokenfeed (no "format") or of Hugging Face (no "model")')


def write_vocabulary(vocabulary: Vocabulary, path: PathLike) -> Path:
    """Write our own format atomically: to `path` if it ends in `.json`, else into that folder. Returns the file."""
    file = Path(path)
    if file.suffix != ".json":
        file /= _NAME
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
    }
    lines = [f'"{key}": {json.dumps(value)},\n' for key, value in fields.items()]
    tokens = ",\n".join(json.dumps(token) for token in ranks)
    replace_bytes(file, ("{\n" + "".join(lines) + '"ranks": [\n' + tokens + "\n]\n}\n").encode())
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
            raise FormatError(
                f"{path}, line {number}: expected base64, a space and a rank, got {line[:60]!r}"
            ) from error
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
    return Vocabulary(ranks, pattern, special_tokens, bos)
