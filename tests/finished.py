"""A world in which all work is done: one job at every kind of end, and a download of a torrent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dlpipe.core.model import Scope
from dlpipe.db import SqlDatabase
from tests.torrent_world import TorrentWorld
from tests.world import World

SITE = "https://example.org/"
A, B, OTHER = b"a" * 3_000, b"b" * 70_000, Scope("default", "other")


class Finished:
    """`fetched` is completed; `twin` has the same bytes in another project; `known` was skipped, as the URL was known;
    `gone` failed for good; `canceled` was; `followed` is the download."""

    def __init__(self, database: SqlDatabase, directory: Path) -> None:
        self.database = database
        self.torrent = TorrentWorld(database, directory)
        self.root = directory / "store"
        self.world = world = World(database, self.root)
        world.source.put(f"{SITE}a.pdf", A, content_type="application/pdf")
        world.source.put(f"{SITE}same.pdf", A, content_type="application/pdf")
        world.source.put(f"{SITE}b", B, content_type=None)
        self.fetched = world.fetch(f"{SITE}a.pdf", work_id="w")
        self.twin = world.fetch(f"{SITE}same.pdf", project_id="other")
        self.known = world.fetch(f"{SITE}a.pdf", work_id="w", artifact_id="again")
        self.large = world.fetch(f"{SITE}b")
        self.gone = world.fetch(f"{SITE}nothing")
        self.canceled = world.plan(f"{SITE}unwanted")
        with database.write() as unit:
            unit.owned(Scope()).cancel(self.canceled)
        self.followed = self.torrent.downloading()
        self.torrent.finish()
        self.torrent.sync()
        self.torrent.drive()
        states = {row.state: row.n for row in self.sql("SELECT state, count(*) AS n FROM artifact_jobs GROUP BY state")}
        assert states == {"DEDUPED": 3, "SKIPPED_DUPLICATE": 1, "FAILED": 1, "CANCELED": 1}
        assert self.torrent.state(self.followed) == "completed"

    @property
    def url(self) -> str:
        return self.database.url.render_as_string(hide_password=False)

    def path(self, job_id: str) -> Path:
        """The file of a job's result."""
        (row,) = self.sql("SELECT storage_pointer FROM artifacts WHERE created_by_job_id = :job", job=job_id)
        return self.root / str(row.storage_pointer).removeprefix("local:")

    # ── planting ──

    def sql(self, text: str, **values: Any) -> list[Any]:
        return self.world.sql(text, **values)

    def plant(self, statement: str, **values: Any) -> None:
        """Change one row past all rules; the foreign keys of the database as well."""
        with self._without_keys() as connection:
            assert connection.execute(sa.text(statement), values).rowcount == 1, statement

    @contextmanager
    def _without_keys(self) -> Iterator[sa.Connection]:
        engine = self.database.engine
        if engine.dialect.name == "postgresql":
            with engine.begin() as connection:
                connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
                yield connection
            return
        bare = sa.create_engine(engine.url, poolclass=sa.pool.NullPool)  # whose connections do not ask for the keys
        with bare.begin() as connection:
            yield connection

    def write(self, path: Path, data: bytes, mode: int = 0o444) -> Path:
        """Put a file in the place of another, which keeps its further names and their bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        return path

    def age(self, path: Path) -> Path:
        """As if nobody had touched it for two hours."""
        then = path.stat().st_mtime - 7_200
        os.utime(path, (then, then))
        return path
