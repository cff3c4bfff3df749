"""What each likely mistake is told, kept in messages.md: a change of words shows in the change of that file.

`python -m pytest tests/mistakes --record` writes it. Whoever changes a message reads it aloud.
"""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import command_line
from mistakes.cases import CASES
from mistakes.world import build
from tokenfeed.errors import TokenfeedError

RECORDED = Path(__file__).parent / "messages.md"
WAITING = {
    "the length of an endless loader",  # `len` must raise a TypeError, or `list(loader)` would not begin
}
RAW = re.compile(
    r"has no attribute|object is not|argument must|positional argument|'NoneType' object|Traceback|<class|0x[0-9a-f]{6}"
)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """(chapter, title, what was written, what was told), of every case."""
    folder = tmp_path_factory.mktemp("world")
    before = Path.cwd()
    os.chdir(folder)
    try:
        names = build(folder)
        return [
            (
                chapter,
                title,
                written,
                plain(command(written) if written.startswith("tokenfeed ") else code(written, names), folder),
            )
            for chapter, cases in CASES.items()
            for title, written in cases
        ]
    finally:
        os.chdir(before)


def code(written: str, names: dict) -> str:
    hidden = {}

    def without(name: str) -> None:
        hidden[name] = sys.modules.get(name)
        sys.modules[name] = None

    try:
        exec(written, {**names, "without": without})
    except TokenfeedError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 (recorded, so that it is seen)
        return f"RAW {type(error).__name__}: {error}"
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    return "NO ERROR"


def command(written: str) -> str:
    done = command_line.run(*shlex.split(written)[1:], width=100_000)
    if done.returncode == 0 and not done.stdout.startswith("No row"):
        return f"NO ERROR {done.stdout[:200]}"
    lines = (done.stderr or done.stdout).splitlines()
    return "\n".join(line for line in lines if line and not line.startswith(("Usage:", "Try ")))


def plain(text: str, folder: Path) -> str:
    """Without what differs from run to run: folders, digests, moments."""
    text = text.replace(f"{folder}/", "").replace(str(folder), "…").replace(str(Path.home()), "~")
    text = re.sub(r"\b[0-9a-f]{12,}\b", "DIGEST", text)
    text = re.sub(r"torch finds \d+ CUDA devices?", "torch finds N CUDA devices", text)
    return re.sub(r"\d{8}T\d{6}\.\d+-[0-9a-f]+", "SHARD", text)


def write(told) -> str:
    parts = [
        "# What each mistake is told\n",
        "Written by `python -m pytest tests/mistakes --record`. Read it aloud: a message says what is wrong, where,\n"
        "what was expected, and what to do.\n",
    ]
    for number, (chapter, title, written, message) in enumerate(told):
        if not number or told[number - 1][0] != chapter:
            parts.append(f"## {chapter}\n")
        lines = "".join(f"\n  > {line}" for line in message.splitlines())
        parts.append(f"- {title}: `{written}`\n{lines}\n")
    return "\n".join(parts)


def test_every_message_is_the_one_recorded(told, request):
    now = write(told)
    if request.config.getoption("--record", default=False):
        RECORDED.write_text(now)
    assert now == RECORDED.read_text(), "messages have changed; if they are better, run this with --record"


def test_there_are_enough(told):
    assert len(told) >= 60


def test_no_message_is_raw(told):
    """Each is an error of ours, in words, and not of Python's."""
    wrong = {
        title: message
        for _, title, _, message in told
        if message.startswith(("RAW", "NO ERROR")) or "Unexpected" in message or RAW.search(message)
    }
    assert {title: message for title, message in wrong.items() if title not in WAITING} == {}
