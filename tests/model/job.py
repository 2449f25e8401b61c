"""The whole model of one job: two workers, and all that happens around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dlpipe.core import states
from tests.model import table
from tests.model.around import Around
from tests.model.explorer import Explored, Step, explore
from tests.model.guards import ALL, EVERY_FAULT, Fault, Guard, Never
from tests.model.worker import Workers
from tests.model.world import World, canonical

_STEPS = frozenset((step.source, step.target) for step in states.TABLE)


class Model:
    def __init__(self, without: Iterable[Guard] = (), faults: Iterable[Fault] = EVERY_FAULT) -> None:
        guards = ALL - frozenset(without)
        self._workers = Workers(guards)
        self._around = Around(guards, frozenset(faults), self._workers)

    def steps(self, w: World) -> Iterator[Step[World]]:
        for me in (0, 1):
            for step in self._workers.steps(w, me):
                yield from self._on(judged(w, step), me)
        for step in self._around.steps(w):
            yield judged(w, step)

    def _on(self, step: Step[World], me: int) -> Iterator[Step[World]]:
        """To take the lock and ask the ledger, to record and let go, is one step, unless something goes wrong between.

        What others do in between they may as well do before the one, or after the other.
        """
        if step.broken or step.then.workers[me].at not in ("held", "leave"):
            yield step
            return
        for fault in self._around.between(step.then, me):
            yield fault._replace(text=f"{step.text}; {fault.text}")
        for following in self._workers.steps(step.then, me):
            found = judged(step.then, following)
            yield from self._on(found._replace(text=f"{step.text}; {found.text}"), me)


def judged(w: World, step: Step[World]) -> Step[World]:
    """What must hold of any step at all; of one that is two in one, of both."""
    if step.broken:
        return step
    if step.halfway is not None:
        first = judged(w, step._replace(then=step.halfway, halfway=None))
        return step._replace(broken=first.broken or judged(step.halfway, step._replace(halfway=None)).broken)
    before, after = w.row, step.then.row
    if after.run < before.run or (before.state is not after.state and (before.state, after.state) not in _STEPS):
        return step._replace(broken=Never.TABLE)
    rests = after.paused or table.is_terminal(after.state, retry_due=after.due)
    if after.paused and after.owner is not None:
        return step._replace(broken=Never.PAUSED)
    if after is not before and rests and step.then.under_way():
        return step._replace(broken=Never.UNDER_WAY)
    if step.then.files is not w.files and any(step.then.files[f] != name for name, f in step.then.finals):
        return step._replace(broken=Never.BYTES)
    return step


def ended(w: World) -> bool:
    """Nothing happens by itself any more, and the result's file is there, or known to be lost."""
    name = w.newest()
    kept = name is None or w.is_right(name) or any(name == known for known, _ in w.marked)
    return kept and table.is_terminal(w.row.state, retry_due=w.row.due)


def explored(
    most: int,
    without: Iterable[Guard] = (),
    faults: Iterable[Fault] = EVERY_FAULT,
    *,
    limit: int = 2_000_000,
) -> Explored[World]:
    """Everything that can happen to a job when at most so many things go wrong."""
    model = Model(without, faults)
    return explore(World(faults=most), model.steps, canonical, ended, stuck=Never.LOST, limit=limit)
