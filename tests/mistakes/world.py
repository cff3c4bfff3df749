"""The folder that mistakes are made in: stores, text, tokenizers, runs and files of others, all of them tiny."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken
from torch.utils.data import DataLoader

import tokenfeed
from tokenfeed import observe
from tokenfeed.text import stream_chat
from tokenfeed.text.download import download
from tokenfeed.text.tokenizer.vocabulary import Vocabulary, find_pattern
from tokenfeed.torch import to_device

_RANKS = {bytes([byte]): byte for byte in range(256)}
TEXTS = ["the cat sat on the mat", "a dog ran", "it rained all day long", "the end"] * 5


def make_tokenizer(shift: int = 0) -> tokenfeed.Tokenizer:
    """Every byte a token, in one order or another."""
    ranks = {bytes([(byte + shift) % 256]): byte for byte in range(256)}
    return tokenfeed.Tokenizer(Vocabulary(ranks, find_pattern("gpt2"), {"<|bos|>": 256}, "<|bos|>"))


def write_store(path: Path, tokenizer: tokenfeed.Tokenizer, split: str | None = None, **options: Any) -> None:
    with tokenfeed.Writer(
        path,
        columns={"tokens": "uint16"},
        spans={"documents": "json"},
        split=split,
        name=f"{split or 'part'}",
        tokenizer=tokenizer.digest,
        sync=False,
        **options,
    ) as writer:
        for number, text in enumerate(TEXTS):
            writer.append({"tokens": tokenizer.encode(text, prepend="<|bos|>")}, documents={"id": number})


def build(folder: Path) -> dict[str, Any]:
    """Fill the folder; the names that code of mistakes may use."""
    tokenizer, other = make_tokenizer(), make_tokenizer(1)
    tokenizer.save(folder / "tokenizer")
    write_store(folder / "store", tokenizer)
    write_store(folder / "other", other)
    write_store(folder / "splits", tokenizer, "train", seal=False)
    write_store(folder / "splits", tokenizer, "val", mode="append")
    _write_text(folder)
    _write_foreign(folder)
    view = tokenfeed.open(folder / "store").windows(8)
    states = {}
    for name, seed in (("run", 0), ("run2", 1)):
        with tokenfeed.Loader(view, 2, seed=seed, rank=0, world_size=1, run=folder / f"{name}.jsonl") as loader:
            states[name] = [next(loader).state for _ in range(3)][-1]
    writer = tokenfeed.Writer(
        folder / "new-store", columns={"tokens": "uint16", "mask": "uint8"}, spans={"documents": "json"}, sync=False
    )
    return {
        "np": np,
        "tokenfeed": tokenfeed,
        "observe": observe,
        "to_device": to_device,
        "DataLoader": DataLoader,
        "download": download,
        "stream_chat": stream_chat,
        "writer": writer,
        "feed": tokenfeed.stream(
            folder / "text", tokenizer, batch_size=2, length=8, val=None, prefetch=0, rank=0, world_size=1
        ),
        "loader": tokenfeed.Loader(view, 2, rank=0, world_size=1),
        "chats": [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}],
        "encoding": tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=_RANKS, special_tokens={}),
        "store": tokenfeed.open(folder / "store"),
        "other": tokenfeed.open(folder / "other"),
        "view": view,
        "tokenizer": tokenizer,
        "state": states["run"],
        "state_of_another_run": states["run2"],
    }


def _write_text(folder: Path) -> None:
    (folder / "text").mkdir()
    for number in range(3):
        lines = [json.dumps({"text": text, "url": f"https://example.org/{number}"}) for text in TEXTS]
        (folder / "text" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    pq.write_table(pa.table({"prompt": ["a"], "completion": ["b"]}), folder / "chats.parquet")
    (folder / "named").mkdir()
    for name in ("arxiv", "stack-dev", "gsm8k-test"):
        (folder / "named" / f"{name}.jsonl").write_text('{"text": "a"}\n')
    (folder / "body.jsonl").write_text('{"body": "no key called text"}\n')
    (folder / "bad.jsonl").write_text('{"text": "fine"}\n{"text": "cut off\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "number.jsonl").write_text('{"text": 5}\n')
    (folder / "notes.docx").write_bytes(b"PK\x03\x04")
    pq.write_table(pa.table({"input_ids": [[1, 2], [3]]}), folder / "ids.parquet")
    pq.write_table(pa.table({"content": ["a", "b"]}), folder / "content.parquet")
    (folder / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    (folder / "images").mkdir()
    (folder / "images" / "cat.png").write_bytes(b"\x89PNG")
    (folder / "nothing").mkdir()


def _write_foreign(folder: Path) -> None:
    np.arange(100, dtype="<u2").tofile(folder / "raw.tokens")
    (folder / "odd.bin").write_bytes(bytes(33))
    (folder / "litdata").mkdir()
    (folder / "litdata" / "index.json").write_text(json.dumps({"chunks": [], "config": {"data_format": ["int"]}}))
    (folder / "litdata" / "chunk-0-0.bin").write_bytes(struct.pack("<III", 1, 12, 16) + bytes(4))
    (folder / "mosaic").mkdir()
    (folder / "mosaic" / "index.json").write_text('{"shards": [], "version": 2}')
    (folder / "mosaic" / "shard.00000.mds").write_bytes(bytes(64))
    (folder / "arrow").mkdir()
    (folder / "arrow" / "data-00000-of-00001.arrow").write_bytes(b"ARROW1\0\0")
    (folder / "hf.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": "##"},
                "added_tokens": [],
            }
        )
    )
    (folder / "model.safetensors").write_bytes(bytes(8))
