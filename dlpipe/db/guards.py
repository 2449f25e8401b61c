"""The pieces of SQL that every guarded write is made of; their WHERE is read from the state table.

Statements that every stage makes are built once and bound to a job when they are executed: to build one costs more
than to execute it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn

import sqlalchemy as sa

from dlpipe.core import flow, states
from dlpipe.core.errors import IllegalTransition, LeaseLost
from dlpipe.core.model import ArtifactJob
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import State, Status
from dlpipe.db.clock import now
from dlpipe.db.inserts import own_values
from dlpipe.db.ready import Ready
from dlpipe.db.schema import artifact_jobs, jobs
from dlpipe.db.waiting import NOT_WAITING

_T = artifact_jobs.c
FREE: Mapping[str, None] = {"lease_owner": None, "lease_until": None}
NO_ERROR: Mapping[str, None] = {"error_code": None, "error_message_safe": None, "error_debug_id": None}
IDLE: Mapping[str, None] = {**FREE, "published_at": None}


MY_JOB, MY_FENCE = sa.bindparam("my_job", type_=_T.job_id.type), sa.bindparam("my_fence", type_=_T.fence.type)


def mine(job: ArtifactJob) -> dict[str, Any]:
    """What a guarded statement is executed with."""
    return {MY_JOB.key: job.job_id, MY_FENCE.key: job.fence}


def guarded(allowed: frozenset[State]) -> sa.Update:
    """An update that only the holder of the fence (`mine`) can make, from an allowed state, as long as it holds."""
    return sa.update(artifact_jobs).where(
        _T.job_id == MY_JOB,
        _T.fence == MY_FENCE,
        # Whoever has advanced, failed or handed back has let go: under the same fence nothing more counts.
        _T.lease_owner.is_not(None),
        _T.due_at.is_(None),
        in_states(allowed),
    )


def entering(target: State) -> dict[str, Any]:
    """What the job's row becomes at the end of a stage that leads there, with its lease free."""
    values: dict[str, Any] = {**FREE, "published_at": now(), "state": target.value}
    if states.is_terminal(target, retry_due=False):
        values |= {"published_at": None, "purpose": None, "replay_from": None}
    if target not in states.can_go_back():
        values |= {"stood": None, **NOT_WAITING}  # from here on the run goes through, and asks no server
    if not flow.needs_part(target):
        values["node"] = None
    return own_values(artifact_jobs, updated=True) | values


def following(stage: str, target: State) -> sa.Update:
    """The canonical row, once that stage has led there (STATE-7)."""
    values: dict[str, Any] = {"progress": flow.stage(stage).progress}
    if states.is_terminal(target, retry_due=False):
        status = states.status_of(target, retry_due=False).value
        values = {"status": status, "progress": 100, "completed_at": now(), "failed_at": None, **NO_ERROR}
    return sa.update(jobs).values(**own_values(jobs, updated=True) | {"updated_at": now(), **values})


def raise_why(connection: sa.Connection, job: ArtifactJob, wanted: State, allowed: frozenset[State]) -> NoReturn:
    row = connection.execute(sa.select(_T.state, _T.fence).where(_T.job_id == job.job_id)).first()
    if row is None or row.fence != job.fence:
        raise LeaseLost(f"the fence of job {job.job_id} has moved on: another worker's work counts")
    if row.state in allowed:
        raise LeaseLost(f"the claim on job {job.job_id} is over: it was given back")
    raise IllegalTransition(job.job_id, wanted, states.origins(wanted), row.state)


def note(connection: sa.Connection, job_id: str, *moments: str, **values: Any) -> None:
    """The canonical row follows in the same transaction (STATE-7); the columns `moments` become the time it is."""
    given = {f"new_{name}": value for name, value in values.items()}
    _noted(moments, tuple(values))(connection, {MY_JOB.key: job_id, **given})


@cache
def _noted(moments: tuple[str, ...], names: tuple[str, ...]) -> Ready:
    given = {name: sa.bindparam(f"new_{name}", type_=jobs.c[name].type) for name in names}
    noted = sa.update(jobs).where(jobs.c.job_id == MY_JOB)
    return Ready(noted.values(**given, **dict.fromkeys(("updated_at", *moments), now())))


def note_error(
    connection: sa.Connection, job_id: str, status: Status | None, write: FailureWrite, *, ended: bool
) -> None:
    values: dict[str, Any] = {
        "error_code": write.code,
        "error_message_safe": write.message[:1024],
        "error_debug_id": write.debug_id,
    }
    if status is not None:
        values["status"] = status.value
    note(connection, job_id, *(("failed_at",) if ended else ()), **values)


def in_states(found: frozenset[State]) -> sa.ColumnElement[bool]:
    # Written out: a list of bound values is spelled anew whenever the statement is executed.
    names = [sa.literal_column(f"'{state.value}'", _T.state.type) for state in sorted(found)]
    return _T.state.in_(names) if names else sa.false()


def lease_free() -> sa.ColumnElement[bool]:
    return sa.or_(_T.lease_owner.is_(None), _T.lease_until <= now())
