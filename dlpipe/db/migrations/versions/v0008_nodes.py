"""Nodes that do not share their staging folders: when each was heard last, and whether it takes new jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dlpipe.db.clock import Moment

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("net_at", Moment(), nullable=True),
        sa.Column("disk_at", Moment(), nullable=True),
        sa.Column("steady_since", Moment(), nullable=False),
        sa.Column("drained_at", Moment(), nullable=True),
        sa.Column("folder_id", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
