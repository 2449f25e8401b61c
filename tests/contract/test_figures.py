"""How much of what stands in the ledger, on both engines (OPS-7)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from dlpipe.core.figures import Waiting
from dlpipe.core.model import ArtifactRecord, Fault, Scope
from dlpipe.core.states import State
from dlpipe.db.clock import after
from tests.ledgers import FOR_GOOD, LATER, Bench


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


def test_open_work_is_counted_through_indexes(bench: Bench) -> None:
    """However many jobs are done, none of them is read."""
    if bench.database.url.get_backend_name() != "sqlite":
        pytest.skip("SQLite would refuse a query that cannot go through the index it is told to use")
    plans = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "artifact_jobs" in statement:
            plans.append(statement)

    sa.event.listen(bench.database.engine, "before_cursor_execute", note)
    waiting(bench)
    assert len(plans) == 3, plans
    assert [plan for plan in plans if "INDEXED BY" not in plan] == []
