"""Which code works with which tables: the release before goes on with what only adds, and refuses the rest (JOB-10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from dlpipe.core.errors import LedgerUnavailable, Misconfigured
from dlpipe.db import SqlDatabase, history, schema
from dlpipe.db.migrate import alembic_config, breaking, migrate
from dlpipe.verify import schema_version
from tests.ledgers import everything, looking

HEAD = schema.SCHEMA_VERSION
FIRST_WITH_A_WORD = "0009"
"""Revisions before it are from before the first release."""
LATER = [
    one for one in ScriptDirectory.from_config(alembic_config()).walk_revisions() if one.revision >= FIRST_WITH_A_WORD
]


@pytest.fixture
def empty(empty_url: str) -> Iterator[SqlDatabase]:
    opened = SqlDatabase(empty_url)
    yield opened
    opened.close()


def go_to(database: SqlDatabase, revision: str) -> None:
    config = alembic_config()
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def later_release(database: SqlDatabase, *steps: tuple[str, bool]) -> None:
    """As migrations of later releases leave it: each a revision, and whether older code goes on."""
    before = HEAD
    with database.engine.begin() as connection:
        for revision, goes_on in steps:
            history.note(connection, revision, before, older_code_goes_on=goes_on)
            connection.execute(sa.text("UPDATE alembic_version SET version_num = :v"), {"v": revision})
            before = revision


# ── what the database says, and who heeds it ──────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("steps", "works"),
    [
        ([("9001", True)], True),
        ([("9001", True), ("9002", True)], True),
        ([("9001", False)], False),
        ([("9001", False), ("9002", True)], False),  # what the first took away the second did not bring back
        ([("9001", True), ("9002", False)], False),
    ],
)
def test_tables_of_a_later_release_are_worked_with_only_where_every_step_says_so(
    steps: list[tuple[str, bool]], works: bool, empty: SqlDatabase
) -> None:
    migrate(empty)
    later_release(empty, *steps)
    newest, before = steps[-1][0], everything(empty)
    found, works_from = schema_version(empty.url.render_as_string(hide_password=False))
    assert found == newest
    if works:
        empty.check_schema()
        history.check(found, works_from)  # as the checker asks
        assert migrate(empty) == (newest, newest)
    else:
        for refused in (empty.check_schema, lambda: migrate(empty), lambda: history.check(found, works_from)):
            with pytest.raises(Misconfigured) as refusal:
                refused()
            assert refusal.value.code == "schema_newer"
            assert newest in refusal.value.message
            assert "Upgrade dlpipe" in refusal.value.hint
    assert everything(empty) == before
    assert empty.schema_version() == newest


def test_tables_of_which_nobody_has_said_it_are_refused(empty: SqlDatabase) -> None:
    migrate(empty)
    with empty.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9001'"))
    with pytest.raises(Misconfigured, match="9001"):
        empty.check_schema()
    with empty.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE schema_history"))
    with pytest.raises(Misconfigured, match="9001"):
        empty.check_schema()


def test_code_that_was_there_before_the_tables_knows_their_word(empty: SqlDatabase) -> None:
    """A step by step upgrade writes each step down, and so does one from nothing."""
    go_to(empty, "0008")
    assert empty.works_from("0008") is None
    assert breaking(empty) == [one.revision for one in reversed(LATER) if not one.module.older_code_goes_on]
    migrate(empty)
    with looking(empty) as connection:
        rows = connection.execute(sa.select(schema.schema_history)).all()
    assert sorted(row.revision for row in rows) == sorted(one.revision for one in LATER)
    assert all(row.works_from <= row.revision for row in rows)
    assert breaking(empty) == []


def test_a_table_or_column_that_went_away_under_a_process_costs_no_job_anything(database: SqlDatabase) -> None:
    """The runner takes an unavailable ledger for a pause. Before, the job paid for what was no fault of its own."""
    with database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE cursors RENAME TO cursors_of_later"))
    try:
        with pytest.raises(LedgerUnavailable) as told, database.read() as unit:
            unit.cursors.get("blobs")
        if database.url.get_backend_name() == "postgresql":
            assert told.value.code == "schema_changed"
    finally:
        with database.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE cursors_of_later RENAME TO cursors"))


# ── what a step that lets older code go on may do ─────────────────────────────────────────────────


def test_every_revision_says_whether_older_code_goes_on() -> None:
    assert [
        one.revision for one in LATER if not isinstance(getattr(one.module, "older_code_goes_on", None), bool)
    ] == []


@pytest.mark.parametrize("revision", [one.revision for one in LATER if getattr(one.module, "older_code_goes_on", 0)])
def test_a_revision_with_which_older_code_goes_on_only_adds(revision: str, empty: SqlDatabase) -> None:
    (script,) = [one for one in LATER if one.revision == revision]
    go_to(empty, str(script.down_revision))
    before = described(empty)
    go_to(empty, revision)
    assert demands(before, described(empty)) == []


@pytest.mark.parametrize(
    ("statement", "demand"),
    [
        ("DROP TABLE cursors", "table cursors is gone"),
        ("ALTER TABLE url_index RENAME COLUMN etag TO tag", "column url_index.etag is gone"),
        (
            "ALTER TABLE cursors RENAME COLUMN position TO x",
            "column cursors.position is gone, column cursors.x has to be given",
        ),
        ("ALTER TABLE cursors ADD COLUMN x INTEGER DEFAULT 1 NOT NULL", None),
        ("ALTER TABLE cursors ADD COLUMN x INTEGER CONSTRAINT c CHECK (x > 0)", None),
        ("CREATE INDEX ix_new ON cursors (position)", None),
        ("CREATE TABLE fresh (x INTEGER NOT NULL)", None),
        ("CREATE UNIQUE INDEX ix_new ON cursors (position)", "cursors has the unique index ix_new"),
        ("ALTER TABLE cursors ADD COLUMN x INTEGER REFERENCES cursors2 (x)", None),
    ],
)
def test_the_test_of_that_knows_a_demand_when_it_sees_one(
    statement: str, demand: str | None, empty: SqlDatabase
) -> None:
    migrate(empty)
    with empty.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE cursors2 (x INTEGER PRIMARY KEY)"))
    before = described(empty)
    with empty.engine.begin() as connection:
        connection.execute(sa.text(statement))
    assert ", ".join(demands(before, described(empty))) == (demand or "")


def described(database: SqlDatabase) -> dict[str, dict[str, Any]]:
    with looking(database) as connection:
        look = sa.inspect(connection)
        return {
            table: {
                "columns": {one["name"]: one for one in look.get_columns(table)},
                "checks": {one["name"]: one["sqltext"] for one in look.get_check_constraints(table)},
                "foreign": {str(one["name"]): one["constrained_columns"] for one in look.get_foreign_keys(table)},
                "unique": {
                    *(str(one["name"]) for one in look.get_indexes(table) if one["unique"]),
                    *(str(one["name"]) for one in look.get_unique_constraints(table)),
                },
            }
            for table in look.get_table_names()
        }


def demands(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    """What code that knows the tables of before cannot meet."""
    found = []
    for table, old in before.items():
        new = after.get(table)
        if new is None:
            found.append(f"table {table} is gone")
            continue
        added = new["columns"].keys() - old["columns"].keys()
        for name, column in old["columns"].items():
            now = new["columns"].get(name)
            if now is None:
                found.append(f"column {table}.{name} is gone")
            elif (str(now["type"]), now["nullable"]) != (str(column["type"]), column["nullable"]):
                found.append(f"column {table}.{name} is another one")
        found += [
            f"column {table}.{name} has to be given"
            for name in sorted(added)
            if not new["columns"][name]["nullable"] and new["columns"][name]["default"] is None
        ]
        found += [
            f"{table} has the check {name}"
            for name, text in new["checks"].items()
            if name not in old["checks"] and not any(column in text for column in added)
        ]
        found += [
            f"{table} has the foreign key {name}"
            for name, columns in new["foreign"].items()
            if name not in old["foreign"] and not set(columns) <= added
        ]
        found += [f"{table} has the unique index {name}" for name in sorted(new["unique"] - old["unique"])]
    return found
