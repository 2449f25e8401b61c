"""A new SQLite ledger, made as the migrations would leave it, without loading what runs them.

`fresh.sql` is written from the migrations, and a test holds it against them: they are the truth.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dlpipe.db.clock import now
from dlpipe.db.engine import SqlDatabase
from dlpipe.db.schema import SCHEMA_VERSION, schema_history

FILE = Path(__file__).with_name("fresh.sql")
BETWEEN = "\n\n"


def make(database: SqlDatabase) -> str | None:
    """All of it in one transaction; the revision, or None where it cannot be, and nothing was done.

    A migration then says why, or finds its way: the file may hold tables of somebody else.
    """
    _, *statements = FILE.read_text(encoding="utf-8").rstrip("\n").split(BETWEEN)
    try:
        with database.engine.begin() as connection:
            if connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar():
                return None
            for statement in statements:
                connection.exec_driver_sql(statement)
            connection.execute(sa.update(schema_history).values(migrated_at=now()))
    except DBAPIError:
        return None
    return SCHEMA_VERSION
