"""Everything that writes, as scenes that a fault may cut short (`writing_faults.py`).

A *scene* is something that can be done again: what is there before, the act, what must hold after the act was cut short
anywhere, and what must hold once it was done to its end.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tokenfeed
from golden import golden_tokenizer
from plain import PlainStore, frames_of, make_documents
from preparing import damage, picture, write_jsonl
from preparing import make_documents as make_texts
from tokenfeed.errors import ArgumentError, MissingError, NotAStoreError, StateError
from tokenfeed.observe.snapshots import publish, read_snapshots
from tokenfeed.runs.run import Run
from tokenfeed.store.verify import verify

COLUMNS = {"tokens": "uint16", "frame": ("uint8", (2, 3))}
SPANS = {"documents": "json", "concepts": "msgpack"}
PARTS = {
    "train": make_documents([40, 0, 70, 33, 5, 64, 12]),
    "val": make_documents([21, 8, 30], seed=1),
}
LENGTH = 16


class Scene(NamedTuple):
    before: Callable[[Path], None]
    act: Callable[[Path], Any]
    holds: Callable[[Path], None]
    done: Callable[[Path], None]
    watch: str = ""
    """What the calls are about, within the folder."""


def add_documents(path: Path, split: str, documents: PlainStore, first: int, **options: Any) -> None:
    """As a script would that goes on where it was: in shards whose names sort behind those that are there."""
    given = {"mode": "append", "columns": COLUMNS, "spans": SPANS, "split": split, "shard_bytes": 1200}
    given["name"] = f"{split}-{first:03d}"
    with tokenfeed.Writer(path, **{**given, **options}) as writer:
        for document in documents.documents[first:]:
            lengths = [length for length, _ in document.concepts]
            payloads = {"documents": document.payload, "concepts": document.concepts[0][1]}
            tokens, rest = document.tokens[: lengths[0]], document.tokens[lengths[0] :]
            writer.append({"tokens": tokens, "frame": frames_of(tokens)}, **payloads)
            for length, payload in document.concepts[1:]:
                tokens, rest = rest[:length], rest[length:]
                writer.extend({"tokens": tokens, "frame": frames_of(tokens)}, concepts=payload)


def read_documents(path: Path, split: str) -> list[Any]:
    """Everything that is there of every document."""
    try:
        store = tokenfeed.open(path, split=split)
    except (NotAStoreError, MissingError, StateError):
        return []
    documents, concepts = store.documents("documents"), store.documents("concepts")
    frames = store.windows(1, columns=["frame"], extra=0)
    pieces = [[len(piece.tokens), piece.payload] for piece in concepts]
    found, position = [], 0
    for document in documents:
        stop = position + len(document.tokens)
        seen = frames.read(np.arange(position, stop)).column("frame").tolist()
        found.append([document.tokens.tolist(), document.payload, seen])
        position = stop
    return [found, pieces]


def expected_documents(split: str, count: int | None = None) -> list[Any]:
    documents = PARTS[split].documents[:count]
    found = [[one.tokens.tolist(), one.payload, [[f] for f in frames_of(one.tokens).tolist()]] for one in documents]
    return [found, [[length, payload] for one in documents for length, payload in one.concepts]] if documents else []


def write(path: Path) -> None:
    for split, documents in PARTS.items():
        found = read_documents(path, split)
        add_documents(path, split, documents, len(found[0]) if found else 0)
    tokenfeed.seal(path)


def what_was_committed_is_whole(path: Path) -> None:
    """A beginning of what was appended, in whole shards; or nothing yet, and that is said."""
    committed = list(path.glob("*/shard.json"))
    if not (path / "manifest.json").exists():
        assert not committed
        try:
            tokenfeed.open(path)
        except NotAStoreError:
            return
        raise AssertionError("what is no store was opened")
    report = verify(path)
    assert report.ok, report.problems
    expected = 11 * len(committed) + 3 * len(list(path.glob(".packed-*/pack.json")))
    assert report.num_files == expected, f"{report.num_files} files were verified of {len(committed)} shards"
    for split in PARTS:
        found = read_documents(path, split)
        assert found == expected_documents(split, len(found[0]) if found else 0), f"other documents in {split}"


def all_is_written(path: Path) -> None:
    what_was_committed_is_whole(path)
    for split in PARTS:
        assert read_documents(path, split) == expected_documents(split)
    assert json.loads((path / "manifest.json").read_text())["shards"], "the store is not sealed"


def write_unsealed(path: Path) -> None:
    for split, documents in PARTS.items():
        add_documents(path, split, documents, 0, sync=False, seal=False)


def write_two(path: Path) -> None:
    for split, documents in PARTS.items():
        add_documents(path / split, split, documents, 0, sync=False)


def combine(path: Path) -> None:
    try:
        tokenfeed.combine([path / split for split in PARTS], path / "both")
    except ArgumentError as error:
        assert "already holds a store" in str(error), error


def both_are_there(path: Path) -> None:
    for split in PARTS:
        assert read_documents(path / split, split) == expected_documents(split)


def combined_or_not(path: Path) -> None:
    both_are_there(path)
    if (path / "both" / "manifest.json").exists():
        combined(path)


def combined(path: Path) -> None:
    for split in PARTS:
        assert read_documents(path / "both", split) == expected_documents(split)


def pack(path: Path) -> None:
    tokenfeed.open(path, split="train").pack(LENGTH)


def read_rows(path: Path) -> list[Any]:
    view = tokenfeed.open(path, split="train").packed(LENGTH)
    rows = view.read(np.arange(len(view)))
    return [
        rows.tokens.tolist(),
        [[[span.start, span.stop, span.number] for span in row] for row in rows.spans["documents"]],
    ]


def packed_or_not(path: Path) -> None:
    all_is_written(path)
    try:
        rows = read_rows(path)
    except MissingError:
        return
    assert rows == EXPECTED["rows"], "other rows than were packed"


def packed(path: Path) -> None:
    packed_or_not(path)
    folders = list(path.glob(".packed-*"))
    assert len(folders) == 1
    assert sorted(file.name for file in folders[0].glob("[!.]*")) == [
        "pack.blocks.npy",
        "pack.json",
        "pieces.npy",
        "rows.npy",
    ]
    assert read_rows(path) == EXPECTED["rows"]


EXPECTED: dict[str, Any] = {}


def start_run(path: Path) -> None:
    """A trainer that starts, or starts again, behind its last checkpoint."""
    loader = tokenfeed.Loader(tokenfeed.open(path / "store").windows(8), 2, prefetch=0, run=path / "run.jsonl")
    checkpoint = path / "checkpoint.json"
    if checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text()))
    for _ in range(2):
        batch = next(loader)
    checkpoint.with_suffix(".new").write_text(json.dumps(batch.state))
    checkpoint.with_suffix(".new").replace(checkpoint)


def begin_run(path: Path) -> None:
    for split, documents in PARTS.items():
        add_documents(path / "store", split, documents, 0, sync=False)
    start_run(path)


def run_file_reads(path: Path) -> None:
    """The first start is there, and the second wholly or not at all."""
    starts = Run(path / "run.jsonl").starts
    assert [start.samples for start in starts] in ([0], [0, 4], [0, 4, 4], [0, 4, 8]), starts
    assert [start.step for start in starts] == [start.samples // 2 for start in starts]


def publish_once(path: Path) -> None:
    loader = tokenfeed.Loader(tokenfeed.open(path / "store").windows(8), 2, prefetch=0)
    publish(loader, path / "run.stats.jsonl", every=3600).close()


def begin_publishing(path: Path) -> None:
    begin_run(path)
    publish_once(path)


def snapshots_read(path: Path) -> None:
    assert len(read_snapshots(path / "run.stats.jsonl")) >= 1


def begin_preparing(path: Path) -> None:
    """Two input files beside the store, and the store that must come of them."""
    for number in range(2):
        write_jsonl(path / f"{number}.jsonl", make_texts(5, seed=number))
    golden_tokenizer("tiktoken").save(path / "tokenizer")
    (path / "store").mkdir()
    if "prepared" not in EXPECTED:
        prepare(path)
        EXPECTED["prepared"] = picture(path / "store")
        shutil.rmtree(path / "store")


def prepare(path: Path) -> None:
    tokenfeed.prepare(path / "*.jsonl", path / "store", tokenizer=path / "tokenizer", workers=0, val=0.2)


def prepared_or_not(path: Path) -> None:
    if (path / "store" / "manifest.json").exists():
        assert damage(path / "store") == []


def prepared(path: Path) -> None:
    """Byte for byte; but for what a kill left beside a file that it was about to put in place."""
    found = {name: data for name, data in picture(path / "store").items() if not re.search(r"\.[0-9a-f]{16}$", name)}
    assert found == EXPECTED["prepared"], sorted(found.keys() ^ EXPECTED["prepared"].keys())


def nothing(path: Path) -> None:
    pass


def write_all(path: Path) -> None:
    write(path)
    if "rows" not in EXPECTED:
        pack(path)
        EXPECTED["rows"] = read_rows(path)
        shutil.rmtree(next(path.glob(".packed-*")))


SCENES = {
    "write": Scene(nothing, write, what_was_committed_is_whole, all_is_written),
    "seal": Scene(write_unsealed, tokenfeed.seal, what_was_committed_is_whole, all_is_written),
    "combine": Scene(write_two, combine, combined_or_not, combined),
    "pack": Scene(write_all, pack, packed_or_not, packed),
    "prepare": Scene(begin_preparing, prepare, prepared_or_not, prepared, "store"),
    "run file": Scene(begin_run, start_run, run_file_reads, run_file_reads, "run.jsonl"),
    "publish": Scene(begin_publishing, publish_once, snapshots_read, snapshots_read, "run.stats.jsonl"),
}
