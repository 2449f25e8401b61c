"""Hot questions go through the index that was made for them, whatever the engine's statistics say.

SQLite keeps none here, and PostgreSQL's are older than the million rows that somebody has just planned: for minutes
it would take a partial index for the whole table, and read the table instead.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dlpipe.db.schema import artifact_jobs

_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_sort")


def through(index: str, query: sa.Select[Any]) -> sa.Select[Any]:
    """For SQLite: this index, or an error."""
    return query.with_hint(artifact_jobs, f"INDEXED BY {index}", "sqlite")


def prefer_indexes(connection: sa.Connection) -> None:
    """For PostgreSQL: until the end of the transaction, read in the order of an index where one will do."""
    if connection.dialect.name == "postgresql":
        off = (sa.func.set_config(name, "off", True) for name in _OFF)
        connection.execute(sa.select(*off))
