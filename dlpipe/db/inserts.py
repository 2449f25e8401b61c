"""Inserts that meet a row which is there already: SQLite and PostgreSQL spell them alike, SQLAlchemy twice."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def upserting(dialect: str, table: sa.Table) -> Any:
    """An insert that can say what to do on a conflict."""
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)


@cache
def ignoring(dialect: str, table: sa.Table) -> Any:
    """An insert that does nothing where a key is taken already; any other broken rule is an error."""
    return upserting(dialect, table).on_conflict_do_nothing()


def insert_ignoring(connection: sa.Connection, table: sa.Table) -> Any:
    return ignoring(connection.dialect.name, table)
