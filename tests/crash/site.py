"""Where the cells of the crash matrix happen: a ledger, a store and a Redis that can each be taken away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from dlpipe.db.schema import metadata
from dlpipe.lease.lock import PREFIX, RedisLeases
from tests.crash.faults import FaultyDatabase
from tests.postgres import Postgres
from tests.servers import Valkey
from tests.world import World

LEASE_S = 600.0


class Ledgers(Protocol):
    """Empty ledgers on one engine."""

    def fresh(self) -> str:
        """The address of a migrated ledger with nothing in it."""

    def cut(self, database: SqlDatabase) -> None:
        """Take the ledger away from its users, until `mend`."""

    def mend(self) -> None: ...


class SqliteLedgers:
    def __init__(self, place: Path) -> None:
        self._template, self._file = place / "template.db", place / "ledger.db"
        database = SqlDatabase(f"sqlite:///{self._template}")
        migrate(database)
        database.close()

    def fresh(self) -> str:
        for suffix in ("-wal", "-shm"):
            Path(f"{self._file}{suffix}").unlink(missing_ok=True)
        shutil.copy(self._template, self._file)
        return f"sqlite:///{self._file}"

    def cut(self, database: SqlDatabase) -> None:
        """Its file stays open: the worker's own database object plays dead."""

    def mend(self) -> None: ...


class PostgresLedgers:
    """One database, emptied for each. Its socket is reached over a link, which can be taken away."""

    def __init__(self, server: Postgres, place: Path) -> None:
        self._server, self._link = server, place / "pg"
        url = server.create_database()
        database = SqlDatabase(url)
        migrate(database)
        self._name = str(database.url.database)
        database.close()
        self._admin = server.connect(self._name)
        self._admin.execute("SET application_name = 'the crash matrix'")
        self.mend()

    def fresh(self) -> str:
        self._end_others()
        tables = ", ".join(f'"{table.name}"' for table in metadata.sorted_tables)
        found = [
            table.name
            for table in reversed(metadata.sorted_tables)
            if self._admin.execute(f'SELECT 1 FROM "{table.name}" LIMIT 1'.encode()).fetchone()
        ]
        assert tables
        for name in found:
            self._admin.execute(f'DELETE FROM "{name}"'.encode())
        return f"postgresql+psycopg://postgres@/{self._name}?host={quote(str(self._link))}"

    def cut(self, database: SqlDatabase) -> None:
        self._link.unlink(missing_ok=True)
        self._end_others()

    def _end_others(self) -> None:
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def mend(self) -> None:
        if not self._link.is_symlink():
            self._link.symlink_to(self._server.socket_dir)


class Site:
    """One cell's surroundings at a time."""

    def __init__(self, place: Path, ledgers: Ledgers, valkey: Valkey) -> None:
        self._place, self._ledgers, self._valkey = place, ledgers, valkey
        self._link = place / "redis"
        self._number = 0
        self.root = place
        self.database_url = ""
        self.redis = valkey.client()
        self.mend()

    def fresh(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True) if self._number else None
        self._number += 1
        self.root = self._place / f"store-{self._number}"
        self.mend()
        self.redis.flushall()
        self.database_url = self._ledgers.fresh()

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
        world = World(FaultyDatabase(self.database_url, self._ledgers.cut), self.root)
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
            world.database.close()

    def pass_time(self, world: World) -> None:
        """Leases run out, waits are over, and what was sent was sent long ago."""
        for key in self.redis.scan_iter(match=f"{PREFIX}*"):
            self.redis.delete(key)
        for (job_id,) in world.sql("SELECT job_id FROM artifact_jobs"):
            world.expire(job_id)
            world.make_due(job_id)
            world.age(job_id)
