"""Text to measure with, and the loop to measure against. Made once under `bench/.data/`."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["find_text", "find_tokenizer", "plain_loop"]

_FOLDER = Path(__file__).parent / ".data"
_GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "golden" / "tokenizer"
_GROUP_ROWS = 1024
_VOCABULARY = 32768


def find_text(folder: Path | None, megabytes: float) -> Path:
    """The folder given; or Parquet files of the Python sources that are installed here, the last a tenth of them."""
    if folder is not None:
        return folder
    target = _FOLDER / f"text-{megabytes:g}"
    if (target / "1.parquet").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    texts, size = [], 0.0
    for path in sorted(Path(sys.prefix).rglob("*.py")) + sorted(Path(sys.base_prefix).rglob("*.py")):
        text = path.read_text(errors="replace")
        texts.append(text)
        size += len(text) / 1e6
        if size >= megabytes:
            break
    cut = len(texts) * 9 // 10
    for number, part in enumerate((texts[:cut], texts[cut:])):
        pq.write_table(
            pa.table({"text": part}), target / f"{number}.parquet", row_group_size=_GROUP_ROWS, compression="zstd"
        )
    return target


def find_tokenizer(folder: Path, engine: str | None = None) -> Tokenizer:
    """A vocabulary of 32,768 tokens trained on the text by nanochat's pattern; without rustbpe, that of the tests."""
    saved = _FOLDER / f"tokenizer-{folder.resolve().name}.json"
    if not saved.exists() and not find_spec("rustbpe"):
        special_tokens = json.loads((_GOLDEN / "special_tokens.json").read_text())
        return Tokenizer.from_ranks(
            _GOLDEN / "ranks.tiktoken", pattern="nanochat", special_tokens=special_tokens, bos="<|bos|>", engine=engine
        )
    if not saved.exists():
        saved.parent.mkdir(parents=True, exist_ok=True)
        groups = TextFiles.find(folder, split="train").iter_row_groups()
        texts = (text for group in groups for text in group if text is not None)
        Tokenizer.train(texts, _VOCABULARY).save(saved)
    return Tokenizer.load(saved, engine=engine)


def plain_loop(
    folder: Path, tokenizer: Tokenizer, batch_size: int, length: int, *, buffer_size: int = 1000, threads: int = 2
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Best fit with cropping as nanochat describes it: tiktoken, Python lists, a scan of the buffer per placement."""
    import tiktoken

    vocabulary = tokenizer.vocabulary
    encoding = tiktoken.Encoding(
        "plain", pat_str=vocabulary.pattern, mergeable_ranks=vocabulary.ranks, special_tokens=vocabulary.special_tokens
    )
    bos = tokenizer.bos_id

    def batches_of_documents() -> Iterator[list[list[int]]]:
        while True:
            for path in TextFiles.find(folder, split="train").paths:
                file = pq.ParquetFile(path)
                for group in range(file.num_row_groups):
                    texts = file.read_row_group(group).column("text").to_pylist()
                    for first in range(0, len(texts), 128):
                        encoded = encoding.encode_ordinary_batch(texts[first : first + 128], num_threads=threads)
                        for ids in encoded:
                            ids.insert(0, bos)
                        yield encoded

    documents = batches_of_documents()
    waiting: list[list[int]] = []
    width = length + 1
    rows = torch.empty((batch_size, width), dtype=torch.long)
    while True:
        for row in range(batch_size):
            position = 0
            while position < width:
                while len(waiting) < buffer_size:
                    waiting.extend(next(documents))
                remaining = width - position
                best, best_length = -1, 0
                for number, document in enumerate(waiting):
                    length = len(document)
                    if best_length < length <= remaining:
                        best, best_length = number, length
                if best < 0:
                    best = min(range(len(waiting)), key=lambda number: len(waiting[number]))
                placed = waiting.pop(best)[:remaining]
                rows[row, position : position + len(placed)] = torch.tensor(placed, dtype=torch.long)
                position += len(placed)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
