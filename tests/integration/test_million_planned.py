"""A million planned rows: a round costs what is due and fits, not what is planned (HEAL-1, HEAL-6)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from dlpipe.db import SqlDatabase
from dlpipe.db.schema import artifact_jobs
from dlpipe.pipeline.dispatch import dispatch
from dlpipe.pipeline.reconcile import reconcile
from tests.fakes.publisher import FakePublisher
from tests.postgres import Postgres
from tests.world import make_deps

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.no_engines("broker", "store"),
]

FEW, MANY = 100_000, 1_000_000
WINDOW, PER_HOST = 2_000, 500

Engine = Callable[[int], SqlDatabase]

# Of each hundred rows: two of small tenants; 20 of a high priority whose time has not come; 60, the oldest, for one
# host; the rest for many. So what a round would go through first is not yet due, or for a host that soon has enough.
_TENANT = "CASE WHEN n % 50 = 4 THEN 'small-' || (n % 1000 / 50) ELSE 'big' END"
_HOST = "CASE WHEN n % 5 < 3 THEN 'crowded.example' ELSE 'h' || (n % 97) || '.example' END"
_PRIORITY = "CASE WHEN n % 5 = 3 THEN 9 ELSE 0 END"
_JOBS = (
    "INSERT INTO jobs (job_id, tenant_id, project_id, job_type, status, idempotency_key, created_at, updated_at) "
    f"SELECT {{id}}, {_TENANT}, 'default', 'artifact_download', 'pending', 'key-' || n, {{past}}, {{past}} "
    "FROM {rows}"
)
_ARTIFACT_JOBS = (
    "INSERT INTO artifact_jobs "
    "(job_id, tenant_id, work_id, artifact_id, canonical_url, request_url, host, state, due_at, priority, part) "
    f"SELECT {{id}}, {_TENANT}, 'w', 'a', 'https://example.com/' || n, 'https://example.com/' || n, {_HOST}, "
    f"'PLANNED', CASE WHEN n % 5 = 3 THEN {{future}} ELSE {{past}} END, {_PRIORITY}, 'part-' || n FROM {{rows}}"
)


def fill(database: SqlDatabase, count: int) -> None:
    """Past the planner, which would take minutes for what does not matter here."""
    postgresql = database.url.get_backend_name() == "postgresql"
    if postgresql:
        spelled = {
            "id": "('00000000-0000-5000-8000-' || lpad(n::text, 12, '0'))::uuid",
            "rows": f"generate_series(1, {count}) AS n",
            "past": "now() - make_interval(hours => 24) + make_interval(secs => (n % 5) * 3600 + n * 0.001)",
            "future": "now() + make_interval(hours => 24)",
        }
    else:
        spelled = {
            "id": "printf('00000000-0000-5000-8000-%012d', n)",
            "rows": "(WITH RECURSIVE s(n) AS "
            f"(SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s)",
            "past": "unixepoch('now', '-24 hours') * 1000 + (n % 5) * 3600000 + n",
            "future": "unixepoch('now', '+24 hours') * 1000",
        }
    percent = "%%" if postgresql else "%"
    with database.engine.connect() as plain:
        if postgresql:  # a statement of users ends after a minute; this one may take longer
            plain.exec_driver_sql("SET LOCAL statement_timeout = 0")
        for statement in (_JOBS, _ARTIFACT_JOBS):
            plain.exec_driver_sql(statement.format(**spelled).replace("%", percent))
        plain.commit()


@pytest.fixture(params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    opened = []

    def make(count: int) -> SqlDatabase:
        if request.param == "sqlite":
            template: Path = request.getfixturevalue("sqlite_template")
            url = f"sqlite:///{shutil.copy(template, tmp_path / f'{count}.db')}"
        else:
            server: Postgres = request.getfixturevalue("postgres")
            url = server.create_database(request.getfixturevalue("postgres_template"))
        database = SqlDatabase(url)
        opened.append(database)
        fill(database, count)
        return database

    yield make
    for database in opened:
        database.close()


@contextmanager
def effort(database: SqlDatabase) -> Iterator[list[int]]:
    """What the engine does meanwhile: steps of SQLite's machine, rows and blocks that PostgreSQL reads."""
    spent: list[int] = []
    if database.url.get_backend_name() == "sqlite":
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        def watch(connection: Any, *_: object) -> None:
            connection.set_progress_handler(step, 1)

        database.close()
        event.listen(database.engine, "connect", watch)
        yield spent
        spent.append(steps)
        database.close()
        return

    def flush(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")

    event.listen(database.engine, "begin", flush)
    before = _counters(database)
    yield spent
    spent.append(_counters(database) - before)


def _counters(database: SqlDatabase) -> int:
    tables = "coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)"
    blocks = "coalesce(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)), 0)"
    with database.engine.connect() as connection:
        connection.commit()  # what this connection did before is written down
        found = connection.exec_driver_sql(
            f"SELECT (SELECT {tables} FROM pg_stat_user_tables) + (SELECT {blocks} FROM pg_statio_user_tables)"
        )
        return int(found.scalar_one())


def test_rounds_cost_the_same_with_a_million_rows_as_with_a_few_thousand(filled: Engine, tmp_path: Path) -> None:
    costs: dict[int, dict[str, int]] = {}
    for count in (FEW, MANY):
        database, publisher = filled(count), FakePublisher()
        deps = make_deps(database, tmp_path / "store", publisher=publisher)
        assert (deps.policy.window, deps.policy.window_per_host) == (WINDOW, PER_HOST)
        costs[count] = {}
        for name in ("first", "full", "reconcile", "freed"):
            if name == "freed":  # a hundred are done
                done = [hint.job_id for hint in publisher.queue[:100]]
                del publisher.queue[:100]
                with database.engine.begin() as connection:
                    over = sa.update(artifact_jobs).where(artifact_jobs.c.job_id.in_(done))
                    connection.execute(over.values(published_at=None, due_at=None))
            with effort(database) as spent:
                sent = reconcile(deps).dispatched if name == "reconcile" else dispatch(deps)
            costs[count][name] = spent[0]
            assert sent == {"first": WINDOW, "freed": 100}.get(name, 0)
            assert len(publisher.queue) == WINDOW, "the broker holds as much as the window, and no more"
        hosts = hosts_of(database)
        assert max(hosts.values()) <= PER_HOST
        assert tenants_of(database)["big"] < WINDOW / 10, "the small tenants have their share"
    print(costs)
    for name, few in costs[FEW].items():
        many = costs[MANY][name]
        assert many < 2 * few + 500, f"{name}: {few} with {FEW} rows, {many} with {MANY}"


def hosts_of(database: SqlDatabase) -> dict[str, int]:
    return _in_flight(database, "host")


def tenants_of(database: SqlDatabase) -> dict[str, int]:
    return _in_flight(database, "tenant_id")


def _in_flight(database: SqlDatabase, column: str) -> dict[str, int]:
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            f"SELECT {column}, count(*) FROM artifact_jobs WHERE published_at IS NOT NULL GROUP BY {column}"
        )
        return {str(row[0]): int(row[1]) for row in rows}
