"""The jobs that wait for a message or for a holder, across all tenants: dispatch, lost messages, dead holders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core import flow, states
from dlpipe.core.model import ArtifactJob, Fault, Scope
from dlpipe.core.ports import Held, Hint
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import Moment, Purpose, State, Status
from dlpipe.db.clock import after, now
from dlpipe.db.due import Due
from dlpipe.db.guards import FREE, IDLE, guarded, in_states, lease_free, mine, note, note_error
from dlpipe.db.indexes import prefer_indexes
from dlpipe.db.rows import JOB_COLUMNS, is_uuid, job_from
from dlpipe.db.schema import LIVE, artifact_jobs, artifact_ops, jobs, purged_jobs
from dlpipe.db.waiting import NOT_WAITING, when_idle

_T, _O = artifact_jobs.c, artifact_ops.c
_CHUNK = 500


class SqlBacklog:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    # ── dispatch ──────────────────────────────────────────────────────────────────────────────────

    def take_due(self, limit: int, window: int, per_host: int) -> list[Hint]:
        return [_hint(row) for row in Due(self._connection, limit, window, per_host).take()]

    def in_flight(self) -> dict[str, int]:
        published = sa.select(_T.host, sa.func.count().label("n")).where(_T.published_at.is_not(None))
        return {row.host: row.n for row in self._connection.execute(published.group_by(_T.host))}

    def waiting(self) -> dict[str, int]:
        prefer_indexes(self._connection)
        query = sa.select(NEXT, sa.func.count().label("n")).where(*WAITING).group_by(NEXT)
        return {row.stage: row.n for row in self._connection.execute(query)}

    def take_lost(
        self, limit: int, lost_after_s: float, stages: Collection[str], on: Collection[str] | None = None
    ) -> list[Hint]:
        prefer_indexes(self._connection)
        there = () if on is None else (sa.or_(NEXT.not_in(STAGED), sa.func.coalesce(_T.node, "").in_(sorted(on))),)
        lost = (
            sa.select(_T.job_id, NEXT)
            .where(*WAITING, _T.published_at < after(-lost_after_s), NEXT.in_(sorted(stages)), *there)
            .order_by(_T.published_at)
            .limit(limit)
            .with_for_update(skip_locked=True, of=artifact_jobs)
        )
        begin = {row.job_id: row.stage for row in self._connection.execute(lost)}
        if not begin:
            return []
        rows = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_T.job_id.in_(begin), *WAITING)
            .values(published_at=now(), **when_idle(sa.case((_T.due_at.is_(None), _T.published_at))))
            .returning(_T.job_id, _T.run, _T.state, _T.due_at, _T.node)
        ).all()
        return [_hint(row, begin[row.job_id]) for row in rows]

    def unpublish(self, job_ids: Sequence[str]) -> None:
        """Back to due: a job in the middle of its run is found again as lost, so only waiting ones change."""
        if job_ids:
            self._connection.execute(
                sa.update(artifact_jobs).where(_T.job_id.in_(job_ids), _T.due_at.is_not(None)).values(published_at=None)
            )

    # ── dead holders ──────────────────────────────────────────────────────────────────────────────

    def expired(self, limit: int, after: Held | None = None) -> list[Held]:
        return self._mirrored(_T.lease_until <= now(), limit, after)

    def held(self, limit: int, after: Held | None = None) -> list[Held]:
        return self._mirrored(_T.lease_until > now(), limit, after)

    def _mirrored(self, condition: sa.ColumnElement[bool], limit: int, after: Held | None) -> list[Held]:
        prefer_indexes(self._connection)
        query = (
            sa.select(*JOB_COLUMNS)
            .join(jobs, jobs.c.job_id == _T.job_id)
            .where(_T.lease_until.is_not(None), condition)
            .order_by(_T.lease_until, _T.job_id)
            .limit(limit)
        )
        if after is not None:
            behind = sa.and_(_T.lease_until == after.until, _T.job_id > after.job.job_id)
            query = query.where(_T.lease_until >= after.until, sa.or_(_T.lease_until > after.until, behind))
        return [Held(_job(row), row.lease_owner, row.lease_until) for row in self._connection.execute(query)]

    def orphan(self, held: Held, write: FailureWrite | None) -> bool:
        ends = write is not None
        changed = self._connection.execute(
            guarded(states.sources(State.FAILED, Moment.FAIL))
            .where(_T.lease_owner == held.token)
            .values(
                fence=_T.fence + 1,  # else the dead holder's op would count as under way
                state=State.FAILED.value if ends else _T.state,
                **IDLE,
                due_at=None if ends else now(),
                attempts=_T.attempts + 1,
                **when_idle(_T.lease_until),
            ),
            mine(held.job),
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
                **NOT_WAITING,
                purpose=Purpose.REPAIR.value,
                replay_from=None,
                stood=sa.case((in_states(stay), _T.state), else_=None),
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

    def get(self, job_id: str) -> ArtifactJob | None:
        if not is_uuid(job_id):
            return None
        row = self._connection.execute(
            sa.select(*JOB_COLUMNS).join(jobs, jobs.c.job_id == _T.job_id).where(_T.job_id == job_id)
        ).first()
        return _job(row) if row else None

    def clear_mirror(self, held: Held) -> bool:
        ended = sorted(state.value for state in states.FINISHED)
        changed = self._connection.execute(
            sa.update(artifact_jobs)
            .where(
                _T.job_id == held.job.job_id,
                _T.fence == held.job.fence,
                _T.lease_owner == held.token,
                _T.lease_until <= now(),
                # A run that goes on is an orphan, and costs an attempt.
                sa.or_(_T.due_at.is_not(None), _T.state.in_(ended), _T.state == State.FAILED.value),
            )
            .values(**FREE, published_at=sa.case((_T.due_at.is_not(None), _T.published_at), else_=None))
        )
        return changed.rowcount > 0

    # ── what waits, as staging sees it ────────────────────────────────────────────────────────────

    def wanted_parts(self, parts: Sequence[str], node: str | None = None) -> set[str]:
        found: set[str] = set()
        # What has another node's name goes on with the part that is there.
        here = () if node is None else (sa.or_(_T.node.is_(None), _T.node == node),)
        prefer_indexes(self._connection)
        for begin in range(0, len(parts), _CHUNK):
            found |= set(
                self._connection.scalars(
                    sa.select(_T.part).where(
                        _T.part.in_(parts[begin : begin + _CHUNK]),
                        sa.text(LIVE),
                        sa.or_(_T.state != State.FAILED.value, _T.due_at.is_not(None)),
                        *here,
                    )
                )
            )
        return found

    def known(self, job_ids: Sequence[str]) -> set[str]:
        ids, found = [job_id for job_id in job_ids if is_uuid(job_id)], set[str]()
        for begin in range(0, len(ids), _CHUNK):
            for column in (jobs.c.job_id, purged_jobs.c.job_id):
                found |= set(self._connection.scalars(sa.select(column).where(column.in_(ids[begin : begin + _CHUNK]))))
        return found


def _job(row: Any) -> ArtifactJob:
    return job_from(row, Scope(row.tenant_id, row.project_id), request_id=row.request_id)


def _hint(row: Any, begin: str = "") -> Hint:
    """A due time means that the next run is wanted; without one, the run goes on. `begin`: the stage that is next."""
    state = State(row.state)
    starts = states.start_target(state) if row.due_at is not None else None
    stages = flow.remaining(starts or state)
    skipped = next((number for number, stage in enumerate(stages) if stage.name == begin), 0)
    return Hint(row.job_id, row.run + (1 if starts else 0), stages[skipped:], row.node)


def _next_stage() -> sa.Label[str]:
    """What a message would be for. Of the stage whose claim enters its state, only the ledger knows if it is done."""
    cases: list[tuple[sa.ColumnElement[bool], str]] = []
    for state in State:
        here = _T.state == state.value
        if (first := flow.first_of_run(state)) is not None:
            cases.append((sa.and_(here, _T.due_at.is_not(None)), first.name))
        left = flow.remaining(state)
        if left and states.on_claim(left[0].name) is state:
            done = sa.exists().where(
                _O.job_id == _T.job_id, _O.run == _T.run, _O.op_type == left[0].op.value, _O.state == "finished"
            )
            cases.append((sa.and_(here, done.correlate(artifact_jobs)), left[1].name))
        if left:
            cases.append((here, left[0].name))
    return sa.case(*cases, else_="").label("stage")


NEXT = _next_stage()
STAGED = sorted(flow.STAGED)
WAITING = (_T.published_at.is_not(None), _T.lease_owner.is_(None))
