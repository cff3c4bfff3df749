"""Histories of a cluster: a world, and what happens in it. Everything is drawn from one seed, and prints as Python.

Numbers in events are relative to where the run stands when they come (`after` samples behind its latest checkpoint), so
that a history from which events were taken out is still one. What cannot be done where it comes, such as going back
without a checkpoint, does nothing.
"""

import random
from dataclasses import dataclass

SMALL, WIDE, VAST = "small", "wide", "vast"


@dataclass(frozen=True)
class World:
    """What is trained on. `small`: real data, up to 8 ranks. `wide`: up to 4,096 ranks. `vast`: up to 10**12 items."""

    kind: str = SMALL
    view: str = "windows"
    """`windows` or `documents`."""
    weights: tuple[float, ...] = ()
    """Of the sources mixed; none for a run over one view."""
    stages: tuple[tuple[tuple[float, ...], int], ...] = ()
    """(weights, samples) before the weights above; with `ends`, there is nothing behind the last."""
    ends: bool = False
    seed: int = 0
    shuffle: bool | tuple[int, int] = True
    """Or block and tile of a locality."""
    at: int = 0
    """Samples that a vast run has behind it when it begins."""


@dataclass(frozen=True)
class Start:
    """Start on all ranks, behind the latest checkpoint or one that many before it. What ran before is killed."""

    world_size: int = 1
    batch_size: int = 1
    prefetch: int = 0
    threads: int = 1
    back: int = 0


@dataclass(frozen=True)
class Steps:
    count: int = 1


@dataclass(frozen=True)
class Save:
    """Keep a checkpoint."""


@dataclass(frozen=True)
class Crash:
    """All ranks are gone; nothing is saved."""


@dataclass(frozen=True)
class Lose:
    """The last checkpoints are lost. The settings stay as they are now, or become those of the checkpoint left."""

    count: int = 1
    keep_settings: bool = False


@dataclass(frozen=True)
class Weigh:
    """Other weights for the sources there are, and for a new one where there is one more weight."""

    weights: tuple[float, ...] = (1.0,)
    after: int = 0


@dataclass(frozen=True)
class SkipTo:
    """Leave out so many samples of what runs."""

    count: int = 1


@dataclass(frozen=True)
class Mask:
    """Learn nothing in documents of a source."""

    documents: tuple[int, ...] = (0,)
    source: int = 0
    after: int = 0


@dataclass(frozen=True)
class Grow:
    """A source has the rows of one more store."""

    source: int = 0
    after: int = 0


@dataclass(frozen=True)
class Amend:
    """Amend what runs, on all ranks, from the next batch on. `what` is one of `AMENDMENTS`."""

    what: str = "grow"
    source: int = 0
    numbers: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Resize:
    """Go on with fewer ranks, without a new start."""

    world_size: int = 1


@dataclass(frozen=True)
class Evaluate:
    """Every sample once, beside the run."""

    world_size: int = 1
    batch_size: int = 1
    epochs: int = 1
    shuffle: bool = True


@dataclass(frozen=True)
class Refuse:
    """Try to go on with what the checkpoint was not made with: another `seed`, other `data`, a `locality`, `damage`."""

    what: str = "seed"


Event = Start | Steps | Save | Crash | Lose | Weigh | SkipTo | Mask | Grow | Amend | Resize | Evaluate | Refuse
AMENDMENTS = ("weights", "grow", "mask", "limit")


@dataclass(frozen=True)
class History:
    world: World
    events: tuple[Event, ...]

    def to_code(self) -> str:
        """Python that plays it."""
        events = "".join(f"        {event!r},\n" for event in self.events)
        return (
            "from simulation.history import *\nfrom simulation.player import play\n\n"
            f"play(History(\n    {self.world!r},\n    (\n{events}    ),\n))"
        )


WEIGHTS = (1.0, 1.0, 2.0, 3.0, 5.0, 0.5, 0.25)


def draw_history(seed: int, number: int) -> History:
    """History `number` of those of a seed."""
    rng = random.Random(f"{seed}/{number}")
    kind = WIDE if number % 100 == 99 else VAST if number % 4 == 3 else SMALL
    world = draw_world(rng, kind)
    most = {SMALL: 8, WIDE: 4096, VAST: 4096}[kind]
    events: list[Event] = [draw_start(rng, world, most)]
    for _ in range(rng.randint(1, 4 if kind == WIDE else 16)):
        events.append(draw_event(rng, world, most))
        if isinstance(events[-1], Crash | Lose | Weigh | Mask | Grow):
            events += [draw_start(rng, world, most)] if rng.random() < 0.8 else []
        if isinstance(events[-1], Start):
            events.append(Steps(rng.randint(1, 2 if kind == WIDE else 6)))
        if isinstance(events[-1], Steps) and rng.random() < 0.4:
            events.append(Save())
    return History(world, tuple(events))


def draw_world(rng: random.Random, kind: str) -> World:
    shuffle: bool | tuple[int, int] = rng.choice([True, True, True, False, (rng.randint(1, 9), rng.randint(1, 5))])
    seed = rng.choice([0, 1, rng.getrandbits(63)])
    if kind == WIDE:
        return World(kind, "windows", seed=seed, shuffle=shuffle)
    view = rng.choice(["windows"] if kind == VAST else ["windows", "windows", "documents"])
    weights: tuple[float, ...] = ()
    stages: tuple[tuple[tuple[float, ...], int], ...] = ()
    if rng.random() < 0.5:
        weights = tuple(rng.choice(WEIGHTS) for _ in range(rng.randint(1, 3)))
        if kind == SMALL and rng.random() < 0.4:
            stages = tuple(
                (tuple(rng.choice(WEIGHTS) for _ in weights), rng.randint(64, 120)) for _ in range(rng.randint(1, 3))
            )
    at = rng.choice([0, rng.randrange(10**9), rng.randrange(10**13)]) if kind == VAST else 0
    if kind == VAST and isinstance(shuffle, tuple):
        shuffle = (rng.choice([1, 7, 1024]), rng.choice([1, 3, 64]))
    return World(kind, view, weights, stages, bool(stages) and rng.random() < 0.3, seed, shuffle, at)


def draw_start(rng: random.Random, world: World, most: int) -> Start:
    world_size = rng.randint(1, most) if rng.random() < 0.7 else 2 ** rng.randrange(most.bit_length())
    batch_size = 1 if world.kind == WIDE else rng.randint(1, 6)
    prefetch = rng.choice([0, 0, 1, 2, 5]) if world.kind == SMALL else 0
    return Start(world_size, batch_size, prefetch, rng.randint(1, 3), rng.choice([0] * 9 + [1]))


def draw_event(rng: random.Random, world: World, most: int) -> Event:
    after = rng.choice([0, 0, 1, rng.randint(0, 40), rng.randint(-20, 40)])
    kind = rng.choices(
        [
            *(Start, Steps, Save, Crash, Lose, Weigh, SkipTo, Mask, Evaluate, Refuse),
            *(Grow, Amend, Resize),
        ],
        [1, 5, 5, 1, 2, 2, 1, 1, 0.6, 0.6, 1, 3, 0.6],
    )[0]
    if kind is Start:
        return draw_start(rng, world, most)
    if kind is Steps:
        return Steps(rng.randint(1, 2 if world.kind == WIDE else 8))
    if kind is Lose:
        return Lose(rng.randint(1, 3), rng.random() < 0.3)
    if kind is Weigh:
        return Weigh(tuple(rng.choice(WEIGHTS) for _ in range(rng.randint(1, 4))), after)
    if kind is SkipTo:
        return SkipTo(rng.randint(1, 30))
    if kind is Mask:
        return Mask(tuple(rng.randrange(12) for _ in range(rng.randint(1, 3))), rng.randrange(4), after)
    if kind is Evaluate:
        return Evaluate(rng.randint(1, 8), rng.randint(1, 9), rng.randint(1, 2), rng.random() < 0.8)
    if kind is Grow:
        return Grow(rng.randrange(4), after)
    if kind is Amend:
        return Amend(rng.choice(AMENDMENTS), rng.randrange(4), tuple(rng.randint(1, 30) for _ in range(4)))
    if kind is Resize:
        return Resize(rng.randint(1, most))
    if kind is Refuse:
        return Refuse(rng.choice(["seed", "data", "locality", "damage"]))
    return kind()
