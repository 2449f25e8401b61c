"""What workers do to the rows of jobs: claim, advance, fail, hand back.

Every guarded write is one UPDATE whose WHERE is read from the state table. What dispatch and reconcile do is in
backlog, what owners see and wish in owned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from dlpipe.core import flow, states
from dlpipe.core.errors import Postponed
from dlpipe.core.flow import StageRow
from dlpipe.core.model import ArtifactJob, JobSpec, PlanAnswer, Scope
from dlpipe.core.nodes import NodePolicy
from dlpipe.core.ports import Claim, Claimed, Past, Refused
from dlpipe.core.recovery import FailureWrite, after_failure
from dlpipe.core.states import Moment, State, Status
from dlpipe.db import backfill, planning, waiting
from dlpipe.db.clock import after, now
from dlpipe.db.guards import (
    IDLE,
    MY_JOB,
    entering,
    following,
    guarded,
    in_states,
    lease_free,
    mine,
    note,
    note_error,
    raise_why,
)
from dlpipe.db.inserts import own_values
from dlpipe.db.ready import Ready
from dlpipe.db.rows import is_uuid, job_from
from dlpipe.db.schema import artifact_jobs, jobs, nodes

_T = artifact_jobs.c


def _claim(stage: StageRow, *, here: bool = False) -> ReturningUpdate[Any]:
    """The claim of a stage: one statement, which also tells whose the job is. `here`: it works on a node's own part."""
    job_id, run = sa.bindparam("claimed_job", type_=_T.job_id.type), sa.bindparam("claimed_run", type_=_T.run.type)
    token, ttl_s = sa.bindparam("token", type_=_T.lease_owner.type), sa.bindparam("ttl_s", type_=sa.Float())
    within = sa.and_(_T.run == run, _T.due_at.is_(None), in_states(states.claimable(stage.name)))
    # A due time says that the run before is over; only then may the next one start.
    begins = sa.and_(_T.run == run - 1, _T.due_at.is_not(None), in_states(flow.startable(stage.name)))
    entered = states.on_claim(stage.name)
    cases = [(sa.and_(within), entered.value)] if entered else []
    cases += [
        (sa.and_(begins, _T.state == state.value), target.value)
        for state in flow.startable(stage.name)
        if (target := states.start_target(state)) is not None and target is not state
    ]
    # By the bound id: SQLite would be given the row's own without its table's name, and compare it with itself.
    whole = sa.select(jobs.c.tenant_id, jobs.c.project_id, jobs.c.request_id).where(jobs.c.job_id == job_id)
    owner = [
        whole.with_only_columns(one).scalar_subquery().label(f"owners_{one.name}") for one in whole.selected_columns
    ]
    return (
        sa.update(artifact_jobs)
        .where(_T.job_id == job_id, _T.paused_at.is_(None), lease_free(), sa.or_(within, begins))
        .where(*((sa.or_(_T.node == _HERE, sa.and_(_T.node.is_(None), _takes_jobs())),) if here else ()))
        .values(
            **({"node": _HERE} if here else {}),
            fence=_T.fence + 1,
            run=run,
            state=sa.case(*cases, else_=_T.state) if cases else _T.state,
            lease_owner=token,
            lease_until=after(ttl_s),
            **waiting.when_claimed(),
            due_at=None,
        )
        .returning(*_T, *owner, now().label("at"))
    )


_HERE, _SINCE_S = sa.bindparam("here", type_=_T.node.type), sa.bindparam("since_s", type_=sa.Float())


def _takes_jobs() -> sa.ColumnElement[bool]:
    """This node is not drained, and its queues are taken from: else a job would begin there and wait for ever."""
    since = after(_SINCE_S)
    ready = sa.select(nodes.c.name).where(
        nodes.c.name == _HERE, nodes.c.drained_at.is_(None), nodes.c.net_at > since, nodes.c.disk_at > since
    )
    return sa.exists(ready)


@cache
def _claims(stage: str, dialect: str, *, here: bool) -> Ready:
    """With the canonical row of a job whose run begins (STATE-7): on PostgreSQL in the same statement."""
    claim = _claim(flow.stage(stage), here=here)
    if dialect != "postgresql":
        return Ready(claim)
    claimed = claim.cte("claimed")
    begun = sa.and_(jobs.c.job_id == claimed.c.job_id, claimed.c.state == State.LEASED.value)
    values = own_values(jobs, updated=True) | {**_BEGUN, "updated_at": now()}
    follows = sa.update(jobs).where(begun).values(values).cte("follows")
    return Ready(sa.select(claimed).add_cte(follows))


_BEGUN = {"status": Status.PROCESSING.value, "progress": 0}


@cache
def _advanced(stage: str, target: State, dialect: str) -> tuple[Ready, ...]:
    """What enters a state after a stage, to be executed in order as long as each of them finds its row.

    The canonical row follows (STATE-7): on PostgreSQL in the same statement, which saves a round trip; SQLite has no
    such statements, and no round trips either.
    """
    entered = guarded(states.sources(target, Moment.FINISH, stage)).values(entering(target))
    follows = following(stage, target)
    if dialect == "postgresql":
        moved = entered.returning(_T.job_id).cte("moved")
        return (Ready(follows.where(jobs.c.job_id == moved.c.job_id)),)
    return Ready(entered), Ready(follows.where(jobs.c.job_id == MY_JOB))


_MY_TOKEN = sa.bindparam("my_token", type_=_T.lease_owner.type)
# By the token as well: who claims onward and hears no answer hands back under a fence that may be somebody else's.
_HANDED_BACK = {
    waits: guarded(states.sources(State.FAILED, Moment.FAIL))
    .where(_T.lease_owner == _MY_TOKEN)
    .values(**IDLE, due_at=now(), **waiting.when_handed_back(waits=waits))
    for waits in (True, False)
}


def _node_takes_none(row: Any, here: NodePolicy) -> FailureWrite:
    """What becomes of a job whose message came to a node that takes no jobs."""
    message = f"no node that takes jobs has taken it; {here.name} does not"
    failure = Postponed(message, code="node_takes_none", after_s=here.beat_s)
    return after_failure(failure, State(row.state), row.attempts, "", 0.0, here.retry, waiting.waited(row))


class SqlJobs:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    # ── planning ──────────────────────────────────────────────────────────────────────────────────

    def plan_if_absent(self, specs: Sequence[JobSpec]) -> list[PlanAnswer]:
        return planning.plan_if_absent(self._connection, specs)

    def add_finished(self, finished: Sequence[tuple[JobSpec, datetime | None]]) -> set[str]:
        return backfill.add_finished(self._connection, finished)

    # ── a stage's claim and what comes of it ──────────────────────────────────────────────────────

    def claim(
        self, stage: StageRow, job_id: str, run: int, token: str, ttl_s: float, here: NodePolicy | None = None
    ) -> Claim:
        if not is_uuid(job_id):
            return Refused("unknown_job")
        wanted: dict[str, Any] = {"claimed_job": job_id, "claimed_run": run, "token": token, "ttl_s": ttl_s}
        its_part = here is not None and stage.staged
        if here is not None and its_part:
            wanted |= {_HERE.key: here.name, _SINCE_S.key: -here.fresh_s}
        dialect = self._connection.dialect.name
        row = _claims(stage.name, dialect, here=its_part)(self._connection, wanted).first()
        if row is None:
            return self._why_not(stage, job_id, run, here)
        if dialect != "postgresql" and row.state == State.LEASED.value:
            note(self._connection, job_id, **_BEGUN)
        scope = Scope(row.owners_tenant_id, row.owners_project_id)
        job = job_from(row, scope, request_id=row.owners_request_id, lease_live=True)
        return Claimed(replace(job, waited=waiting.waited(row)))

    def _why_not(self, stage: StageRow, job_id: str, run: int, here: NodePolicy | None) -> Claim:
        row = self._connection.execute(
            sa.select(_T.state, _T.run, _T.node, _T.due_at, _T.paused_at, lease_free().label("free")).where(
                _T.job_id == job_id
            )
        ).first()
        if row is None:
            return Refused("unknown_job")
        state = State(row.state)
        if row.run > run:
            return Refused("older_run")
        if row.run == run and flow.is_past(state, stage.name):
            return Past(state, row.node)
        if row.paused_at is not None:
            return Refused("job_paused")
        if not row.free:
            return Refused("lease_held")
        if states.is_terminal(state, retry_due=row.due_at is not None):
            return Refused("job_at_an_end")
        if here is not None and stage.staged and row.run == run and state in states.claimable(stage.name):
            if row.node is not None and row.node != here.name:
                return Refused("other_node")
            if row.node is None and self._pass_on(job_id, run, here):
                return Refused("node_takes_none")
        return Refused("out_of_order")

    def _pass_on(self, job_id: str, run: int, here: NodePolicy) -> bool:
        """Due again, for a node that takes jobs; in a while, as there may be none, and each run asks the server."""
        passed = sa.update(artifact_jobs).where(
            _T.job_id == job_id, _T.run == run, _T.node.is_(None), _T.due_at.is_(None), _T.lease_owner.is_(None)
        )
        moved = passed.values(fence=_T.fence + 1, **waiting.when_claimed())
        row = self._connection.execute(moved.returning(*_T, now().label("at"))).first()
        if row is None:
            return False
        write = _node_takes_none(row, here)
        ends = write.due_after_s is None
        values = {**IDLE, **waiting.when_failed(write), "due_at": None if ends else after(write.due_after_s or 0.0)}
        values |= {"state": State.FAILED.value} if ends else {}
        self._connection.execute(passed.values(**values))
        note_error(self._connection, job_id, Status.FAILED if ends else None, write, ended=ends)
        return True

    def advance(self, job: ArtifactJob, stage: StageRow, target: State) -> None:
        for statement in _advanced(stage.name, target, self._connection.dialect.name):
            if statement(self._connection, mine(job)).rowcount == 0:
                raise_why(self._connection, job, target, states.sources(target, Moment.FINISH, stage.name))

    def fail(self, job: ArtifactJob, write: FailureWrite) -> None:
        waits = write.due_after_s is not None
        stays = waits and write.keeps_state
        allowed = states.sources(State.FAILED, Moment.FAIL)
        changed = guarded(allowed).values(
            state=_T.state if stays else State.FAILED.value,
            **IDLE,
            due_at=after(write.due_after_s) if write.due_after_s is not None else None,
            attempts=_T.attempts + (1 if write.uses_attempt else 0),
            **waiting.when_failed(write),
        )
        if self._connection.execute(changed, mine(job)).rowcount == 0:
            raise_why(self._connection, job, State.FAILED, allowed)
        status = None if stays else states.status_of(State.FAILED, retry_due=waits)
        note_error(self._connection, job.job_id, status, write, ended=not waits)

    def has_room(self, job: ArtifactJob) -> None:
        allowed = states.sources(State.FAILED, Moment.FAIL)
        self._connection.execute(guarded(allowed).values(room_since=None), mine(job))

    def hand_back(self, job: ArtifactJob, *, waits: bool = True) -> bool:
        changed = self._connection.execute(_HANDED_BACK[waits], {**mine(job), _MY_TOKEN.key: job.lease_owner})
        return changed.rowcount > 0

    def renew(self, claims: Sequence[tuple[str, int]], ttl_s: float) -> set[str]:
        lost = set()
        for job_id, fence in claims:
            changed = self._connection.execute(
                sa.update(artifact_jobs)
                .where(_T.job_id == job_id, _T.fence == fence, _T.lease_owner.is_not(None))
                .values(lease_until=after(ttl_s))
            )
            if changed.rowcount == 0:
                lost.add(job_id)
        return lost

    def get_current_state(self, job_id: str) -> State | None:
        if not is_uuid(job_id):
            return None
        found = self._connection.scalar(sa.select(_T.state).where(_T.job_id == job_id))
        return State(found) if found else None

    def counts(self) -> Mapping[Status, int]:
        rows = self._connection.execute(sa.select(jobs.c.status, sa.func.count().label("n")).group_by(jobs.c.status))
        found = {Status(row.status): row.n for row in rows}
        return {status: found.get(status, 0) for status in Status}
