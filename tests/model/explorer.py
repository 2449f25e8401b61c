"""Walks through every state that a model can reach, breadth first: to the first wrong step there is no shorter way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    """One thing that may happen next."""

    text: str
    then: S
    helps: bool = True
    """May be counted on once nothing goes wrong any more; False for faults, wishes, and sleepers that wake."""
    broken: str = ""
    """The property that this very step violates."""
    halfway: S | None = None
    """Of a step that is two in one: what is judged in between, and nobody ever sees."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A way from the beginning to what must not be."""

    broken: str
    steps: tuple[str, ...]


@dataclass(slots=True)
class Explored(Generic[S]):
    states: int = 0
    steps: int = 0
    complete: bool = False
    """Nothing is left to visit, so nothing else can happen."""
    wrong: Trace | None = None
    depth: int = 0
    seen: dict[S, int] = field(default_factory=dict)


Steps = Callable[[S], Iterator[Step[S]]]
Canonical = Callable[[S], S]
Judge = Callable[[S], str]


def explore(
    start: S,
    steps: Steps[S],
    canonical: Canonical[S],
    ended: Callable[[S], bool],
    *,
    stuck: str = "",
    limit: int = 2_000_000,
) -> Explored[S]:
    """Visit all states; stop at the first step that breaks a property.

    With `stuck`, also demand that an end can be reached from everywhere by steps that help; the name of that property.
    """
    with _nothing_swept():
        return _explored(start, steps, canonical, ended, stuck, limit)


@contextmanager
def _nothing_swept() -> Iterator[None]:
    """No state refers to itself, and to look through all of them for cycles takes its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _explored(
    start: S, steps: Steps[S], canonical: Canonical[S], ended: Callable[[S], bool], stuck: str, limit: int
) -> Explored[S]:
    first = canonical(start)
    found: Explored[S] = Explored(states=1, seen={first: 0})
    order = [first]
    parents = [-1]
    helpers: list[list[int]] = [[]]  # for each state, who may step to it when nothing goes wrong any more
    at = 0
    while at < len(order):
        if len(order) > limit:
            return found
        for step in steps(order[at]):
            found.steps += 1
            if step.broken:
                path = [*_path(order, parents, at)]
                found.wrong = Trace(step.broken, _retell(start, steps, canonical, path, step.broken))
                return found
            state = canonical(step.then)
            number = found.seen.get(state)
            if number is None:
                number = found.seen[state] = len(order)
                order.append(state)
                parents.append(at)
                helpers.append([])
                found.states += 1
            if step.helps and number != at:
                helpers[number].append(at)
        at += 1
    found.complete = True
    found.depth = sum(1 for _ in _path(order, parents, len(order) - 1)) - 1
    if stuck:
        lost = _cut_off(order, helpers, ended)
        if lost is not None:
            found.wrong = Trace(stuck, _retell(start, steps, canonical, [*_path(order, parents, lost)], ""))
    return found


def _cut_off(order: Sequence[S], helpers: Sequence[list[int]], ended: Callable[[S], bool]) -> int | None:
    """The first state from which no end can be reached any more; walked backwards from the ends."""
    reaches = bytearray(len(order))
    todo = [number for number, state in enumerate(order) if ended(state)]
    for number in todo:
        reaches[number] = 1
    while todo:
        for before in helpers[todo.pop()]:
            if not reaches[before]:
                reaches[before] = 1
                todo.append(before)
    return next((number for number, can in enumerate(reaches) if not can), None)


def _path(order: Sequence[S], parents: Sequence[int], at: int) -> list[S]:
    path = []
    while at >= 0:
        path.append(order[at])
        at = parents[at]
    return path[::-1]


def _retell(start: S, steps: Steps[S], canonical: Canonical[S], path: Sequence[S], broken: str) -> tuple[str, ...]:
    """Walk the path once more with names as they are: canonical states have them exchanged."""
    state, told = start, []
    for wanted in path[1:]:
        step = next(one for one in steps(state) if not one.broken and canonical(one.then) == wanted)
        state = step.then
        told.append(step.text)
    if broken:
        told.append(next(step.text for step in steps(state) if step.broken == broken))
    return tuple(told)
