"""The indexed road: every loader fed the same tokens. Each section returns {contender: what was measured}."""

import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from parent import Child, Contender, PeerError
from tokens import LENGTH, ROWS, Job, Tokens, make_numbered, make_tokens

from measure import Neighbours

__all__ = ["Bench", "Scale", "epochs", "first_batches", "open_all", "ranks", "steady", "take_turns", "write_all"]

_SAMPLES, _LENGTH, _ROWS = 3600, 16, 4  # when ranks change: 60% are 270 steps of 2 × 4 rows, the rest 120 of 3 × 4
_UNEVEN_SAMPLES, _RANKS, _EPOCHS = 3607, 4, 2  # when epochs follow each other: 225 steps of 4 × 4 rows, and 7 rows more
_NEXT_BATCHES = 8
_RANK_SECONDS = 45  # for all ranks to have their first batch: some wait for each other for ever


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    name: str
    num_tokens: int
    rounds: int
    """How often every contender has its turn."""
    seconds: float
    """How long a turn is."""
    starts: int
    """How often a process is started to see its first batch."""
    shuffle_samples: int
    text_megabytes: float
    encoded_megabytes: float
    """How much of the text a pass of a tokenizer takes."""


@dataclass(slots=True)
class Bench:
    """What a run works with, and what did not work in it."""

    scale: Scale
    folder: Path
    contenders: list[Contender]
    failures: dict[str, dict[str, str]] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def fail(self, contender: Contender, what: str, reason: object) -> None:
        self.failures.setdefault(contender.adapter, {})[what] = str(reason)
        print(f"  {contender.title}: {what}: {reason}", flush=True)

    def forget_failures(self, what: str) -> None:
        """Of an earlier run, before what failed is tried again."""
        for reasons in self.failures.values():
            reasons.pop(what, None)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Print how long it takes, and note how busy others keep the machine meanwhile."""
        print(f"{name} …", flush=True)
        self.forget_failures(name)
        began, neighbours = time.perf_counter(), Neighbours()
        yield
        self.others[name] = neighbours.share()
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)

    def path(self, contender: Contender, tokens: Tokens) -> Path:
        return self.folder / "written" / tokens.path.stem / contender.adapter


def _job(**changes: Any) -> dict[str, Any]:
    job = Job(**changes)
    return {name: getattr(job, name) for name in Job.__slots__ if name not in ("state", "states")}


def open_all(
    bench: Bench, stack: ExitStack, contenders: Sequence[Contender], what: str, begin: Callable[[Child], object]
) -> list[Child]:
    """A child of each contender that `begin` does not fail with, two at a time: most of it is importing."""

    def start(contender: Contender) -> Child | None:
        try:
            child = contender.start()
            stack.callback(child.__exit__, None, None, None)
            bench.about[contender.adapter] = child.about
            begin(child)
        except PeerError as error:
            bench.fail(contender, what, error)
            return None
        return child

    with ThreadPoolExecutor(2) as pool:
        return [child for child in pool.map(start, contenders) if child is not None]


def write_all(bench: Bench) -> None:
    """Let every contender write its own files, once. Those that cannot are out."""
    tokens = make_tokens(bench.folder, bench.scale.num_tokens)
    with ExitStack() as stack:
        children = open_all(bench, stack, bench.contenders, "write", lambda child: _write(bench, child, tokens, _job()))
    bench.contenders = [child.contender for child in children]


def _write(bench: Bench, child: Child, tokens: Tokens, job: dict[str, Any]) -> Path:
    path = bench.path(child.contender, tokens)
    if not (path / ".written").exists():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        child.ask("write", tokens=str(tokens.path), folder=str(path), job=job, timeout=600)
        (path / ".written").touch()
    return path


def steady(bench: Bench, workers: Sequence[int]) -> dict[str, Any]:
    """Tokens a second, processor time and slow-down, by number of workers. All are open at once and take turns."""
    tokens = make_tokens(bench.folder, bench.scale.num_tokens)
    found: dict[str, Any] = {}
    for count in workers:
        what = f"steady, {count} workers"
        with bench.section(what), ExitStack() as stack:
            job = _job(workers=count)
            children = open_all(
                bench,
                stack,
                bench.contenders,
                what,
                lambda child, job=job: child.ask("open", folder=str(bench.path(child.contender, tokens)), job=job),
            )
            for name, turns in take_turns(bench, children, what, _turn(bench, tokens)).items():
                found.setdefault(name, {})[str(count)] = turns
    return found


def _turn(bench: Bench, tokens: Tokens) -> Callable[[Child], dict[str, float]]:
    seconds = bench.scale.seconds

    def turn(child: Child) -> dict[str, float]:
        _warm(bench.path(child.contender, tokens))
        before = child.processor_seconds()
        answer = child.ask("steady", seconds=seconds)
        spent = child.processor_seconds() - before
        batch = ROWS * LENGTH
        slowdown = child.ask("train", seconds=seconds / 2)["slowdown"]
        return {
            "tokens_per_second": answer["batches"] * batch / answer["seconds"],
            "cpu_seconds_per_million": spent / (answer["all_batches"] * batch / 1e6),
            "slowdown": slowdown,
        }

    return turn


def _warm(folder: Path) -> None:
    """Have the page cache hold every file: while others have their turns, a system may make room."""
    piece = bytearray(1 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(piece):
                    pass


def take_turns(
    bench: Bench, children: list[Child], what: str, turn: Callable[[Child], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Every child once a round, the order turning with the round. A child that fails has no more turns."""
    values: dict[str, list[dict[str, float]]] = {}
    gone: set[str] = set()
    for number in range(bench.scale.rounds + 1):
        at = number % max(1, len(children))
        for child in children[at:] + children[:at]:
            name = child.contender.adapter
            if name in gone:
                continue
            try:
                result = turn(child)
            except PeerError as error:
                bench.fail(child.contender, what, error)
                gone.add(name)
                continue
            if number > 0:  # the first round warms up
                values.setdefault(name, []).append(result)
    return {
        name: {key: [row[key] for row in rows] for key in rows[0]} for name, rows in values.items() if name not in gone
    }


def first_batches(bench: Bench) -> dict[str, Any]:
    """Fresh processes, one at a time: first batch, memory, resuming at 60%, and whether what follows is the same."""
    tokens = make_tokens(bench.folder, bench.scale.num_tokens)
    found: dict[str, Any] = {contender.adapter: {"begin": [], "resume": []} for contender in bench.contenders}
    with bench.section("first batches, resume, memory"):
        for number in range(bench.scale.starts):
            for contender in list(bench.contenders):
                result = found[contender.adapter]
                try:
                    _start(bench, contender, tokens, result, last=number == bench.scale.starts - 1)
                except PeerError as error:
                    bench.fail(contender, "first batch", error)
        for _ in range(bench.scale.starts):
            for contender in bench.contenders:
                result = found[contender.adapter]
                if not result.get("state_bytes"):
                    continue
                try:
                    _resume(bench, contender, tokens, result)
                except PeerError as error:
                    bench.fail(contender, "resume", error)
                    result["state_bytes"] = None
        for contender in bench.contenders:
            if not contender.adapter.startswith("tokenfeed"):
                continue
            try:
                with contender.start() as child:
                    path = str(bench.path(contender, tokens))
                    found[contender.adapter]["breakdown"] = child.ask("call", name="breakdown", folder=path)
            except PeerError as error:
                bench.fail(contender, "breakdown", error)
    return found


def _start(bench: Bench, contender: Contender, tokens: Tokens, result: dict[str, Any], *, last: bool) -> None:
    path = bench.path(contender, tokens)
    with contender.start() as child:
        opened = child.ask("open", folder=str(path), job=_job())
        result["begin"].append([opened["since_start"], opened["seconds"]])
        result["delivers"] = {key: opened[key] for key in ("shape", "dtype", "shifted")}
        if not last:
            return
        result["in_file"] = child.ask("check", tokens=str(tokens.path))
        wanted = {"shape": [ROWS, LENGTH], "dtype": "int64", "shifted": True}
        if result["delivers"] != wanted or not result["in_file"]:
            bench.fail(
                contender, "first batch", f"is not what was asked for: {result['delivers']}, {result['in_file']=}"
            )
        samples = tokens.num_windows(LENGTH, child.about["overlap"])
        child.ask("advance", steps=samples * 6 // 10 // ROWS - 1, timeout=180)
        result["memory"] = child.memory()
        result["state_bytes"] = child.ask("save", path=str(path / "state"))
        result["digests"] = child.ask("digests", count=_NEXT_BATCHES)


def _resume(bench: Bench, contender: Contender, tokens: Tokens, result: dict[str, Any]) -> None:
    path = bench.path(contender, tokens)
    with contender.start() as child:
        opened = child.ask("open", folder=str(path), job=_job(), states=[str(path / "state")])
        result["resume"].append([opened["since_start"], opened["seconds"]])
        digests = [opened["digest"], *child.ask("digests", count=_NEXT_BATCHES - 1)]
        result["equal"] = digests == result["digests"]


def ranks(bench: Bench) -> dict[str, Any]:
    """Two ranks for 60% of an epoch, then three. Which tokens come twice, and which never, in samples."""
    found: dict[str, Any] = {}
    with bench.section("2 → 3 ranks"):
        for contender in bench.contenders:
            about = bench.about[contender.adapter]
            if not about["stateful"]:
                continue
            overlap = about["overlap"]
            stride = _LENGTH + 1 - overlap
            tokens = make_numbered(bench.folder, _SAMPLES * stride + overlap)
            try:
                with contender.start() as child:
                    path = _write(bench, child, tokens, _job(length=_LENGTH, rows=_ROWS))
                states, before = _run_ranks(contender, path, 2, _SAMPLES * 6 // 10 // (2 * _ROWS), [])
                if not states:
                    found[contender.adapter] = None
                    continue
                _, after = _run_ranks(contender, path, 3, _SAMPLES * 4 // 10 // (3 * _ROWS), states)
            except PeerError as error:
                bench.fail(contender, "2 → 3 ranks", error)
                continue
            seen = np.bincount(np.concatenate(before + after)[:, :stride].reshape(-1), minlength=_SAMPLES * stride)
            seen = seen[: _SAMPLES * stride]
            found[contender.adapter] = {
                "lost": float((seen == 0).sum() / stride),
                "repeated": float(np.maximum(seen - 1, 0).sum() / stride),
            }
    return found


def epochs(bench: Bench) -> dict[str, Any]:
    """Two epochs on four ranks of two nodes, with a worker each: the rows of every batch, rank by rank and by epoch."""
    found: dict[str, Any] = {}
    with bench.section("two epochs on 2 × 2 ranks"):
        for contender in bench.contenders:
            overlap = bench.about[contender.adapter]["overlap"]
            tokens = make_numbered(bench.folder, _UNEVEN_SAMPLES * (_LENGTH + 1 - overlap) + overlap)
            try:
                with contender.start() as child:
                    path = _write(bench, child, tokens, _job(length=_LENGTH, rows=_ROWS))
                with _start_ranks(contender, path, _RANKS, nodes=2, workers=1) as children:
                    endless = _EPOCHS * _UNEVEN_SAMPLES // (_RANKS * _ROWS)
                    for child in children:
                        child.send("sizes", epochs=_EPOCHS, endless=endless)
                    found[contender.adapter] = [child.answer() for child in children]
            except PeerError as error:
                bench.fail(contender, "two epochs on 2 × 2 ranks", error)
    return found


@contextmanager
def _start_ranks(
    contender: Contender, path: Path, world_size: int, *, nodes: int = 1, workers: int = 0, states: Sequence[str] = ()
) -> Iterator[list[Child]]:
    """Ranks as processes, told what `torchrun` tells them, and the number of nodes; each has taken its first batch."""
    port, on_a_node = str(_free_port()), world_size // nodes
    with ExitStack() as stack:
        children = []
        for rank in range(world_size):
            launcher = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % on_a_node),
                "GROUP_RANK": str(rank // on_a_node),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(on_a_node),
                "NNODES": str(nodes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            children.append(stack.enter_context(contender.start(**launcher)))
        for rank, child in enumerate(children):
            job = _job(length=_LENGTH, rows=_ROWS, workers=workers, rank=rank, world_size=world_size)
            child.send("open", folder=str(path), job=job, states=list(states))
        for child in children:
            child.answer(timeout=_RANK_SECONDS)
        yield children


def _run_ranks(
    contender: Contender, path: Path, world_size: int, steps: int, states: list[str]
) -> tuple[list[str], list[Any]]:
    """All ranks at once. Their states afterwards, and the rows each of them delivered."""
    with _start_ranks(contender, path, world_size, states=states) as children:
        for rank, child in enumerate(children):
            child.send("rows", path=str(path / f"rows-{rank}.npy"), steps=steps, first=True)
        for child in children:
            child.answer()
        saved = []
        for rank, child in enumerate(children):
            if child.ask("save", path=str(path / f"state-{rank}")) is not None:
                saved.append(str(path / f"state-{rank}"))
        return saved, [np.load(path / f"rows-{rank}.npy") for rank in range(world_size)]


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
