"""Random histories of streams of text: ranks come and go, checkpoints are lost, and no document is lost or repeated."""

import json
import os
import random
from typing import Any

import pytest

from property.test_stream import LAYOUTS, Ledger, check_nothing_lost, make
from tiers import pick

HISTORIES = int(os.environ.get("STREAM_HISTORIES", pick(20, 40)))
LAYOUTS_READ = sorted(set(LAYOUTS) - {"empty row groups"})


class StreamRun:
    """A run that can be started anew from any of its checkpoints, on any number of ranks."""

    def __init__(self, layout: str, **options: Any) -> None:
        self.layout, self.options = layout, options
        self.batches: list[list[Any]] = []
        self.checkpoints: list[tuple[int, Any]] = []
        self.feeds: list[Any] = []

    def start(self, world_size: int, batch_size: int, prefetch: int) -> None:
        self.stop()
        self.feeds = [
            make(
                self.layout,
                rank=rank,
                world_size=world_size,
                batch_size=batch_size,
                prefetch=prefetch,
                **self.options,
            )
            for rank in range(world_size)
        ]
        steps, states = self.checkpoints[-1] if self.checkpoints else (0, None)
        del self.batches[steps:]
        for feed in self.feeds if states is not None else ():
            feed.load_state_dict(states)

    def step(self) -> None:
        self.batches.append([next(feed) for feed in self.feeds])

    def save(self) -> None:
        states = json.loads(json.dumps([feed.state_dict() for feed in self.feeds]))
        self.checkpoints.append((len(self.batches), states))

    def stop(self) -> None:
        for feed in self.feeds:
            feed.close()
        self.feeds = []

    def rows(self) -> list[tuple[int, bytes]]:
        """All rows in the order of the run."""
        numbered = [
            (int(sample), batch.tokens[row].tobytes())
            for batches in self.batches
            for batch in batches
            for row, sample in enumerate(batch.samples)
        ]
        return sorted(numbered)


def play_stream(rng: random.Random, run: StreamRun, worlds: list[int]) -> None:
    run.start(rng.choice(worlds), rng.randint(1, 4), rng.choice([0, 0, 2]))
    for _ in range(rng.randint(2, 8)):
        match rng.choice(["steps", "steps", "save", "start", "lose"]):
            case "steps":
                for _ in range(rng.randint(1, 5)):
                    run.step()
            case "save":
                run.save()
            case "start":
                run.start(rng.choice(worlds), rng.randint(1, 4), rng.choice([0, 0, 2]))
            case "lose":
                del run.checkpoints[-1:]
                run.start(rng.choice(worlds), rng.randint(1, 4), rng.choice([0, 0, 2]))


def draw_options(rng: random.Random) -> dict[str, Any]:
    return {
        "length": rng.randint(4, 30),
        "packing": rng.choice(["best_fit", "best_fit", "concat"]),
        "buffer_size": rng.randint(1, 10),
        "refill_size": rng.randint(1, 5),
        "seed": rng.choice([None, None, 3]),
    }


@pytest.mark.parametrize("part", range(2))
def test_every_token_once_an_epoch_whatever_happens(part):
    for number in range(part * HISTORIES // 2, (part + 1) * HISTORIES // 2):
        rng = random.Random(f"stream {number}")
        options = draw_options(rng)
        run = StreamRun(rng.choice(LAYOUTS_READ), **options)
        play_stream(rng, run, [1, 2, 3, 4])
        ledger = Ledger(options["length"], options["packing"])
        for batches in run.batches:
            for batch in batches:
                ledger.see(batch)
        states = [feed.state_dict() for feed in run.feeds]
        check_nothing_lost(run.layout, ledger, states, options["packing"], options["seed"])
        run.stop()


def test_rows_are_the_same_while_ranks_divide_the_lanes():
    for number in range(HISTORIES // 2):
        rng = random.Random(f"lanes {number}")
        options = {**draw_options(rng), "lanes": 4}
        layout = rng.choice(LAYOUTS_READ)
        run = StreamRun(layout, **options)
        play_stream(rng, run, [1, 2, 4])
        rows = run.rows()
        run.stop()
        whole = StreamRun(layout, **options)
        whole.start(1, 1, 0)
        for _ in rows:
            whole.step()
        assert rows == whole.rows(), (number, options)
        whole.stop()
