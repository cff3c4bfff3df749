"""Every kind of fault at the system calls of the disk cache. Runs where faults can be injected.

Whatever happens to the files of a cache, batches are right and nothing is raised; only its folder must be there.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenfeed
from flaky_server import FlakyServer
from injection import CALLS, CHANGES, OPENS, READS, WRITES, Fault, Outcome, Tally, attempt, choose, list_calls, scratch
from plain import make_documents
from tokenfeed.kernels.checksum import checksum

KINDS: dict[str, Sequence[str]] = {
    "KILL": CALLS,
    "EIO": CALLS,
    "ENOSPC": (*CHANGES, "open"),
    "EMFILE": OPENS,
    "SHORT": (*READS, *WRITES),
    "ESTALE": CALLS,
}
STEPS = 20


def inject_everywhere(kinds: Sequence[str], every: int) -> Any:
    """Each fault meets an empty cache and one that was filled; and after each, another process reads what was left."""
    tally = Tally()
    with scratch() as folder, FlakyServer() as server:
        store, cache = folder / "store", folder / "cache"
        make_documents([(7 * number * number) % 401 for number in range(14)]).write(store, shard_bytes=7_000, name="p")
        server.put_folder(store)
        expected = take(tokenfeed.open(store))

        def read() -> list[str]:
            remote = tokenfeed.Remote(cache=cache, block_bytes=512, gap_bytes=0, memory_bytes=4096)
            return take(tokenfeed.open(server.url(""), remote=remote))

        def read_right() -> str:
            """Undisturbed, in a process of its own; what is wrong."""
            outcome = attempt(read, watch=cache, fault=None)
            return "" if outcome.value == expected else f"afterwards other batches, or {outcome.raised}"

        assert not read_right()
        shutil.copytree(cache, folder / "filled")
        for is_filled in (False, True):
            begin(folder, is_filled)
            calls = list_calls(read, watch=cache)
            for kind in kinds:
                for number in choose(calls, KINDS[kind], every=every):
                    for lasts in (False, True) if kind != "KILL" else (False,):
                        begin(folder, is_filled)
                        outcome = attempt(read, watch=cache, fault=Fault(kind, KINDS[kind], number, lasts))
                        if not outcome.was_killed and outcome.raised is None and not outcome.hits:
                            continue  # threads made fewer calls than in the run that was counted
                        came_of_it, problem = judge(kind, outcome, expected)
                        tally.add(kind, came_of_it)
                        problem = problem or read_right()
                        if problem:
                            what = f"{kind}{' from' if lasts else ' at'} call {number}, {outcome.hits[:1]}"
                            tally.problems.append(f"cache, filled {is_filled}: {what}: {problem}")
    return tally.to_json()


def judge(kind: str, outcome: Outcome, expected: list[str]) -> tuple[str, str]:
    """What came of a fault, and what is wrong with that. Only the folder of the cache must be there to begin with."""
    if kind == "KILL":
        return "killed", "" if outcome.was_killed else f"was not killed, but ended with {outcome.status}"
    if outcome.value == expected:
        return "survived", ""
    raised = outcome.raised
    if raised is not None and raised["typed"] and f"cannot write {outcome.hits[0].path}:" in raised["message"]:
        return "reported", "" if outcome.hits[0].name in ("mkdir", "stat") else raised["traceback"]
    return "wrong data", f"other batches, or {raised}"


def begin(folder: Path, is_filled: bool) -> None:
    shutil.rmtree(folder / "cache", ignore_errors=True)
    if is_filled:
        shutil.copytree(folder / "filled", folder / "cache")
    else:
        (folder / "cache").mkdir()


def take(store: tokenfeed.Store) -> list[str]:
    with tokenfeed.Loader(store.windows(32), 8, seed=3, prefetch=4) as loader:
        return [checksum(next(loader).tokens.tobytes()) for _ in range(STEPS)]
