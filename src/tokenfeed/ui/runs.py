"""A run: its history, its mixture, the samples of a step, and the steps that see a document."""

from dataclasses import asdict

import numpy as np

from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.runs.file import Start
from tokenfeed.runs.legs import Leg
from tokenfeed.runs.run import Run
from tokenfeed.runs.tracing import RowTrace
from tokenfeed.store.store import Store
from tokenfeed.ui.messages import Json, Query, pick, plain, without_paths
from tokenfeed.ui.subject import Subject

__all__ = ["describe_run", "find_document", "show_ledger", "trace_step"]

_MOST_STARTS = 200
_MOST_ROWS = 200
_MOST_TRACED = 1 << 16
_MOST_SEEN = 200
_MOST_DOCUMENTS = 6
_MOST_EPOCHS = 64
_MOST_ITEMS = 1 << 24
"""Items of a document, over all epochs, whose rows are looked for."""


def describe_run(subject: Subject, query: Query) -> Json:
    """Its plan, its starts, and its legs: a leg is the steps of one start that no later start rolled back."""
    run = subject[Run]
    if not run.starts:
        return {"name": subject.name, "starts": [], "legs": [], "plan": None, "sources": []}
    plan, legs = run.starts[-1].plan, run.legs
    return {
        "name": subject.name,
        "plan": {"told": without_paths(repr(plan)), "seed": plan.seed, "skips": len(plan.skips)},
        "sources": [{"name": each.name, "samples": each.num_samples, "view": str(each.spec)} for each in plan.sources],
        "num_starts": len(run.starts),
        "starts": [_describe_start(start, legs) for start in run.starts[-_MOST_STARTS:]],
        "legs": [
            {**_describe_start(leg.start, legs), **pick(leg, "first_step stop_step stop")}
            for leg in legs[-_MOST_STARTS:]
        ],
    }


def _describe_start(start: Start, legs: list[Leg]) -> Json:
    counts = any(leg.start is start for leg in legs)
    return {**pick(start, "step samples world_size time"), "batch_size": repr(start.rule), "counts": counts}


def show_ledger(subject: Subject, query: Query) -> Json:
    """Samples that each source gave among the first `samples` of the run, and its target."""
    if not subject[Run].starts:
        raise ArgumentError("nothing was started in this run")
    last = subject[Run].starts[-1]
    most = (1 << 53) if last.plan.end is None else last.plan.end
    samples = query.whole("samples", min(most, max(10_000, last.samples)), most=most)
    sources = [{"name": each.source, **pick(each, "samples target epochs")} for each in last.plan.ledger(samples)]
    return {"samples": samples, "end": last.plan.end, "sources": sources}


def trace_step(subject: Subject, query: Query) -> Json:
    """The rows of a step: sample, epoch, index, place on disk, and documents of each."""
    step = query.whole("step", 0)
    if len(subject[Run].samples(step)) > _MOST_TRACED:
        raise ArgumentError(
            f"a step of this run has more than {_MOST_TRACED:,} rows, which the page does not trace. Use `tokenfeed "
            f"trace RUN --step {step} --rank 0`"
        )
    rows = subject[Run].trace(step)
    return {"step": step, "num_rows": len(rows), "rows": [_describe_row(row) for row in rows[:_MOST_ROWS]]}


def _describe_row(row: RowTrace) -> Json:
    documents = row.documents
    shown = [documents[number] for number in range(min(len(documents), _MOST_DOCUMENTS))]
    return {
        **pick(row, "rank row sample epoch index source planned"),
        "places": [[without_paths(place.shard), place.start, place.stop] for place in row.locations[:_MOST_DOCUMENTS]],
        "num_documents": len(documents),
        "documents": [{**pick(span, "number start stop"), "payload": plain(span.payload)} for span in shown],
    }


def find_document(subject: Subject, query: Query) -> Json:
    """Every row of the first `epochs` epochs that holds a part of a document."""
    document = query.whole("document", 0)
    epochs, source = range(query.whole("epochs", 1, least=1, most=_MOST_EPOCHS)), query.text("source")
    store = subject.store_of(source) if source or subject.find(Store) else None
    for table in list(store.spans.values())[:1] if store is not None else ():
        items = len(epochs) * int(table.locate(np.array([document]))[1][0])
        if items > _MOST_ITEMS:
            raise ArgumentError(
                f"document {document:,} has {items:,} items in {quantity(len(epochs), 'epoch')}; the page looks for up "
                f"to {_MOST_ITEMS:,}. Use `tokenfeed trace RUN --document {document}`"
            )
    seen = subject[Run].find(document, source=source, epochs=epochs)
    shown = [asdict(each) for each in seen[:_MOST_SEEN]]
    return {"document": document, "epochs": len(epochs), "total": len(seen), "seen": shown}
