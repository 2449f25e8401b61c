"""What workers and reconcile do to the rows of jobs: claim, advance, fail, hand back, dispatch.

Every guarded write is one UPDATE whose WHERE is read from the state table. Owners' reads and wishes
are in job_views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core import flow, states
from dlpipe.core.errors import IllegalTransition, LeaseLost
from dlpipe.core.flow import StageRow
from dlpipe.core.model import ArtifactJob, JobSpec, JobView, PlanAnswer, Scope
from dlpipe.core.ports import Claim, Claimed, Held, Hint, Past, Refused
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import Moment, State, Status
from dlpipe.db import job_views, planning
from dlpipe.db.clock import after, now
from dlpipe.db.rows import JOB_COLUMNS, is_uuid, job_from
from dlpipe.db.schema import artifact_jobs, jobs

_T = artifact_jobs.c
_FREE: Mapping[str, None] = {"lease_owner": None, "lease_until": None}
_IDLE: Mapping[str, None] = {**_FREE, "published_at": None}


class SqlJobs:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    # ── planning ──────────────────────────────────────────────────────────────────────────────────

    def plan_if_absent(self, specs: Sequence[JobSpec]) -> list[PlanAnswer]:
        return planning.plan_if_absent(self._connection, specs)

    # ── a stage's claim and what comes of it ──────────────────────────────────────────────────────

    def claim(self, stage: StageRow, job_id: str, run: int, token: str, ttl_s: float) -> Claim:
        if not is_uuid(job_id):
            return Refused("unknown_job")
        within = sa.and_(_T.run == run, _T.due_at.is_(None), _in(states.claimable(stage.name)))
        # A due time says that the run before is over; only then may the next one start.
        begins = sa.and_(_T.run == run - 1, _T.due_at.is_not(None), _in(flow.startable(stage.name)))
        entered = states.on_claim(stage.name)
        cases = [(sa.and_(within), entered.value)] if entered else []
        cases += [
            (sa.and_(begins, _T.state == state.value), target.value)
            for state in flow.startable(stage.name)
            if (target := states.start_target(state)) is not None and target is not state
        ]
        row = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_T.job_id == job_id, _lease_free(), sa.or_(within, begins))
            .values(
                fence=_T.fence + 1,
                run=run,
                state=sa.case(*cases, else_=_T.state) if cases else _T.state,
                lease_owner=token,
                lease_until=after(ttl_s),
                due_at=None,
            )
            .returning(*_T)
        ).first()
        if row is None:
            return self._why_not(stage, job_id, run)
        if row.state == State.LEASED.value:
            self._note(job_id, status=Status.PROCESSING.value, progress=0)
        owner = self._connection.execute(
            sa.select(jobs.c.tenant_id, jobs.c.project_id).where(jobs.c.job_id == job_id)
        ).one()
        return Claimed(job_from(row, Scope(owner.tenant_id, owner.project_id), lease_live=True))

    def _why_not(self, stage: StageRow, job_id: str, run: int) -> Claim:
        row = self._connection.execute(
            sa.select(_T.state, _T.run, _T.due_at, _lease_free().label("free")).where(_T.job_id == job_id)
        ).first()
        if row is None:
            return Refused("unknown_job")
        state = State(row.state)
        if row.run > run:
            return Refused("older_run")
        if row.run == run and flow.is_past(state, stage.name):
            return Past(state)
        if not row.free:
            return Refused("lease_held")
        if states.is_terminal(state, retry_due=row.due_at is not None):
            return Refused("job_at_an_end")
        return Refused("out_of_order")

    def advance(self, job: ArtifactJob, stage: StageRow, target: State) -> None:
        allowed = states.sources(target, Moment.FINISH, stage.name)
        ended = states.is_terminal(target, retry_due=False)
        changed = self._guarded(job, allowed).values(state=target.value, **_FREE, published_at=None if ended else now())
        if self._connection.execute(changed).rowcount == 0:
            self._raise_why(job, target, allowed)
        if not ended:
            self._note(job.job_id, progress=stage.progress)
            return
        self._note(
            job.job_id,
            status=states.status_of(target, retry_due=False).value,
            progress=100,
            completed_at=now(),
            failed_at=None,
            error_code=None,
            error_message_safe=None,
            error_debug_id=None,
        )

    def fail(self, job: ArtifactJob, write: FailureWrite) -> None:
        waits = write.due_after_s is not None
        stays = waits and write.keeps_state
        allowed = states.sources(State.FAILED, Moment.FAIL)
        changed = self._guarded(job, allowed).values(
            state=_T.state if stays else State.FAILED.value,
            **_IDLE,
            due_at=after(write.due_after_s) if write.due_after_s is not None else None,
            attempts=_T.attempts + (1 if write.uses_attempt else 0),
        )
        if self._connection.execute(changed).rowcount == 0:
            self._raise_why(job, State.FAILED, allowed)
        status = None if stays else states.status_of(State.FAILED, retry_due=waits)
        self._note_error(job.job_id, status, write, ended=not waits)

    def hand_back(self, job: ArtifactJob) -> bool:
        changed = self._connection.execute(
            self._guarded(job, states.sources(State.FAILED, Moment.FAIL)).values(**_IDLE, due_at=now())
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

    # ── dispatch ──────────────────────────────────────────────────────────────────────────────────

    def take_due(self, limit: int, window: int, per_host: int) -> list[Hint]:
        in_flight = {
            row.host: row.n
            for row in self._connection.execute(
                sa.select(_T.host, sa.func.count().label("n")).where(_T.published_at.is_not(None)).group_by(_T.host)
            )
        }
        room = min(limit, window - sum(in_flight.values()))
        full = {host for host, n in in_flight.items() if n >= per_host}
        taken: list[Hint] = []
        while room > 0:
            due = self._due(room, full)
            chosen = []
            for job_id, host in due:
                if in_flight.get(host, 0) < per_host:
                    in_flight[host] = in_flight.get(host, 0) + 1
                    chosen.append(job_id)
            newly_full = {host for host, n in in_flight.items() if n >= per_host} - full
            taken += self._publish(chosen)
            room -= len(chosen)
            full |= newly_full
            if not newly_full or len(due) == len(chosen):
                break
        return taken

    def _due(self, limit: int, full_hosts: set[str]) -> list[tuple[str, str]]:
        query = (
            sa.select(_T.job_id, _T.host)
            .where(_T.due_at.is_not(None), _T.published_at.is_(None), _T.due_at <= now())
            .order_by(_T.priority.desc(), _T.due_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        if full_hosts:
            query = query.where(_T.host.not_in(full_hosts))
        return [(row.job_id, row.host) for row in self._connection.execute(query)]

    def _publish(self, job_ids: Sequence[str]) -> list[Hint]:
        if not job_ids:
            return []
        rows = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_T.job_id.in_(job_ids), _T.due_at.is_not(None), _T.published_at.is_(None))
            .values(published_at=now())
            .returning(_T.job_id, _T.run, _T.state, _T.due_at)
        ).all()
        by_id = {row.job_id: _hint(row) for row in rows}
        return [by_id[job_id] for job_id in job_ids if job_id in by_id]

    def waiting(self) -> int:
        query = sa.select(sa.func.count()).where(_T.published_at.is_not(None), _T.lease_owner.is_(None))
        return self._connection.execute(query).scalar_one()

    def take_lost(self, limit: int, lost_after_s: float) -> list[Hint]:
        lost = (
            sa.select(_T.job_id)
            .where(_T.published_at < after(-lost_after_s), _T.lease_owner.is_(None))
            .order_by(_T.published_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        ids = list(self._connection.scalars(lost))
        if not ids:
            return []
        rows = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_T.job_id.in_(ids), _T.published_at.is_not(None), _T.lease_owner.is_(None))
            .values(published_at=now())
            .returning(_T.job_id, _T.run, _T.state, _T.due_at)
        ).all()
        return [_hint(row) for row in rows]

    def unpublish(self, job_ids: Sequence[str]) -> None:
        """Back to due: a job in the middle of its run is found again as lost, so only waiting ones change."""
        if job_ids:
            self._connection.execute(
                sa.update(artifact_jobs).where(_T.job_id.in_(job_ids), _T.due_at.is_not(None)).values(published_at=None)
            )

    # ── dead holders ──────────────────────────────────────────────────────────────────────────────

    def expired(self, limit: int) -> list[Held]:
        return self._mirrored(_T.lease_until <= now(), limit)

    def held(self, limit: int) -> list[Held]:
        return self._mirrored(_T.lease_until > now(), limit)

    def _mirrored(self, condition: sa.ColumnElement[bool], limit: int) -> list[Held]:
        rows = self._connection.execute(
            sa.select(*JOB_COLUMNS)
            .join(jobs, jobs.c.job_id == _T.job_id)
            .where(_T.lease_until.is_not(None), condition)
            .order_by(_T.lease_until)
            .limit(limit)
        )
        return [Held(job_from(row, Scope(row.tenant_id, row.project_id)), row.lease_owner) for row in rows]

    def orphan(self, held: Held, write: FailureWrite | None) -> bool:
        ends = write is not None
        changed = self._connection.execute(
            self._guarded(held.job, states.sources(State.FAILED, Moment.FAIL))
            .where(_T.lease_owner == held.token)
            .values(
                fence=_T.fence + 1,  # whatever the dead holder may still write is refused from here on
                state=State.FAILED.value if ends else _T.state,
                **_IDLE,
                due_at=None if ends else now(),
                attempts=_T.attempts + 1,
            )
        )
        if changed.rowcount == 0:
            return False
        if write is not None:
            self._note_error(held.job.job_id, Status.FAILED, write, ended=True)
        return True

    # ── owners' wishes and questions ──────────────────────────────────────────────────────────────

    def cancel(self, scope: Scope, job_id: str) -> Status | None:
        return job_views.cancel(self._connection, scope, job_id)

    def retry(self, scope: Scope, job_id: str) -> Status | None:
        return job_views.retry(self._connection, scope, job_id)

    def get_current_state(self, job_id: str) -> State | None:
        if not is_uuid(job_id):
            return None
        found = self._connection.scalar(sa.select(_T.state).where(_T.job_id == job_id))
        return State(found) if found else None

    def get(self, scope: Scope, job_id: str) -> JobView | None:
        return job_views.get(self._connection, scope, job_id)

    def get_many(self, scope: Scope, job_ids: Sequence[str]) -> list[JobView]:
        return job_views.get_many(self._connection, scope, job_ids)

    def list_(self, scope: Scope, status: Status | None, limit: int, after: str | None) -> list[JobView]:
        return job_views.list_(self._connection, scope, status, limit, after)

    def counts(self, scope: Scope | None) -> Mapping[Status, int]:
        return job_views.counts(self._connection, scope)

    # ── shared pieces ─────────────────────────────────────────────────────────────────────────────

    def _guarded(self, job: ArtifactJob, allowed: frozenset[State]) -> sa.Update:
        """An update that only the holder of the fence can make, from an allowed state, as long as it holds."""
        return sa.update(artifact_jobs).where(
            _T.job_id == job.job_id,
            _T.fence == job.fence,
            # Whoever has advanced, failed or handed back has let go: under the same fence nothing more counts.
            _T.lease_owner.is_not(None),
            _T.due_at.is_(None),
            _in(allowed),
        )

    def _raise_why(self, job: ArtifactJob, wanted: State, allowed: frozenset[State]) -> None:
        row = self._connection.execute(sa.select(_T.state, _T.fence).where(_T.job_id == job.job_id)).first()
        if row is None or row.fence != job.fence:
            raise LeaseLost(f"the fence of job {job.job_id} has moved on: another worker's work counts")
        if row.state in allowed:
            raise LeaseLost(f"the claim on job {job.job_id} is over: it was given back")
        raise IllegalTransition(job.job_id, wanted, states.origins(wanted), row.state)

    def _note(self, job_id: str, **values: Any) -> None:
        """The canonical row follows in the same transaction (STATE-7)."""
        self._connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(updated_at=now(), **values))

    def _note_error(self, job_id: str, status: Status | None, write: FailureWrite, *, ended: bool) -> None:
        values: dict[str, Any] = {
            "error_code": write.code,
            "error_message_safe": write.message[:1024],
            "error_debug_id": write.debug_id,
        }
        if status is not None:
            values["status"] = status.value
        if ended:
            values["failed_at"] = now()
        self._note(job_id, **values)


def _in(found: frozenset[State]) -> sa.ColumnElement[bool]:
    return _T.state.in_(sorted(state.value for state in found))


def _lease_free() -> sa.ColumnElement[bool]:
    return sa.or_(_T.lease_owner.is_(None), _T.lease_until <= now())


def _hint(row: Any) -> Hint:
    """A due time means that the next run is wanted; without one, the run goes on."""
    state = State(row.state)
    starts = states.start_target(state) if row.due_at is not None else None
    return Hint(row.job_id, row.run + (1 if starts else 0), flow.remaining(starts or state))
