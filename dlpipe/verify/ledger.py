"""The database, opened so that nothing can be written to it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dlpipe.verify.facts import Snapshot

_BUSY_S = 30.0


class DatabaseTrouble(Exception):
    """The database did not answer, or not as one that can be checked. The text names no values."""


class Ledger:
    """Opens the database for reading only."""

    def __init__(self, url: str) -> None:
        self._url = sa.engine.make_url(url)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        if self._sqlite:
            self._engine = sa.create_engine("sqlite://", creator=self._open_file, poolclass=sa.pool.NullPool)
            sa.event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        else:
            self._engine = sa.create_engine(
                self._url,
                hide_parameters=True,
                pool_pre_ping=True,
                connect_args={
                    "connect_timeout": 10,
                    "application_name": "dlpipe verify",
                    # Not read-only as a session: an address that asks for the server that writes would refuse it.
                    "options": "-c timezone=UTC -c lock_timeout=20000",
                },
            )

    def close(self) -> None:
        self._engine.dispose()

    def schema_version(self) -> tuple[str | None, str | None]:
        """The revision of its tables, and the oldest whose code works with them; None where there is none."""
        if self._sqlite and not Path(self._url.database or "").is_file():
            return None, None
        with self.snapshot() as now:
            return now.schema_version()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One consistent look at all tables, from one transaction that could not write if it wanted to."""
        file = Path(self._url.database) if self._sqlite and self._url.database else None
        at_rest = file is not None and not _wal(file).exists()
        before = _stamp(file) if file is not None and at_rest else None
        try:
            with self._engine.connect() as plain:
                options: dict[str, Any] = {"stream_results": True}
                if not self._sqlite:
                    options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
                with plain.execution_options(**options) as connection, connection.begin():
                    yield Snapshot(connection)
        except DBAPIError as error:
            raise DatabaseTrouble(f"the database did not answer ({type(error.orig).__name__})") from error
        if file is not None and before is not None and _stamp(file) != before:
            raise DatabaseTrouble("somebody began to write while it was read as a database at rest")

    def _open_file(self) -> sqlite3.Connection:
        file = Path(self._url.database or "").absolute()
        # Nobody has it open: then SQLite need not leave its side files either, nor have the right to make them.
        how = "mode=ro" if _wal(file).exists() else "immutable=1"
        connection = sqlite3.connect(f"{file.as_uri()}?{how}", uri=True, timeout=_BUSY_S, check_same_thread=False)
        connection.isolation_level = None
        connection.execute("PRAGMA query_only=ON").close()
        return connection


def _wal(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
