"""Pages of documentation, run as they stand: `python tests/pages.py docs/start.md`, in an empty folder.

Python blocks run in the order of the page, in one process. So do the lines of shell blocks that call `tokenfeed`,
`python` or `torchrun`; others, such as `pip install`, are for people. A word behind the language says why a block
cannot run: ```sh needs=cluster.
"""

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

SHELLS = ("sh", "bash")
SHOWN = ("", "text", "json", "yaml", "toml", "c")
NEEDS = ("needs=browser", "needs=cluster", "needs=gpu", "needs=network", "needs=packages")
PROGRAMS = ("tokenfeed ", "python ", "torchrun ")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<words>[^`\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)


class PageError(ValueError):
    """A page that cannot be understood."""


@dataclass(frozen=True)
class Step:
    """A Python block, or a line of a shell block."""

    kind: str
    line: int
    """Of the page, the first of the code; counted from 1."""
    code: str
    needs: str = ""


def parse(page: Path) -> list[Step]:
    """The steps of a page, in order."""
    text = page.read_text()
    steps: list[Step] = []
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        kind, *words = found["words"].split() or [""]
        unknown = set(words) - set(NEEDS)
        if kind not in ("python", *SHELLS, *SHOWN) or unknown or len(words) > 1:
            raise PageError(f"{page.name}, line {line - 1}: nobody knows what to do with ```{found['words']}")
        needs, code = "".join(words), textwrap.dedent(found["code"])
        if kind == "python":
            steps.append(Step("python", line, code, needs))
        elif kind in SHELLS:
            steps += [Step("sh", line + at, command, needs) for at, command in _commands(code)]
    if len(re.findall(r"^ *```", text, re.MULTILINE)) != 2 * len(_FENCE.findall(text)):
        raise PageError(f"{page.name}: a fence that does not end, or not where it began")
    return steps


def _commands(code: str) -> list[tuple[int, str]]:
    """(line, command) of what is run; a backslash at the end joins a line to the next."""
    joined = re.finditer(r"^(?:.*\\\n)*.*$", code, re.MULTILINE)
    return [(code.count("\n", 0, one.start()), one[0]) for one in joined if one[0].startswith(PROGRAMS)]


def run(page: Path) -> None:
    """Run all steps here, in this process and folder; what fails raises, and its traceback shows lines of the page."""
    names: dict[str, object] = {"__name__": "__main__"}
    for step in parse(page):
        if step.needs:
            continue
        if step.kind == "python":
            exec(compile("\n" * (step.line - 1) + step.code, str(page), "exec"), names)
            continue
        print(f"$ {step.code}", flush=True)
        status = _run_tokenfeed(step.code) if _is_plain(step.code) else subprocess.call(["bash", "-euc", step.code])
        if status:
            raise PageError(f"{page.name}, line {step.line}: exit status {status}: {step.code}")


def run_in(page: str, folder: str, environment: dict[str, str], output: str) -> None:
    """`run` in a process of its own: in a folder, with an environment, and with all output going to a file."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    run(Path(page))
    sys.stdout.flush()


def _is_plain(command: str) -> bool:
    """A call of `tokenfeed` alone: no pipe, no redirection, nothing behind it."""
    return command.startswith("tokenfeed ") and not re.search("[|<>;&]", command.split(" #")[0])


def _run_tokenfeed(command: str) -> int:
    """The exit status. In this process, which has long imported it; the shell only expands patterns and variables."""
    words = subprocess.run(
        ["bash", "-euc", f"printf '%s\\0' {command}"], check=True, capture_output=True, text=True
    ).stdout
    from tokenfeed.cli import main

    before, sys.argv = sys.argv, words.split("\0")[:-1]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


if __name__ == "__main__":
    run(Path(sys.argv[1]))
