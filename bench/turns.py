"""Measures two versions of the code by turns: `python bench/turns.py OLD [--rounds N] [--full] SCRIPT …`.

OLD is another checkout (`git worktree add OLD COMMIT`); SCRIPT is one of bench/, with its arguments in one string, such
as `"store.py warm spans"`. Each version runs its own script over its own package. What ours reached in rows of one name
is compared, whatever it is held against there: the other side may have become faster, too. A gain above 1 means that
this checkout is better. Exit status 1 if a figure is below 0.97.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]
LEAST_GAIN = 0.97


def measure(tree: Path, script: str, quick: bool) -> dict[str, tuple[float, str]]:
    """What ours reached in each row of one script: the median, and `≥` where more is better."""
    name, *arguments = shlex.split(script)
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, f"bench/{name}", *arguments, *["--quick"] * quick, "--json", report.name]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        rows = json.loads(Path(report.name).read_text() or "{}").get("rows")
    if rows is None:
        raise SystemExit(f"{tree}/bench/{name} failed with status {done.returncode}:\n{done.stderr}")
    return {row["what"]: (statistics.median(row["ours"]["values"]), row["kind"]) for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="the scripts at full length, not in their quick form")
    arguments = parser.parse_args()
    least = float("inf")
    for script in arguments.scripts:
        pairs = []
        for turn in range(arguments.rounds):
            order = [arguments.old.resolve(), HERE][:: 1 if turn % 2 == 0 else -1]
            figures = {tree: measure(tree, script, not arguments.full) for tree in order}
            pairs.append((figures[arguments.old.resolve()], figures[HERE]))
        print(f"\n{script}: median of {len(pairs)} rounds\n{'gain':>6} {'old':>10} {'new':>10}  what")
        for what, (_, kind) in pairs[0][1].items():
            both = [(old[what][0], new[what][0]) for old, new in pairs if what in old and what in new]
            if not both or any(value <= 0 for pair in both for value in pair):
                continue
            gain = statistics.median(new / old if kind == "≥" else old / new for old, new in both)
            least = min(least, gain)
            before, after = (statistics.median(values) for values in zip(*both, strict=True))
            print(f"{gain:6.2f} {before:10.4g} {after:10.4g}  {what}{' ←' * (gain < LEAST_GAIN)}", flush=True)
    return 1 if least < LEAST_GAIN else 0


if __name__ == "__main__":
    sys.exit(main())
