"""Plays a history with the real thing, beside the reference, and compares all that can be after every event."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tokenfeed
from simulation import history as h
from simulation.figures import Figures, Violation, demand
from simulation.history import SMALL, VAST, WIDE, History
from simulation.reference import Drawn, Stage
from simulation.run_checks import RunChecks
from simulation.worlds import DOCUMENTS, GROWTHS, NAMES, Data, Grown, Masked, Settings, put_vast_items
from tokenfeed.errors import ArgumentError, PlanMismatchError, SampleIndexError, TokenfeedError

IMPOSSIBLE = (
    "touches these documents",  # an empty document, or one behind the last whole window
    "cannot be drawn yet",  # a source that comes later
    "leaves a gap",  # a change after the end
    "after the end of the run",  # a growth from behind the end of a mixture on
    "growths come in that order",  # of the run
    "names source",  # which comes later
)


class Delivered(NamedTuple):
    """One row, as it came."""

    sample: int
    drawn: Drawn
    settings: Settings


@dataclass
class Checkpoint:
    state: Any
    samples: int
    settings: Settings
    step: int
    line: tuple[int, ...]
    """Which start each step was run by."""
    log: list[Delivered]
    """What was delivered up to here, sample by sample."""


@dataclass
class Ranks:
    """What runs now."""

    loaders: dict[int, Any]
    start: h.Start
    settings: Settings
    end: int | None
    number: int
    batches: list[Any] = field(default_factory=list)
    has_begun: bool = False


def play(history: History) -> Figures:
    """Raises `Violation` where anything is not as it must be."""
    with tempfile.TemporaryDirectory(prefix="tokenfeed-history-") as folder:
        player = Player(history, Path(folder, "run.jsonl"))
        try:
            for event in history.events:
                player.figures.events += 1
                player.do(event)
            player.check_run()
        except TokenfeedError as error:
            raise Violation(f"{type(error).__name__}: {error}") from error
        finally:
            player.stop()
    player.figures.histories = 1
    return player.figures


class Player(RunChecks):
    def __init__(self, history: History, run_path: Path) -> None:
        self.world = history.world
        self.data = Data(history.world)
        self.settings = self.data.first_settings()
        self.run_path = run_path
        self.figures = Figures(largest_items=self.data.num_items(0, 0))
        self.ranks: Ranks | None = None
        self.checkpoints: list[Checkpoint] = []
        self.samples = self.step = 0
        self.line: tuple[int, ...] = ()
        self.log: list[Delivered] = []
        self.rows: dict[tuple[int, int], list[Delivered]] = {}
        """What the run delivered in the end, by (step, rank)."""
        self.is_tangled = False
        """Whether a checkpoint was taken up that is of another line than what ran last: a run file is of one line."""

    def do(self, event: h.Event) -> None:
        getattr(self, f"_{type(event).__name__.lower()}")(event)

    def stop(self) -> None:
        for loader in self.ranks.loaders.values() if self.ranks else ():
            loader.close()
        self.ranks = None

    # Starting, and what a checkpoint must or must not be taken by.

    def _start(self, event: h.Start) -> None:
        self.stop()
        place = len(self.checkpoints) - 1 - event.back
        checkpoint = self.checkpoints[place] if place >= 0 else None
        try:
            self._begin(event, checkpoint)
        except PlanMismatchError as error:
            assert checkpoint is not None
            self.figures.refused += 1
            demand(
                not self._must_accept(checkpoint, self.settings),
                f"refused what changes nothing before sample {checkpoint.samples}: {error}\nthen {checkpoint.settings}"
                f"\nnow  {self.settings}",
            )
            self.settings = checkpoint.settings  # what it was made with must do
            self._begin(event, checkpoint)

    def _begin(self, event: h.Start, checkpoint: Checkpoint | None) -> None:
        settings = self.settings
        begin = checkpoint.samples if checkpoint else self.world.at
        subject = self.data.subject(settings)
        loaders = {}
        for rank in self._ranks_to_run(event.world_size):
            loaders[rank] = tokenfeed.Loader(
                subject,
                event.batch_size,
                prefetch=event.prefetch,
                threads=event.threads,
                rank=rank,
                world_size=event.world_size,
                run=self.run_path,
            )
        state = checkpoint.state if checkpoint else loaders[0].plan.state(begin)
        for loader in loaders.values():
            loader.load_state_dict(state)
        if checkpoint:
            demand(
                not self._must_refuse(checkpoint, settings),
                f"took a checkpoint of another past at sample {checkpoint.samples}\nthen {checkpoint.settings}"
                f"\nnow  {settings}",
            )
            self.figures.accepted += 1
        demand(loaders[0].state_dict()["samples"] == begin, "resumed at", loaders[0].state_dict(), "not", begin)
        self.samples, self.step = begin, checkpoint.step if checkpoint else 0
        line = checkpoint.line if checkpoint else ()
        self.is_tangled |= self.line[: len(line)] != line
        self.line = line
        self.log = list(checkpoint.log) if checkpoint else []
        self.figures.starts += 1
        self.figures.largest_world = max(self.figures.largest_world, event.world_size)
        self.ranks = Ranks(loaders, event, settings, self._end(settings), self.figures.starts)

    def _ranks_to_run(self, world_size: int) -> Sequence[int]:
        if self.world.kind != VAST:
            return range(world_size)
        return sorted({0, world_size - 1, self.world.seed % world_size})

    def _end(self, settings: Settings) -> int | None:
        """How many samples a run has whose last stage ends."""
        return self.data.reference(settings).turns.total

    def _must_accept(self, checkpoint: Checkpoint, settings: Settings) -> bool:
        """Whether settings are the same but for what begins behind the checkpoint."""

        def past(given: Settings) -> Any:
            chapters = [chapter for chapter in given.chapters if chapter[0] < checkpoint.samples]
            return chapters, {change for change in given.changes if change.at < checkpoint.samples}

        return bool(past(settings) == past(checkpoint.settings))

    def _must_refuse(self, checkpoint: Checkpoint, settings: Settings) -> bool:
        """Whether any sample before the checkpoint would have been another."""
        one, other = self.data.reference(checkpoint.settings), self.data.reference(settings)
        numbers: Any = range(checkpoint.samples)
        if self.world.kind != SMALL:
            numbers = range(max(0, checkpoint.samples - 40), checkpoint.samples)
        return any(one.deliver(k) != other.deliver(k) for k in numbers)

    # Delivering.

    def _steps(self, event: h.Steps) -> None:
        for _ in range(event.count):
            if self.ranks is None:
                return
            self._step(self.ranks)
        if self.ranks and self.ranks.has_begun and not self.is_tangled and self.world.kind != WIDE and self.step:
            self._check_trace(tokenfeed.Run(self.run_path), self.step - 1)

    def _step(self, ranks: Ranks) -> None:
        wide = ranks.start.batch_size * ranks.start.world_size
        if ranks.end is not None and self.samples >= ranks.end:
            for loader in ranks.loaders.values():
                demand(next(loader, None) is None, "a loader goes on behind the end", ranks.end)
            return
        delivered = self.samples + wide if ranks.end is None else min(self.samples + wide, ranks.end)
        reference = self.data.reference(ranks.settings)
        expected = {
            rank: [
                Delivered(k, reference.deliver(k), ranks.settings)
                for k in range(self.samples + rank, delivered, ranks.start.world_size)
            ]
            for rank in ranks.loaders
        }
        if self.world.kind == VAST:
            for row in (row for rows in expected.values() for row in rows):
                put_vast_items(row.drawn.source, *self.data.bounds(row.drawn, row.settings))
        self._note_begin(ranks)
        states = []
        for rank, loader in ranks.loaders.items():
            batch = next(loader)
            self._check_batch(batch, expected[rank], ranks.settings)
            states.append(batch.state)
            demand(states[-1] == loader.state_dict(), "the state of the batch is not the loader's")
            demand(states[-1] == states[0], "ranks have other states:", states[0], states[-1])
            self.rows[self.step, rank] = expected[rank]
        demand(states[0]["samples"] == delivered, "the state says", states[0]["samples"], "after", delivered)
        if self.world.kind != VAST:
            self.log += sorted((row for rows in expected.values() for row in rows), key=lambda row: row.sample)
        self.samples, self.step, self.line = delivered, self.step + 1, (*self.line, ranks.number)
        self.figures.steps += 1
        self.figures.largest_sample = max(self.figures.largest_sample, delivered)

    def _note_begin(self, ranks: Ranks) -> None:
        """From here on the run file says that what ran behind this was rolled back."""
        if not ranks.has_begun:
            ranks.has_begun = True
            self.rows = {place: rows for place, rows in self.rows.items() if place[0] < self.step}

    def _check_batch(self, batch: Any, expected: Sequence[Delivered], settings: Settings) -> None:
        demand(batch.samples.tolist() == [row.sample for row in expected], "samples", batch.samples, "not", expected)
        epochs = [row.drawn.epoch for row in expected]
        demand(batch.epochs.tolist() == epochs, "epochs", batch.epochs, "not", epochs)
        masked = self._masked(settings)
        for number, row in enumerate(expected):
            tokens = np.asarray(batch[number].tokens)
            wanted = self.data.content(row.drawn, settings)
            demand(tokens.tobytes() == wanted.tobytes(), "sample", row, "is", tokens, "not", wanted)
        if masked:
            self._check_masks(batch.loss_mask, expected, masked)
        self.figures.samples += len(expected)

    def _masked(self, settings: Settings) -> list[Masked]:
        return [change for change in settings.changes if isinstance(change, Masked)]

    def _check_masks(self, mask: Any, expected: Sequence[Delivered], masked: Sequence[Masked]) -> None:
        for number, row in enumerate(expected):
            start, stop = self.data.bounds(row.drawn, row.settings)
            spans = self.data.documents(row.drawn.source)
            hidden = [
                spans[document]
                for each in masked
                if each.source == row.drawn.source and each.at <= row.sample
                for document in each.documents
            ]
            counts = [not any(first <= item < end for first, end in hidden) for item in range(start + 1, stop)]
            counts += [False] * (mask.shape[1] - len(counts))  # a document is padded to the longest of the batch
            demand(mask[number].tolist() == counts, "loss mask", mask[number], "not", counts)

    def _check_exactly_once(self) -> None:
        """No item of a source comes twice in one of its epochs; documents come by their number."""
        last: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row in self.log:
            start, stop = self.data.bounds(row.drawn, row.settings)
            if self.world.view == "documents":
                start, stop = row.drawn.index, row.drawn.index + 2
            last.setdefault(row.drawn[:2], []).append((start, stop - 1))
        for spans in last.values():
            spans.sort()
            for (_, stop), (start, _) in pairwise(spans):
                demand(stop <= start, "delivered twice in one epoch:", spans)

    # Checkpoints.

    def _save(self, _: h.Save) -> None:
        if self.ranks is None:
            return
        state = json.loads(json.dumps(self.ranks.loaders[0].state_dict()))
        size = len(json.dumps({**state, "changes": []}))
        demand(size <= 300, "a state of", size, "bytes without its changes")
        settings = self.ranks.settings
        self.checkpoints.append(Checkpoint(state, self.samples, settings, self.step, self.line, list(self.log)))
        self._check_ledger(self.ranks.loaders[0].plan, settings)
        self._check_exactly_once()

    def _check_ledger(self, plan: Any, settings: Settings) -> None:
        if not self.data.is_mixed:
            return
        counts = self.data.reference(settings).turns.count(self.samples)
        for entry, count in zip(plan.ledger(self.samples), counts, strict=True):
            demand(entry.samples == count, entry, "where", count, "were given")
            demand(abs(entry.samples - entry.target) <= 6, entry, "is further than six from its target")

    def _crash(self, _: h.Crash) -> None:
        self.ranks = None  # the threads of loaders end when they are collected

    def _lose(self, event: h.Lose) -> None:
        self.stop()
        del self.checkpoints[max(0, len(self.checkpoints) - event.count) :]
        if not event.keep_settings:
            self.settings = self.checkpoints[-1].settings if self.checkpoints else self.data.first_settings()

    # Settings.

    def _here(self, after: int) -> int:
        behind = self.checkpoints[-1].samples if self.checkpoints else self.world.at
        return max(0, behind + after)

    def _change(self, settings: Settings) -> None:
        """Take other settings, if they are possible at all."""
        try:
            tokenfeed.Loader(self.data.subject(settings), 1, rank=0, world_size=1)
        except (ArgumentError, SampleIndexError) as error:
            demand(any(reason in str(error) for reason in IMPOSSIBLE), "refused:", error)
            self.figures.impossible += 1
        else:
            self.settings = settings

    def _weigh(self, event: h.Weigh) -> None:
        if not self.data.is_mixed:
            return
        known = self.settings.num_sources
        weights = event.weights[: min(known + 1, len(NAMES))]
        weights += (0.0,) * (known - len(weights))
        at = self._here(event.after)
        chapter = (at, (Stage(weights),))
        self._change(replace(self.settings, chapters=(*self.settings.chapters, chapter)))

    def _make(self, change: Masked | Grown) -> None:
        self._change(replace(self.settings, changes=(*self.settings.changes, change)))

    def _mask(self, event: h.Mask) -> None:
        if self.world.kind == SMALL:
            documents = tuple(sorted(set(event.documents)))
            self._make(Masked(event.source % self.settings.num_sources, self._here(event.after), documents))

    def _part(self, source: int) -> int:
        """The store that a source has last."""
        grown = [each for each in self.settings.changes if isinstance(each, Grown) and each.source == source]
        return max((each.part for each in grown), default=0)

    def _grow(self, event: h.Grow) -> None:
        source = event.source % self.settings.num_sources
        part = self._part(source) + 1
        if self.world.kind == SMALL and part <= len(GROWTHS[NAMES[source]]):
            self._make(Grown(source, self._here(event.after), part))

    def _amend(self, event: h.Amend) -> None:
        if self.ranks is None or self.world.kind != SMALL or self.ranks.settings != self.settings:
            return
        settings, at = self.settings, self.samples
        source, number = event.source % settings.num_sources, event.numbers[0]
        change: dict[str, Any] = {}
        made: Any = None
        if event.what == "weights" and self.data.is_mixed:
            weights = tuple(float(each) for each in event.numbers[: settings.num_sources])
            change = {"weights": dict(zip(NAMES, weights, strict=False))}
            settings = replace(settings, chapters=(*settings.chapters, (at, (Stage(weights),))))
        elif event.what == "grow" and self._part(source) < len(GROWTHS[NAMES[source]]):
            made = Grown(source, at, self._part(source) + 1)
        elif event.what == "mask":
            made = Masked(source, at, (number % len(DOCUMENTS[NAMES[source]]),))
        elif event.what == "limit":
            change = {"max_epochs": {NAMES[source] if self.data.is_mixed else "": 10**6}}
        if made is not None:
            settings = replace(settings, changes=(*settings.changes, made))
            change = change or self.data.change(made)
        if not change:
            return
        try:
            for loader in self.ranks.loaders.values():
                loader.amend(**change)
        except (ArgumentError, SampleIndexError) as error:
            demand(any(reason in str(error) for reason in IMPOSSIBLE), "refused:", error)
            self.figures.impossible += 1
        else:
            self.settings = self.ranks.settings = settings
            self.ranks.end = self._end(settings)
            self.figures.amended += 1

    def _resize(self, event: h.Resize) -> None:
        ranks = self.ranks
        if ranks is None or self.world.kind != SMALL:
            return
        world_size = 1 + (event.world_size - 1) % ranks.start.world_size
        for rank in [rank for rank in ranks.loaders if rank >= world_size]:
            ranks.loaders.pop(rank).close()
        for rank, loader in ranks.loaders.items():
            loader.resize(rank=rank, world_size=world_size)
        ranks.start = replace(ranks.start, world_size=world_size)
        self.figures.resized += 1

    def _skipto(self, event: h.SkipTo) -> None:
        ranks = self.ranks
        if ranks is None:
            return
        self._note_begin(ranks)
        sample = self.samples + event.count
        self.samples = sample if ranks.end is None else max(self.samples, min(sample, ranks.end - 1))
        for loader in ranks.loaders.values():
            loader.skip_to(self.samples)

    # Beside the run.

    def _evaluate(self, event: h.Evaluate) -> None:
        if self.data.is_mixed or self.world.kind != SMALL:
            return
        loaders = [
            tokenfeed.Loader(
                self.data.view(0, self.settings),
                event.batch_size,
                seed=self.world.seed,
                shuffle=event.shuffle,
                epochs=event.epochs,
                rank=rank,
                world_size=event.world_size,
                prefetch=rank % 2,
            )
            for rank in range(event.world_size)
        ]
        size = self.data.size(0, self.settings)
        passes = [list(loader) for loader in loaders]
        steps = -(-size * event.epochs // (event.world_size * event.batch_size))
        demand({len(batches) for batches in passes} == {steps}, "ranks take other numbers of steps than", steps)
        seen = [int(index) for batches in passes for batch in batches for index in batch.indices]
        demand(sorted(seen) == sorted([*range(size)] * event.epochs), "not every sample once:", sorted(seen))
        for loader in loaders:
            loader.close()
        self.figures.evaluations += 1

    def _refuse(self, event: h.Refuse) -> None:
        if not self.checkpoints or self.checkpoints[-1].samples == 0:
            return
        state, settings = self.checkpoints[-1].state, self.checkpoints[-1].settings
        seed, shuffle, subject = self.world.seed, self.data.shuffle(), self.data.plain(settings)
        if event.what == "seed":
            if not self.world.shuffle:
                return
            seed ^= 1
        elif event.what == "locality":
            shuffle = tokenfeed.plan.Local(10, 10)
        elif event.what == "damage":
            state = {**state, "samples": -1}
        elif self.data.is_mixed:
            subject = tokenfeed.mix({NAMES[0]: (self.data.view(3, settings), 1)})
        else:
            subject = self.data.view(3, settings)
        try:
            loader = tokenfeed.Loader(subject, 1, seed=seed, shuffle=shuffle, rank=0, world_size=1)
            loader.load_state_dict(state)
        except TokenfeedError:
            self.figures.refused += 1
        else:
            raise Violation(f"took the checkpoint {state} with another {event.what}")
