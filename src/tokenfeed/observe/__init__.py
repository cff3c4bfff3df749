"""Observing a loader: counters for dashboards, a diagnosis in words, and a file that `tokenfeed top` shows live.

observe.publish(loader, "run.stats.jsonl")          # tokenfeed top run.stats.jsonl
observe.log(step, loss=loss)                        # a chart of it on the page
wandb.log(observe.measure(loader), step=step)       # numbers as a dictionary, for any logger
"""

from tokenfeed.observe.diagnosis import Rates, diagnose
from tokenfeed.observe.numbers import measure, to_dict
from tokenfeed.observe.snapshots import Publisher, Snapshot, log, publish, read_snapshots

__all__ = [
    "Publisher",
    "Rates",
    "Snapshot",
    "diagnose",
    "log",
    "measure",
    "publish",
    "read_snapshots",
    "to_dict",
]
