"""A run: where it is, its history and amendments, its mixture, the rows of a step, and the steps of a document."""

from bisect import bisect_right
from dataclasses import asdict
from math import ceil

import numpy as np

from tokenfeed.errors import ArgumentError, MissingError, TokenfeedError, quantity
from tokenfeed.runs.comparison import compare
from tokenfeed.runs.file import Start
from tokenfeed.runs.legs import Leg
from tokenfeed.runs.run import Run
from tokenfeed.runs.tracing import RowTrace
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.live import Live
from tokenfeed.ui.messages import Json, Query, pick, plain, without_paths
from tokenfeed.ui.samples import read_text
from tokenfeed.ui.subject import Subject

__all__ = ["compare_runs", "describe_run", "find_document", "show_ledger", "show_live", "trace_step"]

_MOST_STARTS = 200
_MOST_AMENDMENTS = 200
_MOST_ROWS = 50
_MOST_TRACED, _MOST_TOKENS = 1 << 16, 1 << 28
_MOST_SEEN = 200
_MOST_DOCUMENTS = 6
_MOST_EPOCHS = 64
_MOST_ITEMS = 1 << 24
"""Items of a document, over all epochs, whose rows are looked for."""
_MOST_WALKED = 10_000
"""Steps with token budgets that are walked through to find one."""
_MOST_AHEAD = 1 << 20
_SNIPPET = 48
"""Items of a row that are shown as text in a list."""
_LEDGER_POINTS = 48


def show_live(subject: Subject, query: Query) -> Json:
    """The news of all loaders since point number `after`, and how far the run is."""
    told = subject[Live].tell(query.whole("after", 0))
    run = subject.find(Run)
    if run is not None and run.starts:
        told["progress"] = _describe_progress(run, told)
    return told


def _describe_progress(run: Run, told: Json) -> Json:
    """Where the run is: by the stats file, which is newer than the run file, if it is of the same start."""
    start, plan = run.legs[-1].start, run.legs[-1].start.plan
    done = max(run.reached, told["delivered"] if told["delivered"] >= start.samples else 0)
    end = _end_of(run)
    step = _step_at(run, done)
    end_step = told["steps"] or (None if end is None else _step_at(run, end - 1) + 1)
    left = None if end is None else end - done
    if told["steps"]:
        left = max(0, told["steps"] - step) * _rows_of(start, done)
    rate = told["samples_per_second"]
    ledger = plan.ledger(done)
    return {
        "samples": done,
        "step": step,
        "end_step": end_step,
        "epoch": max(each.epochs for each in ledger),
        "seconds_left": left / rate if left and rate else None,
        "sources": [{"name": each.source, **pick(each, "samples target epochs")} for each in ledger],
    }


def _end_of(run: Run) -> int | None:
    """Number of samples of the run; None without end."""
    start = run.legs[-1].start
    return min((each for each in (start.plan.end, start.stop) if each is not None), default=None)


def _step_at(run: Run, sample: int) -> int:
    """The step that delivers a sample, or would; of steps with token budgets, by those that the file notes. O(1)."""
    leg = next((each for each in reversed(run.legs) if each.start.samples <= sample), run.legs[0])
    start = leg.start
    if sample < start.samples:
        return leg.first_step
    if not start.rule.by_tokens:
        return leg.step_of(sample)
    step, before = start.marks[bisect_right(start.marks, sample, key=lambda mark: mark[1]) - 1]
    return step + int((sample - before) / _rows_of(start, sample))


def _rows_of(start: Start, sample: int) -> float:
    """Rows of all ranks in the step that delivers a sample; of steps with token budgets, on average."""
    if not start.rule.by_tokens:
        return start.rule.rows.at(sample) * start.world_size
    (first, before), (last, after) = start.marks[0], start.marks[-1]
    return max(1.0, (after - before) / max(1, last - first))


def describe_run(subject: Subject, query: Query) -> Json:
    """Its plan, starts, amendments, and legs: a leg is the steps of one start that no later start rolled back."""
    run = subject[Run]
    if not run.starts:
        return {"name": subject.name, "starts": [], "legs": [], "plan": None, "sources": [], "amendments": []}
    return {"name": subject.name, **_describe(run)}


def _describe(run: Run) -> Json:
    plan, legs = run.starts[-1].plan, run.legs
    amendments = [(each, plan.begins(each)) for each in plan.amendments[-_MOST_AMENDMENTS:]]
    end = _end_of(run)
    return {
        "plan": {"told": without_paths(repr(plan)), "seed": plan.seed, "skips": len(plan.skips)},
        "sources": [
            {"name": each.name, "samples": each.num_samples, "told": str(each.spec), "view": each.spec.to_json()}
            for each in plan.sources
        ],
        "reached": run.reached,
        "step": _step_at(run, run.reached),
        "end": end,
        "end_step": None if end is None else _step_at(run, end - 1) + 1,
        "num_starts": len(run.starts),
        "starts": [_describe_start(start, legs) for start in run.starts[-_MOST_STARTS:]],
        "legs": [
            {**_describe_start(leg.start, legs), **pick(leg, "first_step stop_step stop")}
            for leg in legs[-_MOST_STARTS:]
        ],
        "num_amendments": len(plan.amendments),
        "amendments": [
            {"sample": begins, "step": _step_at(run, begins), "told": str(each)} for each, begins in amendments
        ],
    }


def _describe_start(start: Start, legs: list[Leg]) -> Json:
    counts = any(leg.start is start for leg in legs)
    return {**pick(start, "step samples world_size time"), "batch_size": repr(start.rule), "counts": counts}


def show_ledger(subject: Subject, query: Query) -> Json:
    """Samples that each source gave among the first `samples` of the run, its target, and both on the way there."""
    run = subject[Run]
    if not run.starts:
        raise ArgumentError("nothing was started in this run")
    plan = run.starts[-1].plan
    most = (1 << 53) if plan.end is None else plan.end
    samples = query.whole("samples", min(most, max(1, run.reached)), most=most)
    points = np.unique(np.linspace(0, samples, _LEDGER_POINTS).astype(np.int64)).tolist()
    return {
        "samples": samples,
        "end": plan.end,
        "sources": [
            {"name": each.source, **pick(each, "samples target epochs available")} for each in plan.ledger(samples)
        ],
        "points": [[point, *[[each.samples, each.target] for each in plan.ledger(point)]] for point in points],
    }


def trace_step(subject: Subject, query: Query) -> Json:
    """Rows [first, first + 50) of a step, of one rank or of all: sample, index, place on disk, documents, and text."""
    run = subject[Run]
    step = query.whole("step", _step_at(run, run.reached))
    leg = run.leg_of(step)
    start = leg.start
    if start.rule.by_tokens and step > start.marks[-1][0] + _MOST_WALKED:
        raise ArgumentError(
            f"steps of this run have token budgets, so step {step:,} follows from all before it; the page walks up to "
            f"{_MOST_WALKED:,} steps. Use `tokenfeed trace RUN --step {step}`"
        )
    largest = start.rule.rows.largest * start.world_size
    if largest > (_MOST_TOKENS if start.rule.by_tokens else _MOST_TRACED):
        raise ArgumentError(
            f"a step of this run may have {largest:,} rows or tokens, which the page does not trace. Use `tokenfeed "
            f"trace RUN --step {step} --rank 0`"
        )
    rank = query.whole("rank", -1, least=-1, most=start.world_size - 1)
    chosen = None if rank < 0 else rank
    first = query.whole("first", 0)
    count = query.whole("count", _MOST_ROWS, least=1, most=_MOST_ROWS)
    rows = run.trace(step, rank=chosen, part=slice(first, first + count))
    return {
        "step": step,
        "world_size": start.world_size,
        "num_rows": len(run.samples(step, rank=chosen)),
        "first": first,
        "planned": all(row.planned for row in rows),
        "rows": [_describe_row(subject, row) for row in rows],
    }


def _describe_row(subject: Subject, row: RowTrace) -> Json:
    documents, places = row.documents, row.locations
    shown = [documents[number] for number in range(min(len(documents), _MOST_DOCUMENTS))]
    text = _read_snippet(subject, row) if places and subject.find(Tokenizer) is not None else ""
    return {
        **pick(row, "rank row sample epoch index source planned"),
        "view": row.view.spec.sample.to_json(),
        "places": [[without_paths(place.shard), place.start, place.stop] for place in places[:_MOST_DOCUMENTS]],
        "num_documents": len(documents),
        "documents": [{**pick(span, "number start stop"), "payload": plain(span.payload)} for span in shown],
        "text": text,
    }


def _read_snippet(subject: Subject, row: RowTrace) -> str:
    try:
        store = subject.store_of(row.source or None)
    except TokenfeedError:  # the data has moved; what follows from the plan is shown all the same
        return ""
    first_items, offsets = row.view.rows(np.array([row.index])).extents
    return read_text(store, int(first_items[0]), min(_SNIPPET, int(offsets[1])), subject.find(Tokenizer))


def find_document(subject: Subject, query: Query) -> Json:
    """Every row of the first `epochs` epochs that holds a part of a document: by default all so far, and the next."""
    run, document, source = subject[Run], query.whole("document", 0), query.text("source")
    plan = run.starts[-1].plan if run.starts else None
    if plan is None:
        raise ArgumentError("nothing was started in this run")
    entry = plan.ledger(run.reached)[plan.source_number(source) if source else 0]
    usual = min(_MOST_EPOCHS, max(1, ceil(entry.epochs) + 1))
    epochs = range(query.whole("epochs", usual, least=1, most=_MOST_EPOCHS))
    ahead = len(epochs) * sum(each.num_samples for each in plan.sources) - run.reached
    if run.starts[-1].rule.by_tokens and ahead > _MOST_AHEAD:
        raise ArgumentError(
            f"steps of this run have token budgets, and {ahead:,} samples lie before the end of "
            f"{quantity(len(epochs), 'epoch')}; the page adds up the lengths of {_MOST_AHEAD:,}. Use `tokenfeed find "
            f"RUN --document {document}`"
        )
    try:
        store = subject.store_of(source)
    except MissingError:
        store = None
    for table in list(store.spans.values())[:1] if store is not None else ():
        items = len(epochs) * int(table.locate(np.array([document]))[1][0])
        if items > _MOST_ITEMS:
            raise ArgumentError(
                f"document {document:,} has {items:,} items in {quantity(len(epochs), 'epoch')}; the page looks for up "
                f"to {_MOST_ITEMS:,}. Use `tokenfeed find RUN --document {document}`"
            )
    seen = run.find(document, source=source or plan.sources[0].name or None, epochs=epochs)
    shown = [asdict(each) for each in seen[:_MOST_SEEN]]
    counts = {"total": len(seen), "num_planned": seen.num_planned, "why": without_paths(seen.why, subject.homes)}
    return {"document": document, "source": source or "", "epochs": len(epochs), **counts, "seen": shown}


def compare_runs(subject: Subject, query: Query) -> Json:
    """Both runs side by side, and from which step on they differ, and why."""
    run, other = subject[Run], subject.other
    if other is None:
        raise MissingError("there is no second run to compare with: `tokenfeed serve RUN OTHER` takes one")
    found = compare(run, other)
    return {
        "same": found.same,
        "told": without_paths(str(found), subject.homes),
        **pick(found, "step division_step planned"),
        "runs": [{"name": each.path.name, **_describe(each)} for each in (run, other)],
    }
