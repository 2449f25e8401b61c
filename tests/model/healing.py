"""What heals: dispatch sends what is due, reconcile takes up what the dead have left and brings lost files again."""

from __future__ import annotations

from collections.abc import Iterator

from dlpipe.core import recovery, states
from dlpipe.core.states import Moment, State
from tests.model import table
from tests.model.effects import POLICY
from tests.model.explorer import Step
from tests.model.guards import Guard, Never
from tests.model.world import Bytes, World


class Healing:
    def __init__(self, guards: frozenset[Guard]) -> None:
        self._guards = guards

    def has(self, guard: Guard) -> bool:
        return guard in self._guards

    def steps(self, w: World) -> Iterator[Step[World]]:
        yield from self._dispatch(w)
        yield from self._reconcile(w)
        yield from self._files(w)

    def _dispatch(self, w: World) -> Iterator[Step[World]]:
        """`SqlBacklog.take_due`, `take_lost` (db/backlog.py) and their sending (pipeline/dispatch.py)."""
        row = w.row
        if row.due and not row.published and not row.paused:
            yield self._sent(w, "dispatch sends")
        # `dispatch_lost`: more jobs wait for a message than the broker has messages.
        if self.has(Guard.RESEND) and row.published and row.owner is None and not w.messages:
            yield self._sent(w, "reconcile finds the message lost, and sends again")

    @staticmethod
    def _sent(w: World, who: str) -> Step[World]:
        """`_hint` (db/backlog.py)."""
        row = w.row
        starts = table.start_target(row.state) if row.due else None
        run = row.run + (1 if starts else 0)
        stage = table.remaining(starts or row.state)[0]
        marked = w._replace(row=row._replace(published=True))
        return Step(f"{who} the message `{stage.name}` of run {run}", marked.sent(stage.name, run))

    def _reconcile(self, w: World) -> Iterator[Step[World]]:
        """`silent` (pipeline/holders.py) over `SqlBacklog.expired` and `orphan` (db/backlog.py)."""
        if w.slow is not None:
            yield self._orphaned(w._replace(slow=None), w.slow)
        elif self.seems_dead(w):
            yield self._orphaned(w, w.row.fence)

    def seems_dead(self, w: World) -> bool:
        row = w.row
        if row.owner is None or not self.has(Guard.ORPHANS):
            return False
        over = not row.live or not self.has(Guard.ORPHAN_ROW)
        gone = w.lock is None or not self.has(Guard.ORPHAN_REDIS)
        return over and gone

    def _orphaned(self, w: World, fence: int) -> Step[World]:
        row = w.row
        same = row.fence == fence or not self.has(Guard.ORPHAN_COMPARE)
        if row.state not in table.sources(State.FAILED, Moment.FAIL) or row.owner is None or row.due or not same:
            return Step("reconcile finds that somebody else has the job now", w)
        write = recovery.after_crash(row.attempts, "", POLICY)
        freed = row._replace(
            fence=row.fence + (1 if self.has(Guard.ORPHAN_FENCE_UP) else 0),
            state=row.state if write is None else State.FAILED,
            owner=None,
            live=False,
            published=False,
            due=write is None,
            attempts=row.attempts + 1,
        )
        alive = self._at_work(w) and (w.lock == w.holder or (row.owner == w.holder and row.live))
        what = "a new run is due" if write is None else "its attempts are used up: FAILED"
        text = f"reconcile takes the holder for dead: {what}"
        return Step(text, w._replace(row=freed, holder=None), broken=Never.ORPHAN if alive else "")

    @staticmethod
    def _at_work(w: World) -> bool:
        holder = w.workers[w.holder] if w.holder is not None else None
        return holder is not None and not (holder.lost or holder.stopped) and holder.at != "giveup"

    def _files(self, w: World) -> Iterator[Step[World]]:
        """`registered` and `bring_again` (pipeline/blobs.py) over `SqlBacklog.reopen` (db/backlog.py)."""
        if w.looked is not None:
            yield self._brought_again(w._replace(looked=None), *w.looked)
        lost = self.lost(w)
        if lost is not None:
            yield self._brought_again(w, w.row.fence, lost)
        for name, _ in w.marked:
            if w.is_right(name):
                mended = tuple(one for one in w.marked if one[0] != name)
                yield Step("reconcile finds the file there again", w._replace(marked=mended))

    def lost(self, w: World) -> Bytes | None:
        name = w.newest()
        marked = any(name == known for known, _ in w.marked)
        return None if name is None or marked or w.is_right(name) or not self.has(Guard.LOOK) else name

    def _brought_again(self, w: World, fence: int, name: Bytes) -> Step[World]:
        row, target = w.row, states.reopened(w.row.state)
        same = row.fence == fence or not self.has(Guard.REOPEN_COMPARE)
        free = row.owner is None or not row.live or not self.has(Guard.REOPEN_LEASE)
        waits = row.due and target is row.state
        others = tuple(one for one in w.marked if one[0] != name)
        if name == w.newest() and not (target and same and free and not (waits and self.has(Guard.REOPEN_WISH))):
            if row.fence != fence or not table.is_terminal(row.state, retry_due=row.due):
                return Step("reconcile leaves the lost file to the run that there is", w)
            target = None
        if target is None or name != w.newest():
            marked = tuple(sorted([*others, (name, (name, True) in w.marked)]))
            return Step("reconcile marks the file as lost", w._replace(marked=marked))
        again = row._replace(
            fence=row.fence + (1 if self.has(Guard.REOPEN_FENCE_UP) else 0),
            state=target,
            owner=None,
            live=False,
            published=False,
            due=True,
            attempts=0,
            purpose="repair",
        )
        broken = ""
        if self._at_work(w) and row.owner == w.holder and row.live:
            broken = Never.TAKEN
        elif waits and row.purpose == "refresh":
            broken = Never.WISH
        elif row.fence != fence and w.is_right(name):
            broken = Never.NEEDLESS
        elif (name, True) in w.marked:
            broken = Never.ONCE
        then = w._replace(row=again, holder=None, marked=tuple(sorted([*others, (name, True)])))
        return Step("reconcile finds the file lost, and reopens the job", then, broken=broken)
