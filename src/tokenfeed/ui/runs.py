"""A run: where it is, its history and amendments, its mixture, the rows of a step, and the steps of a document."""

from contextlib import suppress

import numpy as np

from tokenfeed.errors import ArgumentError, MissingError, TokenfeedError, quantity
from tokenfeed.runs.file import Start
from tokenfeed.runs.run import Run
from tokenfeed.runs.trace import RowTrace
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.live import Live
from tokenfeed.ui.messages import Json, Query, pick, plain, without_paths
from tokenfeed.ui.samples import read_text
from tokenfeed.ui.subject import Subject

__all__ = ["describe_run", "find_sightings", "show_ledger", "show_live", "trace_step"]

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
    run, clock = subject.find(Run), told.pop("clock")
    if run is not None and run.starts:
        told["clock"] = [[at, run.estimate_step(int(samples))] for at, samples in clock]
        told["progress"] = _describe_progress(run, told)
    return told


def _describe_progress(run: Run, told: Json) -> Json:
    """Where the run is: by the stats file, which is newer than the run file, if it is of the same start."""
    leg = run.legs[-1]
    done = max(run.reached, told["delivered"] if told["delivered"] >= leg.first_sample else 0)
    step = run.estimate_step(done)
    left = None if run.end is None else run.end - done
    if told["steps"]:
        left = max(0, told["steps"] - step) * leg.estimate_rows()
    rate = told["samples_per_second"]
    ledger = leg.plan.ledger(done)
    return {
        "samples": done,
        "step": step,
        "end_step": told["steps"] or _end_step(run),
        "epoch": max(each.epochs for each in ledger),
        "seconds_left": left / rate if left and rate else None,
        "sources": [{"name": each.source, **pick(each, "samples target epochs")} for each in ledger],
    }


def _end_step(run: Run) -> int | None:
    return None if run.end is None else run.estimate_step(run.end - 1) + 1


def describe_run(subject: Subject, query: Query) -> Json:
    """Its plan, starts, amendments, and legs: a leg is the steps of one start that no later start rolled back."""
    run = subject[Run]
    if not run.starts:
        return {"starts": [], "legs": [], "plan": None, "sources": [], "amendments": []}
    plan, changes = run.starts[-1].plan, run.changes
    counts = {leg.number for leg in run.legs}
    starts = [{**_describe_start(start), "counts": number in counts} for number, start in enumerate(run.starts)]
    return {
        "plan": without_paths(repr(plan)),
        "sources": [{"name": each.name, "view": each.spec.to_json()} for each in plan.sources],
        "reached": run.reached,
        "step": run.estimate_step(run.reached),
        "end_step": _end_step(run),
        "num_starts": len(run.starts),
        "starts": starts[-_MOST_STARTS:],
        "legs": [
            {**_describe_start(leg.start), **pick(leg, "first_step stop_step stop")} for leg in run.legs[-_MOST_STARTS:]
        ],
        "rolled_back": [
            {"start": leg.number, **pick(leg, "first_step stop_step"), **pick(leg.start, "world_size time")}
            for leg in run.rolled_back[-_MOST_STARTS:]
        ],
        "num_amendments": len(changes),
        "amendments": [
            {"sample": each.at, "step": step, "told": str(each)} for step, each in changes[-_MOST_AMENDMENTS:]
        ],
    }


def _describe_start(start: Start) -> Json:
    return {**pick(start, "step samples world_size time"), "batch_size": repr(start.rule)}


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
        "sources": [{"name": each.source, **pick(each, "samples target epochs")} for each in plan.ledger(samples)],
        "points": [[point, *[[each.samples, each.target] for each in plan.ledger(point)]] for point in points],
    }


def trace_step(subject: Subject, query: Query) -> Json:
    """Rows [first, first + 50) of a step, of one rank or of all: as the command tells them, with the beginning as text.

    `sample` asks for the row of that sample alone; `start` for a step as that start ran it, before it was rolled back.
    """
    run = subject[Run]
    sample, number = query.whole("sample", -1), query.whole("start", -1, most=len(run.starts) - 1)
    step = query.whole("step", run.estimate_step(run.reached)) if sample < 0 else run.place(sample).step
    start = run.leg_of(step).start if number < 0 else run.starts[number]
    if start.rule.by_tokens and step > start.marks[-1][0] + _MOST_WALKED:
        raise ArgumentError(
            f"steps of this run have token budgets, so step {step:,} follows from all before it; the page walks up to "
            f"{_MOST_WALKED:,} steps. Use `tokenfeed trace RUN --step {step}`"
        )
    largest = start.rule.rows * start.world_size
    if largest > (_MOST_TOKENS if start.rule.by_tokens else _MOST_TRACED):
        raise ArgumentError(
            f"a step of this run may have {largest:,} rows or tokens, which the page does not trace. Use `tokenfeed "
            f"trace RUN --step {step} --rank 0`"
        )
    rank = query.whole("rank", -1, least=-1, most=start.world_size - 1)
    chosen = None if rank < 0 else rank
    first = query.whole("first", 0)
    count = query.whole("count", _MOST_ROWS, least=1, most=_MOST_ROWS)
    if number < 0:
        samples = run.samples(step, rank=chosen)
        if sample >= 0:
            first, count = samples.index(sample), 1
        rows, num_rows = run.trace(step, rank=chosen, part=slice(first, first + count)), len(samples)
    else:
        again = [row for row in run.trace(step, rank=chosen, rolled_back=True) if row.start == number]
        rows, num_rows = again[first : first + count], len(again)
    return {
        "step": step,
        "world_size": start.world_size,
        "num_rows": num_rows,
        "first": first,
        "planned": all(row.planned for row in rows),
        "rows": [_describe_row(subject, row) for row in rows],
    }


def _describe_row(subject: Subject, row: RowTrace) -> Json:
    told = row.to_json(_MOST_DOCUMENTS)
    locations = told.pop("locations")  # paths of this machine
    return {
        **told,
        "documents": [{**each, "payload": plain(each["payload"])} for each in told["documents"]],
        "view": row.view.spec.sample.to_json(),
        "text": _read_snippet(subject, row) if locations and subject.find(Tokenizer) is not None else "",
    }


def _read_snippet(subject: Subject, row: RowTrace) -> str:
    try:
        store = subject.store_of(row.source or None)
    except TokenfeedError:  # the data has moved; what follows from the plan is shown all the same
        return ""
    first_items, offsets = row.view.rows(np.array([row.index])).extents
    return read_text(store, int(first_items[0]), min(_SNIPPET, int(offsets[1])), subject.find(Tokenizer))


def find_sightings(subject: Subject, query: Query) -> Json:
    """Every row that holds a part of a document, in the first `epochs` epochs; by default in all so far.

    With `index`, every row that is this sample of the view of its source instead.
    """
    run, source = subject[Run], query.text("source")
    if not run.starts:
        raise ArgumentError("nothing was started in this run")
    plan = run.starts[-1].plan
    name = plan.sources[plan.source_number(source) if source else 0].name
    asked = query.whole("epochs", 0, most=_MOST_EPOCHS)
    reached = run.epochs(name or None)
    epochs = range(asked) if asked else reached[-_MOST_EPOCHS:]
    chosen = None if epochs == reached else epochs
    ahead = epochs.stop * sum(each.num_samples for each in plan.sources) - run.reached
    if run.starts[-1].rule.by_tokens and ahead > _MOST_AHEAD:
        raise ArgumentError(
            f"steps of this run have token budgets, and {ahead:,} samples lie before the end of "
            f"{quantity(epochs.stop, 'epoch')}; the page adds up the lengths of {_MOST_AHEAD:,}. Use `tokenfeed find "
            "RUN --document NUMBER`"
        )
    index, document = query.whole("index", -1), query.whole("document", 0)
    if index >= 0:
        asked_for, seen = {"index": index}, run.find(index=index, source=name or None, epochs=chosen)
    else:
        _check_size(subject, document, source, len(epochs))
        asked_for, seen = {"document": document}, run.find(document, source=name or None, epochs=chosen)
    told = seen.to_json(_MOST_SEEN)
    return {"source": source or "", **asked_for, **told, "why": without_paths(told["why"], subject.homes)}


def _check_size(subject: Subject, document: int, source: str | None, num_epochs: int) -> None:
    """Refuse a document that is in more rows than the page looks for. Data that has moved has no sizes."""
    with suppress(MissingError):
        for table in list(subject.store_of(source).spans.values())[:1]:
            items = num_epochs * int(table.locate(np.array([document]))[1][0])
            if items > _MOST_ITEMS:
                raise ArgumentError(
                    f"document {document:,} has {items:,} items in {quantity(num_epochs, 'epoch')}; the page looks for "
                    f"up to {_MOST_ITEMS:,}. Use `tokenfeed find RUN --document {document}`"
                )
