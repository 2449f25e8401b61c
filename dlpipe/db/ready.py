"""Statements that every stage makes, spelled once and handed to the driver as they are.

SQLAlchemy writes them, keeps their connections and translates their errors; only what it does anew at each execution
(looking the statement up, setting up contexts and results) is left out, since that takes longer than the driver does.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

_Process = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one execution; rows have their columns by name."""

    rows: Sequence[Any]
    rowcount: int

    def first(self) -> Any:
        return self.rows[0] if self.rows else None


class Ready:
    """A statement whose parameters are all bound by name; each execution gives a value to every one of them."""

    def __init__(self, statement: sa.Executable) -> None:
        self._statement: Any = statement
        self._spelled: dict[str, _Spelled] = {}

    def __call__(self, connection: sa.Connection, values: Mapping[str, Any]) -> Found:
        dialect = connection.dialect
        spelled = self._spelled.get(dialect.name)
        if spelled is None:
            spelled = self._spelled[dialect.name] = _Spelled(self._statement, dialect)
        return spelled.execute(connection, values)


class _Spelled:
    def __init__(self, statement: Any, dialect: sa.Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self._text = str(compiled)
        if "POSTCOMPILE" in self._text:
            raise ValueError("a statement that is spelled by its values cannot be made ready")
        binds = {name: bind for bind, name in compiled.bind_names.items()}
        self._makes = _processes(dialect, {name: bind.type for name, bind in binds.items()}, "bind_processor")
        self._given = frozenset(name for name, bind in binds.items() if bind.required)
        self._fixed = {name: self._made(name, bind.value) for name, bind in binds.items() if not bind.required}
        defaults = [(column, column.default) for column in compiled.insert_prefetch]
        defaults += [(column, column.onupdate) for column in compiled.update_prefetch]
        for column, default in defaults:
            if not default.is_scalar:
                raise ValueError("a value that is made at each execution cannot be made ready")
            self._fixed[column.key] = self._made(column.key, default.arg)
        self._order: Sequence[str] | None = compiled.positiontup if compiled.positional else None
        if self._order is None:
            self._spell_out()
        types = {column.key: column.type for column in statement.exported_columns}
        row: Any = namedtuple("Row", types, rename=True)  # type: ignore[misc]
        self._row = row._make
        reads = _processes(dialect, types, "result_processor", None)
        self._reads = [(at, reads[name]) for at, name in enumerate(types) if name in reads]
        self._answers = bool(types)

    def _spell_out(self) -> None:
        """What never changes stands in the text: to hand a value over costs the driver and the server more."""
        for name, value in list(self._fixed.items()):
            if value is None or type(value) is int or (type(value) is str and value.replace("_", "a").isalnum()):
                spelled = "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)
                self._text = self._text.replace(f"%({name})s", spelled)
                del self._fixed[name]

    def execute(self, connection: sa.Connection, values: Mapping[str, Any]) -> Found:
        bound = self._fixed | {name: self._made(name, values[name]) for name in self._given}
        rows, rowcount = say(
            connection,
            self._text,
            bound if self._order is None else [bound[name] for name in self._order],
            answers=self._answers,
        )
        return Found([self._read(row) for row in rows], rowcount)

    def _made(self, name: str, value: Any) -> Any:
        make = self._makes.get(name)
        return value if make is None else make(value)

    def _read(self, row: Sequence[Any]) -> Any:
        if not self._reads:
            return self._row(row)
        cells = list(row)
        for at, read in self._reads:
            cells[at] = read(cells[at])
        return self._row(cells)


def say(
    connection: sa.Connection, text: str, values: Mapping[str, Any] | Sequence[Any] = (), *, answers: bool = False
) -> tuple[Sequence[Any], int]:
    """Hand it to the driver; answer the rows, and how many there were or were changed."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text, values)
        rows = cursor.fetchall() if answers else ()
        rowcount = cursor.rowcount
    except Exception as error:
        # As SQLAlchemy's own executions end: connections that are gone leave the pool, and the error gets its kind.
        connection._handle_dbapi_exception(error, text, None, cursor, None)
    cursor.close()
    return rows, rowcount


def _processes(dialect: sa.Dialect, types: Mapping[str, Any], which: str, *args: Any) -> dict[str, _Process]:
    """What SQLAlchemy does with values of these types, where it does anything."""
    made = {name: getattr(kind.dialect_impl(dialect), which)(dialect, *args) for name, kind in types.items()}
    return {name: process for name, process in made.items() if process is not None}
