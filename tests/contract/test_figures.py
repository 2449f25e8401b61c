"""How much of what stands in the ledger, on both engines (OPS-7)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dlpipe.core.figures import Waiting
from dlpipe.core.model import ArtifactRecord, Fault, Scope
from dlpipe.core.states import State, Status
from dlpipe.db.clock import after
from dlpipe.db.indexes import prefer_indexes
from dlpipe.db.schema import artifact_jobs, jobs
from tests.ledgers import FOR_GOOD, LATER, Bench, fill


def waiting(bench: Bench) -> Waiting:
    with bench.database.read() as unit:
        return unit.figures.waiting()


def test_an_empty_ledger_has_nothing(bench: Bench) -> None:
    assert waiting(bench) == Waiting(0, 0, 0.0, 0, 0, 0)
    with bench.database.read() as unit:
        totals = unit.figures.totals()
    assert (dict(totals.jobs), dict(totals.dead_letters)) == ({}, {})
    assert (totals.artifacts, totals.artifact_bytes, totals.faulty) == (0, 0, 0)


def test_open_work_is_counted_by_what_it_waits_for(bench: Bench) -> None:
    for _ in range(3):
        bench.job()
    bench.set(bench.job(), due_at=after(-100.0))
    bench.fail(bench.hold("head", bench.job()), LATER)  # its retry is due in five minutes
    bench.hold("head", bench.job())
    sent = bench.job()
    bench.set(sent, published_at=after(-1.0))
    bench.set(bench.job(), paused_at=after(-1.0))
    bench.in_state(State.DEDUPED)
    found = waiting(bench)
    assert (found.due, found.due_later) == (4, 1)
    assert 100 <= found.oldest_due_s < 160
    assert (found.in_flight, found.sent, found.held) == (1, 1, 1)


def test_totals_count_every_job_and_artifact_of_all_owners(bench: Bench) -> None:
    bench.job()
    bench.job(tenant_id="other")
    bench.in_state(State.DEDUPED)
    for _ in range(2):
        bench.fail(bench.hold("head", bench.job()), FOR_GOOD)
    bench.fail(bench.hold("head", bench.job()), LATER)
    made = bench.in_state(State.DEDUPED)
    for n, tenant in enumerate(("default", "other")):
        record = ArtifactRecord(
            f"00000000-0000-4000-8000-00000000000{n}", Scope(tenant), "file", "local", f"p{n}", None,
            3_000_000_000, f"{n}" * 64, 1, made,
        )  # fmt: skip
        with bench.database.write() as unit:
            unit.registry.add_artifact(record)
            unit.registry.add_fault(record.artifact_uuid, Fault.MISSING)
            if n:
                unit.registry.mend(record.sha256, record.storage_pointer)
    with bench.database.read() as unit:
        totals = unit.figures.totals()
    kind = "artifact_download"
    assert totals.jobs == {(kind, "pending"): 3, (kind, "completed"): 2, (kind, "failed"): 2}
    assert totals.dead_letters == {"http_404": 2}  # one that waits for its retry is none
    assert (totals.artifacts, totals.artifact_bytes, totals.faulty) == (2, 6_000_000_000, 1)


def end_all_but_the_pending(bench: Bench) -> None:
    failed, of = jobs.c.status == Status.FAILED.value, jobs.c.job_id == artifact_jobs.c.job_id
    state = sa.case((failed, State.FAILED.value), else_=State.DEDUPED.value)
    ended = sa.select(state).where(of).scalar_subquery()
    pending = sa.select(jobs.c.job_id).where(jobs.c.status == Status.PENDING.value)
    with bench.database.engine.begin() as connection:
        gone = sa.update(artifact_jobs).where(artifact_jobs.c.job_id.not_in(pending))
        connection.execute(gone.values(state=ended, due_at=None))


def test_open_work_is_counted_through_indexes_that_know_no_finished_job(bench: Bench) -> None:
    fill(bench.database, 800)
    end_all_but_the_pending(bench)
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if "artifact_jobs" in statement:
            asked.append((statement, values))

    engine = bench.database.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    waiting(bench)
    sa.event.remove(engine, "before_cursor_execute", note)
    explain = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # Else it goes by what autovacuum saw, which may have been a table with nothing in it.
            connection.exec_driver_sql("ANALYZE")
        prefer_indexes(connection)
        plans = [
            " ".join(map(str, connection.exec_driver_sql(f"{explain} {statement}", values).all()))
            for statement, values in asked
        ]
    wanted = ("ix_artifact_jobs_due", "ix_artifact_jobs_published", "ix_artifact_jobs_lease")
    assert len(plans) == 3
    assert all(index in plan for index, plan in zip(wanted, plans, strict=True)), plans
