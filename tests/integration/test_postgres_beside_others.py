"""PostgreSQL shared by many: nobody waits long for anybody, and what the server undid is done again."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from dlpipe.core.errors import LedgerConflict, LedgerUnavailable, Misconfigured
from dlpipe.core.ports import Unit
from dlpipe.db import SqlDatabase, schema
from dlpipe.db.migrate import engine_beside_others, migrate
from dlpipe.db.migrations import beside
from dlpipe.db.ready import say
from dlpipe.db.schema import jobs
from dlpipe.db.sessions import Sessions
from dlpipe.pipeline import settling
from dlpipe.pipeline.settling import TRIES, settle
from dlpipe.verify.ledger import Ledger
from tests.contract.test_migrations import migrate_to
from tests.ledgers import Bench, looking, spec
from tests.postgres import Postgres
from tests.servers import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("it is about PostgreSQL", "ledger"),
    pytest.mark.no_engines("broker", "store"),
]


@pytest.fixture
def ledger(postgres: Postgres, postgres_template: str) -> Iterator[SqlDatabase]:
    """A database of its own, as its settings are changed."""
    opened = SqlDatabase(postgres.create_database(postgres_template))
    yield opened
    opened.close()


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────


def test_every_session_has_the_limits_that_were_set(postgres: Postgres, postgres_url: str) -> None:
    database = SqlDatabase(postgres_url, sessions=Sessions(pool_size=1, pool_overflow=0, statement_s=2.5, lock_s=0.25))
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone")
    with looking(database) as connection:
        assert [connection.scalar(sa.text(f"SHOW {name}")) for name in names] == ["2500ms", "250ms", "2500ms", "UTC"]
        assert connection.scalar(sa.text("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"))
    database.close()


def test_a_pool_that_is_used_up_is_told_as_unavailable_in_time(postgres_url: str) -> None:
    database = SqlDatabase(postgres_url, sessions=Sessions(pool_size=1, pool_overflow=0, pool_wait_s=0.2))
    with database.read(), pytest.raises(LedgerUnavailable), database.read():
        pass
    database.close()


def test_who_waits_for_a_lock_gives_up_in_time(postgres_url: str) -> None:
    database = SqlDatabase(postgres_url, sessions=Sessions(lock_s=0.2))
    job_id = Bench(database).job()
    update = sa.update(jobs).where(jobs.c.job_id == job_id).values(progress=1)
    with database.write() as first:
        first._connection.execute(update)
        with pytest.raises(LedgerUnavailable, match="LockNotAvailable"), database.write() as second:
            second._connection.execute(update)
    database.close()


def test_after_a_failover_no_connection_to_the_standby_is_kept(postgres: Postgres, ledger: SqlDatabase) -> None:
    """The old server goes on answering, and refuses every write."""
    bench = Bench(ledger)
    bench.job()
    with postgres.connect() as admin:
        admin.execute(f'ALTER DATABASE "{ledger.url.database}" SET default_transaction_read_only = on'.encode())
    ledger.engine.dispose()
    with pytest.raises(LedgerUnavailable):
        bench.job()
    with postgres.connect() as admin:
        admin.execute(f'ALTER DATABASE "{ledger.url.database}" RESET default_transaction_read_only'.encode())
    assert bench.plan(spec("after"))[0].outcome == "created"


@pytest.mark.parametrize("refused_by", ["CHECK", "UNIQUE", "NOT NULL"])
def test_what_the_server_refuses_is_told_without_the_row(ledger: SqlDatabase, refused_by: str) -> None:
    """It repeats the whole row in the DETAIL of its error, and errors end up in logs (SAFE-2)."""
    rows = {"CHECK": ("sig=5ec2e7&more", "X"), "UNIQUE": ("sig=5ec2e7", ""), "NOT NULL": ("sig=5ec2e7&more", None)}
    insert = sa.text("INSERT INTO asked VALUES (:url, :state)")
    with ledger.write() as unit:
        made = "CREATE TABLE asked (url text UNIQUE, state text NOT NULL CHECK (state <> 'X'))"
        unit._connection.execute(sa.text(made))
        unit._connection.execute(insert, {"url": "sig=5ec2e7", "state": ""})
    url, state = rows[refused_by]
    ready = "INSERT INTO asked VALUES (%(url)s, %(state)s)"
    for execute in (
        lambda unit: unit._connection.execute(insert, {"url": url, "state": state}),
        lambda unit: say(unit._connection, ready, {"url": url, "state": state}),
    ):
        with ledger.write() as unit, pytest.raises(sa.exc.IntegrityError) as refused:
            execute(unit)
        said = "".join(traceback.format_exception(refused.value))
        assert "5ec2e7" not in said
        assert "violates" in said, "what was refused, and by what"


def test_an_index_that_a_migration_cannot_make_is_told_without_the_rows(ledger: SqlDatabase) -> None:
    with ledger.write() as unit:
        unit._connection.execute(sa.text("CREATE TABLE twice AS SELECT 'sig=5ec2e7' AS url FROM generate_series(1, 2)"))
    engine = engine_beside_others(ledger, 1.0)
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError) as refused:
        connection.execute(sa.text("CREATE UNIQUE INDEX once ON twice (url)"))
    engine.dispose()
    said = "".join(traceback.format_exception(refused.value))
    assert "5ec2e7" not in said
    assert "could not create unique index" in said


def test_the_checker_reads_and_can_write_nothing_whatever_the_address_asks_for(ledger: SqlDatabase) -> None:
    """`target_session_attrs=read-write` is how several servers are named, and refuses sessions that only read."""
    url = ledger.url.update_query_dict({"target_session_attrs": "read-write"})
    checker = Ledger(url.render_as_string(hide_password=False))
    with checker.snapshot() as now:
        assert now.schema_version()[0] == schema.SCHEMA_VERSION
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), checker.snapshot() as now:
        now._connection.connection.cursor().execute("UPDATE jobs SET progress = 1")
    checker.close()


# ── dispatchers side by side ──────────────────────────────────────────────────────────────────────


def test_a_dispatcher_waits_neither_for_another_one_nor_for_a_row(ledger: SqlDatabase) -> None:
    bench = Bench(ledger)
    ids = [bench.job() for _ in range(3)]
    with ledger.write() as first:
        assert len(first.backlog.take_due(1, 100, 100)) == 1
        began = time.monotonic()
        with ledger.write() as second:
            assert second.backlog.take_due(100, 100, 100) == []  # the first one is at it
        assert time.monotonic() - began < 5
    with ledger.write() as owner:
        owner._connection.execute(
            sa.update(schema.artifact_jobs).where(schema.artifact_jobs.c.job_id == ids[1]).values(priority=0)
        )
        began = time.monotonic()
        with ledger.write() as unit:
            taken = {hint.job_id for hint in unit.backlog.take_due(100, 100, 100)}
        assert time.monotonic() - began < 5
    assert ids[1] not in taken
    assert len(taken) == 1
    with ledger.write() as unit:
        assert [hint.job_id for hint in unit.backlog.take_due(100, 100, 100)] == [ids[1]]


# ── what the server undid ─────────────────────────────────────────────────────────────────────────


def progress_of(unit: Unit, job_id: str) -> int:
    connection: sa.Connection = unit._connection  # type: ignore[attr-defined]
    return connection.scalar(sa.select(jobs.c.progress).where(jobs.c.job_id == job_id)) or 0


def add_one(unit: Unit, job_id: str) -> None:
    connection: sa.Connection = unit._connection  # type: ignore[attr-defined]
    more = progress_of(unit, job_id) + 1
    connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(progress=more))


def test_of_two_that_block_each_other_both_get_done(ledger: SqlDatabase) -> None:
    bench = Bench(ledger)
    one, two = bench.job(), bench.job()
    both_hold = threading.Barrier(2)
    calls: list[str] = []

    def in_order(first: str, second: str) -> None:
        def work(unit: Unit) -> None:
            calls.append(first)
            add_one(unit, first)
            if len(calls) <= 2:
                both_hold.wait(10)
            add_one(unit, second)

        settle(ledger, work)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(in_order, one, two), pool.submit(in_order, two, one)]:
            done.result(30)
    assert len(calls) == 3, "nobody was undone, so nothing was shown"
    assert [bench.view(job_id).progress for job_id in (one, two)] == [2, 2]


def test_under_a_strict_isolation_no_increment_is_lost(postgres: Postgres, ledger: SqlDatabase) -> None:
    with postgres.connect() as admin:
        admin.execute(
            f'ALTER DATABASE "{ledger.url.database}" SET default_transaction_isolation = serializable'.encode()
        )
    ledger.engine.dispose()
    bench = Bench(ledger)
    job_id = bench.job()
    both_have_read = threading.Barrier(2)
    tried: list[None] = []

    def work(unit: Unit) -> None:
        tried.append(None)
        if len(tried) <= 2:  # the first of each
            assert progress_of(unit, job_id) == 0
            both_have_read.wait(20)
        add_one(unit, job_id)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(lambda: [settle(ledger, work) for _ in range(10)]) for _ in range(2)]:
            done.result(60)
    assert bench.view(job_id).progress == 20
    assert len(tried) > 20, "nobody was undone, so nothing was shown"


def test_it_is_not_tried_for_ever_and_nothing_else_is_repeated(
    ledger: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "PAUSE_S", 0.0)
    tried: list[str] = []

    def always(sqlstate: str) -> None:
        def work(unit: Unit) -> None:
            tried.append(sqlstate)
            connection: sa.Connection = unit._connection  # type: ignore[attr-defined]
            connection.execute(sa.text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$"))

        settle(ledger, work)

    for sqlstate in ("40001", "40P01"):
        with pytest.raises(LedgerConflict):
            always(sqlstate)
        assert tried == [sqlstate] * TRIES
        tried.clear()
    for sqlstate in ("55P03", "57014"):
        with pytest.raises(LedgerUnavailable):
            always(sqlstate)
        assert tried == [sqlstate]
        tried.clear()


# ── migrations ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def before_the_last(postgres: Postgres) -> Iterator[SqlDatabase]:
    """As the version before left it: the next step changes a table that is in use."""
    opened = SqlDatabase(postgres.create_database())
    migrate_to(opened, "0007", one_before=True)
    yield opened
    opened.close()


def test_a_migration_gives_up_where_somebody_reads_on_and_keeps_nobody_out(before_the_last: SqlDatabase) -> None:
    database = before_the_last
    refusals: list[Misconfigured] = []

    def run() -> None:
        try:
            migrate(database, lock_s=0.3, pause_s=0.3, tries=4)
        except Misconfigured as error:
            refusals.append(error)

    others = SqlDatabase(database.url.render_as_string(hide_password=False), sessions=Sessions(lock_s=2))
    count = sa.text("SELECT count(*) FROM artifact_jobs")
    with others.read() as reader:
        reader._connection.scalar(count)  # from now on it holds its lock until it is over
        migration = threading.Thread(target=run)
        migration.start()
        asked = 0
        while migration.is_alive():
            with others.write() as writer:
                writer._connection.execute(sa.text("UPDATE artifact_jobs SET priority = 1 WHERE priority = 2"))
            asked += 1
        migration.join()
    assert asked > 4
    assert [refusal.code for refusal in refusals] == ["migration_blocked"]
    assert "repeat dlpipe migrate" in refusals[0].hint
    assert database.schema_version() == "0006"
    assert migrate(database, lock_s=0.3) == ("0006", schema.SCHEMA_VERSION)
    database.check_schema()
    others.close()


def test_a_reader_that_ends_lets_the_waiting_migration_through(before_the_last: SqlDatabase) -> None:
    with ThreadPoolExecutor(1) as pool:
        with before_the_last.read() as reader:
            reader._connection.scalar(sa.text("SELECT count(*) FROM artifact_jobs"))
            migration = pool.submit(migrate, before_the_last, lock_s=0.2, pause_s=0.2, tries=100)
            time.sleep(0.5)
            assert not migration.done()
        assert migration.result(30)[1] == schema.SCHEMA_VERSION


def test_what_earlier_revisions_did_stays_done_when_a_later_one_is_blocked(postgres: Postgres) -> None:
    database = SqlDatabase(postgres.create_database())
    migrate_to(database, "0005")
    with database.read() as reader:
        reader._connection.scalar(sa.text("SELECT count(*) FROM artifact_jobs"))  # 0006 does not touch it
        with pytest.raises(Misconfigured, match="0006"):
            migrate(database, lock_s=0.2, pause_s=0.1, tries=2)
    assert database.schema_version() == "0006"
    assert migrate(database)[1] == schema.SCHEMA_VERSION
    database.close()


def test_an_index_is_made_beside_writers_and_one_that_was_broken_off_is_made_again(
    postgres: Postgres, ledger: SqlDatabase
) -> None:
    Bench(ledger).job()
    broken = "CREATE INDEX CONCURRENTLY ix_trial ON artifact_jobs ((1 / (fence - fence)))"
    with postgres.connect(ledger.url.database or "") as admin, pytest.raises(psycopg.errors.DivisionByZero):
        admin.execute(broken)
    assert valid(ledger) == [False]
    with ledger.write() as writer:
        # A writer that has begun before has to be waited for; one that begins meanwhile is not kept out.
        writer._connection.execute(sa.update(schema.artifact_jobs).values(priority=3))
        with ThreadPoolExecutor(1) as pool:
            making = pool.submit(make_index, ledger)
            wait_until(lambda: waiting(ledger), "the index to be under way")
            time.sleep(0.4)  # longer than it would wait for a lock
            with ledger.write() as second:
                second.jobs.plan_if_absent([spec("meanwhile")])
            assert not making.done()
            writer.rollback()
            making.result(30)
    assert valid(ledger) == [True]


def make_index(database: SqlDatabase) -> None:
    engine = engine_beside_others(database, lock_s=0.2)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context), context.begin_transaction():
            beside.create_index("ix_trial", "artifact_jobs", ["priority"], "priority > 1")


def waiting(database: SqlDatabase) -> bool:
    with looking(database) as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '% INDEX CONCURRENTLY %' AND wait_event = '"
        return bool(connection.scalar(sa.text(asked + "virtualxid'")))


def valid(database: SqlDatabase) -> list[bool]:
    with looking(database) as connection:
        found = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('ix_trial')"
        return list(connection.scalars(sa.text(found)))
