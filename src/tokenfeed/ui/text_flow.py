"""From text to a batch, step by step, made by `tokenfeed.stream`: documents → tokens → packed rows → ranks."""

from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.feed import TextFeed, stream
from tokenfeed.text.streaming.rows import StreamBatch
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.query import Query
from tokenfeed.ui.samples import show_tokens
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json, plain, without_paths

__all__ = ["list_documents", "show_batch"]

_MOST_DOCUMENTS = 50
_MOST_CHARACTERS = 600
_MOST_STEPS = 16
_MOST_TOKENS = 1 << 14


def list_documents(subject: Subject, query: Query) -> Json:
    """The list of files, and the first documents of one row group, as text and as tokens."""
    files = subject.files
    file = query.whole("file", 0, most=len(files) - 1)
    group = query.whole("group", 0)
    documents: list[Json] = []
    found = files.read(file, group)
    for first, texts in () if found is None else found.batches(_MOST_DOCUMENTS):
        documents += [_describe_text(first + place, text, subject) for place, text in enumerate(texts)]
        break
    return {
        "files": [without_paths(name) for name in files.names[:200]],
        "num_files": len(files),
        "file": file,
        "group": group,
        "rows": 0 if found is None else found.num_rows,
        "documents": documents[:_MOST_DOCUMENTS],
    }


def _describe_text(row: int, text: str | None, subject: Subject) -> Json:
    shown = "" if text is None else text[:_MOST_CHARACTERS]
    told: Json = {"row": row, "text": shown, "characters": len(text or ""), "tokens": None}
    if subject.given_tokenizer is not None and text is not None:
        told["tokens"] = show_tokens(subject.given_tokenizer.encode(shown), subject.given_tokenizer)
    return told


def show_batch(subject: Subject, query: Query) -> Json:
    """Batch `step` of every rank, packed by the stream: its rows, their pieces, and the documents of the pieces."""
    files, tokenizer = subject.files, subject.tokenizer
    options: dict[str, Any] = {
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
    ranks = []
    lost = repeated = waiting = 0
    for rank in range(world_size):
        feed = stream(
            [str(path) for path in files.paths],
            tokenizer,
            split="all",
            refill_size=32,
            threads=1,
            prefetch=0,
            rank=rank,
            world_size=world_size,
            **options,
        )
        try:
            batch = _take(feed, step)
            ranks.append({"rank": rank, "rows": _rows(batch, documents, tokenizer)})
            counts = feed.counts()
            lost, repeated, waiting = lost + counts.lost, repeated + counts.repeated, waiting + counts.waiting
        finally:
            feed.close()
    return {
        "step": step,
        "world_size": world_size,
        **options,
        "lost": lost,
        "repeated": repeated,
        "waiting": waiting,
        "ranks": ranks,
        "documents": [_document(files, place) for place in documents],
    }


def _take(feed: TextFeed, step: int) -> StreamBatch:
    for _ in range(step):
        next(feed)
    return next(feed)


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
        told.append(
            {
                "sample": int(batch.samples[row]),
                "epoch": int(batch.epochs[row]),
                "tokens": show_tokens(np.asarray(tokens), tokenizer),
                "pieces": pieces,
            }
        )
    return told


def _document(files: TextFiles, place: tuple[int, ...]) -> Json:
    file, group, row = place
    found = files.read(file, group, row)
    text: str | None = None
    if found is not None:
        _, texts = next(iter(found.batches(1)))
        text = texts[0]
    name = without_paths(files.names[file])
    return {"file": name, "group": group, "row": row, "text": plain((text or "")[:_MOST_CHARACTERS])}
