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


def own_values(table: sa.Table, *, updated: bool = False) -> dict[str, Any]:
    """What columns have by themselves, to be said in so many words.

    Of a statement with several parts SQLAlchemy would give all of them one parameter for each name.
    """
    kept = {column.name: column.onupdate if updated else column.default for column in table.columns}
    found = {name: value for name, value in kept.items() if value is not None}
    if not all(value.is_scalar for value in found.values()):
        raise ValueError("a value that is made at each execution cannot be part of a larger statement")
    return {name: sa.literal(getattr(value, "arg"), table.c[name].type) for name, value in found.items()}  # noqa: B009
