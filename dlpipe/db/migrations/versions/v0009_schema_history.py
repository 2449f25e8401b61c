"""Which code works with the tables, for code that is older than they are (ADR 37)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dlpipe.db.clock import Moment

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

older_code_goes_on = True


def upgrade() -> None:
    op.create_table(
        "schema_history",
        sa.Column("revision", sa.String(32), nullable=False),
        sa.Column("works_from", sa.String(32), nullable=False),
        sa.Column("migrated_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_schema_history"),
    )
