"""The text of streams, of prepare and of the tokenizers, with its vocabularies in every form that is read."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

import tokenfeed
from text import find_text, find_tokenizer

__all__ = ["PARTS", "PATTERNS", "make_corpus", "read_texts"]

PARTS = 4
PATTERNS = {"nanochat": ".", "gpt4": "gpt4"}
"""By the name of the pattern that cuts words: the folder of its vocabulary, within that of the text."""
_ROWS = 256


def make_corpus(folder: Path, megabytes: float) -> Path:
    """0.parquet to train on, 1.parquet to validate; parts/ has the first again, in files; a vocabulary a pattern."""
    target = folder / f"text-{megabytes:g}"
    if (target / ".made").exists():
        return target
    for name in ("parts", *PATTERNS.values()):
        (target / name).mkdir(parents=True, exist_ok=True)
    source = find_text(None, megabytes)
    for name in ("0.parquet", "1.parquet"):
        pq.write_table(pq.read_table(source / name), target / name, row_group_size=_ROWS)
    texts = read_texts(target)
    for part in range(PARTS):
        pq.write_table(
            pa.table({"text": texts[part::PARTS]}), target / "parts" / f"{part}.parquet", row_group_size=_ROWS
        )
    tokenizer = find_tokenizer(source)
    _write_vocabulary(target, tokenizer)
    same = {"special_tokens": tokenizer.vocabulary.special_tokens, "bos": tokenizer.vocabulary.bos}
    for pattern, name in PATTERNS.items():
        if name != ".":
            other = tokenfeed.Tokenizer.from_ranks(target / "ranks.tiktoken", pattern=pattern, **same)
            _write_vocabulary(target / name, other)
    (target / ".made").touch()
    return target


def _write_vocabulary(folder: Path, tokenizer: tokenfeed.Tokenizer) -> None:
    tokenizer.save(folder / "tokenizer.json")
    vocabulary = tokenizer.vocabulary
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in vocabulary.ranks.items()]
    (folder / "ranks.tiktoken").write_bytes(b"".join(lines))
    fields = {"pattern": vocabulary.pattern, "special_tokens": vocabulary.special_tokens, "bos": tokenizer.bos_id}
    (folder / "vocabulary.json").write_text(json.dumps(fields))
    _hugging_face(vocabulary).save(str(folder / "hugging-face.json"))


def read_texts(folder: Path) -> list[str]:
    return [text for text in pq.read_table(folder / "0.parquet").column("text").to_pylist() if text]


def _hugging_face(vocabulary: Any) -> Tokenizer:
    """The same merges for Hugging Face's library: a token's halves are what the ranks below its own make of it.

    Its regular expressions read `{1,3}+` as a repetition of the repetition; greedy means the same here.
    """
    letters = _byte_letters()
    name = {token: "".join(letters[byte] for byte in token) for token in vocabulary.ranks}
    merges = []
    for token, rank in sorted(vocabulary.ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left, right = _halves(token, rank, vocabulary.ranks)
            merges.append((name[left], name[right]))
    vocab = {name[token]: rank for token, rank in vocabulary.ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(re.sub(r"(\{\d+,\d+\})\+", r"\1", vocabulary.pattern)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(list(vocabulary.special_tokens))
    return tokenizer


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        found = [(ranks.get(parts[at] + parts[at + 1], rank), at) for at in range(len(parts) - 1)]
        lowest, at = min(found)
        if lowest >= rank:
            raise ValueError(f"token {token!r} cannot be made of two others")
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _byte_letters() -> list[str]:
    """The printable letter that byte-level tokenizers write for every byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
