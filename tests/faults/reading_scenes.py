"""Everything that reads, met by faults at its system calls. Runs where faults can be injected.

A *scene* is a generator of steps. A step that fails is taken again once the fault is over: whatever it then gives must
be what an undisturbed reader gets.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from injection import OPENS, READS, Fault, Outcome, Tally, attempt, choose, describe, disarm, list_calls, scratch
from opening import open_store
from plain import make_documents, spans_of
from tokenfeed.errors import TokenfeedError
from tokenfeed.kernels.checksum import checksum

LENGTH = 32
STEPS = 10
LENGTHS = [(7 * number * number) % 401 for number in range(14)]
Steps = Iterator[Callable[[], Any]]

_TOUCHED = (*READS, "open", "stat", "opendir", "readdir", "close")
KINDS: dict[str, Sequence[str]] = {
    "SHORT": READS,
    "EINTR": (*READS, "open"),
    "EAGAIN": ("preadv2",),
    "SLOW": READS,
    "EIO": _TOUCHED,
    "ESTALE": _TOUCHED,
    "EMFILE": OPENS,
    "ENFILE": OPENS,
}
HARMLESS = ("SHORT", "EINTR", "EAGAIN", "SLOW")
"""Faults that a reader must not even notice."""


def digest(batch: Any, *columns: str) -> str:
    """Of everything in a batch: columns, and spans with their payloads."""
    parts = [batch.column(name).tobytes() for name in ("tokens", *columns)]
    tables = [[spans_of(row) for row in batch.spans[table]] for table in ("documents", "concepts")]
    return checksum(b"".join(parts) + repr(tables).encode())


def windows(path: Path, **options: Any) -> Steps:
    store = yield lambda: open_store(path, **options)
    view = yield lambda: store.windows(LENGTH, columns=["frame"], spans=["documents", "concepts"])
    for indices in np.array_split(np.random.default_rng(0).permutation(len(view)), 4):
        batch = yield lambda indices=indices: view.read(indices)
        yield lambda batch=batch: digest(batch, "frame")


def windows_reopened(path: Path) -> Steps:
    """No file stays open: every read opens its own."""
    yield from windows(path, open_files=0)


def documents(path: Path) -> Steps:
    store = yield lambda: tokenfeed.open(path)
    for table in ("documents", "concepts"):
        view = yield lambda table=table: store.documents(table)
        for indices in np.array_split(np.arange(len(view)), 3):
            batch = yield lambda indices=indices, view=view: view.read(indices)
            yield lambda batch=batch: checksum(batch.tokens.tobytes() + repr(batch.payloads).encode())


def packed(path: Path) -> Steps:
    store = yield lambda: tokenfeed.open(path)
    view = yield lambda: store.packed(LENGTH)
    for indices in np.array_split(np.random.default_rng(1).permutation(len(view)), 4):
        batch = yield lambda indices=indices: view.read(indices)
        yield lambda batch=batch: checksum(
            batch.tokens.tobytes() + repr([spans_of(r) for r in batch.spans["documents"]]).encode()
        )


def loader(path: Path, prefetch: int = 4) -> Steps:
    store = yield lambda: tokenfeed.open(path)
    view = store.windows(LENGTH, columns=["frame"], spans=["documents", "concepts"])
    batches = tokenfeed.Loader(view, 8, seed=3, prefetch=prefetch)
    for step in range(STEPS):
        batch = yield lambda: next(batches)
        assert batch.samples.tolist() == list(range(8 * step, 8 * step + 8)), "another step than was due"
        assert batches.state_dict() == batch.state
        yield lambda batch=batch: digest(batch, "frame")
    batches.close()


def loader_without_threads(path: Path) -> Steps:
    yield from loader(path, prefetch=0)


def loader_of_packed_rows(path: Path) -> Steps:
    store = yield lambda: tokenfeed.open(path)
    view = yield lambda: store.packed(LENGTH)
    batches = tokenfeed.Loader(view, 8, seed=3, prefetch=4)
    for _ in range(STEPS):
        batch = yield lambda: next(batches)
        yield lambda batch=batch: checksum(batch.inputs.tobytes() + batch.targets.tobytes())
    batches.close()


SCENES = {
    scene.__name__: scene
    for scene in (windows, windows_reopened, documents, packed, loader, loader_without_threads, loader_of_packed_rows)
}


def play(steps: Steps) -> dict[str, Any]:
    """Take every step until it succeeds. The digests, and the errors on the way."""
    digests: list[str] = []
    errors: list[dict[str, Any]] = []
    given: Any = None
    while True:
        try:
            step = steps.send(given)
        except StopIteration:
            return {"digests": digests, "errors": errors}
        while True:
            try:
                given = step()
                break
            except TokenfeedError as error:
                errors.append(describe(error))
                assert len(errors) < 20, errors[-1]
                disarm()
        if isinstance(given, str):
            digests.append(given)


def inject_everywhere(scenes: Mapping[str, int], kinds: Sequence[str]) -> Any:
    """Every kind of fault at every call of these scenes (in the short form at one in so many)."""
    tally = Tally()
    for name, every in scenes.items():
        inject_into(name, kinds, every, tally)
    return tally.to_json()


def inject_into(name: str, kinds: Sequence[str], every: int, tally: Tally) -> None:
    """The same for one scene: each fault once, and from then on."""
    scene = SCENES[name]
    with scratch() as folder:
        os.environ["TOKENFEED_CACHE"] = str(folder / "cache")
        path = folder / "store"
        make_documents(LENGTHS).write(path, shard_bytes=7_000, name="part")
        tokenfeed.open(path).pack(LENGTH)
        play(scene(path))  # so that every kernel is there
        calls = list_calls(lambda: play(scene(path)), watch=path)
        expected = attempt(lambda: play(scene(path)), watch=path, fault=None).value
        assert expected["errors"] == []
        for kind in kinds:
            for number in choose(calls, KINDS[kind], every=every):
                for lasts in (False, True)[: 1 if kind == "EINTR" else 2]:  # interrupted for ever would be a hang
                    fault = Fault(kind, KINDS[kind], number, lasts)
                    outcome = attempt(lambda: play(scene(path)), watch=path, fault=fault)
                    if outcome.status == 0 and outcome.raised is None and not outcome.hits:
                        continue  # threads made fewer calls than in the run that was counted
                    came_of_it, problem = judge(kind, outcome, expected["digests"])
                    tally.add(kind, came_of_it)
                    if problem:
                        tally.problems.append(f"{name}: {kind} at call {number}, {outcome.hits[:1]}: {problem}")


def judge(kind: str, outcome: Outcome, expected: list[str]) -> tuple[str, str]:
    """What came of a fault, and what is wrong with that."""
    if outcome.status != 0:
        return "died", f"the process ended with {outcome.status}"
    if outcome.left_open:
        return "left open", str(outcome.left_open)
    if outcome.raised is not None:
        return "untyped", outcome.raised["traceback"]
    if outcome.value["digests"] != expected:
        return "wrong data", f"{sum(map(str.__ne__, outcome.value['digests'], expected))} steps gave other data"
    errors = outcome.value["errors"]
    if not errors:
        return "survived", ""
    if kind in HARMLESS and outcome.hits[0].name != "open":
        return "reported", f"what does no harm was an error: {errors[0]['traceback']}"
    return "reported", "" if outcome.is_named_by(errors[0]) else f"the place is not named: {errors[0]}"


def read_slowly() -> Any:
    """A loader on a disk that takes 3 ms for every read: what it says of it, and whether its batches are right."""
    with scratch() as folder:
        path = folder / "store"
        make_documents(LENGTHS).write(path, shard_bytes=7_000, name="part")

        def take() -> Any:
            batches = tokenfeed.Loader(tokenfeed.open(path).windows(LENGTH), 8, seed=3, prefetch=4)
            taken = [checksum(next(batches).tokens.tobytes()) for _ in range(STEPS)]
            batches.close()
            stats = batches.stats()
            return taken, stats.wait_seconds, stats.read_seconds, stats.headroom

        take()
        quick, slow = (attempt(take, watch=path, fault=fault) for fault in (None, Fault("SLOW", READS, 0, lasts=True)))
        return quick.value, slow.value
