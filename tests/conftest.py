"""What every suite may ask for: a PostgreSQL server, and a fresh migrated ledger on each engine."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import make_url

from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from dlpipe.db.schema import SCHEMA_VERSION, metadata
from tests import engines
from tests import postgres as postgres_server
from tests.ledgers import Bench
from tests.objectserver import ObjectServer
from tests.objectserver import missing as object_server_missing
from tests.postgres import Postgres
from tests.tally import Tally

SERVERS = frozenset({"postgres", "object_server"})
"""Fixtures that start a server which takes seconds to start."""
ENGINES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.slow))


def pytest_addoption(parser: pytest.Parser) -> None:
    engines.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Commands that tests start must hear Ctrl-C, also where a shell started the tests deaf to it (`make test &`)."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    config.pluginmanager.register(engines, "engines")
    config.pluginmanager.register(Tally(config), "tally")


@pytest.hookimpl(tryfirst=True)  # before those that are slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def absent(reason: str) -> NoReturn:
    """Something that the test needs is not here: a reason to skip, but in CI a failure, as nobody reads skips there."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One server for the session, or for each worker of xdist. Not for tests that cut its power: it may forget."""
    if reason := postgres_server.missing():
        absent(reason)
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        with server.connect() as admin:
            admin.execute("ALTER ROLE postgres SET synchronous_commit = off")
        yield server
        server.kill()  # nothing of it is wanted any more, so nothing need be written out


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """The name of a migrated database that nobody uses, to be copied."""
    database = SqlDatabase(postgres.create_database())
    migrate(database)
    database.close()
    assert database.url.database is not None
    return database.url.database


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that nobody uses, to be copied."""
    file = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = SqlDatabase(f"sqlite:///{file}")
    migrate(database)
    database.close()
    return file


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh migrated ledger in a file."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'ledger.db')}"


@pytest.fixture(scope="session")
def postgres_ledger(postgres: Postgres, postgres_template: str) -> str:
    """The ledger that one test after the other is given: a copy for each would be gigabytes."""
    return postgres.create_database(postgres_template)


@pytest.fixture
def postgres_url(postgres: Postgres, postgres_ledger: str) -> str:
    """A migrated ledger on the server, as empty as a fresh one, and used by nobody."""
    name = make_url(postgres_ledger).database
    assert name is not None
    with postgres.connect(name) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for table in reversed(metadata.sorted_tables):
            admin.execute(f'DELETE FROM "{table.name}"'.encode())
        admin.execute("UPDATE alembic_version SET version_num = %s", [SCHEMA_VERSION])
    return postgres_ledger


@pytest.fixture(params=ENGINES)
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh migrated ledger, once on each engine."""
    url: str = request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param])
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[SqlDatabase]:
    opened = SqlDatabase(database_url)
    yield opened
    opened.close()


@pytest.fixture(params=ENGINES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made, once on each engine: no tables yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_database()


@pytest.fixture
def bench(database: SqlDatabase) -> Bench:
    return Bench(database)


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A real S3 server for the session, or for each worker of xdist. Not for tests that stop it."""
    if reason := object_server_missing():
        absent(reason)
    with tempfile.TemporaryDirectory(prefix="dls") as directory, ObjectServer(Path(directory)) as server:
        yield server
