"""From text to a batch, step by step, made by `tokenfeed.stream`: documents → tokens → packed rows → ranks."""

from collections import Counter
from itertools import islice

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.portions import as_str
from tokenfeed.text.streaming.feed import stream
from tokenfeed.text.streaming.rows import StreamBatch
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.messages import Json, Query, pick, plain, without_paths
from tokenfeed.ui.samples import show_tokens
from tokenfeed.ui.subject import Subject

__all__ = ["list_documents", "show_batch"]

_MOST_DOCUMENTS = 50
_MOST_CHARACTERS = 600
_MOST_STEPS = 16
_MOST_TOKENS = 1 << 14


def list_documents(subject: Subject, query: Query) -> Json:
    """The list of files, and the first documents of one row group, as text and as tokens."""
    files = subject[TextFiles]
    file = query.whole("file", 0, most=len(files) - 1)
    group = query.whole("group", 0)
    found = files.read(file, group)
    first, texts = (0, []) if found is None else next(iter(found.batches(_MOST_DOCUMENTS)), (0, []))
    return {
        "files": [without_paths(name) for name in files.names[:200]],
        "num_files": len(files),
        "file": file,
        "group": group,
        "rows": 0 if found is None else found.num_rows,
        "documents": [_describe_text(row, text, subject) for row, text in enumerate(texts[:_MOST_DOCUMENTS], first)],
    }


def _describe_text(row: int, found: str | bytes | None, subject: Subject) -> Json:
    text = None if found is None else as_str(found)
    shown = "" if text is None else text[:_MOST_CHARACTERS]
    told: Json = {"row": row, "text": shown, "characters": len(text or ""), "tokens": None}
    tokenizer = subject.find(Tokenizer)
    if tokenizer is not None and text is not None:
        told["tokens"] = show_tokens(tokenizer.encode(shown), tokenizer)
    return told


def show_batch(subject: Subject, query: Query) -> Json:
    """Batch `step` of every rank, packed by the stream: its rows, their pieces, and the documents of the pieces."""
    files, tokenizer = subject[TextFiles], subject[Tokenizer]
    options: Json = {
        "batch_size": query.whole("batch_size", 4, least=1, most=32),
        "length": query.whole("length", 128, least=8, most=2048),
        "packing": query.choice("packing", ("best_fit", "concat")),
        "overflow": query.choice("overflow", ("split", "crop")),
        "buffer_size": query.whole("buffer_size", 64, least=1, most=1000),
    }
    step = query.whole("step", 0, most=_MOST_STEPS - 1)
    world_size = query.whole("world_size", 2, least=1, most=8)
    size = world_size * options["batch_size"] * options["length"]
    if size > _MOST_TOKENS:
        raise ArgumentError(
            f"a batch has {size:,} tokens over all ranks; the page shows at most {_MOST_TOKENS:,}. Choose fewer ranks, "
            "smaller batches or shorter rows"
        )
    documents: dict[tuple[int, ...], int] = {}
    ranks, totals = [], Counter[str]()
    paths = [str(path) for path in files.paths]
    fixed: Json = {"split": "all", "refill_size": 32, "threads": 1, "prefetch": 0, "world_size": world_size, **options}
    for rank in range(world_size):
        with stream(paths, tokenizer, rank=rank, **fixed) as feed:
            batch = next(islice(feed, step, None))
            ranks.append({"rank": rank, "rows": _rows(batch, documents, tokenizer)})
            totals.update(pick(feed.counts(), "lost repeated waiting"))
    told = [_document(files, place) for place in documents]
    return {"step": step, "world_size": world_size, **options, **totals, "ranks": ranks, "documents": told}


def _rows(batch: StreamBatch, documents: dict[tuple[int, ...], int], tokenizer: Tokenizer) -> list[Json]:
    """Rows with their pieces. Adds new documents to `documents`, numbered in order of first appearance."""
    spans, places = batch.spans["documents"], batch.documents
    told = []
    for row, tokens in enumerate(batch.tokens):
        pieces = []
        for entry in range(int(spans.offsets[row]), int(spans.offsets[row + 1])):
            place = tuple(places[entry, :3].tolist())
            number = documents.setdefault(place, len(documents))
            start, stop, done = (int(each[entry]) for each in (spans.starts, spans.stops, places[:, 3]))
            pieces.append({"document": number, "start": start, "stop": stop, "done": done})
        numbers = {"sample": int(batch.samples[row]), "epoch": int(batch.epochs[row])}
        told.append({**numbers, "tokens": show_tokens(np.asarray(tokens), tokenizer), "pieces": pieces})
    return told


def _document(files: TextFiles, place: tuple[int, ...]) -> Json:
    file, group, row = place
    found = files.read(file, group, row)
    text = None if found is None else next(iter(found.batches(1)))[1][0]
    shown = plain(as_str(text or "")[:_MOST_CHARACTERS])
    return {"file": without_paths(files.names[file]), "group": group, "row": row, "text": shown}
