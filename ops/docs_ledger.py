"""Writes dlpipe/db/fresh.sql, the tables of a new SQLite ledger as the migrations leave them; a test compares."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
_HEAD = "-- What the migrations make of an empty SQLite database. Written by: make docs"


def render() -> str:
    from dlpipe.db import SqlDatabase
    from dlpipe.db.fresh import BETWEEN
    from dlpipe.db.migrate import migrate

    with TemporaryDirectory(prefix="dlpipe-") as folder:
        file = Path(folder) / "ledger.db"
        database = SqlDatabase(f"sqlite:///{file}")
        migrate(database)
        database.close()
        return BETWEEN.join([_HEAD, *statements(file)]) + "\n"


def statements(file: Path) -> list[str]:
    """The tables and indexes in the order in which they were made, then the rows that are there from the start."""
    connection = sqlite3.connect(file)
    try:
        connection.execute("UPDATE schema_history SET migrated_at = 0")  # whoever makes it says when
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
        found = [f"{sql};" for (sql,) in made]
        return found + [line for line in connection.iterdump() if line.startswith("INSERT INTO")]
    finally:
        connection.close()


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from dlpipe.db.fresh import FILE

    FILE.write_text(render(), encoding="utf-8")
    print(f"{FILE.name} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
