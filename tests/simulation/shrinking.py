"""From a history that fails to one that is as small as can be, and still does: always the same one."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from simulation.history import History, Start, Steps, World

__all__ = ["shrink"]


def shrink(history: History, fails: Callable[[History], bool], *, tries: int = 600) -> History:
    """Take out events, halves first, then make what is left smaller, until nothing smaller fails."""
    left = tries

    def still(smaller: History) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(smaller)

    while True:
        found = next((each for each in _smaller(history) if still(each)), None)
        if found is None:
            return history
        history = found


def _smaller(history: History) -> Iterator[History]:
    events = history.events
    size = len(events) // 2
    while size:
        for start in range(len(events) - size, -1, -1):  # the last events come first: what follows a failure is idle
            yield replace(history, events=(*events[:start], *events[start + size :]))
        size //= 2
    for world in _simpler_worlds(history.world):
        yield replace(history, world=world)
    for place, event in enumerate(events):
        for simpler in _simpler(event):
            yield replace(history, events=(*events[:place], simpler, *events[place + 1 :]))


def _simpler_worlds(world: World) -> Iterator[World]:
    plain = World(kind=world.kind)
    for each in fields(World):
        if getattr(world, each.name) != getattr(plain, each.name):
            yield replace(world, **{each.name: getattr(plain, each.name)})
    if world.stages and not world.ends:
        yield replace(world, stages=world.stages[:-1])
    if len(world.weights) > 1 and not world.stages:
        yield replace(world, weights=world.weights[:-1])
        if set(world.weights) != {1.0}:
            yield replace(world, weights=(1.0,) * len(world.weights))


def _simpler(event: Any) -> Iterator[Any]:
    """Every field as it is by default, or half as large."""
    plain = type(event)()
    for each in fields(event):
        value, least = getattr(event, each.name), getattr(plain, each.name)
        if value == least:
            continue
        yield replace(event, **{each.name: least})
        if type(value) is int and abs(value) > 1:
            yield replace(event, **{each.name: value // 2})
            yield replace(event, **{each.name: value - 1})
        if isinstance(value, tuple) and len(value) > 1 and not isinstance(event, Start | Steps):
            yield replace(event, **{each.name: value[:-1]})
            yield replace(event, **{each.name: value[1:]})
