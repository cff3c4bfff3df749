"""The vocabulary that all text is encoded with, as a tiktoken encoding. It lies beside the text."""

import base64
import json
from pathlib import Path

import tiktoken

__all__ = ["load_encoding"]


def load_encoding(folder: Path) -> tuple[tiktoken.Encoding, int]:
    """The encoding, and its BOS."""
    fields = json.loads((folder / "vocabulary.json").read_text())
    lines = (folder / "ranks.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    special = fields["special_tokens"]
    encoding = tiktoken.Encoding("bench", pat_str=fields["pattern"], mergeable_ranks=ranks, special_tokens=special)
    return encoding, fields["bos"]
