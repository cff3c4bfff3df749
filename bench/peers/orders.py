"""The shuffle by itself: what it costs to begin an epoch of very many samples, and whether the order is random."""

import sys
from typing import Any

import numpy as np
from loaders import Bench
from parent import HERE, PeerError

sys.path.append(str(HERE.parent.parent / "tests"))
from randomness import all_p_values

__all__ = ["orders"]

_SIZES = (65_537, 100_000)  # the first is one more than a power of two, where bijections by cycle walking are at risk
_EPOCHS = 8
_FIRST = 1024
_DOUBT = 1e-6  # some 150 statistics are taken; one of them falls below this by chance once in 7,000 runs


def orders(bench: Bench) -> dict[str, Any]:
    """Seconds and memory up to the first samples of an epoch; then p-values of eight epochs of smaller sizes."""
    found: dict[str, Any] = {}
    with bench.section("shuffle"):
        for contender in bench.contenders:
            path = bench.folder / "order.npy"
            try:
                with contender.start() as child:
                    n = bench.scale.shuffle_samples
                    began = child.ask("order", n=n, epochs=1, count=_FIRST, path=str(path), timeout=180)
                    if began is None:
                        continue
                with contender.start() as child:
                    statistics = {}
                    for n in _SIZES:
                        child.ask("order", n=n, epochs=_EPOCHS, count=n, path=str(path), timeout=180)
                        statistics[str(n)] = judge(np.load(path), n)
            except PeerError as error:
                bench.fail(contender, "shuffle", error)
                continue
            found[contender.adapter] = {"setup": began, "statistics": statistics}
    return found


def judge(rows: Any, n: int) -> dict[str, Any]:
    """How many samples an epoch misses and repeats at most, and which statistics a true random order would not show."""
    counts = [np.bincount(row, minlength=n) for row in rows]
    missed = max(int((count == 0).sum()) for count in counts)
    repeated = max(int((count > 1).sum()) for count in counts)
    values = all_p_values(rows) if missed == 0 else {}
    doubtful = sorted((p, name) for name, p in values.items() if p < _DOUBT)
    return {
        "missed": missed,
        "repeated": repeated,
        "tests": len(values),
        "doubtful": [[name, p] for p, name in doubtful],
    }
