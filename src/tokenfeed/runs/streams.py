"""The run file of a stream: where it was started, on how many ranks, and over what.

    {"kind": "stream", "version": 2, "plan": {…}, "length": 2048, "epochs": null, "num_lanes": 8, "files": […]}
    {"step": 0, "samples": 0, "world_size": 8, "batch_sizes": [[0, 32]], "time": 1789000000.0}

Which documents a step delivered does not follow from it, as it does for stored data: that would take reading the text
up to there. `batch.documents` says it when a batch is delivered.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenfeed.errors import StateError
from tokenfeed.plan.state import VERSION, check_kind
from tokenfeed.plan.steps import BatchSizes
from tokenfeed.runs.file import append_lines, read_lines
from tokenfeed.storage.local import reading

__all__ = ["StreamFile"]


class StreamFile:
    """Writes the run file of a stream."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def begin(self, what: Mapping[str, Any], num_delivered: int, world_size: int, batch_sizes: BatchSizes) -> None:
        """Note that the stream goes on from here. `what` tells what it is a stream of."""
        header = {"kind": "stream", "version": VERSION, **what}
        with reading(str(self._path)):
            is_there = self._path.exists()
        known, step = self._read(num_delivered) if is_there else (None, 0)
        start = {
            "step": step,
            "samples": num_delivered,
            "world_size": world_size,
            "batch_sizes": batch_sizes.to_json(),
            "time": round(time.time(), 3),
        }
        append_lines(self._path, [start] if known == header else [header, start])

    def _read(self, num_delivered: int) -> tuple[Any, int]:
        """(the latest description of the stream, the step that comes after so many rows)."""
        known, step = None, 0
        for number, fields in read_lines(self._path):
            try:
                if "kind" in fields:
                    known = check_kind(fields, "stream")
                elif fields["samples"] <= num_delivered:
                    sizes = BatchSizes.from_json(fields["batch_sizes"])
                    step = fields["step"] + sizes.steps_between(fields["samples"], num_delivered, fields["world_size"])
            except (KeyError, TypeError, ValueError) as error:
                raise StateError(f"{self._path}, line {number}: {error}") from error
        return known, step
