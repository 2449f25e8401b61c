"""Schema and migrations, connections, and the unit of work, on both engines (JOB-10)."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from dlpipe.core.errors import DlpipeError, Misconfigured
from dlpipe.core.layout import part_slug
from dlpipe.core.model import Scope
from dlpipe.core.states import Status
from dlpipe.db import SqlDatabase, fresh, schema
from dlpipe.db.clock import now
from dlpipe.db.migrate import migrate
from dlpipe.db.schema import artifact_jobs, jobs, metadata
from ops import docs_ledger
from tests.ledgers import Bench, everything, looking, spec

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


def test_rows_of_the_first_schema_are_kept_and_have_no_purpose(empty: SqlDatabase) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with empty.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        job = "00000000-0000-5000-8000-000000000001"
        at = connection.scalar(sa.select(now()))
        connection.execute(
            sa.insert(jobs).values(
                job_id=job, tenant_id="t", project_id="p", job_type="artifact_download", status="completed",
                idempotency_key="k", created_at=at, updated_at=at,
            )
        )  # fmt: skip
        connection.execute(
            sa.insert(artifact_jobs).values(
                job_id=job, work_id="w", artifact_id="a", canonical_url="u", request_url="u", host="h", state="DEDUPED",
            )
        )  # fmt: skip
    assert migrate(empty) == ("0001", HEAD)
    found = Bench(empty).row(job)
    assert (found["state"], found["run"], found["purpose"]) == ("DEDUPED", 0, None)
    with empty.write() as unit:
        assert unit.owned(Scope("t", "p")).refresh(job) is Status.PENDING


@pytest.mark.parametrize(
    ("state", "deduped", "stood"),
    [
        ("DEDUPED", True, "DEDUPED"),
        ("SKIPPED_DUPLICATE", False, "SKIPPED_DUPLICATE"),
        ("STREAMING", True, "DEDUPED"),
        ("FAILED", True, "DEDUPED"),
        ("STREAMING", False, None),  # where it was before left no trace: it is canceled as before
        ("FINALIZED", True, None),  # it goes through
    ],
)
def test_refreshes_that_are_under_way_know_where_they_go_back_to(
    empty: SqlDatabase, state: str, deduped: bool, stood: str | None
) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    job = "00000000-0000-5000-8000-000000000001"
    with empty.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
        at = connection.scalar(sa.select(now()))
        connection.execute(
            sa.insert(jobs).values(
                job_id=job, tenant_id="t", project_id="p", job_type="artifact_download", status="pending",
                idempotency_key="k", created_at=at, updated_at=at,
            )
        )  # fmt: skip
        connection.execute(
            sa.insert(artifact_jobs).values(
                job_id=job, work_id="w", artifact_id="a", canonical_url="u", request_url="u", host="h", state=state,
                run=2, purpose="refresh",
            )
        )  # fmt: skip
        if deduped:
            connection.execute(
                sa.insert(schema.artifact_ops).values(
                    op_key="k", job_id=job, run=1, op_type="DEDUPE", state="finished", fence=6, started_at=at,
                    finished_at=at, result_json="{}",
                )
            )  # fmt: skip
    migrate(empty)
    assert Bench(empty).row(job)["stood"] == stood


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


def migrate_to(database: SqlDatabase, revision: str, *, one_before: bool = False) -> None:
    """Only so far; `one_before`: to the one that this revision builds on."""
    found = ScriptDirectory(str(MIGRATIONS)).get_revision(revision)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, str(found.down_revision) if one_before else revision)


def _stored_now(database: SqlDatabase) -> object:
    """A time as the tables hold it."""
    return datetime.now(UTC) if database.url.get_backend_name() == "postgresql" else 0


MIGRATE = """
import sys
from dlpipe.core.model import Scope
from dlpipe.core.states import Status
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import now
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


def test_a_new_sqlite_ledger_is_what_the_migrations_would_have_made(tmp_path: Path) -> None:
    assert fresh.FILE.read_text() == docs_ledger.render(), "run: make docs"
    made, migrated = (SqlDatabase(f"sqlite:///{tmp_path / name}.db") for name in ("made", "migrated"))
    assert fresh.make(made) == HEAD
    migrate(migrated)
    assert described(made) == described(migrated)
    for database in (made, migrated):
        database.check_schema()
        with looking(database) as connection:
            rows = connection.execute(sa.select(schema.schema_history)).all()
            assert rows[-1].revision == HEAD
            assert datetime.now(UTC) - rows[-1].migrated_at < timedelta(minutes=5), "it says when it was made"
        database.close()
    files = [docs_ledger.statements(tmp_path / f"{name}.db") for name in ("made", "migrated")]
    assert files[0] == files[1], "to the letter: tables, columns in their order, indexes, rows"


def test_a_file_with_tables_of_somebody_else_is_left_to_the_migrations(tmp_path: Path) -> None:
    database = SqlDatabase(f"sqlite:///{tmp_path / 'ledger.db'}")
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE theirs (a)")
    assert fresh.make(database) is None
    assert database.schema_version() is None
    database.close()
    (tmp_path / "no").write_text("not a database, and long enough to be taken for a damaged one" * 20)
    assert fresh.make(SqlDatabase(f"sqlite:///{tmp_path / 'no'}")) is None


def test_a_ledger_is_made_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    database = SqlDatabase(f"sqlite:///{tmp_path / 'new' / 'folder' / 'ledger.db'}")
    assert migrate(database) == (None, HEAD)
    database.close()


def test_jobs_that_were_there_before_get_their_tenant_and_the_name_of_their_part(empty: SqlDatabase) -> None:
    """0003: what dispatch and staging go by is filled in, also for jobs of another tenant; ended jobs want no part."""
    migrate_to(empty, "0003", one_before=True)
    ids = {}
    with empty.engine.begin() as connection:
        for tenant, state in (("default", "PLANNED"), ("other", "FAILED"), ("other", "DEDUPED")):
            job_id = str(uuid.uuid4())
            ids[job_id] = (tenant, state)
            connection.execute(
                sa.text(
                    "INSERT INTO jobs (job_id, tenant_id, project_id, job_type, status, idempotency_key, created_at, "
                    "updated_at) VALUES (:job, :tenant, 'default', 'artifact_download', 'pending', :key, :at, :at)"
                ),
                {"job": job_id, "tenant": tenant, "key": job_id, "at": _stored_now(empty)},
            )
            connection.execute(
                sa.text(
                    "INSERT INTO artifact_jobs (job_id, work_id, artifact_id, canonical_url, request_url, host, state) "
                    "VALUES (:job, 'w', 'a', 'https://example.com/x', 'https://example.com/x', 'example.com', :state)"
                ),
                {"job": job_id, "state": state},
            )
    migrate(empty)
    with looking(empty) as connection:
        rows = connection.execute(sa.select(schema.artifact_jobs)).all()
    assert {row.job_id: (row.tenant_id, row.state) for row in rows} == ids
    for row in rows:
        wanted = None if row.state == "DEDUPED" else part_slug(row.tenant_id, "https://example.com/x")
        assert row.part == wanted
