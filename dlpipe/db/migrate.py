"""Bring a database to the schema of this code. Only ever called on purpose (`dlpipe migrate`), or for a
database that the embedded default has just made; nothing here downgrades.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from dlpipe.core.errors import Misconfigured
from dlpipe.db import schema
from dlpipe.db.engine import SqlDatabase

_LOCK = 7_236_482_915  # two migrations at once on PostgreSQL wait for each other under this advisory lock


def migrate(database: SqlDatabase) -> tuple[str | None, str]:
    """Upgrade to the newest revision; answer the revision before and after."""
    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    if file := database.sqlite_file:
        file.parent.mkdir(parents=True, exist_ok=True)
    before = database.schema_version()
    if before is not None and before > schema.SCHEMA_VERSION:
        database.check_schema()  # raises: a newer schema is not touched
    if before == schema.SCHEMA_VERSION:
        return before, before
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        with database.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as error:
        what = str(error.orig).partition("\n")[0] or type(error.orig).__name__
        raise Misconfigured(
            f"the tables could not be brought from schema {before or 'nothing'} to {schema.SCHEMA_VERSION}: {what}",
            code="migration_failed",
            hint="Check that the database's user owns its tables and may create more, and repeat dlpipe migrate.",
        ) from error
    return before, schema.SCHEMA_VERSION
