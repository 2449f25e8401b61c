"""What the suites of the ledger share: requests, moves by the book, and a look at every row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import sqlalchemy as sa

from dlpipe.core import flow
from dlpipe.core.model import ArtifactJob, JobSpec, JobView, PlanAnswer, Scope, job_spec
from dlpipe.core.ports import Claim, Claimed
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import after
from dlpipe.db.schema import artifact_jobs, jobs, metadata
from dlpipe.net.urls import parse

OWN = Scope()
FOREIGN = (Scope("other", "default"), Scope("default", "other"))
UNKNOWN = "00000000-0000-5000-8000-000000000000"
LEASE_S = 600.0

WAY: tuple[tuple[str, State], ...] = (
    ("head", State.HEAD_DONE),
    ("resume_decide", State.RESUME_OK),
    ("stream", State.STREAMING),
    ("finalize", State.FINALIZED),
    ("index", State.INDEXED),
    ("dedupe", State.DEDUPED),
)
"""Each stage and the state that its result enters."""

FOR_GOOD = FailureWrite("http_404", "the server answered 404", "d1", None)
SOON = FailureWrite("http_5xx", "the server answered 503", "d2", 0.0)
LATER = FailureWrite("http_5xx", "the server answered 503", "d3", 300.0)

Rows = dict[str, list[tuple[Any, ...]]]


def spec(name: str = "a", **fields: Any) -> JobSpec:
    asked: dict[str, Any] = {"url": f"https://example.com/{name}", "work_id": "w", "artifact_id": "a", **fields}
    return job_spec(parse, **asked)


def fill(database: SqlDatabase, count: int) -> None:
    """Jobs of every status, half of them another tenant's."""
    with database.engine.begin() as connection:
        past = "now()" if connection.dialect.name == "postgresql" else "unixepoch('now') * 1000"
        identity = "CAST('00000000-0000-5000-8000-' || substr('000000000000' || n, -12) AS TEXT)"
        if connection.dialect.name == "postgresql":
            identity = "CAST('00000000-0000-5000-8000-' || lpad(CAST(n AS TEXT), 12, '0') AS UUID)"
        status = "CASE n % 4 WHEN 0 THEN 'pending' WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' ELSE 'skipped' END"
        tenant = "CASE WHEN n / 4 % 2 = 0 THEN 'default' ELSE 'other' END"
        numbers = f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) "
        connection.exec_driver_sql(
            "INSERT INTO jobs (job_id, tenant_id, project_id, job_type, status, idempotency_key, created_at, "
            f"updated_at, completed_at, failed_at, error_code) {numbers} SELECT {identity}, {tenant}, 'default', "
            f"'artifact_download', {status}, 'key-' || n, {past}, {past}, {past}, {past}, 'c' || n FROM s".replace(
                "%", "%%" if connection.dialect.name == "postgresql" else "%"
            )
        )
        connection.exec_driver_sql(
            "INSERT INTO artifact_jobs (job_id, tenant_id, work_id, artifact_id, canonical_url, request_url, host, "
            f"state, due_at) SELECT job_id, tenant_id, 'w', 'a', 'http://x', 'http://x', 'h', 'PLANNED', {past} "
            "FROM jobs"
        )


@contextmanager
def looking(database: SqlDatabase) -> Iterator[sa.Connection]:
    """A connection that only reads, and so waits for nobody."""
    with database.engine.connect() as connection:
        yield connection.execution_options(dlpipe_read=True)


def everything(database: SqlDatabase) -> Rows:
    """Every row of every table, so that `nothing changed` can be said of the whole."""
    with looking(database) as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(sa.select(table))), key=repr)
            for table in metadata.sorted_tables
        }


class Bench:
    """A ledger and the moves that tests make on it, each in a transaction of its own."""

    def __init__(self, database: SqlDatabase) -> None:
        self.database = database
        self._names = count()

    def plan(self, *specs: JobSpec) -> list[PlanAnswer]:
        with self.database.write() as unit:
            return unit.jobs.plan_if_absent(specs)

    def job(self, **fields: Any) -> str:
        """A new job that is due."""
        return self.plan(spec(f"n{next(self._names)}", **fields))[0].job_id

    def claim(self, stage: str, job_id: str, run: int = 1, token: str = "t", ttl_s: float = LEASE_S) -> Claim:
        with self.database.write() as unit:
            return unit.jobs.claim(flow.stage(stage), job_id, run, token, ttl_s)

    def hold(self, stage: str, job_id: str, run: int = 1, token: str = "t", ttl_s: float = LEASE_S) -> ArtifactJob:
        claim = self.claim(stage, job_id, run, token, ttl_s)
        assert isinstance(claim, Claimed), claim
        return claim.job

    def advance(self, job: ArtifactJob, stage: str, target: State) -> None:
        with self.database.write() as unit:
            unit.jobs.advance(job, flow.stage(stage), target)

    def fail(self, job: ArtifactJob, write: FailureWrite) -> None:
        with self.database.write() as unit:
            unit.jobs.fail(job, write)

    def carry(self, job_id: str, upto: State, run: int = 1) -> str:
        """Take a due job through its run until it is in that state, held by nobody."""
        for stage, target in WAY:
            if self.row(job_id)["state"] == upto:
                break
            self.advance(self.hold(stage, job_id, run), stage, target)
        assert self.row(job_id)["state"] == upto
        return job_id

    def in_state(self, state: State, **fields: Any) -> str:
        """A new job in that state: in the middle of its first run, or at its end. FAILED is for good."""
        job_id = self.job(**fields)
        match state:
            case State.PLANNED:
                pass
            case State.LEASED:
                self.hold("head", job_id)
                self.free(job_id)
            case State.FAILED:
                self.fail(self.hold("head", job_id), FOR_GOOD)
            case State.SKIPPED_DUPLICATE:
                self.advance(self.hold("head", job_id), "head", State.SKIPPED_DUPLICATE)
            case State.CANCELED:
                scope = self.scope(job_id)
                with self.database.write() as unit:
                    unit.owned(scope).cancel(job_id)
            case _:
                self.carry(job_id, state)
        return job_id

    def row(self, job_id: str) -> sa.RowMapping:
        with looking(self.database) as connection:
            query = sa.select(artifact_jobs, jobs.c.status).join(jobs, jobs.c.job_id == artifact_jobs.c.job_id)
            return connection.execute(query.where(artifact_jobs.c.job_id == job_id)).mappings().one()

    def scope(self, job_id: str) -> Scope:
        row = self.whole("jobs", job_id)
        return Scope(row["tenant_id"], row["project_id"])

    def view(self, job_id: str) -> JobView:
        scope = self.scope(job_id)
        with self.database.read() as unit:
            found = unit.owned(scope).get(job_id)
        assert found is not None
        return found

    def whole(self, table: str, job_id: str) -> sa.RowMapping:
        found = metadata.tables[table]
        with looking(self.database) as connection:
            return connection.execute(sa.select(found).where(found.c.job_id == job_id)).mappings().one()

    def set(self, job_id: str, **columns: Any) -> None:
        """Change the row past all rules."""
        with self.database.engine.begin() as connection:
            connection.execute(sa.update(artifact_jobs).where(artifact_jobs.c.job_id == job_id).values(**columns))

    def expire(self, job_id: str) -> None:
        """The lease runs out."""
        self.set(job_id, lease_until=after(-1.0))

    def free(self, job_id: str) -> None:
        self.set(job_id, lease_owner=None, lease_until=None)
