"""Every kind of fault at every system call of what writes. Runs where faults can be injected."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from writing_scenes import SCENES, Scene, write

from injection import (
    CALLS,
    CHANGES,
    OPENS,
    READS,
    WRITES,
    Call,
    Fault,
    Outcome,
    Tally,
    attempt,
    choose,
    list_calls,
    scratch,
)
from tokenfeed.storage import folder

KINDS: dict[str, Sequence[str]] = {
    "KILL": CALLS,
    "EIO": tuple(call for call in CALLS if call != "lseek"),  # which touches no disk
    "ENOSPC": (*CHANGES, "open"),
    "EDQUOT": (*WRITES, "fsync", "mkdir", "link", "rename"),
    "EMFILE": OPENS,
    "ENFILE": OPENS,
    "ESTALE": ("stat", "open", *READS, *WRITES, "opendir", "readdir", "rename"),
    "ENOLCK": ("flock",),
    "EINTR": (*READS, *WRITES, "open", "fsync"),
    "SHORT": (*READS, *WRITES),
    "SLOW": ("fsync", "rename"),
}
ALWAYS = ("rename", "link", "mkdir")
"""Calls before which a process is killed in the short form too, each of them."""
LASTING = ("EIO", "ENOSPC", "EMFILE", "SHORT")
"""Faults that are tried as passing ones, and as ones that stay until the process ends."""


def list_calls_of_writing(path: str) -> list[Call]:
    """Those that the library sees."""
    return list_calls(lambda: write(Path(path)), watch=Path(path))


def inject_everywhere(scenes: Mapping[str, int], kinds: Sequence[str]) -> Any:
    """Every kind of fault at every call of these scenes (in the short form at one in so many)."""
    tally = Tally()
    for name, every in scenes.items():
        inject_into(name, kinds, every, tally)
    return tally.to_json()


def inject_into(name: str, kinds: Sequence[str], every: int, tally: Tally) -> None:
    """The same for one scene; after each fault, what must hold."""
    scene = SCENES[name]
    with scratch() as home:
        template, path = home / "template", home / "store"
        os.environ["TOKENFEED_CACHE"] = str(home / "cache")
        template.mkdir()
        scene.before(template)
        begin(template, path)
        scene.act(path)
        scene.done(path)
        begin(template, path)
        calls = list_calls(lambda: scene.act(path), watch=path / scene.watch)
        for kind in kinds:
            for number in choose(calls, KINDS[kind], every=every, always=ALWAYS if kind == "KILL" else ()):
                for lasts in (False, True) if kind in LASTING else (False,):
                    begin(template, path)
                    came_of_it, problem = inject(scene, path, Fault(kind, KINDS[kind], number, lasts))
                    tally.add(kind, came_of_it)
                    if problem:
                        place = [call for call in calls if call.name in KINDS[kind]][number]
                        what = f"{kind}{' from' if lasts else ' at'} call {number}, {' '.join(place)}"
                        tally.problems.append(f"{name}: {what}: {problem}")


def inject_into_sabotaged_sealing() -> list[str]:
    """The problems where manifests are written in place, and errors are left as they are."""
    folder.replace_bytes = lambda path, data, sync: path.write_bytes(data)
    problems: list[str] = inject_everywhere({"seal": 5}, ["KILL", "EIO"])["problems"]
    return problems


def begin(template: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template, path)


def inject(scene: Scene, path: Path, fault: Fault) -> tuple[str, str]:
    """What came of a fault, and what is wrong: with that, with what was left, or with what doing it again gave."""
    outcome = attempt(lambda: scene.act(path), watch=path / scene.watch, fault=fault)
    came_of_it, problem = judge(fault.kind, outcome)
    try:
        scene.holds(path)
        if came_of_it == "survived":
            scene.done(path)
        scene.act(path)
        scene.done(path)
    except Exception as error:  # noqa: BLE001 — told, with what led to it
        problem = problem or f"afterwards {type(error).__name__}: {error}"
    return came_of_it, problem


def judge(kind: str, outcome: Outcome) -> tuple[str, str]:
    """What came of a fault, and what is wrong with that."""
    if kind == "KILL":
        return "killed", "" if outcome.was_killed else f"was not killed, but ended with {outcome.status}"
    if outcome.status != 0:
        return "died", f"the process ended with {outcome.status}"
    if outcome.left_open:
        return "left open", str(outcome.left_open)
    if outcome.raised is None:
        return "survived", "" if outcome.hits else "the call never came"
    raised = outcome.raised
    if not raised["typed"]:
        return "untyped", raised["traceback"]
    if not outcome.hits:
        return "reported", f"an error without a fault: {raised['traceback']}"
    if kind in ("SHORT", "EINTR", "SLOW") and outcome.hits[0].name != "open":
        return "reported", f"what does no harm was an error: {raised['traceback']}"
    return "reported", "" if outcome.is_named_by(raised) else f"the place is not named: {raised['message']}"
