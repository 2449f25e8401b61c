"""What `dlpipe top` asks of the ledger, on both engines: one scope only, and bounded whatever there is (JOB-5)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from dlpipe.core import top
from dlpipe.core.errors import Retryable
from dlpipe.core.states import Status
from dlpipe.core.top import Look
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import after
from dlpipe.db.schema import jobs
from tests.ledgers import FOREIGN, LATER, OWN, Bench, fill
from tests.world import World

EMPTY = dict.fromkeys(Status, 0)


def look(database: SqlDatabase, scope: Any = OWN) -> Look:
    with database.read() as unit:
        return unit.owned(scope).overview()


def test_of_nothing_there_is_nothing(bench: Bench) -> None:
    seen = look(bench.database)
    assert (seen.counts, seen.at_work, seen.waiters, seen.failures) == (EMPTY, (), (), ())
    assert (seen.finished, seen.finished_bytes) == (0, 0)


def test_each_job_is_where_it_belongs(database: SqlDatabase, tmp_path: Path) -> None:
    world = World(database, tmp_path / "store")
    for name in ("a", "b"):
        world.source.put(f"http://files.example/{name}", b"x" * 700)
        world.fetch(f"http://files.example/{name}")
    world.source.fail_head("http://busy.example/x", Retryable("later", code="http_5xx"))
    world.fetch("http://busy.example/x")
    for n in range(3):
        world.fetch(f"http://gone.example/{n}")
    held = world.plan("http://slow.example/x?token=hidden")
    world.leave_claimed("head", held)
    paused = world.plan("http://other.example/x")
    with database.write() as unit:
        unit.owned(OWN).pause(paused)
    seen = look(database)
    assert seen.counts == EMPTY | {
        Status.COMPLETED: 2, Status.FAILED: 3, Status.PROCESSING: 1, Status.PENDING: 2,
    }  # fmt: skip
    (one,) = seen.at_work
    assert (one.job_id, one.host, one.run, one.stage) == (held, "slow.example", 1, "head")
    assert one.worker == "dead.head"
    assert 110 < one.lease_left_s <= 120
    assert ("hidden" in one.url, "slow.example" in one.url) == (False, True)
    waiters = {one.host: one for one in seen.waiters}
    assert set(waiters) == {"busy.example", "other.example"}
    assert (waiters["busy.example"].error_code, waiters["busy.example"].paused) == ("http_5xx", False)
    assert waiters["other.example"].paused
    assert [(one.code, one.jobs) for one in seen.failures] == [("http_404", 3)]
    assert seen.failures[0].last_at is not None
    assert (seen.finished, seen.finished_bytes) == (2, 1400)
    for scope in FOREIGN:
        foreign = look(database, scope)
        assert (foreign.counts, foreign.at_work, foreign.waiters, foreign.failures) == (EMPTY, (), (), ())
        assert (foreign.finished, foreign.finished_bytes) == (0, 0)


def test_what_was_finished_longer_ago_than_a_minute_does_not_count(database: SqlDatabase, tmp_path: Path) -> None:
    world = World(database, tmp_path / "store")
    world.source.put("http://files.example/a", b"x")
    job = world.fetch("http://files.example/a")
    assert look(database).finished == 1
    with database.engine.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.job_id == job).values(completed_at=after(-61.0)))
    assert look(database).finished == 0


def test_a_job_that_waits_for_its_next_run_waits_until_then(bench: Bench) -> None:
    job = bench.job()
    bench.fail(bench.hold("head", job), LATER)
    (one,) = look(bench.database).waiters
    assert one.due_at is not None
    assert 290 < (one.due_at - look(bench.database).at).total_seconds() <= 300


def plans(database: SqlDatabase) -> str:
    """How the engine goes about each question of a look."""
    asked: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            asked.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    look(database)
    event.remove(database.engine, "before_cursor_execute", note)
    explain = "EXPLAIN QUERY PLAN " if database.url.get_backend_name() == "sqlite" else "EXPLAIN "
    with database.engine.connect() as connection:
        if database.url.get_backend_name() == "postgresql":
            # Else it goes by what autovacuum saw, which may have been tables with nothing in them.
            connection.exec_driver_sql("ANALYZE")
            connection.exec_driver_sql("SET enable_seqscan = off")
        found = [connection.exec_driver_sql(explain + text, args).all() for text, args in asked]
    return "\n".join(str(tuple(row)) for rows in found for row in rows)


def test_every_question_goes_through_an_index(bench: Bench) -> None:
    fill(bench.database, 400)
    plan = plans(bench.database)
    # A partial index over what is held may be read as a whole; nothing else, be it a table or its index.
    read = [line for line in plan.splitlines() if re.search(r"SCAN (jobs|artifact_|manifest)|Seq Scan", line)]
    assert [line for line in read if "ix_artifact_jobs_lease" not in line] == [], plan
    unconditional = re.findall(r"Scan using \S+ on jobs.*\n(?!.*Index Cond).*", plan)
    assert unconditional == [], plan
    assert "ix_jobs_scope_status" in plan
    assert "ix_artifact_jobs_lease" in plan


def test_a_look_counts_and_samples_up_to_its_bounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench.database, 800)
    for name, bound in (("COUNTED", 20), ("SAMPLE", 7), ("FINISHED", 9)):
        monkeypatch.setattr(top, name, bound)
    seen = look(bench.database)
    assert seen.counts == EMPTY | dict.fromkeys((Status.PENDING, Status.COMPLETED, Status.FAILED, Status.SKIPPED), 20)
    assert (len(seen.waiters), sum(one.jobs for one in seen.failures), seen.finished) == (7, 7, 9)
