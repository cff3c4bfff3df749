"""Observing a loader: counters for dashboards, a diagnosis in words, and a file that `tokenfeed top` shows live.

observe.publish(loader, "run.stats.jsonl")          # tokenfeed top run.stats.jsonl
observe.log(step, loss=loss)                        # a chart of it on the page
writer.log(observe.to_dict(loader.stats()))         # TensorBoard, W&B
"""

from tokenfeed.observe.diagnosis import Rates, diagnose
from tokenfeed.observe.machine import Gpu, find_gpus
from tokenfeed.observe.metrics import MetricsServer, serve_metrics, to_dict, to_openmetrics
from tokenfeed.observe.snapshots import Publisher, Snapshot, find_stats_file, log, publish, read_snapshots

__all__ = [
    "Gpu",
    "MetricsServer",
    "Publisher",
    "Rates",
    "Snapshot",
    "diagnose",
    "find_gpus",
    "find_stats_file",
    "log",
    "publish",
    "read_snapshots",
    "serve_metrics",
    "to_dict",
    "to_openmetrics",
]
