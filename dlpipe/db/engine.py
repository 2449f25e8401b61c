"""Connections: one engine per process, its pragmas and time-outs, and the unit of work on top of it."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dlpipe.core.errors import LedgerConflict, LedgerUnavailable, Misconfigured
from dlpipe.core.model import ArtifactRecord, Scope
from dlpipe.core.ports import Endings, FirstCopy, Glance, Known, KnownBlob
from dlpipe.db import history, schema
from dlpipe.db.backlog import SqlBacklog
from dlpipe.db.cursors import SqlCursors
from dlpipe.db.endings import LoneEndings, SqlEndings
from dlpipe.db.figures import SqlFigures
from dlpipe.db.garbage import SqlGarbage
from dlpipe.db.jobs import SqlJobs
from dlpipe.db.ledger import SqlLedger
from dlpipe.db.nodes import SqlNodes
from dlpipe.db.owned import SqlOwned
from dlpipe.db.ready import say
from dlpipe.db.registry import SqlRegistry
from dlpipe.db.sessions import Sessions, is_conflict, keep_rows_back, leave_standbys
from dlpipe.db.stores import SqlStores
from dlpipe.db.torrents import SqlTorrents

log = logging.getLogger(__name__)

T = TypeVar("T")

BUSY_TIMEOUT_MS = 30_000
_WAL_PAUSE_S = 0.01
_PRAGMAS = (
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",
    "PRAGMA cache_size=-16000",
)
_DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_OTHER_TABLES = frozenset({"42P01", "42703"})
"""The SQLSTATEs of a table and of a column that is not there."""


class SqlUnit:
    """One transaction and the repositories that share its connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.jobs = SqlJobs(connection)
        self.backlog = SqlBacklog(connection)
        self.ledger = SqlLedger(connection)
        self.endings = SqlEndings(connection)
        self.registry = SqlRegistry(connection)
        self.cursors = SqlCursors(connection)
        self.stores = SqlStores(connection)
        self.nodes = SqlNodes(connection)
        self.torrents = SqlTorrents(connection)
        self.figures = SqlFigures(connection)
        self.garbage = SqlGarbage(connection)

    def owned(self, scope: Scope) -> SqlOwned:
        return SqlOwned(self._connection, scope)

    def rollback(self) -> None:
        self._connection.rollback()


class LoneQuestions:
    """The port `Known` on PostgreSQL without a transaction: there each statement is as of its own moment either way."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def known_url(self, tenant_id: str, canonical_url: str, trust_s: float | None) -> KnownBlob | None:
        return self._ask(lambda registry: registry.known_url(tenant_id, canonical_url, trust_s))

    def first_copy(self, dedupe_scope: str, sha256: str) -> FirstCopy | None:
        return self._ask(lambda registry: registry.first_copy(dedupe_scope, sha256))

    def has_bytes(self, tenant_id: str, sha256: str, besides: str | None = None) -> bool:
        return self._ask(lambda registry: registry.has_bytes(tenant_id, sha256, besides))

    def result_of(self, job_id: str, sha256: str) -> ArtifactRecord | None:
        return self._ask(lambda registry: registry.result_of(job_id, sha256))

    def _ask(self, question: Callable[[SqlRegistry], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return question(SqlRegistry(connection))
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        # The server was restarted while nobody asked: all connections from before have been given up by now.
        with self._engine.connect() as connection:
            return question(SqlRegistry(connection))


@dataclass(frozen=True, slots=True)
class SqlGlance:
    registry: Known


class _Turn:
    """Whose turn it is to make an engine. A child that is forked meanwhile has nobody who would let go."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()


_turn = _Turn()


class SqlDatabase:
    """The ledger on SQLite or PostgreSQL; safe to carry over a fork, safe for threads."""

    def __init__(self, url: str, *, pool_size: int = 8, sessions: Sessions | None = None) -> None:
        """`sessions` are those on PostgreSQL; SQLite has a pool only."""
        self.url = sa.engine.make_url(url)
        if self.url.get_backend_name() not in ("sqlite", "postgresql"):
            raise Misconfigured(
                f"the ledger cannot live in {self.url.get_backend_name()!r}",
                code="database_unsupported",
                hint="Use sqlite:///path or postgresql+psycopg://user:password@host/name.",
            )
        self._pool_size, self._sessions = pool_size, sessions or Sessions(pool_size=pool_size)
        self._pid = 0
        self._engine: sa.Engine | None = None

    @property
    def engine(self) -> sa.Engine:
        engine = self._engine
        if engine is not None and self._pid == os.getpid():
            return engine
        with _turn.lock:  # of threads that begin together, one makes it: connections of another one would be nobody's
            if self._engine is None or self._pid != os.getpid():
                # A forked child must never use, nor close, its parent's connections.
                if self._engine is not None:
                    self._engine.dispose(close=False)
                self._engine, self._pid = self._make(), os.getpid()
            return self._engine

    def _make(self) -> sa.Engine:
        if self._is_sqlite:
            engine = sa.create_engine(
                self.url,
                hide_parameters=True,  # they hold URLs, and errors end up in logs
                poolclass=sa.pool.QueuePool,
                pool_size=self._pool_size,
                max_overflow=64,
                connect_args={"timeout": BUSY_TIMEOUT_MS / 1000, "check_same_thread": False},
            )
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        engine = sa.create_engine(
            self.url,
            hide_parameters=True,
            pool_size=self._sessions.pool_size,
            max_overflow=self._sessions.pool_overflow,
            pool_timeout=self._sessions.pool_wait_s,
            pool_recycle=self._sessions.recycle_s,
            # We say BEGIN ourselves, so that a lost connection is noticed before any work.
            connect_args={**self._sessions.connect_args(), "autocommit": True},
        )
        event.listen(engine, "begin", _begin_postgresql)
        leave_standbys(engine)
        keep_rows_back(engine)
        return engine

    @contextmanager
    def write(self) -> Iterator[SqlUnit]:
        with _translated(), self._begun() as connection:
            yield SqlUnit(connection)

    @contextmanager
    def read(self) -> Iterator[SqlUnit]:
        with _translated(), self._begun(dlpipe_read=True) as connection:
            yield SqlUnit(connection)

    @contextmanager
    def single(self) -> Iterator[Endings]:
        if self._is_sqlite:
            with self.write() as unit:
                yield unit.endings
        else:
            with _translated():
                yield LoneEndings(self.engine)

    @contextmanager
    def glance(self) -> Iterator[Glance]:
        if self._is_sqlite:
            with self.read() as unit:
                yield SqlGlance(unit.registry)
        else:
            with _translated():
                yield SqlGlance(LoneQuestions(self.engine))

    @property
    def _is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def _begun(self, **options: bool) -> Iterator[sa.Connection]:
        """A connection in a transaction, which is committed at the end, or undone by an exception."""
        with ExitStack() as stack:
            try:
                begun = stack.enter_context(self._begin(options))
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                # The server was restarted while nobody worked: with that BEGIN all connections from before were given
                # up, and nothing has been done yet. To ask for a sign of life each time would be a round trip more.
                begun = stack.enter_context(self._begin(options))
            yield begun

    @contextmanager
    def _begin(self, options: Mapping[str, bool]) -> Iterator[sa.Connection]:
        with self.engine.connect() as plain:
            connection = plain.execution_options(**options)
            with connection.begin():
                yield connection

    def schema_version(self) -> str | None:
        """The revision the database is at; None when it has no tables yet."""
        with _translated(), self._begun(dlpipe_read=True) as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
            return found

    def check_schema(self) -> None:
        """Refuse to work with tables that this code does not know; those of a later release may say that it does."""
        found = self.schema_version()
        works_from = self.works_from(found) if found is not None and found > schema.SCHEMA_VERSION else None
        history.check(found, works_from)
        if found != schema.SCHEMA_VERSION:
            log.warning("the tables are of a later release (schema %s) and work with this one", found)

    def works_from(self, revision: str) -> str | None:
        """The oldest code that works with the tables of that revision; None where nobody has said."""
        with _translated(), self._begun(dlpipe_read=True) as connection:
            return history.oldest_code(connection, revision)

    def close(self) -> None:
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()
        self._engine = None

    @property
    def sqlite_file(self) -> Path | None:
        if self._is_sqlite and self.url.database:
            return Path(self.url.database)
        return None


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves, so that a writer waits at its start
    _enter_wal(connection)
    for pragma in _PRAGMAS:
        connection.execute(pragma).close()


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Of those who open a new file together SQLite lets one do this, and refuses it to the others without waiting."""
    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
        time.sleep(_WAL_PAUSE_S)


def _begin_sqlite(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("dlpipe_read", False)
    say(connection, "BEGIN" if reads else "BEGIN IMMEDIATE")


def _begin_postgresql(connection: sa.Connection) -> None:
    say(connection, "BEGIN")


def is_busy(error: BaseException | None) -> bool:
    """Does somebody else hold the SQLite file? By the driver's error."""
    return _sqlite_kind(error) == sqlite3.SQLITE_BUSY


def _sqlite_kind(error: BaseException | None) -> int:
    """The kind of the driver's error, without what its code says beyond that; 0 if it is none of SQLite's."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def locked() -> LedgerUnavailable:
    return LedgerUnavailable(
        "the ledger's file is held by somebody who does not let go of it",
        code="ledger_locked",
        hint="Is a process that uses it stopped (state T in ps), or does a tool hold ledger.db? Let it go on, or end "
        "it. Nothing was changed: workers go on by themselves, a command has to be repeated.",
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Turn "the database did not answer" into the project's own error; a broken rule stays what it is."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        said = error.orig if isinstance(error, DBAPIError) else None
        if is_conflict(said):
            raise LedgerConflict("the database ended this transaction in favour of another one") from error
        if is_busy(said):
            raise locked() from error
        raise LedgerUnavailable(f"the database did not answer ({type(said or error).__name__})") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise LedgerUnavailable("the connection to the database was lost") from error
        if getattr(error.orig, "sqlstate", None) in _OTHER_TABLES:
            raise LedgerUnavailable(
                "the database's tables are not those that this process was started with",
                code="schema_changed",
                hint="They were migrated meanwhile: end this process and start the version that they are for.",
            ) from error
        if _sqlite_kind(error.orig) in _DAMAGED:
            raise LedgerUnavailable(
                "the ledger's file is damaged, or is no database",
                code="ledger_damaged",
                hint="Is DLPIPE_HOME or DLPIPE_DATABASE_URL right? Else put a backup of ledger.db in its place.",
            ) from error
        raise
