"""Schema and migrations, connections, and the unit of work, on both engines (JOB-10)."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import IntegrityError

from dlpipe.core.errors import DlpipeError, LedgerUnavailable, Misconfigured
from dlpipe.core.model import PlanAnswer
from dlpipe.db import SqlDatabase, schema
from dlpipe.db.engine import BUSY_TIMEOUT_MS
from dlpipe.db.migrate import migrate
from dlpipe.db.schema import jobs, metadata
from tests.ledgers import OWN, Bench, everything, looking, spec
from tests.postgres import Postgres

HEAD = schema.SCHEMA_VERSION
MIGRATIONS = Path(schema.__file__).parent / "migrations"


@pytest.fixture
def empty(empty_url: str) -> Iterator[SqlDatabase]:
    opened = SqlDatabase(empty_url)
    yield opened
    opened.close()


def say_version(database: SqlDatabase, version: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :v"), {"v": version})


def code_of(database: SqlDatabase) -> str:
    with pytest.raises(Misconfigured) as refusal:
        database.check_schema()
    assert refusal.value.hint
    return refusal.value.code


def test_the_migrations_make_the_schema_of_the_code(database: SqlDatabase) -> None:
    with looking(database) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_checks_and_partial_indexes_are_those_of_the_code(empty: SqlDatabase) -> None:
    """What alembic does not compare: made by the migrations and made by the metadata must be alike."""
    migrate(empty)
    migrated = described(empty)
    metadata.drop_all(empty.engine)
    metadata.create_all(empty.engine)
    assert described(empty) == migrated


INDEXES = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
}


def described(database: SqlDatabase) -> tuple[list[str], list[str]]:
    with looking(database) as connection:
        inspector = sa.inspect(connection)
        rules = [
            f"{table} {sorted(rule.items(), key=str)}"
            for table in metadata.tables
            for found in (inspector.get_check_constraints, inspector.get_foreign_keys, inspector.get_unique_constraints)
            for rule in found(table)
        ]
        indexes = connection.execute(sa.text(INDEXES[connection.dialect.name]))
        return sorted(rules), sorted(str(tuple(row)) for row in indexes)


def test_the_code_names_the_newest_revision() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [HEAD]


def test_a_database_without_tables_is_migrated_and_only_then_used(empty: SqlDatabase) -> None:
    assert empty.schema_version() is None
    assert code_of(empty) == "schema_missing"
    assert empty.schema_version() is None  # looking makes nothing
    assert migrate(empty) == (None, HEAD)
    empty.check_schema()
    assert Bench(empty).plan(spec())[0].outcome == "created"


def test_migrating_twice_is_harmless(empty: SqlDatabase) -> None:
    migrate(empty)
    Bench(empty).plan(spec())
    before = everything(empty)
    assert migrate(empty) == (HEAD, HEAD)
    assert everything(empty) == before


def test_an_older_schema_is_refused_until_it_is_migrated(database: SqlDatabase) -> None:
    say_version(database, "0000")
    assert code_of(database) == "schema_behind"


def test_a_newer_schema_is_refused_and_never_taken_back(database: SqlDatabase) -> None:
    say_version(database, "9999")
    assert code_of(database) == "schema_newer"
    with pytest.raises(Misconfigured) as refusal:
        migrate(database)
    assert refusal.value.code == "schema_newer"
    assert database.schema_version() == "9999"


def test_a_migration_that_fails_leaves_nothing_behind(empty: SqlDatabase) -> None:
    with empty.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE manifest (x INTEGER)"))  # in the way of a later step
    with pytest.raises((DlpipeError, sa.exc.SQLAlchemyError)):
        migrate(empty)
    with looking(empty) as connection:
        assert sa.inspect(connection).get_table_names() == ["manifest"]
    assert empty.schema_version() is None


MIGRATE = """
import sys
from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
sys.stdin.readline()
database = SqlDatabase(sys.argv[1])
print(migrate(database)[1])
database.check_schema()
database.close()
"""


def test_processes_that_migrate_at_once_all_find_it_migrated(empty: SqlDatabase, empty_url: str) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", MIGRATE, empty_url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.communicate(timeout=100) for process in started]
    assert told == [(f"{HEAD}\n", "")] * len(started)
    empty.check_schema()


def test_a_ledger_is_made_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    database = SqlDatabase(f"sqlite:///{tmp_path / 'new' / 'folder' / 'ledger.db'}")
    assert migrate(database) == (None, HEAD)
    database.close()


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
    with pytest.raises(ZeroDivisionError), bench.database.write() as unit:
        unit.jobs.plan_if_absent([spec("a")])
        raise ZeroDivisionError
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
        writer.jobs.cancel(OWN, job_id)
        with bench.database.read() as reader:
            view = reader.jobs.get(OWN, job_id)
        assert view is not None
        assert view.status == "pending"  # and see only what is committed


def test_writers_wait_for_each_other(bench: Bench) -> None:
    specs = [spec(str(number)) for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        answers: list[list[PlanAnswer]] = list(pool.map(bench.plan, specs))
    assert [answer.outcome for (answer,) in answers] == ["created"] * len(specs)


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


def test_a_database_that_is_gone_is_told_as_unavailable(sqlite_url: str, tmp_path: Path) -> None:
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


def test_a_locked_ledger_is_told_as_unavailable(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dlpipe' AND datname = %s",
                [database.url.database],
            )

    with pytest.raises(LedgerUnavailable), database.write() as unit:
        unit.jobs.cancel(OWN, job_id)
        cut()
        unit.jobs.retry(OWN, job_id)
    assert bench.view(job_id).status == "pending"  # nothing was written, and the next connection works
    with pytest.raises(LedgerUnavailable), database.write() as unit:
        unit.jobs.cancel(OWN, job_id)
        cut()  # between the last statement and the commit
    assert bench.view(job_id).status == "pending"
    cut()  # while nobody works
    assert bench.plan(spec("n0"))[0].outcome == "known"
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
    assert stat.S_ISREG((tmp_path / "copy.db").stat().st_mode)
    copy.close()
