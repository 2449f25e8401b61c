"""A job can be paused; what is paused is not among the jobs that dispatch looks at."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dlpipe.db.clock import Moment

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_DUE = "due_at IS NOT NULL AND published_at IS NULL AND paused_at IS NULL"


def upgrade() -> None:
    op.add_column("artifact_jobs", sa.Column("paused_at", Moment(), nullable=True))
    for name, columns in (
        ("due", ["priority", "tenant_id", "due_at"]),
        ("due_host", ["priority", "tenant_id", "host", "due_at"]),
    ):
        op.drop_index(f"ix_artifact_jobs_{name}", table_name="artifact_jobs")
        op.create_index(
            f"ix_artifact_jobs_{name}",
            "artifact_jobs",
            columns,
            sqlite_where=sa.text(_DUE),
            postgresql_where=sa.text(_DUE),
        )
