"""The text of the streaming road, of prepare and of the tokenizers, with one vocabulary in every form that is read."""

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from text import find_text, find_tokenizer

__all__ = ["PARTS", "make_corpus", "read_texts"]

PARTS = 4
_ROWS = 256


def make_corpus(folder: Path, megabytes: float) -> Path:
    """A folder: 0.parquet to train on, 1.parquet to validate; parts/ has the first again, in files; a vocabulary."""
    target = folder / f"text-{megabytes:g}"
    if (target / ".made").exists():
        return target
    (target / "parts").mkdir(parents=True, exist_ok=True)
    source = find_text(None, megabytes)
    for name in ("0.parquet", "1.parquet"):
        pq.write_table(pq.read_table(source / name), target / name, row_group_size=_ROWS)
    texts = read_texts(target)
    for part in range(PARTS):
        pq.write_table(
            pa.table({"text": texts[part::PARTS]}), target / "parts" / f"{part}.parquet", row_group_size=_ROWS
        )
    tokenizer = find_tokenizer(source)
    tokenizer.save(target / "tokenizer.json")
    vocabulary = tokenizer.vocabulary
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in vocabulary.ranks.items()]
    (target / "ranks.tiktoken").write_bytes(b"".join(lines))
    fields = {"pattern": vocabulary.pattern, "special_tokens": vocabulary.special_tokens, "bos": tokenizer.bos_id}
    (target / "vocabulary.json").write_text(json.dumps(fields))
    _hugging_face(vocabulary).save(str(target / "hugging-face.json"))
    (target / ".made").touch()
    return target


def read_texts(folder: Path) -> list[str]:
    return [text for text in pq.read_table(folder / "0.parquet").column("text").to_pylist() if text]


def _hugging_face(vocabulary: Any) -> Tokenizer:
    """The same merges for Hugging Face's library: a token's halves are what the ranks below its own make of it."""
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
            pre_tokenizers.Split(Regex(vocabulary.pattern), behavior="isolated"),
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
