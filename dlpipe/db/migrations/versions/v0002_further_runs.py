"""Why a further run happens, and marks on artifacts whose file is missing or damaged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from dlpipe.db.clock import Moment

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_UUID = sa.String(length=36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")


def upgrade() -> None:

    # In one statement: SQLite cannot add a check to a table that is there, but can add a column that brings one.
    op.execute(
        "ALTER TABLE artifact_jobs ADD COLUMN purpose VARCHAR(16) "
        "CONSTRAINT ck_artifact_jobs_purpose CHECK (purpose IN ('refresh','repair'))"
    )
    op.create_table(
        "artifact_faults",
        sa.Column("fault_id", _UUID, nullable=False),
        sa.Column("artifact_uuid", _UUID, nullable=False),
        sa.Column("fault", sa.String(length=16), nullable=False),
        sa.Column("found_at", Moment(), nullable=False),
        sa.Column("mended_at", Moment(), nullable=True),
        sa.CheckConstraint("fault IN ('missing','damaged')", name=op.f("ck_artifact_faults_fault")),
        sa.ForeignKeyConstraint(
            ["artifact_uuid"],
            ["artifacts.artifact_uuid"],
            name=op.f("fk_artifact_faults_artifact_uuid"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("fault_id", name=op.f("pk_artifact_faults")),
    )
    op.create_index(
        "uq_artifact_faults_open",
        "artifact_faults",
        ["artifact_uuid"],
        unique=True,
        sqlite_where=sa.text("mended_at IS NULL"),
        postgresql_where=sa.text("mended_at IS NULL"),
    )
