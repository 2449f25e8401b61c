"""Connections and the unit of work, on both engines: whole or not at all, and an honest error (LEDGER-3)."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dlpipe.core.errors import LedgerUnavailable, Misconfigured
from dlpipe.core.model import PlanAnswer
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase, engine
from dlpipe.db.engine import BUSY_TIMEOUT_MS
from dlpipe.db.migrate import migrate
from dlpipe.db.schema import SCHEMA_VERSION, jobs
from tests.ledgers import OWN, Bench, everything, spec
from tests.postgres import Postgres


def test_another_engine_is_refused() -> None:
    with pytest.raises(Misconfigured) as refusal:
        SqlDatabase("mysql://u:hunter2@h/d")
    assert refusal.value.code == "database_unsupported"
    assert "hunter2" not in f"{refusal.value} {refusal.value.hint}"


def test_every_sqlite_connection_is_durable_strict_and_patient(sqlite_url: str) -> None:
    database = SqlDatabase(sqlite_url, pool_size=1)
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": BUSY_TIMEOUT_MS}
    # More than the pool keeps, so that those beyond it are looked at as well.
    held = [database.engine.connect() for _ in range(3)]
    for connection in held:
        raw = connection.connection.driver_connection
        assert raw is not None
        assert {name: raw.execute(f"PRAGMA {name}").fetchone()[0] for name in expected} == expected
    for connection in held:
        connection.close()
    database.close()


def test_a_unit_is_written_whole_or_not_at_all(bench: Bench) -> None:
    before = everything(bench.database)

    def plan_and_stumble() -> None:
        with bench.database.write() as unit:
            unit.jobs.plan_if_absent([spec("a")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plan_and_stumble()
    assert everything(bench.database) == before
    with bench.database.write() as unit:
        unit.jobs.plan_if_absent([spec("a")])
        unit.rollback()
    assert everything(bench.database) == before
    with bench.database.write() as unit:
        unit.jobs.plan_if_absent([spec("a")])
    assert everything(bench.database) != before


def test_a_broken_rule_stays_the_error_it_is(bench: Bench) -> None:
    job_id = bench.job()
    with pytest.raises(IntegrityError), bench.database.engine.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(status="odd"))


def test_readers_do_not_wait_for_a_writer(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as writer:
        writer.owned(OWN).cancel(job_id)
        with bench.database.read() as reader:
            view = reader.owned(OWN).get(job_id)
        assert view is not None
        assert view.status == "pending"  # and see only what is committed


def test_writers_wait_for_each_other_also_when_they_read_first(bench: Bench) -> None:
    """SQLite would refuse at once who turns from a reader into a writer while another writes."""
    job_id = bench.job()

    def read_and_write(number: int) -> PlanAnswer:
        with bench.database.write() as unit:
            assert unit.jobs.get_current_state(job_id) is State.PLANNED
            return unit.jobs.plan_if_absent([spec(str(number))])[0]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(read_and_write, range(60)))
    assert [answer.outcome for answer in answers] == ["created"] * 60


def test_threads_that_begin_together_have_one_engine(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            database, together = SqlDatabase(f"sqlite:///{tmp_path / str(number)}.db"), Barrier(8)

            def ask(_: int, database: SqlDatabase = database, together: Barrier = together) -> sa.Engine:
                together.wait()
                return database.engine

            assert len(set(pool.map(ask, range(8)))) == 1


def test_who_opens_a_new_file_while_another_one_makes_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two commands do that are the first ones in a data directory: of SQLite itself one of them gets an error."""
    file = tmp_path / "ledger.db"
    waited: list[float] = []
    with closing(sqlite3.connect(file, isolation_level=None)) as maker:
        maker.execute("CREATE TABLE made (x)")
        maker.execute("BEGIN IMMEDIATE")

        def meanwhile(seconds: float) -> None:
            waited.append(seconds)
            maker.execute("COMMIT")

        monkeypatch.setattr(time, "sleep", meanwhile)
        database = SqlDatabase(f"sqlite:///{file}")
        assert database.schema_version() is None
        assert len(waited) == 1
        with database.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        database.close()


def test_a_new_file_that_nobody_lets_go_of_is_told_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 50)
    file = tmp_path / "ledger.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as maker:
        maker.execute("CREATE TABLE made (x)")
        maker.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable) as refusal:
            SqlDatabase(f"sqlite:///{file}").schema_version()
        assert refusal.value.code == "ledger_locked"


def test_a_ledger_that_somebody_does_not_let_go_of_is_told_as_locked_and_loses_nothing(sqlite_url: str) -> None:
    """As when a process is stopped in the middle of writing; readers are not kept waiting."""
    database = SqlDatabase(sqlite_url, pool_size=1)
    bench = Bench(database)
    job_id = bench.job()
    before = everything(database)
    with database.engine.connect() as connection:  # the only one, and used again
        connection.exec_driver_sql("PRAGMA busy_timeout=20").close()
    with closing(sqlite3.connect(sa.make_url(sqlite_url).database or "", isolation_level=None)) as stopped:
        stopped.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable) as refusal:
            bench.claim("head", job_id)
        assert (refusal.value.code, everything(database)) == ("ledger_locked", before)
        assert "stopped" in refusal.value.hint
    assert bench.hold("head", job_id).job_id == job_id
    database.close()


def test_tables_are_not_made_in_a_file_that_somebody_does_not_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_PRAGMAS", ("PRAGMA busy_timeout=20",))
    file = tmp_path / "ledger.db"
    database = SqlDatabase(f"sqlite:///{file}")
    with closing(sqlite3.connect(file, isolation_level=None)) as stopped:
        stopped.execute("PRAGMA journal_mode=WAL")
        stopped.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable) as refusal:
            migrate(database)
        assert refusal.value.code == "ledger_locked"
    migrate(database)
    assert database.schema_version() == SCHEMA_VERSION
    database.close()


def test_a_forked_child_makes_its_own_connections(bench: Bench) -> None:
    bench.job()
    engine = bench.database.engine
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fine = bench.database.engine is not engine and bench.plan(spec("child"))[0].outcome == "created"
            code = 0 if fine else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bench.database.engine is engine
    assert bench.plan(spec("child"))[0].outcome == "known"  # the parent's connection still works


def test_a_database_that_is_gone_is_told_as_unavailable(tmp_path: Path) -> None:
    for url in ("postgresql+psycopg://u@/d?host=/nowhere", f"sqlite:///{tmp_path}/no/folder/ledger.db"):
        database = SqlDatabase(url)
        for use in (database.write, database.read):
            with pytest.raises(LedgerUnavailable), use():
                pass
        with pytest.raises(LedgerUnavailable):
            database.check_schema()
        database.close()


def test_a_sqlite_file_that_is_damaged_is_told_as_unavailable_or_broken(sqlite_url: str) -> None:
    database = SqlDatabase(sqlite_url)
    assert database.sqlite_file is not None
    database.sqlite_file.write_bytes(b"no database" * 1000)
    with pytest.raises((LedgerUnavailable, sa.exc.DatabaseError)), database.read():
        pass
    database.close()


def test_a_locked_ledger_is_told_as_unavailable(sqlite_url: str) -> None:
    first, second = SqlDatabase(sqlite_url), SqlDatabase(sqlite_url)
    with second.engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.execute("PRAGMA busy_timeout=10")
        connection.rollback()
    with first.write(), pytest.raises(LedgerUnavailable), second.write():
        pass
    first.close()
    second.close()


def test_a_server_that_dies_is_told_as_unavailable_and_one_that_returns_is_used_again(
    postgres: Postgres, postgres_template: str
) -> None:
    database = SqlDatabase(postgres.create_database(postgres_template))
    bench = Bench(database)
    job_id = bench.job()

    def cut() -> None:
        with postgres.connect() as admin:
            cut_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            admin.execute(f"{cut_all} AND datname = %s", [database.url.database])

    def cut_between_statements() -> None:
        with database.write() as unit:
            unit.owned(OWN).cancel(job_id)
            cut()
            unit.owned(OWN).retry(job_id)

    def cut_before_the_commit() -> None:
        with database.write() as unit:
            unit.owned(OWN).cancel(job_id)
            cut()

    for broken in (cut_between_statements, cut_before_the_commit):
        with pytest.raises(LedgerUnavailable):
            broken()
        assert bench.view(job_id).status == "pending"  # nothing was written, and the next connection works
    cut()  # while nobody works
    assert bench.plan(spec("n0"))[0].outcome == "known"
    database.close()


def test_after_a_restart_of_the_server_no_connection_from_before_is_used(
    postgres: Postgres, postgres_template: str
) -> None:
    """Nobody is told: no unit had begun, and each finds out with its first word."""
    database = SqlDatabase(postgres.create_database(postgres_template))
    bench = Bench(database)
    job_id = bench.job()

    def all_at_once() -> None:
        with ExitStack() as stack:
            units = [stack.enter_context(use()) for use in (database.write, database.read, database.read)]
            assert [unit.jobs.get_current_state(job_id) for unit in units] == [State.PLANNED] * 3

    for _ in range(2):
        all_at_once()
        with postgres.connect() as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                [database.url.database],
            )
    all_at_once()
    assert database.schema_version() is not None
    database.close()


def test_a_copied_ledger_is_whole(sqlite_url: str, tmp_path: Path) -> None:
    """A closed ledger is one file: nothing of it stays in the log beside it."""
    database = SqlDatabase(sqlite_url)
    job_id = Bench(database).job()
    database.close()
    assert database.sqlite_file is not None
    assert not Path(f"{database.sqlite_file}-wal").exists()
    copy = SqlDatabase(f"sqlite:///{shutil.copy(database.sqlite_file, tmp_path / 'copy.db')}")
    assert Bench(copy).view(job_id).job_id == job_id
    copy.close()
