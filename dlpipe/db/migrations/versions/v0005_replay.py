"""A further run can be a replay, from a stage of its own."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_CHECK = "CONSTRAINT ck_artifact_jobs_purpose CHECK ({} IN ('refresh','repair','replay'))"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE artifact_jobs DROP CONSTRAINT ck_artifact_jobs_purpose")
        op.execute(f"ALTER TABLE artifact_jobs ADD {_CHECK.format('purpose')}")
    else:
        # SQLite changes no check of a column, but a column takes its own check along.
        op.execute(f"ALTER TABLE artifact_jobs ADD COLUMN purposes VARCHAR(16) {_CHECK.format('purposes')}")
        op.execute("UPDATE artifact_jobs SET purposes = purpose WHERE purpose IS NOT NULL")
        op.execute("ALTER TABLE artifact_jobs DROP COLUMN purpose")
        op.execute("ALTER TABLE artifact_jobs RENAME COLUMN purposes TO purpose")
    op.execute(
        "ALTER TABLE artifact_jobs ADD COLUMN replay_from VARCHAR(16) "
        "CONSTRAINT ck_artifact_jobs_replay_from CHECK (replay_from IN ('stream','finalize','index','dedupe'))"
    )
