"""Which store belongs to the ledger; where a job goes back to; since when servers put a job off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dlpipe.db.clock import Moment

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stores",
        sa.Column("backend", sa.String(length=32), nullable=False),
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("recorded_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("backend", name=op.f("pk_stores")),
    )
    # In one statement: SQLite cannot add a check to a table that is there, but can add a column that brings one.
    op.execute(
        "ALTER TABLE artifact_jobs ADD COLUMN stood VARCHAR(24) "
        "CONSTRAINT ck_artifact_jobs_stood CHECK (stood IN ('DEDUPED','SKIPPED_DUPLICATE'))"
    )
    op.add_column("artifact_jobs", sa.Column("withdrawn_run", sa.Integer(), nullable=True))
    op.add_column("artifact_jobs", sa.Column("postponed_since", Moment(), nullable=True))
    op.execute(
        "UPDATE artifact_jobs SET stood = state WHERE purpose IS NOT NULL AND state IN ('DEDUPED','SKIPPED_DUPLICATE')"
    )
    # Of further runs that have begun, only this end left a trace.
    op.execute(
        "UPDATE artifact_jobs SET stood = 'DEDUPED' "
        "WHERE purpose IS NOT NULL AND stood IS NULL "
        "AND state IN ('LEASED','HEAD_DONE','RESUME_OK','STREAMING','FAILED') "
        "AND EXISTS (SELECT 1 FROM artifact_ops WHERE artifact_ops.job_id = artifact_jobs.job_id "
        "AND artifact_ops.op_type = 'DEDUPE' AND artifact_ops.state = 'finished')"
    )
