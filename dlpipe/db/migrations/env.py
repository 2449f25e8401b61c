"""Alembic runs on the connection that dlpipe.db.migrate hands it: in its transaction if it is in one (SQLite), else
with one of its own for each revision (PostgreSQL).
"""

from collections.abc import Collection, Mapping
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo

from dlpipe.db import history
from dlpipe.db.schema import metadata


def note(
    ctx: MigrationContext,
    step: MigrationInfo,
    heads: Collection[Any],  # noqa: ARG001 - alembic hands it over by its name; so the next
    run_args: Mapping[str, Any],  # noqa: ARG001
) -> None:
    """In the same transaction as the step: a revision without its word for older code would be one that refuses it."""
    script = context.script.get_revision(step.up_revision_id or "")
    goes_on = getattr(script.module, "older_code_goes_on", False)
    before = next(iter(step.down_revision_ids), None)
    assert ctx.connection is not None  # noqa: S101 - only without a database there is none
    history.note(ctx.connection, script.revision, before, older_code_goes_on=goes_on)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    transaction_per_migration=True,
    compare_type=True,
    on_version_apply=note,
)
with context.begin_transaction():
    context.run_migrations()
