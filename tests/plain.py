"""The plain twin of a store: documents in lists, NumPy where it is obvious. What everything fast is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tokenfeed
from tokenfeed.format.manifest import Manifest


@dataclass
class PlainDocument:
    """Items, and the payloads of the concept spans that the items are divided into."""

    tokens: npt.NDArray[Any]
    payload: Any
    concepts: list[tuple[int, Any]]
    """(number of items, payload) of each."""


@dataclass
class PlainStore:
    """Documents one behind the other."""

    documents: Sequence[PlainDocument]

    @property
    def tokens(self) -> npt.NDArray[Any]:
        return np.concatenate([np.empty(0, np.uint16), *(document.tokens for document in self.documents)])

    def frames(self) -> npt.NDArray[Any]:
        """A second column, with an inner shape, that follows from the tokens."""
        return frames_of(self.tokens)

    def table(self, name: str) -> list[tuple[int, int, Any]]:
        """(first item, end, payload) of every span."""
        spans, position = [], 0
        for document in self.documents:
            pieces = [(len(document.tokens), document.payload)] if name == "documents" else document.concepts
            for length, payload in pieces:
                spans.append((position, position + length, payload))
                position += length
        return spans

    def touched(self, name: str, start: int, stop: int) -> list[tuple[int, int, int, Any]]:
        """(number, start and stop in the row, payload) of the spans that cover some of items [start, stop)."""
        found = []
        for number, (first, end, payload) in enumerate(self.table(name)):
            if max(first, start) < min(end, stop):
                found.append((number, max(first, start) - start, min(end, stop) - start, payload))
        return found

    def write(self, path: Path, **options: Any) -> None:
        columns = {"tokens": "uint16", "frame": ("uint8", (2, 3))}
        spans = {"documents": "json", "concepts": "msgpack"}
        with tokenfeed.Writer(path, mode="append", columns=columns, spans=spans, sync=False, **options) as writer:
            for document in self.documents:
                add = writer.append
                extra: Mapping[str, Any] = {"documents": document.payload}
                position = 0
                for length, payload in document.concepts:
                    tokens = document.tokens[position : position + length]
                    add({"tokens": tokens, "frame": frames_of(tokens)}, concepts=payload, **extra)
                    add, extra = writer.extend, {}
                    position += length


def frames_of(tokens: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return (tokens[:, None, None] * 7 + np.arange(6).reshape(2, 3)).astype(np.uint8)


def make_documents(lengths: Sequence[int], *, seed: int = 0) -> PlainStore:
    """Documents of these lengths, each divided into up to three concept spans; some payloads are missing or empty."""
    rng = np.random.default_rng(seed)
    documents = []
    for number, length in enumerate(lengths):
        tokens = rng.integers(0, 2**16, length).astype(np.uint16)
        cuts = np.sort(rng.integers(0, length + 1, rng.integers(0, 3)))
        pieces = np.diff(np.concatenate(([0], cuts, [length])))
        concepts = [(int(piece), None if rng.random() < 0.2 else [number, int(piece)]) for piece in pieces]
        payload = [None, "", {"number": number, "url": "é" * int(rng.integers(0, 9))}][int(rng.integers(0, 3))]
        documents.append(PlainDocument(tokens, payload, concepts))
    return PlainStore(documents)


def spans_of(row: Any) -> list[tuple[int, int, int, Any]]:
    """A row's spans in the form of `PlainStore.touched`."""
    return [(span.number, span.start, span.stop, span.payload) for span in row]


def write_many_shards(path: Path, count: int) -> Path:
    """A store of `count` shards of 100 documents, each the same folder under another name."""
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "json"}, sync=False) as writer:
        for number in range(100):
            writer.append({"tokens": np.arange(7 * number)}, documents=number)
    manifest = Manifest.from_json((path / "manifest.json").read_bytes(), "manifest.json")
    (entry,) = manifest.shards
    shards = [replace(entry, name=f"copy-{number:05}") for number in range(count)]
    for shard in shards:
        (path / shard.name).symlink_to(entry.name)
    (path / "manifest.json").write_text(replace(manifest, shards=tuple(shards)).to_json())
    return path
