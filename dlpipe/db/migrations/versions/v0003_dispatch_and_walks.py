"""Due jobs by tenant and by host, the parts that live jobs want, and where reconcile's walks go on."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_DUE = "due_at IS NOT NULL AND published_at IS NULL"
_LIVE = "(due_at IS NOT NULL OR state NOT IN ('DEDUPED','SKIPPED_DUPLICATE','CANCELED'))"
_BATCH = 1_000


def upgrade() -> None:
    # With a default, so that planners of the version before go on while this one comes up.
    op.add_column(
        "artifact_jobs", sa.Column("tenant_id", sa.String(length=64), nullable=False, server_default=sa.text("''"))
    )
    op.add_column("artifact_jobs", sa.Column("part", sa.String(length=16), nullable=True))
    op.execute(
        "UPDATE artifact_jobs SET tenant_id = "
        "(SELECT jobs.tenant_id FROM jobs WHERE jobs.job_id = artifact_jobs.job_id)"
    )
    _name_parts()
    op.drop_index("ix_artifact_jobs_due", table_name="artifact_jobs")
    for name, columns, where in (
        ("due", ["priority", "tenant_id", "due_at"], _DUE),
        ("due_host", ["priority", "tenant_id", "host", "due_at"], _DUE),
        ("part", ["part"], _LIVE),
    ):
        op.create_index(
            f"ix_artifact_jobs_{name}",
            "artifact_jobs",
            columns,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    op.create_table(
        "cursors",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cursors")),
    )


def _name_parts() -> None:
    """Only of jobs that may still want theirs."""
    connection, last = op.get_bind(), None
    table = sa.table(
        "artifact_jobs", *(sa.column(name) for name in ("job_id", "tenant_id", "canonical_url", "state", "part"))
    )
    while True:
        page = (
            sa.select(table.c.job_id, table.c.tenant_id, table.c.canonical_url)
            .where(sa.text(_LIVE))
            .order_by(table.c.job_id)
            .limit(_BATCH)
        )
        rows = connection.execute(page if last is None else page.where(table.c.job_id > last)).all()
        if not rows:
            return
        last = rows[-1].job_id
        connection.execute(
            sa.update(table).where(table.c.job_id == sa.bindparam("of")).values(part=sa.bindparam("slug")),
            [{"of": row.job_id, "slug": _slug(row.tenant_id, row.canonical_url)} for row in rows],
        )


def _slug(tenant: str, canonical_url: str) -> str:
    return hashlib.sha256(f"{tenant}\n{canonical_url}".encode()).hexdigest()[:16]
