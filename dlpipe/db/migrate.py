"""Bring a database to the schema of this code. Only ever called on purpose (`dlpipe migrate`), or for a
database that the embedded default has just made; nothing here downgrades.

On PostgreSQL others go on working meanwhile. Who waits for a table's lock makes all who come later wait behind it, so a
step waits for a moment only, and is then tried again after a pause in which the others get on (ADR 35).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dlpipe.core.errors import Misconfigured
from dlpipe.db import schema
from dlpipe.db.engine import SqlDatabase, is_busy, locked
from dlpipe.db.sessions import Sessions, keep_rows_back

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

LOCK_S, PAUSE_S, TRIES = 1.0, 2.0, 10
"""A step waits so long for others' locks; it is tried so often."""
TURN_S = 3_600.0
"""How long to wait for another migration of the same database."""
_LOCK = 7_236_482_915
_LOCK_NOT_AVAILABLE = "55P03"


def migrate(
    database: SqlDatabase, *, lock_s: float = LOCK_S, pause_s: float = PAUSE_S, tries: int = TRIES
) -> tuple[str | None, str]:
    """Upgrade to the newest revision; answer the revision before and after."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if file := database.sqlite_file:
        file.parent.mkdir(parents=True, exist_ok=True)
    before = database.schema_version()
    if before is not None and before >= schema.SCHEMA_VERSION:
        database.check_schema()  # a newer schema is not touched: it works with this code, or is refused
        return before, before
    config = alembic_config()
    try:
        if database.url.get_backend_name() == "postgresql":
            _beside_others(database, config, lock_s, pause_s, tries)
        else:
            with database.engine.begin() as connection:
                _upgrade(config, connection)
    except DBAPIError as error:
        if is_busy(error.orig):
            raise locked() from error
        what = str(error.orig).partition("\n")[0] or type(error.orig).__name__
        raise Misconfigured(
            f"the tables could not be brought from schema {before or 'nothing'} to {schema.SCHEMA_VERSION}: {what}",
            code="migration_failed",
            hint="Check that the database's user owns its tables and may create more, and repeat dlpipe migrate.",
        ) from error
    return before, schema.SCHEMA_VERSION


def breaking(database: SqlDatabase) -> list[str]:
    """The revisions that are to come and that code of the release before does not work with (ADR 37)."""
    from alembic.script import ScriptDirectory

    before = database.schema_version()
    if before is None:
        return []
    scripts = list(ScriptDirectory.from_config(alembic_config()).walk_revisions())
    later = [one for one in reversed(scripts) if one.revision > before]
    return [one.revision for one in later if not getattr(one.module, "older_code_goes_on", False)]


def alembic_config() -> Config:
    """What alembic has to know to find the revisions."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _upgrade(config: Config, connection: sa.Connection) -> None:
    from alembic import command

    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _beside_others(database: SqlDatabase, config: Config, lock_s: float, pause_s: float, tries: int) -> None:
    """Each revision is a transaction of its own, so none holds the locks of all, and what is done stays done."""
    engine = engine_beside_others(database, lock_s)
    try:
        with _turn(engine):
            for tried in range(1, tries + 1):
                try:
                    with engine.connect() as connection:
                        return _upgrade(config, connection)
                except DBAPIError as error:
                    if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                        raise
                    if tried == tries:
                        raise _blocked(database, tries) from error
                log.warning("a transaction of others is in the way; tried %d times, and again in %s s", tried, pause_s)
                time.sleep(pause_s)
    finally:
        engine.dispose()


def engine_beside_others(database: SqlDatabase, lock_s: float) -> sa.Engine:
    """For what changes tables that others work on. A statement may take its time: an index over all jobs does."""
    patience = Sessions(lock_s=lock_s, statement_s=86_400)
    engine = sa.create_engine(
        database.url, hide_parameters=True, poolclass=sa.pool.NullPool, connect_args=patience.connect_args()
    )
    keep_rows_back(engine)
    return engine


def _blocked(database: SqlDatabase, tries: int) -> Misconfigured:
    return Misconfigured(
        f"the schema stays at {database.schema_version() or 'nothing'}: other transactions kept their locks on its "
        f"tables, each time of {tries}",
        code="migration_blocked",
        hint="Find them with: SELECT pid, xact_start, query FROM pg_stat_activity WHERE xact_start < now() - interval "
        "'5 s'; and repeat dlpipe migrate when they are over. Nothing is half done.",
    )


@contextmanager
def _turn(engine: sa.Engine) -> Iterator[None]:
    """One migration at a time. Asked for again and again: who waits in a statement keeps an index from being built."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        deadline = time.monotonic() + TURN_S
        while not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_LOCK))):
            if time.monotonic() > deadline:
                raise Misconfigured(
                    "another migration of this database does not end",
                    code="migration_blocked",
                    hint="Look for it on the other machines, end it, and repeat dlpipe migrate.",
                )
            time.sleep(0.1)
        yield  # the connection's end gives it back, also when this process is killed
