"""A table of another program's database, read row by row and never written to (PLAN-7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, NoSuchTableError

from dlpipe.core.errors import InvalidInput

PAGE = 500


def rows(url: str, table: str, columns: Sequence[str], needed: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The rows by these columns, those that the table has, in the order of its key.

    InvalidInput when the database, the table or a needed column is not there; the address is not repeated, as it can
    hold a password.
    """
    try:
        engine = _engine(url)
    except (ArgumentError, NoSuchModuleError, ImportError):
        raise _refused("the address of the database cannot be used", "database_url_invalid") from None
    try:
        with engine.connect() as connection:
            schema, _, name = table.rpartition(".")
            found = sa.Table(name, sa.MetaData(), autoload_with=connection, schema=schema or None)
            missing = [column for column in needed if column not in found.c]
            if missing:
                raise _refused(f"the table has no column {missing[0]!r}", "columns_missing")
            wanted = [found.c[column] for column in columns if column in found.c]
            query = sa.select(*wanted).order_by(*found.primary_key.columns)
            for row in connection.execution_options(yield_per=PAGE).execute(query):
                yield dict(row._mapping)
    except NoSuchTableError:
        raise _refused("the database has no such table", "table_missing") from None
    except DBAPIError as error:
        kind = type(error.orig).__name__
        raise _refused(f"the database did not answer ({kind})", "database_unreadable") from None
    finally:
        engine.dispose()


def _engine(url: str) -> sa.Engine:
    made = sa.engine.make_url(url)
    if made.get_backend_name() != "sqlite":
        return sa.create_engine(made, hide_parameters=True, poolclass=sa.pool.NullPool)
    file = Path(made.database or "").absolute()

    def opened() -> sqlite3.Connection:
        return sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, check_same_thread=False)

    return sa.create_engine("sqlite://", creator=opened, hide_parameters=True, poolclass=sa.pool.NullPool)


def _refused(what: str, code: str) -> InvalidInput:
    return InvalidInput(what, code=code, hint="Check --from-database, --table and --map. Nothing was changed by it.")
