"""The clocks of waits that cost no attempt: two columns, each a moment since which a job waits.

Time in which a job waits for something else is taken out by moving the moment on, so both need no history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from dlpipe.core.recovery import FailureWrite
from dlpipe.core.waits import ROOM, Waited
from dlpipe.db.clock import after, now
from dlpipe.db.schema import artifact_jobs

_T = artifact_jobs.c
CLOCKS = (_T.postponed_since, _T.room_since)
NOT_WAITING: Mapping[str, None] = dict.fromkeys(clock.name for clock in CLOCKS)


def when_idle(since: sa.ColumnElement[Any]) -> Mapping[str, Any]:
    """From that moment until now the job was not put off: we have kept it waiting ourselves."""
    return {clock.name: sa.case((since < now(), clock + (now() - since)), else_=clock) for clock in CLOCKS}


def when_claimed() -> Mapping[str, Any]:
    """What was waited for came with the due time; a run that is under way stood still since it was let go, or sent."""
    moved = when_idle(sa.func.coalesce(_T.due_at, _T.lease_until, _T.published_at))
    # The release before knows one clock alone, and leaves the other one behind where it ends a wait.
    is_left = sa.and_(_T.postponed_since.is_(None), _T.room_since.is_not(None))
    return {**moved, _T.room_since.name: sa.case((is_left, None), else_=moved[_T.room_since.name])}


def when_handed_back(*, waits: bool) -> Mapping[str, Any]:
    """Its work was given up; the time after its lease is no wait in any case."""
    moved = when_idle(_T.lease_until)
    if not waits:
        return moved
    return {**moved, _T.postponed_since.name: sa.func.coalesce(moved[_T.postponed_since.name], now())}


def when_failed(write: FailureWrite) -> Mapping[str, Any]:
    for_room = write.code == ROOM and write.due_after_s is not None
    return {
        _T.postponed_since.name: _clock(_T.postponed_since, write, runs=not write.uses_attempt),
        _T.room_since.name: now() if for_room and write.anew else _clock(_T.room_since, write, runs=for_room),
    }


def _clock(clock: sa.ColumnElement[Any], write: FailureWrite, *, runs: bool) -> Any:
    if runs:
        return sa.func.coalesce(clock, now())
    # Another wait is not counted: it is over when the next run is due.
    return clock if write.due_after_s is None else after(write.due_after_s) - (now() - clock)


def waited(row: Any) -> Waited:
    """Of a row with both clocks, and `at`, the time it is."""
    return Waited(
        *((row.at - since).total_seconds() if since else 0.0 for since in (row.postponed_since, row.room_since))
    )
