"""Steps for tables that others work with. A plain CREATE INDEX keeps all writers of a table out while it runs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op


def create_index(
    name: str, table: str, columns: Sequence[str], where: str | None = None, *, unique: bool = False
) -> None:
    """Make an index while others read and write; it may have been begun before.

    On PostgreSQL it commits what the revision did so far, so give it a revision of its own, or the last place in one
    whose other steps can be repeated.
    """
    condition = None if where is None else sa.text(where)
    context = op.get_context()
    plain = context.dialect.name != "postgresql" or context.connection is None or _outer(context)
    if plain:
        op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
        return
    with context.autocommit_block():
        # What is concurrent waits for transactions that are under way, and nobody waits behind it.
        op.execute("SET lock_timeout = 0")
        # One that was broken off stays behind, invalid: it costs every writer and serves no reader.
        op.drop_index(name, table_name=table, if_exists=True, postgresql_concurrently=True)
        op.create_index(name, table, columns, unique=unique, postgresql_where=condition, postgresql_concurrently=True)
        op.execute("RESET lock_timeout")


def _outer(context: object) -> bool:
    """Is this revision in a transaction of the caller's, where nothing concurrent can be done?"""
    return bool(getattr(context, "_in_external_transaction", False))
