"""Draws what was measured: `python bench/plots.py [FOLDER]`. JSON files there become SVG, for light and dark pages."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from charts import Line, draw_curves, draw_lines
from order import EVALUATE_EVERY


def draw_growth(results: dict[str, dict[str, list[float]]], scheme: str) -> str:
    """What `bench/growth.py` wrote."""
    lines = [
        Line(f"{what} by {name}", [(float(number), figures[column]) for number, figures in points.items()])
        for name, points in results.items()
        for column, what in enumerate(("first batch, s,", "µs a batch"))
    ]
    return draw_lines("Cost against size", lines, scheme)


def draw_order(results: dict[str, Any], scheme: str) -> str:
    """What `bench/order.py` wrote: validation loss, the mean over seeds."""
    curves = []
    for name, runs in results["runs"].items():
        losses = np.mean([run["validation"] for run in runs], axis=0)
        curves.append(Line(name, [((step + 1) * EVALUATE_EVERY, loss) for step, loss in enumerate(losses.tolist())]))
    return draw_curves("Validation loss by the order of the same windows", curves, scheme, across="steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1] / "docs" / "benchmarks")
    folder = parser.parse_args().folder
    for kind, draw in {"growth": draw_growth, "order": draw_order}.items():
        for path in sorted(folder.glob(f"*-{kind}.json")):
            for scheme in ("light", "dark"):
                path.with_name(f"{kind}-{scheme}.svg").write_text(draw(json.loads(path.read_text()), scheme))


if __name__ == "__main__":
    main()
