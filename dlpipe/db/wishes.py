"""What owners wish: each wish is one guarded statement for any number of jobs of a scope (JOB-8, JOB-9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core import states
from dlpipe.core.flow import REPLAYABLE, OpType
from dlpipe.core.model import Scope
from dlpipe.core.states import Moment, Purpose, State, Status
from dlpipe.core.wishes import Wish
from dlpipe.db.clock import now
from dlpipe.db.guards import IDLE, NO_ERROR, in_states
from dlpipe.db.rows import is_uuid
from dlpipe.db.schema import artifact_jobs, artifact_ops, job_artifacts, jobs
from dlpipe.db.waiting import NOT_WAITING

_J, _T, _A, _O = jobs.c, artifact_jobs.c, job_artifacts.c, artifact_ops.c
_ENDS = frozenset(state for state in State if states.is_terminal(state, retry_due=False))
_NO_PURPOSE: Mapping[str, None] = {"purpose": None, "replay_from": None}
FAILED_FOR_GOOD = sa.and_(_T.state == State.FAILED.value, _T.due_at.is_(None))


def grant(
    connection: sa.Connection, scope: Scope, wish: Wish, job_ids: Sequence[str], from_stage: str | None = None
) -> list[str]:
    """Answer the jobs that were changed; those of others and those where the wish is void are left alone."""
    ids = [job_id for job_id in job_ids if is_uuid(job_id)]
    if not ids:
        return []
    withdrawn = _withdraw(connection, _these(scope, ids)) if wish is Wish.CANCEL else []
    changed: list[str] = []
    terms = (_replay(from_stage),) if wish is Wish.REPLAY else _TERMS[wish]
    for where, values, told in terms:
        granted = sa.update(artifact_jobs).where(_these(scope, ids), where).values(**values).returning(_T.job_id)
        these = list(connection.scalars(granted))
        _tell(connection, these, told)
        changed += these
    return [*withdrawn, *changed]


def _withdraw(connection: sa.Connection, these: sa.ColumnElement[bool]) -> list[str]:
    """Take back further runs; these jobs are again what they were, with the results that they had."""
    taken: list[Any] = []
    for where, values in _BACK:
        back = sa.update(artifact_jobs).where(these, where).values(**values, **_NO_FURTHER_RUN)
        taken += connection.execute(back.returning(_T.job_id, _T.state)).all()
    for state in {row.state for row in taken}:
        status = states.status_of(State(state), retry_due=False)
        told = {"status": status.value, "progress": 100, **NO_ERROR}
        _tell(connection, [row.job_id for row in taken if row.state == state], told)
    return [row.job_id for row in taken]


def _these(scope: Scope, ids: Sequence[str]) -> sa.ColumnElement[bool]:
    owned = sa.exists().where(_J.job_id == _T.job_id, owned_by(scope)).correlate(artifact_jobs)
    return sa.and_(_T.job_id.in_(ids), owned)


def _tell(connection: sa.Connection, job_ids: Sequence[str], told: Mapping[str, Any]) -> None:
    """The canonical rows follow in the same transaction (STATE-7)."""
    if job_ids:
        connection.execute(sa.update(jobs).where(_J.job_id.in_(job_ids)).values(updated_at=now(), **told))


def owned_by(scope: Scope) -> sa.ColumnElement[bool]:
    return sa.and_(_J.tenant_id == scope.tenant_id, _J.project_id == scope.project_id)


_HAS_RESULT = sa.exists().where(_A.job_id == _T.job_id, _A.role == "result").correlate(artifact_jobs)
# What an earlier run registered is no result of a further one.
_REGISTERED = sa.and_(_T.purpose.is_(None), _HAS_RESULT)
_HAS_FILE = (
    sa.exists()
    .where(_O.job_id == _T.job_id, _O.op_type == OpType.FINALIZE.value, _O.state == "finished")
    .correlate(artifact_jobs)
)
_NO_FURTHER_RUN: Mapping[str, None] = {**_NO_PURPOSE, "due_at": None, "paused_at": None, "stood": None}
_BACK: tuple[tuple[sa.ColumnElement[bool], dict[str, Any]], ...] = (
    # It has not begun: the job is still where it was.
    (sa.and_(in_states(states.withdrawable()), _T.due_at.is_not(None)), {"published_at": None}),
    # It has begun: a raised fence, so that whoever is at it can record nothing any more.
    (
        sa.and_(_T.stood.is_not(None), in_states(states.can_go_back()), ~FAILED_FOR_GOOD),
        {"state": _T.stood, "fence": _T.fence + 1, **IDLE, "withdrawn_run": _T.run},
    ),
)
_AT_ITS_END = sa.or_(sa.and_(in_states(states.refreshable()), _T.due_at.is_(None)), FAILED_FOR_GOOD)
_AGAIN: Mapping[str, Any] = {"due_at": now(), "attempts": 0, "published_at": None, **NOT_WAITING}
_FURTHER: Mapping[str, Any] = {
    **_AGAIN,
    "replay_from": None,
    "stood": sa.case((in_states(states.refreshable()), _T.state), else_=_T.stood),
}
_FETCHED_AFTER_ALL: Mapping[str, Any] = {
    # What was wrong with the stored file no further replay can mend.
    "purpose": sa.case((_T.purpose == Purpose.REPLAY.value, Purpose.REPAIR.value), else_=_T.purpose),
    "replay_from": None,
}
_WITH_WHAT_REMAINS = states.retried(registered=True)

_Term = tuple[sa.ColumnElement[bool], dict[str, Any], dict[str, Any]]
"""Which jobs, what becomes of them, and what their owners are told."""

# A raised fence: a worker in the middle of it can record nothing any more, and its op is seen to be abandoned.
_TERMS: dict[Wish, tuple[_Term, ...]] = {
    Wish.CANCEL: (
        (
            # Never once there is a result; a further run that cannot be taken back any more goes through (JOB-9).
            sa.and_(in_states(states.sources(State.CANCELED, Moment.CANCEL)), ~FAILED_FOR_GOOD, ~_HAS_RESULT),
            {
                "state": State.CANCELED.value,
                "fence": _T.fence + 1,
                **IDLE,
                "due_at": None,
                "paused_at": None,
                **_NO_PURPOSE,
            },
            {"status": Status.CANCELED.value, "completed_at": None},
        ),
    ),
    # The run is over and the next one is wanted, as when a worker hands a job back; only that nobody sends it.
    Wish.PAUSE: (
        (
            sa.and_(_T.paused_at.is_(None), sa.or_(~in_states(_ENDS), _T.due_at.is_not(None))),
            {"fence": _T.fence + 1, **IDLE, "due_at": sa.func.coalesce(_T.due_at, now()), "paused_at": now()},
            {},
        ),
    ),
    Wish.RESUME: ((_T.paused_at.is_not(None), {"paused_at": None}, {}),),
    Wish.RETRY: (
        (
            sa.and_(FAILED_FOR_GOOD, _REGISTERED),
            {**_AGAIN, "state": _WITH_WHAT_REMAINS.value},
            {"status": states.status_of(_WITH_WHAT_REMAINS, retry_due=True).value, "failed_at": None},
        ),
        (FAILED_FOR_GOOD, {**_AGAIN, **_FETCHED_AFTER_ALL}, {"status": Status.PENDING.value, "failed_at": None}),
    ),
    Wish.REFRESH: (
        (
            _AT_ITS_END,
            {**_FURTHER, "purpose": Purpose.REFRESH.value},
            {"status": Status.PENDING.value, "progress": 0, "failed_at": None},
        ),
    ),
}


def _replay(from_stage: str | None) -> _Term:
    """A file that was never registered can be, as long as that is not passed over."""
    begin = from_stage or REPLAYABLE[0]
    stored = _HAS_RESULT if begin == "dedupe" else sa.or_(_HAS_RESULT, _HAS_FILE)
    return (
        sa.and_(_AT_ITS_END, stored),
        {**_FURTHER, "purpose": Purpose.REPLAY.value, "replay_from": begin},
        {"status": Status.PENDING.value, "progress": 0, "failed_at": None},
    )
