"""Where the cells of the crash matrix happen: a ledger, a store and a Redis that can each be taken away."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import redis
import sqlalchemy as sa
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import make_url

from dlpipe.db import SqlDatabase
from dlpipe.db.clock import after
from dlpipe.db.migrate import migrate
from dlpipe.db.schema import artifact_jobs, metadata
from dlpipe.lease.lock import PREFIX, RedisLeases
from tests.crash.faults import FaultyDatabase
from tests.postgres import Postgres
from tests.servers import Valkey
from tests.world import World

LEASE_S = 600.0
_EMPTY = "; ".join(f'DELETE FROM "{table.name}"' for table in reversed(metadata.sorted_tables))


class Ledgers(Protocol):
    """One ledger on one engine, emptied for each cell."""

    url: str

    def empty(self) -> None: ...

    def cut(self) -> None:
        """Take the ledger away from its users, until `mend`."""

    def mend(self) -> None: ...


class SqliteLedgers:
    def __init__(self, place: Path) -> None:
        self.url = f"sqlite:///{place / 'ledger.db'}"
        _migrate(self.url)
        self._admin = sqlite3.connect(place / "ledger.db")
        self._admin.execute("PRAGMA synchronous=OFF")

    def empty(self) -> None:
        self._admin.executescript(f"BEGIN IMMEDIATE; {_EMPTY}; COMMIT")

    def cut(self) -> None:
        """Its file stays open: the worker's own database object plays dead."""

    def mend(self) -> None: ...


class PostgresLedgers:
    """Its socket is reached over a link, which can be taken away."""

    def __init__(self, server: Postgres, place: Path) -> None:
        self._server, self._link = server, place / "pg"
        url = server.create_database()
        _migrate(url)
        name = str(make_url(url).database)
        self._admin = server.connect(name)
        self.url = f"postgresql+psycopg://postgres@/{name}?host={quote(str(self._link))}"
        self.mend()

    def empty(self) -> None:
        self._admin.execute(_EMPTY.encode())

    def cut(self) -> None:
        self._link.unlink(missing_ok=True)
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def mend(self) -> None:
        if not self._link.is_symlink():
            self._link.symlink_to(self._server.socket_dir)


def _migrate(url: str) -> None:
    database = SqlDatabase(url)
    migrate(database)
    database.close()


class Site:
    """One cell's surroundings at a time."""

    def __init__(self, place: Path, ledgers: Ledgers, valkey: Valkey) -> None:
        self._place, self._ledgers, self._valkey = place, ledgers, valkey
        self._link = place / "redis"
        self._number = 0
        self.root = place
        # Kept from cell to cell, as each would have to compile every statement anew.
        self._suffering = FaultyDatabase(ledgers.url, ledgers.cut)
        self._steady = SqlDatabase(ledgers.url)
        self.redis = valkey.client()
        self.mend()

    def fresh(self) -> None:
        if self._number:
            shutil.rmtree(self.root, ignore_errors=True)
        self._number += 1
        self.root = self._place / f"store-{self._number}"
        self.mend()
        self.redis.flushall()
        self._ledgers.empty()

    def mend(self) -> None:
        """Everything can be reached again."""
        if not self._link.is_symlink():
            self._link.symlink_to(self._valkey.directory)
        self._ledgers.mend()

    def cut_redis(self, world: World) -> None:
        self._link.unlink(missing_ok=True)
        self.line_of(world).connection_pool.disconnect()

    @staticmethod
    def line_of(world: World) -> redis.Redis:
        leases = world.deps.leases
        assert isinstance(leases, RedisLeases)
        return leases._redis

    @contextmanager
    def worker(self, dress: Callable[[World], None]) -> Iterator[World]:
        """One worker's adapters, as fresh as in a new process."""
        self._suffering.reset()
        with self._world(dress, self._suffering) as world:
            yield world

    @contextmanager
    def other(self, dress: Callable[[World], None]) -> Iterator[World]:
        """A worker to whom nothing happens."""
        with self._world(dress, self._steady) as world:
            yield world

    @contextmanager
    def _world(self, dress: Callable[[World], None], database: SqlDatabase) -> Iterator[World]:
        world = World(database, self.root)
        line = redis.Redis.from_url(
            f"unix://{self._link}/{os.path.basename(self._valkey.socket)}",
            socket_timeout=10, socket_connect_timeout=10, retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        leases = RedisLeases(line, ttl_s=LEASE_S, renew_s=LEASE_S / 3)
        world.deps = replace(world.deps, leases=leases)
        dress(world)
        try:
            yield world
        finally:
            leases.close()
            line.close()

    def pass_time(self, world: World) -> None:
        """Leases run out, waits are over, and what was sent was sent long ago."""
        for key in self.redis.scan_iter(match=f"{PREFIX}*"):
            self.redis.delete(key)
        past = after(-3600.0)
        with world.database._begun() as connection:
            for column in (artifact_jobs.c.lease_until, artifact_jobs.c.due_at, artifact_jobs.c.published_at):
                connection.execute(sa.update(artifact_jobs).where(column.is_not(None)).values({column: past}))
