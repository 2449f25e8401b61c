"""A real Redis for the leases, and a clean process to fork workers from."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import redis

from dlpipe.db import SqlDatabase
from dlpipe.lease.lock import RedisLeases
from tests.servers import Valkey
from tests.world import World

KILLED = -9


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def world(database_url: str, tmp_path: Path, valkey: Valkey) -> Iterator[World]:
    """The holder that carries on. Its leases are real: what the dead one held is still in Redis."""
    database = SqlDatabase(database_url)
    made = World(database, tmp_path / "store")
    with valkey.client() as client:
        client.flushall()
    line = redis.Redis.from_url(valkey.url)
    leases = RedisLeases(line, ttl_s=100.0, renew_s=40.0)
    made.deps = replace(made.deps, leases=leases)
    yield made
    leases.close()
    line.close()
    database.close()


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
