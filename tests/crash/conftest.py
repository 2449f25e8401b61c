"""Ledgers of both kinds, a real Redis for the leases, and a clean process to fork workers from."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import redis

from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from dlpipe.lease.lock import RedisLeases
from tests import postgres
from tests.servers import Valkey
from tests.world import World, empty, template

KILLED = -9


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("ledger") / "template.db")


@pytest.fixture(scope="session")
def postgres_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlDatabase]:
    postgres.require()
    with postgres.Postgres(tmp_path_factory.mktemp("pg")) as server:
        database = SqlDatabase(server.create_database())
        migrate(database)
        yield database
        database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlDatabase]:
    if request.param == "postgresql":
        shared: SqlDatabase = request.getfixturevalue("postgres_database")
        empty(shared)
        yield shared
        return
    file = tmp_path / "ledger.db"
    shutil.copyfile(request.getfixturevalue("sqlite_template"), file)
    database = SqlDatabase(f"sqlite:///{file}")
    yield database
    database.close()


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path, valkey: Valkey) -> Iterator[World]:
    """The holder that carries on. Its leases are real: what the dead one held is still in Redis."""
    made = World(database, tmp_path / "store")
    with valkey.client() as client:
        client.flushall()
    line = redis.Redis.from_url(valkey.url)
    leases = RedisLeases(line, ttl_s=100.0, renew_s=40.0)
    made.deps = replace(made.deps, leases=leases)
    yield made
    leases.close()
    line.close()


Kill = Callable[..., None]


@pytest.fixture(scope="session")
def context() -> ForkServerContext:
    # Forked from a process that has the imports but no threads: quick, and nothing is inherited half-way.
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.crash.child"])
    return made


@pytest.fixture
def kill(context: ForkServerContext) -> Kill:
    """Run a function in a process of its own, which must end by kill -9."""

    def run(function: Callable[..., None], *arguments: object) -> None:
        process = context.Process(target=function, args=arguments)
        process.start()
        process.join(60)
        assert process.exitcode == KILLED, f"the worker lived on: {process.exitcode}"
        process.close()

    return run
