"""A run: its history, its mixture, the samples of a step, and the steps that see a document."""

from dataclasses import asdict
from typing import Any

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.plan import Plan
from tokenfeed.runs.file import Leg, Start
from tokenfeed.runs.run import Run
from tokenfeed.runs.tracing import RowTrace
from tokenfeed.ui.query import Query
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json, plain, without_paths

__all__ = ["describe_run", "find_document", "show_ledger", "trace_step"]

_MOST_STARTS = 200
_MOST_ROWS = 200
_MOST_SEEN = 200
_MOST_DOCUMENTS = 6
_MOST_EPOCHS = 64


def describe_run(subject: Subject, query: Query) -> Json:
    """Its plan, its starts, and its legs: a leg is the steps of one start that no later start rolled back."""
    run = subject.run
    if not run.starts:
        return {"name": subject.name, "starts": [], "legs": [], "plan": None, "sources": []}
    plan = run.starts[-1].plan
    legs = run.legs
    return {
        "name": subject.name,
        "plan": _describe_plan(plan),
        "sources": _describe_sources(plan),
        "num_starts": len(run.starts),
        "starts": [_describe_start(start, legs) for start in run.starts[-_MOST_STARTS:]],
        "legs": [_describe_leg(leg) for leg in legs[-_MOST_STARTS:]],
    }


def _describe_plan(plan: Plan) -> Json:
    return {"told": without_paths(repr(plan)), "seed": plan.seed, "skips": len(plan.skips)}


def _describe_sources(plan: Plan) -> list[Json]:
    return [{"name": each.name, "samples": each.num_samples, "view": str(each.spec)} for each in plan.sources]


def _describe_start(start: Start, legs: list[Leg]) -> Json:
    return {
        "step": start.step,
        "samples": start.samples,
        "world_size": start.world_size,
        "batch_size": repr(start.batch_sizes),
        "time": start.time,
        "counts": any(leg.start is start for leg in legs),
    }


def _describe_leg(leg: Leg) -> Json:
    return {
        "first_step": leg.first_step,
        "stop_step": leg.stop_step,
        "samples": leg.start.samples,
        "stop": leg.stop,
        "world_size": leg.start.world_size,
        "batch_size": repr(leg.start.batch_sizes),
    }


def _last_plan(run: Run) -> Plan:
    if not run.starts:
        raise ArgumentError("nothing was started in this run")
    return run.starts[-1].plan


def show_ledger(subject: Subject, query: Query) -> Json:
    """Samples that each source gave among the first `samples` of the run, and its target."""
    plan = _last_plan(subject.run)
    most = (1 << 53) if plan.end is None else plan.end
    samples = query.whole("samples", min(most, max(10_000, subject.run.starts[-1].samples)), most=most)
    sources = [
        {"name": each.source, "samples": each.samples, "target": each.target, "epochs": each.epochs}
        for each in plan.ledger(samples)
    ]
    return {"samples": samples, "end": plan.end, "sources": sources}


def trace_step(subject: Subject, query: Query) -> Json:
    """The rows of a step: sample, epoch, index, place on disk, and documents of each."""
    step = query.whole("step", 0)
    run = subject.run
    num_rows = len(run.samples(step))
    rows = run.trace(step)[:_MOST_ROWS]
    return {"step": step, "num_rows": num_rows, "rows": [_describe_row(row) for row in rows]}


def _describe_row(row: RowTrace) -> Json:
    documents: Any = row.documents
    return {
        "rank": row.rank,
        "row": row.row,
        "sample": row.sample,
        "epoch": row.epoch,
        "index": row.index,
        "source": row.source,
        "places": [[without_paths(place.shard), place.start, place.stop] for place in row.locations[:_MOST_DOCUMENTS]],
        "num_documents": len(documents),
        "documents": [
            {"number": span.number, "start": span.start, "stop": span.stop, "payload": plain(span.payload)}
            for span in (documents[number] for number in range(min(len(documents), _MOST_DOCUMENTS)))
        ],
    }


def find_document(subject: Subject, query: Query) -> Json:
    """Every row of the first `epochs` epochs that holds a part of a document."""
    document = query.whole("document", 0)
    epochs = range(query.whole("epochs", 1, least=1, most=_MOST_EPOCHS))
    seen = subject.run.find(document, source=query.text("source"), epochs=epochs)
    return {
        "document": document,
        "epochs": len(epochs),
        "total": len(seen),
        "seen": [asdict(each) for each in seen[:_MOST_SEEN]],
    }
