"""A job can be paused; what is paused is not among the jobs that dispatch looks at."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dlpipe.db.clock import Moment

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None

_TO_DISPATCH = "due_at IS NOT NULL AND published_at IS NULL AND paused_at IS NULL"


def upgrade() -> None:
    op.add_column("artifact_jobs", sa.Column("paused_at", Moment(), nullable=True))
    op.drop_index("ix_artifact_jobs_due", table_name="artifact_jobs")
    op.create_index(
        "ix_artifact_jobs_due",
        "artifact_jobs",
        [sa.literal_column("priority DESC"), "due_at"],
        unique=False,
        sqlite_where=sa.text(_TO_DISPATCH),
        postgresql_where=sa.text(_TO_DISPATCH),
    )
