"""Time as the database sees it: expiry and due times are compared on its clock only (LEASE-6).

PostgreSQL keeps TIMESTAMPTZ; SQLite keeps whole milliseconds since 1970, which compare and index alike.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Moment(sa.types.TypeDecorator[datetime]):
    """An aware UTC time."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.DateTime(timezone=True))
        return dialect.type_descriptor(sa.BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return (value - _EPOCH) // _MILLISECOND

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return _EPOCH + timedelta(milliseconds=int(value))


class now(FunctionElement[datetime]):  # noqa: N801 - it reads as the SQL function it is
    """The database's clock."""

    type = Moment()
    inherit_cache = True
    name = "now"


class after(FunctionElement[datetime]):  # noqa: N801
    """`after(seconds)`: that long from now on the database's clock; negative means ago."""

    type = Moment()
    inherit_cache = True
    name = "after"

    def __init__(self, seconds: float | sa.BindParameter[float]) -> None:
        super().__init__(sa.literal(float(seconds), sa.Float()) if isinstance(seconds, int | float) else seconds)


_SQLITE_NOW = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"


@compiles(now, "sqlite")
def _now_sqlite(_element: now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return _SQLITE_NOW


@compiles(now, "postgresql")
def _now_postgresql(_element: now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "clock_timestamp()"


@compiles(after, "sqlite")
def _after_sqlite(element: after, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({_SQLITE_NOW} + CAST({compiler.process(element.clauses, **kw)} * 1000.0 AS INTEGER))"


@compiles(after, "postgresql")
def _after_postgresql(element: after, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"(clock_timestamp() + make_interval(secs => CAST({seconds} AS double precision)))"
