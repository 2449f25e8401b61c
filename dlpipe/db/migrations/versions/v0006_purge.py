"""What stays of a purged job, and which artifacts were given up with theirs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from dlpipe.db.clock import Moment

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_UUID = sa.String(36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")


def upgrade() -> None:
    op.create_table(
        "artifact_retirements",
        sa.Column("artifact_uuid", _UUID, nullable=False),
        sa.Column("retired_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("artifact_uuid", name="pk_artifact_retirements"),
        sa.ForeignKeyConstraint(
            ["artifact_uuid"],
            ["artifacts.artifact_uuid"],
            name="fk_artifact_retirements_artifact_uuid",
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "purged_jobs",
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("purged_at", Moment(), nullable=False),
        sa.Column("archive", sa.String(255), nullable=False),
        sa.Column("archive_sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_purged_jobs"),
    )
