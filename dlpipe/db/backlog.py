"""The jobs that wait for a message or for a holder, across all tenants: dispatch, lost messages, dead holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core import flow, states
from dlpipe.core.model import Fault, Scope
from dlpipe.core.ports import Held, Hint
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import Moment, Purpose, State, Status
from dlpipe.db.clock import after, now
from dlpipe.db.guards import IDLE, guarded, in_states, lease_free, note, note_error
from dlpipe.db.rows import JOB_COLUMNS, job_from
from dlpipe.db.schema import artifact_jobs, jobs

_T = artifact_jobs.c


class SqlBacklog:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

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
            guarded(held.job, states.sources(State.FAILED, Moment.FAIL))
            .where(_T.lease_owner == held.token)
            .values(
                fence=_T.fence + 1,  # whatever the dead holder may still write is refused from here on
                state=State.FAILED.value if ends else _T.state,
                **IDLE,
                due_at=None if ends else now(),
                attempts=_T.attempts + 1,
            )
        )
        if changed.rowcount == 0:
            return False
        if write is not None:
            note_error(self._connection, held.job.job_id, Status.FAILED, write, ended=True)
        return True

    def reopen(self, job_id: str, fence: int, fault: Fault) -> bool:
        waits = {state: found for state in State if (found := states.reopened(state)) is not None}
        stay = frozenset(state for state, found in waits.items() if state is found)
        changed = self._connection.execute(
            sa.update(artifact_jobs)
            .where(
                _T.job_id == job_id,
                _T.fence == fence,
                lease_free(),
                in_states(frozenset(waits)),
                # At an end a due time says that a run from the start is wanted already; before it, that one is
                # wanted which would do only what remains.
                sa.or_(_T.due_at.is_(None), ~in_states(stay)),
            )
            .values(
                fence=_T.fence + 1,
                state=sa.case(*((_T.state == state.value, found.value) for state, found in waits.items())),
                **IDLE,
                due_at=now(),
                attempts=0,
                purpose=Purpose.REPAIR.value,
            )
        )
        if changed.rowcount == 0:
            return False
        note(
            self._connection,
            job_id,
            status=Status.PENDING.value,
            progress=0,
            error_code=f"file_{fault}",
            error_message_safe=f"its file was found {fault}, and is to be brought again",
            error_debug_id=None,
        )
        return True


def _hint(row: Any) -> Hint:
    """A due time means that the next run is wanted; without one, the run goes on."""
    state = State(row.state)
    starts = states.start_target(state) if row.due_at is not None else None
    return Hint(row.job_id, row.run + (1 if starts else 0), flow.remaining(starts or state))
