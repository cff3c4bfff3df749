"""What begins with text: streaming, prepare, and tokenizers alone, all with the same tokens."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from corpus import PATTERNS, make_corpus
from loaders import Bench, _job, open_all, take_turns
from parent import Child, Contender, PeerError
from tokens import LENGTH, ROWS

__all__ = ["prepares", "streams", "tokenizers"]

_WARM, _BEFORE, _AFTER = 4, 3, 3  # batches; few, so that little text has enough for one epoch


def streams(bench: Bench, contenders: list[Contender]) -> dict[str, Any]:
    """Tokens a second from text, first batch, and whether a resumed stream is the same."""
    folder = make_corpus(bench.folder, bench.scale.text_megabytes)
    found: dict[str, Any] = {}
    with bench.section("streaming"), ExitStack() as stack:

        def begin(child: Child) -> None:
            opened = child.ask("open", folder=str(folder), job=_job())
            resumed = _resume(bench, child.contender, child, folder)
            found[child.contender.adapter] = {"first": opened["seconds"], **resumed}

        children = [child for each in contenders for child in open_all(bench, stack, [each], "streaming", begin)]
        for name, turns in take_turns(bench, children, "streaming", lambda child: _rate(bench, child)).items():
            found[name].update(turns)
    return {name: row for name, row in found.items() if "tokens_per_second" in row}


def _rate(bench: Bench, child: Child) -> dict[str, float]:
    before = child.processor_seconds()
    answer = child.ask("steady", seconds=2 * bench.scale.seconds, warm=_WARM, pause=False)
    spent = child.processor_seconds() - before
    return {
        "tokens_per_second": answer["batches"] * ROWS * LENGTH / answer["seconds"],
        "cpu_seconds_per_million": spent / (answer["all_batches"] * ROWS * LENGTH / 1e6),
    }


def _resume(bench: Bench, contender: Contender, child: Child, folder: Path) -> dict[str, Any]:
    """Some batches, a state, some more; a fresh process with that state must deliver the latter."""
    state = bench.folder / f"{contender.adapter}.state"
    child.ask("advance", steps=_BEFORE)
    size = child.ask("save", path=str(state))
    if size is None:
        return {"equal": None, "state_bytes": None}
    expected = child.ask("digests", count=_AFTER)
    try:
        with contender.start() as fresh:
            opened = fresh.ask("open", folder=str(folder), job=_job(), states=[str(state)])
            digests = [opened["digest"], *fresh.ask("digests", count=_AFTER - 1)]
    except PeerError as error:
        bench.fail(contender, "streaming, resume", error)
        return {"equal": False, "state_bytes": size}
    return {"equal": digests == expected, "state_bytes": size, "resume": opened["seconds"]}


def prepares(bench: Bench, contenders: list[Contender]) -> dict[str, Any]:
    """MB of text a second into each one's own format, two workers, from start to end."""
    folder = make_corpus(bench.folder, bench.scale.text_megabytes)
    with bench.section("prepare"), ExitStack() as stack:
        children = open_all(bench, stack, contenders, "prepare", lambda child: None)

        def turn(child: Child) -> dict[str, float]:
            out = bench.folder / "prepared"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            return child.ask("call", name="prepare", folder=str(folder), out=str(out), workers=2, timeout=300)

        return take_turns(bench, children, "prepare", turn)


def tokenizers(bench: Bench, contenders: list[Contender], pattern: str) -> dict[str, Any]:
    """MB of text a second by 1 and 2 threads with one pattern, and whether the tokens are tiktoken's."""
    folder = make_corpus(bench.folder, bench.scale.text_megabytes)
    wanted = {"folder": str(folder), "vocabulary": PATTERNS[pattern], "megabytes": bench.scale.encoded_megabytes}
    found: dict[str, Any] = {}
    what = f"tokenizers, pattern {pattern}"
    with bench.section(what), ExitStack() as stack:

        def load(child: Child) -> None:
            found[child.contender.adapter] = child.ask("call", name="load", timeout=300, **wanted)

        children = [child for contender in contenders for child in open_all(bench, stack, [contender], what, load)]
        for name, turns in take_turns(bench, children, what, lambda child: child.ask("call", name="measure")).items():
            found[name].update(turns)
    return {name: row for name, row in found.items() if "one" in row}
