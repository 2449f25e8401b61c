"""What workers do to the rows of jobs: claim, advance, fail, hand back.

Every guarded write is one UPDATE whose WHERE is read from the state table. What dispatch and reconcile do is in
backlog, what owners see and wish in owned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from dlpipe.core import flow, states
from dlpipe.core.flow import StageRow
from dlpipe.core.model import ArtifactJob, JobSpec, PlanAnswer, Scope
from dlpipe.core.ports import Claim, Claimed, Past, Refused
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import Moment, State, Status
from dlpipe.db import backfill, planning
from dlpipe.db.clock import after, now
from dlpipe.db.guards import FREE, IDLE, NO_ERROR, guarded, in_states, lease_free, note, note_error, raise_why
from dlpipe.db.rows import is_uuid, job_from
from dlpipe.db.schema import artifact_jobs, jobs

_T = artifact_jobs.c


class SqlJobs:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    # ── planning ──────────────────────────────────────────────────────────────────────────────────

    def plan_if_absent(self, specs: Sequence[JobSpec]) -> list[PlanAnswer]:
        return planning.plan_if_absent(self._connection, specs)

    def add_finished(self, finished: Sequence[tuple[JobSpec, datetime | None]]) -> set[str]:
        return backfill.add_finished(self._connection, finished)

    # ── a stage's claim and what comes of it ──────────────────────────────────────────────────────

    def claim(self, stage: StageRow, job_id: str, run: int, token: str, ttl_s: float) -> Claim:
        if not is_uuid(job_id):
            return Refused("unknown_job")
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
        row = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_T.job_id == job_id, _T.paused_at.is_(None), lease_free(), sa.or_(within, begins))
            .values(
                fence=_T.fence + 1,
                run=run,
                state=sa.case(*cases, else_=_T.state) if cases else _T.state,
                lease_owner=token,
                lease_until=after(ttl_s),
                # What a server asked for ended with the due time; since then we have kept the job waiting.
                postponed_since=sa.case(
                    (_T.due_at < now(), now() - (_T.due_at - _T.postponed_since)), else_=_T.postponed_since
                ),
                due_at=None,
            )
            .returning(*_T)
        ).first()
        if row is None:
            return self._why_not(stage, job_id, run)
        if row.state == State.LEASED.value:
            note(self._connection, job_id, status=Status.PROCESSING.value, progress=0)
        owner = self._connection.execute(
            sa.select(jobs.c.tenant_id, jobs.c.project_id, jobs.c.request_id, now().label("at")).where(
                jobs.c.job_id == job_id
            )
        ).one()
        put_off_s = (owner.at - row.postponed_since).total_seconds() if row.postponed_since is not None else 0.0
        scope = Scope(owner.tenant_id, owner.project_id)
        job = job_from(row, scope, request_id=owner.request_id, lease_live=True)
        return Claimed(replace(job, put_off_s=put_off_s))

    def _why_not(self, stage: StageRow, job_id: str, run: int) -> Claim:
        row = self._connection.execute(
            sa.select(_T.state, _T.run, _T.due_at, _T.paused_at, lease_free().label("free")).where(_T.job_id == job_id)
        ).first()
        if row is None:
            return Refused("unknown_job")
        state = State(row.state)
        if row.run > run:
            return Refused("older_run")
        if row.run == run and flow.is_past(state, stage.name):
            return Past(state)
        if row.paused_at is not None:
            return Refused("job_paused")
        if not row.free:
            return Refused("lease_held")
        if states.is_terminal(state, retry_due=row.due_at is not None):
            return Refused("job_at_an_end")
        return Refused("out_of_order")

    def advance(self, job: ArtifactJob, stage: StageRow, target: State) -> None:
        allowed = states.sources(target, Moment.FINISH, stage.name)
        ended = states.is_terminal(target, retry_due=False)
        values: dict[str, Any] = {"published_at": now()}
        if ended:
            values = {"published_at": None, "purpose": None, "replay_from": None}
        if target not in states.can_go_back():
            values |= {"stood": None, "postponed_since": None}  # from here on the run goes through, and asks no server
        changed = guarded(job, allowed).values(state=target.value, **FREE, **values)
        if self._connection.execute(changed).rowcount == 0:
            raise_why(self._connection, job, target, allowed)
        if not ended:
            note(self._connection, job.job_id, progress=stage.progress)
            return
        note(
            self._connection,
            job.job_id,
            status=states.status_of(target, retry_due=False).value,
            progress=100,
            completed_at=now(),
            failed_at=None,
            **NO_ERROR,
        )

    def fail(self, job: ArtifactJob, write: FailureWrite) -> None:
        waits = write.due_after_s is not None
        stays = waits and write.keeps_state
        since: Any = _T.postponed_since
        if write.put_off:
            since = sa.func.coalesce(since, now())
        elif write.due_after_s is not None:
            since = after(write.due_after_s) - (now() - since)  # a wait that no server asked for is not counted
        allowed = states.sources(State.FAILED, Moment.FAIL)
        changed = guarded(job, allowed).values(
            state=_T.state if stays else State.FAILED.value,
            **IDLE,
            due_at=after(write.due_after_s) if write.due_after_s is not None else None,
            attempts=_T.attempts + (1 if write.uses_attempt else 0),
            postponed_since=since,
        )
        if self._connection.execute(changed).rowcount == 0:
            raise_why(self._connection, job, State.FAILED, allowed)
        status = None if stays else states.status_of(State.FAILED, retry_due=waits)
        note_error(self._connection, job.job_id, status, write, ended=not waits)

    def hand_back(self, job: ArtifactJob) -> bool:
        changed = self._connection.execute(
            guarded(job, states.sources(State.FAILED, Moment.FAIL)).values(**IDLE, due_at=now())
        )
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
