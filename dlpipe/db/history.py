"""Which code works with the tables as a migration left them (ADR 37).

Old code cannot know the migrations of a later release. So each of them says in the database which code may go on.
"""

from __future__ import annotations

import sqlalchemy as sa

from dlpipe.core.errors import Misconfigured
from dlpipe.db import schema
from dlpipe.db.clock import now
from dlpipe.db.schema import schema_history

_H = schema_history.c


def note(connection: sa.Connection, revision: str, before: str | None, *, older_code_goes_on: bool) -> None:
    """Write down that this revision has been reached; within the transaction that reached it."""
    if not sa.inspect(connection).has_table(schema_history.name):
        return  # a revision from before the table
    works_from = revision
    if older_code_goes_on and before is not None:
        works_from = oldest_code(connection, before) or before
    connection.execute(sa.insert(schema_history).values(revision=revision, works_from=works_from, migrated_at=now()))


def oldest_code(connection: sa.Connection, revision: str) -> str | None:
    """The revision of the oldest code that works with these tables; None where nobody has said."""
    if not sa.inspect(connection).has_table(schema_history.name):
        return None
    found: str | None = connection.scalar(sa.select(_H.works_from).where(_H.revision == revision))
    return found


def check(found: str | None, works_from: str | None = None) -> None:
    """Misconfigured unless this code works with tables at that revision, which work with code from `works_from` on."""
    if found == schema.SCHEMA_VERSION:
        return
    if found is None:
        raise Misconfigured("the database has no tables yet", code="schema_missing", hint="Run: dlpipe migrate")
    if found < schema.SCHEMA_VERSION:
        raise Misconfigured(
            f"the database is at schema {found}, and this version of dlpipe needs {schema.SCHEMA_VERSION}",
            code="schema_behind",
            hint="Run: dlpipe migrate",
        )
    if works_from is None or works_from > schema.SCHEMA_VERSION:
        raise Misconfigured(
            f"the database is at schema {found}, which needs a version of dlpipe for {works_from or found} or later, "
            f"and this one is for {schema.SCHEMA_VERSION}",
            code="schema_newer",
            hint="Upgrade dlpipe on this machine; nothing is ever downgraded by itself.",
        )
