"""Where rounds that see a part of everything go on: one row per walk. Losing one costs a walk from the start."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dlpipe.db.schema import cursors


def get(connection: sa.Connection, name: str) -> str:
    found: str | None = connection.scalar(sa.select(cursors.c.position).where(cursors.c.name == name))
    return found or ""


def put(connection: sa.Connection, name: str, position: str) -> None:
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(
        make(cursors)
        .values(name=name, position=position)
        .on_conflict_do_update(index_elements=[cursors.c.name], set_={"position": position})
    )


class SqlCursors:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def get(self, name: str) -> str:
        return get(self._connection, name)

    def put(self, name: str, position: str) -> None:
        put(self._connection, name, position)
