"""A run: where it is, its history and amendments, its mixture, the rows of a step, and the steps of a document."""

from bisect import bisect_right
from contextlib import suppress
from dataclasses import asdict
from math import ceil

import numpy as np

from tokenfeed.errors import ArgumentError, MissingError, TokenfeedError, quantity
from tokenfeed.plan.dealing import TokenCounts
from tokenfeed.runs.file import Start
from tokenfeed.runs.legs import Leg, StepRow
from tokenfeed.runs.origins import Origins
from tokenfeed.runs.run import Run
from tokenfeed.runs.tracing import RowTrace, trace_rows
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
        told["clock"] = [[at, _step_at(run, int(samples))] for at, samples in clock]
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
        left = max(0, told["steps"] - step) * _rows_of(start)
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
    """The step that delivers a sample, or would. O(1)."""
    leg = next((each for each in reversed(run.legs) if each.start.samples <= sample), run.legs[0])
    return leg.first_step if sample < leg.start.samples else _step_in(leg.start, sample)


def _step_in(start: Start, sample: int) -> int:
    """The step in which a start delivers a sample; under a token budget, by those that the file notes."""
    if not start.rule.by_tokens:
        return _alone(start).step_of(sample)
    step, before = start.marks[bisect_right(start.marks, sample, key=lambda mark: mark[1]) - 1]
    return step + int((sample - before) / _rows_of(start))


def _alone(start: Start) -> Leg:
    """All steps of a start, as if no later one had overridden them."""

    def refuse(_: Start) -> TokenCounts:
        raise ArgumentError("the page shows no rows that were rolled back, where ranks were balanced by lengths")

    return Leg(start, None, refuse)


def _rolled_back(run: Run) -> list[Json]:
    """Steps that were run, and run again after a return to an earlier checkpoint, by the start that ran them first."""
    legs = {id(leg.start): leg for leg in run.legs}
    found = []
    for number, start in enumerate(run.starts):
        first = legs[id(start)].stop_step if id(start) in legs else start.step
        stop = _step_in(start, start.reached)
        if first is not None and first < stop:
            found.append({"start": number, "first_step": first, "stop_step": stop, **pick(start, "world_size time")})
    return found


def _rows_of(start: Start) -> float:
    """Rows of all ranks in the step that delivers a sample; of steps with token budgets, on average."""
    if not start.rule.by_tokens:
        return start.rule.rows * start.world_size
    (first, before), (last, after) = start.marks[0], start.marks[-1]
    return max(1.0, (after - before) / max(1, last - first))


def describe_run(subject: Subject, query: Query) -> Json:
    """Its plan, starts, amendments, and legs: a leg is the steps of one start that no later start rolled back."""
    run = subject[Run]
    if not run.starts:
        return {"starts": [], "legs": [], "plan": None, "sources": [], "amendments": []}
    plan, legs = run.starts[-1].plan, run.legs
    amendments = [(each, each.at) for each in plan.amendments[-_MOST_AMENDMENTS:]]
    end = _end_of(run)
    return {
        "plan": without_paths(repr(plan)),
        "sources": [{"name": each.name, "view": each.spec.to_json()} for each in plan.sources],
        "reached": run.reached,
        "step": _step_at(run, run.reached),
        "end_step": None if end is None else _step_at(run, end - 1) + 1,
        "num_starts": len(run.starts),
        "starts": [_describe_start(start, legs) for start in run.starts[-_MOST_STARTS:]],
        "legs": [
            {**_describe_start(leg.start, legs), **pick(leg, "first_step stop_step stop")}
            for leg in legs[-_MOST_STARTS:]
        ],
        "rolled_back": _rolled_back(run)[-_MOST_STARTS:],
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
        "sources": [{"name": each.source, **pick(each, "samples target epochs")} for each in plan.ledger(samples)],
        "points": [[point, *[[each.samples, each.target] for each in plan.ledger(point)]] for point in points],
    }


def trace_step(subject: Subject, query: Query) -> Json:
    """Rows [first, first + 50) of a step, of one rank or of all: sample, index, place on disk, documents, and text.

    `sample` asks for the row of that sample alone; `start` for a step as that start ran it, before it was rolled back.
    """
    run = subject[Run]
    sample, number = query.whole("sample", -1), query.whole("start", -1, most=len(run.starts) - 1)
    step = query.whole("step", _step_at(run, run.reached)) if sample < 0 else run.place(sample).step
    leg = run.leg_of(step) if number < 0 else _alone(run.starts[number].as_begun)  # later amendments change its plan
    start = leg.start
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
        samples = run.samples(step, rank=chosen, stores=subject.stores)
        if sample >= 0:
            first, count = samples.index(sample), 1
        rows = run.trace(step, rank=chosen, part=slice(first, first + count), stores=subject.stores)
    else:
        samples = leg.samples(step, chosen).tolist()
        origins = Origins(start.plan, start.stores, subject.stores, {})
        rows = trace_rows(origins, leg, samples[first : first + count])
    return {
        "step": step,
        "world_size": start.world_size,
        "num_rows": len(samples),
        "first": first,
        "planned": all(row.planned for row in rows),
        "rows": [_describe_row(subject, row) for row in rows],
    }


def _describe_row(subject: Subject, row: RowTrace) -> Json:
    documents = row.documents
    shown = [documents[number] for number in range(min(len(documents), _MOST_DOCUMENTS))]
    text = _read_snippet(subject, row) if row.locations and subject.find(Tokenizer) is not None else ""
    return {
        **pick(row, "rank row sample epoch index source planned"),
        "view": row.view.spec.sample.to_json(),
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


def find_sightings(subject: Subject, query: Query) -> Json:
    """Every row of the first `epochs` epochs, by default all so far and the next, that holds a part of a document.

    With `index`, every row that is this sample of the view of its source instead.
    """
    run, source = subject[Run], query.text("source")
    if not run.starts:
        raise ArgumentError("nothing was started in this run")
    plan = run.starts[-1].plan
    number = plan.source_number(source) if source else 0
    usual = min(_MOST_EPOCHS, max(1, ceil(plan.ledger(run.reached)[number].epochs) + 1))
    epochs = range(query.whole("epochs", usual, least=1, most=_MOST_EPOCHS))
    ahead = len(epochs) * sum(each.num_samples for each in plan.sources) - run.reached
    if run.starts[-1].rule.by_tokens and ahead > _MOST_AHEAD:
        raise ArgumentError(
            f"steps of this run have token budgets, and {ahead:,} samples lie before the end of "
            f"{quantity(len(epochs), 'epoch')}; the page adds up the lengths of {_MOST_AHEAD:,}. Use `tokenfeed find "
            "RUN --document NUMBER`"
        )
    name, index, document = plan.sources[number].name, query.whole("index", -1), query.whole("document", 0)
    if index >= 0:
        shown = _find_sample(run, index, name, epochs)
        told = {"index": index, "num_planned": sum(one["planned"] for one in shown), "total": len(shown), "why": ""}
    else:
        _check_size(subject, document, source, len(epochs))
        seen = run.find(document, source=name or None, epochs=epochs, stores=subject.stores)
        shown = [asdict(each) for each in seen[:_MOST_SEEN]]
        told = {"document": document, "num_planned": seen.num_planned, "total": len(seen), "why": seen.why}
    told["why"] = without_paths(told["why"], subject.homes)
    return {"source": source or "", "epochs": len(epochs), **told, "seen": shown[:_MOST_SEEN]}


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


def _find_sample(run: Run, index: int, source: str, epochs: range) -> list[Json]:
    """Rows that are sample `index` of a view."""
    found = []
    for leg in run.legs:
        plan = leg.start.plan
        for epoch in epochs:
            samples = plan.find_all([index], epoch, source=source or None)
            samples = samples[leg.holds(samples)]
            for sample, *place in zip(samples.tolist(), *(each.tolist() for each in leg.place(samples)), strict=True):
                planned = sample >= leg.reached
                found.append({**StepRow(*place)._asdict(), "sample": sample, "epoch": epoch, "planned": planned})
    return sorted(found, key=lambda one: one["sample"])
