"""How much of what stands in the ledger: the open work through its partial indexes, everything by reading it all."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dlpipe.core.figures import Totals, Waiting
from dlpipe.core.states import Status
from dlpipe.db.clock import now
from dlpipe.db.indexes import prefer_indexes, through
from dlpipe.db.schema import artifact_faults, artifact_jobs, artifacts, jobs

_T, _J = artifact_jobs.c, jobs.c
_count = sa.func.count()


class SqlFigures:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def waiting(self) -> Waiting:
        prefer_indexes(self._connection)
        is_due = _T.due_at <= now()
        due = self._one(
            "ix_artifact_jobs_due",
            sa.select(
                now().label("at"),
                _count.filter(is_due).label("now"),
                _count.filter(~is_due).label("later"),
                sa.func.min(_T.due_at).label("oldest"),
            ).where(_T.due_at.is_not(None), _T.published_at.is_(None), _T.paused_at.is_(None)),
        )
        sent = self._one(
            "ix_artifact_jobs_published",
            sa.select(_count.label("all"), _count.filter(_T.lease_owner.is_(None)).label("free")).where(
                _T.published_at.is_not(None)
            ),
        )
        held = self._one("ix_artifact_jobs_lease", sa.select(_count.label("n")).where(_T.lease_until.is_not(None)))
        oldest_s = (due.at - due.oldest).total_seconds() if due.oldest is not None else 0.0
        return Waiting(
            due=due.now,
            due_later=due.later,
            oldest_due_s=max(0.0, oldest_s),
            in_flight=sent.all,
            sent=sent.free,
            held=held.n,
        )

    def totals(self) -> Totals:
        code = sa.case((_J.status == Status.FAILED.value, _J.error_code)).label("code")
        found = self._connection.execute(
            sa.select(_J.job_type, _J.status, code, _count.label("n")).group_by(_J.job_type, _J.status, code)
        )
        by_status: dict[tuple[str, str], int] = {}
        dead: dict[str, int] = {}
        for row in found:
            key = row.job_type, row.status
            by_status[key] = by_status.get(key, 0) + row.n
            if row.status == Status.FAILED.value:
                name = row.code or "none"
                dead[name] = dead.get(name, 0) + row.n
        size = sa.func.coalesce(sa.func.sum(artifacts.c.byte_size), 0)
        stored = self._connection.execute(sa.select(_count.label("n"), size.label("size")).select_from(artifacts)).one()
        faulty = self._connection.scalar(
            sa.select(_count).select_from(artifact_faults).where(artifact_faults.c.mended_at.is_(None))
        )
        return Totals(by_status, dead, stored.n, int(stored.size), faulty or 0)

    def _one(self, index: str, query: Any) -> Any:
        return self._connection.execute(through(index, query.select_from(artifact_jobs))).one()
