"""What people may wish for a job: to have it end, go on, rest, or be done again."""

from __future__ import annotations

from collections.abc import Iterator

from dlpipe.core import states
from dlpipe.core.states import Moment, State
from tests.model import table
from tests.model.explorer import Step
from tests.model.guards import Fault, Guard, Never
from tests.model.world import World


class Wishes:
    """`grant` (db/wishes.py)."""

    def __init__(self, guards: frozenset[Guard], faults: frozenset[Fault]) -> None:
        self._guards = guards
        self._may = faults.__contains__

    def has(self, guard: Guard) -> bool:
        return guard in self._guards

    def steps(self, w: World) -> Iterator[Step[World]]:
        row = w.row
        for_good = row.state is State.FAILED and not row.due
        allowed = table.sources(State.CANCELED, Moment.CANCEL) if self.has(Guard.CANCEL_STATE) else frozenset(State)
        if self._may(Fault.CANCEL) and row.state in states.withdrawable() and row.due:
            as_before = row._replace(due=False, published=False, purpose="", paused=False)
            yield Step("somebody takes back the wish for a further run", w._replace(row=as_before))
        elif self._may(Fault.CANCEL) and row.state in allowed and not for_good and row.state is not State.CANCELED:
            ended = row._replace(
                state=State.CANCELED,
                fence=row.fence + (1 if self.has(Guard.CANCEL_FENCE_UP) else 0),
                owner=None,
                live=False,
                due=False,
                published=False,
                purpose="",
                paused=False,
            )
            broken = Never.CANCELED if w.artifacts and not row.purpose else ""
            yield Step("somebody cancels the job", w._replace(row=ended, holder=None), broken=broken)
        if self._may(Fault.RETRY) and for_good:
            state = states.retried(registered=bool(w.artifacts) and not row.purpose)
            again = row._replace(state=state, due=True, attempts=0, published=False)
            yield Step("somebody retries the job", w._replace(row=again))
        if self._may(Fault.REFRESH) and (for_good or (row.state in states.refreshable() and not row.due)):
            again = row._replace(due=True, attempts=0, published=False, purpose="refresh")
            yield Step("somebody wants the job refreshed", w._replace(row=again))
        if self._may(Fault.PAUSE) and not row.paused and not table.is_terminal(row.state, retry_due=row.due):
            rests = row._replace(
                fence=row.fence + (1 if self.has(Guard.PAUSE_FENCE_UP) else 0),
                owner=None,
                live=False,
                due=True,
                published=False,
                paused=True,
            )
            yield Step("somebody pauses the job", w._replace(row=rests, holder=None))
