"""Checkpoints, run files, plans, statistics and lists of files, damaged and used."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokenfeed
from fuzz.harness import Case
from fuzz.mutator import mutate_bytes, mutate_json
from fuzz.store_targets import LENGTH, check, write_store
from fuzz.text_targets import byte_tokenizer
from tokenfeed.errors import StateError
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.snapshots import Snapshot, read_snapshots
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.finding import read_listing

Attempt = Callable[[Case], None]


def damaged(case: Case, state: Any) -> Any:
    """A state as `json.loads` would bring it back; what is no JSON never gets that far."""
    data = mutate_json(case.rng, state)
    case.note("state.json", data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateError("not JSON") from error


def open_views(folder: Path) -> dict[str, Any]:
    write_store(folder / "store")
    store = tokenfeed.open(folder / "store")
    store.pack(LENGTH, cache=folder / "plan")
    return {
        "windows": store.windows(LENGTH),
        "documents": store.documents(),
        "packed": store.packed(LENGTH, cache=folder / "plan"),
        "mix": tokenfeed.mix({"a": (store.windows(LENGTH), 0.7), "b": (store.windows(LENGTH), 0.3)}),
    }


def make_loader(view: Any, **options: Any) -> tokenfeed.Loader:
    mask = [3] if isinstance(view, tokenfeed.store.windows.Windows) else None
    return tokenfeed.Loader(view, batch_size=4, seed=5, prefetch=0, rank=0, world_size=2, mask=mask, **options)


def loader_state(folder: Path) -> Attempt:
    """The state of a Loader: refused, or the next batch is the one that the plan has there."""
    views = open_views(folder)
    states = {}
    for name, view in views.items():
        loader = make_loader(view)
        states[name] = [next(loader).state for _ in range(6)]
        loader.amend(max_epochs=1000)
        states[name] += [next(loader).state for _ in range(3)]

    def attempt(case: Case) -> None:
        name = case.rng.choice(list(views))
        state = damaged(case, case.rng.choice(states[name]))
        loader = make_loader(views[name])
        loader.load_state_dict(state)
        batch = next(loader, None)
        if batch is None:  # a damaged limit
            return
        first = loader.state_dict()["samples"] - 8
        check(first == state["samples"] or state["plan"]["group"] is not None, "resumed elsewhere")
        check(batch.samples.tolist() == [first + 2 * row for row in range(4)], "samples")
        if first <= 64:  # as far as the run is known from its beginning
            plain = make_loader(views[name])
            for _ in range(first // 8 + 1):
                same = next(plain)
            if first % 8 == 0:
                check(np.array_equal(same.tokens, batch.tokens), "tokens")

    return attempt


def stream_state(folder: Path) -> Attempt:
    """The states of a stream, of one rank or the list of all; nanochat's too."""
    rng = np.random.default_rng(0)
    for number in range(3):
        texts = ["x" * int(size) for size in rng.integers(0, 90, 60)]
        pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet", row_group_size=10)
    tokenizer = byte_tokenizer()

    def make(rank: int = 0, **options: Any) -> Any:
        return tokenfeed.stream(
            folder / "*.parquet",
            tokenizer,
            batch_size=2,
            length=32,
            buffer_size=20,
            refill_size=8,
            threads=1,
            prefetch=0,
            rank=rank,
            world_size=2,
            **options,
        )

    feeds = [make(rank) for rank in range(2)]
    states = [[next(feed).state for feed in feeds] for _ in range(6)]
    after = next(feeds[0]).inputs.copy()

    def attempt(case: Case) -> None:
        chosen = case.rng.choice(states)
        nanochat = {"pq_idx": 1, "rg_idx": 1, "epoch": 1}
        given = case.rng.choice((chosen, chosen[0], chosen[0], nanochat))
        state = damaged(case, given)
        feed = make(lanes=case.rng.choice((None, None, 4)))
        try:
            feed.load_state_dict(state)
            batches = [next(feed).inputs.copy() for _ in range(2)]
        finally:
            feed.close()
        for batch in batches:
            check((batch[:, 0] == tokenizer.bos_id).all(), "rows begin with BOS")
            check(np.isin(batch, (ord("x"), tokenizer.bos_id)).all(), "tokens")
        if state in (states[-1], states[-1][0]) and feed._wanted_lanes is None:
            check(np.array_equal(batches[0], after), "resumed elsewhere")

    return attempt


def run_file(folder: Path) -> Attempt:
    """`run.jsonl`, line by line, then what is asked of it."""
    views = open_views(folder)
    lines = {}
    for name in ("windows", "mix", "documents"):
        path = folder / f"{name}.jsonl"
        for _ in range(2):
            loader = make_loader(views[name], run=path)
            [next(loader) for _ in range(3)]
        lines[name] = path.read_bytes().splitlines()

    def attempt(case: Case) -> None:
        case.may_open_anything = True
        name = case.rng.choice(list(lines))
        chosen = list(lines[name])
        at = case.rng.randrange(len(chosen))
        line = chosen[at]
        chosen[at] = (
            mutate_json(case.rng, json.loads(line)) if case.rng.random() < 0.8 else mutate_bytes(case.rng, line)
        )
        path = folder / "run.jsonl"
        case.write(path, b"\n".join(chosen) + (b"\n" if case.rng.random() < 0.9 else b""))
        run = tokenfeed.Run(path)
        for step in (0, 2, 10**6):
            samples = run.samples(step, rank=case.rng.choice((None, 0, 1)))
            check(samples == sorted(samples) and all(sample >= 0 for sample in samples), "samples")
            if samples:
                run.place(samples[0])
            for row in run.trace(step)[:2]:
                str(row), str(row.documents)

    return attempt


def plan_file(folder: Path) -> Attempt:
    """What `Plan.save` wrote; what is read answers forward and backward alike."""
    views = open_views(folder)
    plans = [tokenfeed.Plan.of(views[name], seed=3) for name in ("windows", "documents")]
    amended = tokenfeed.Plan.of(views["windows"], seed=3).amend(5, mask=[3])
    plans.append(amended.amend(7, mask=[4, 5], max_epochs=10**9))
    plans.append(tokenfeed.Plan.of(views["windows"], seed=3, shuffle=tokenfeed.plan.Local(4, 2)))

    def attempt(case: Case) -> None:
        path = folder / "plan.json"
        case.write(path, mutate_json(case.rng, case.rng.choice(plans).to_json()))
        plan = tokenfeed.Plan.load(path)
        str(plan), hash(plan)
        for trace in plan.trace([0, 1, 10**6]):
            check(0 <= trace.index < plan.sources[0].num_samples, "index")
            found = plan.find(trace.index, epochs=[trace.epoch])
            check(trace.sample in found, "inverse")

    return attempt


def snapshots(folder: Path) -> Attempt:
    """Statistics that a loader has written; a line that is none is passed over."""
    values = {field.name: 1 for field in fields(Stats)} | {"remote": None, "encode_seconds": 0.5}
    who = {field.name: 1 for field in fields(Snapshot)} | {"host": "here", "ended": False, "stats": values}

    def attempt(case: Case) -> None:
        lines = [json.dumps(who).encode(), mutate_json(case.rng, who), json.dumps(who).encode()]
        data = b"\n".join(lines) + b"\n"
        case.write(folder / "run.stats.jsonl", data if case.rng.random() < 0.8 else mutate_bytes(case.rng, data))
        for snapshot in read_snapshots(folder / "run.jsonl"):
            str(snapshot), snapshot.key, snapshot.to_json()

    return attempt


def listing(folder: Path) -> Attempt:
    """`files.json`, which says what a folder of text consists of."""
    place = folder / "text"
    place.mkdir()
    for number in range(3):
        (place / f"{number}.jsonl").write_text('{"text": "a"}\n')
    value = {"version": 1, "train": ["0.jsonl", "1.jsonl"], "val": ["2.jsonl"]}

    def attempt(case: Case) -> None:
        case.write(place / "files.json", mutate_json(case.rng, value))
        read_listing(place)
        for split in ("train", "val"):
            files = TextFiles.find(place, split=split)
            try:
                for path in files.paths:
                    check(Path(path).parent == place, path)
                for texts in files.iter_row_groups():
                    check(set(texts) <= {"a"})
            finally:
                files.close()

    return attempt
