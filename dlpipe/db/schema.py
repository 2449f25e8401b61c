"""The tables. Migrations are the truth about a live database; a test keeps the two alike.

Rows that are at an end leave every partial index, so the hot questions cost what their answer costs.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dlpipe.db.clock import Moment

SCHEMA_VERSION = "0010"
"""The revision that this code works with: the head of migrations/."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _uuid() -> sa.types.TypeEngine[str]:
    return sa.String(36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")


def _json() -> sa.types.TypeEngine[Any]:
    return sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def _digest() -> sa.types.TypeEngine[str]:
    return sa.String(64)


def _job_fk() -> sa.ForeignKey:
    return sa.ForeignKey("jobs.job_id", ondelete="CASCADE")


jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job_id", _uuid(), primary_key=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64), nullable=False),
    sa.Column("job_type", sa.String(32), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("progress", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("idempotency_key", _digest(), nullable=False),
    sa.Column("request_id", sa.String(128)),
    sa.Column("error_code", sa.String(64)),
    sa.Column("error_message_safe", sa.String(1024)),
    sa.Column("error_debug_id", sa.String(32)),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
    sa.Column("completed_at", Moment),
    sa.Column("failed_at", Moment),
    sa.UniqueConstraint("idempotency_key"),
    sa.CheckConstraint("status IN ('pending','processing','completed','failed','skipped','canceled')", name="status"),
    sa.CheckConstraint("progress BETWEEN 0 AND 100", name="progress"),
    sa.Index("ix_jobs_scope_created", "tenant_id", "project_id", "created_at", "job_id"),
    sa.Index("ix_jobs_scope_status", "tenant_id", "project_id", "status", "created_at"),
)

artifact_jobs = sa.Table(
    "artifact_jobs",
    metadata,
    sa.Column("job_id", _uuid(), _job_fk(), primary_key=True),
    # As in `jobs`, so that dispatch finds each tenant's due jobs in one index.
    sa.Column("tenant_id", sa.String(64), nullable=False, server_default=sa.text("''")),
    sa.Column("work_id", sa.String(512), nullable=False),
    sa.Column("artifact_id", sa.String(512), nullable=False),
    sa.Column("canonical_url", sa.Text, nullable=False),
    sa.Column("request_url", sa.Text, nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("state", sa.String(24), nullable=False),
    sa.Column("run", sa.Integer, nullable=False, server_default="0"),
    sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("lease_owner", sa.String(160)),
    sa.Column("lease_until", Moment),
    sa.Column("due_at", Moment),
    sa.Column("published_at", Moment),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("node", sa.String(128)),
    sa.Column("ext", sa.String(16)),
    sa.Column("expected_sha256", _digest()),
    sa.Column("expected_media_type", sa.String(255)),
    sa.Column("max_bytes", sa.BigInteger),
    sa.Column("mirrors", _json()),
    sa.Column("part", sa.String(16)),
    sa.Column("purpose", sa.String(16)),
    sa.CheckConstraint("purpose IN ('refresh','repair','replay')", name="purpose"),
    sa.Column("paused_at", Moment),
    sa.Column("replay_from", sa.String(16)),
    sa.CheckConstraint("replay_from IN ('stream','finalize','index','dedupe')", name="replay_from"),
    # The good end that the job was at when a further run of it was wanted, until it comes to an end again.
    sa.Column("stood", sa.String(24)),
    # The last of its runs that was taken back after it had begun.
    sa.Column("withdrawn_run", sa.Integer),
    # Since when the job is put off, for whatever reasons; and since when for room on the store's volume.
    sa.Column("postponed_since", Moment),
    sa.Column("room_since", Moment),
    sa.CheckConstraint("stood IN ('DEDUPED','SKIPPED_DUPLICATE')", name="stood"),
    sa.CheckConstraint(
        "state IN ('PLANNED','LEASED','HEAD_DONE','RESUME_OK','STREAMING','FINALIZED','INDEXED','DEDUPED',"
        "'FAILED','SKIPPED_DUPLICATE','CANCELED')",
        name="state",
    ),
    sa.CheckConstraint("(lease_owner IS NULL) = (lease_until IS NULL)", name="lease_pair"),
)
DUE = "due_at IS NOT NULL AND published_at IS NULL AND paused_at IS NULL"
LIVE = "(due_at IS NOT NULL OR state NOT IN ('DEDUPED','SKIPPED_DUPLICATE','CANCELED'))"
"""Not at an end, or about to leave it for a further run."""
sa.Index(
    "ix_artifact_jobs_due",
    artifact_jobs.c.priority,
    artifact_jobs.c.tenant_id,
    artifact_jobs.c.due_at,
    sqlite_where=sa.text(DUE),
    postgresql_where=sa.text(DUE),
)
sa.Index(
    "ix_artifact_jobs_due_host",
    artifact_jobs.c.priority,
    artifact_jobs.c.tenant_id,
    artifact_jobs.c.host,
    artifact_jobs.c.due_at,
    sqlite_where=sa.text(DUE),
    postgresql_where=sa.text(DUE),
)
sa.Index(
    "ix_artifact_jobs_part",
    artifact_jobs.c.part,
    sqlite_where=sa.text(LIVE),
    postgresql_where=sa.text(LIVE),
)
sa.Index(
    "ix_artifact_jobs_published",
    artifact_jobs.c.published_at,
    artifact_jobs.c.host,
    sqlite_where=sa.text("published_at IS NOT NULL"),
    postgresql_where=sa.text("published_at IS NOT NULL"),
)
sa.Index(
    "ix_artifact_jobs_lease",
    artifact_jobs.c.lease_until,
    sqlite_where=sa.text("lease_until IS NOT NULL"),
    postgresql_where=sa.text("lease_until IS NOT NULL"),
)

artifact_ops = sa.Table(
    "artifact_ops",
    metadata,
    sa.Column("op_key", _digest(), primary_key=True),
    sa.Column("job_id", _uuid(), _job_fk(), nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("op_type", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("started_at", Moment, nullable=False),
    sa.Column("finished_at", Moment),
    sa.Column("result_code", sa.String(64)),
    sa.Column("result_json", sa.Text),
    sa.CheckConstraint("state IN ('started','finished','failed','abandoned')", name="state"),
    sa.CheckConstraint("(state = 'finished') = (result_json IS NOT NULL AND finished_at IS NOT NULL)", name="finished"),
    sa.Index("ix_artifact_ops_job", "job_id"),
)
sa.Index(
    "ix_artifact_ops_started",
    artifact_ops.c.started_at,
    sqlite_where=sa.text("state = 'started'"),
    postgresql_where=sa.text("state = 'started'"),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("artifact_uuid", _uuid(), primary_key=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64), nullable=False),
    sa.Column("artifact_type", sa.String(32), nullable=False),
    sa.Column("storage_backend", sa.String(32), nullable=False),
    sa.Column("storage_pointer", sa.Text, nullable=False),
    sa.Column("content_type", sa.String(255)),
    sa.Column("byte_size", sa.BigInteger, nullable=False),
    sa.Column("sha256", _digest(), nullable=False),
    sa.Column("schema_version", sa.SmallInteger, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("created_by_job_id", _uuid()),
    sa.CheckConstraint("byte_size >= 0", name="byte_size"),
    sa.Index("ix_artifacts_job", "created_by_job_id"),
    sa.Index("ix_artifacts_sha256", "sha256"),
)

artifact_faults = sa.Table(
    "artifact_faults",
    metadata,
    sa.Column("fault_id", _uuid(), primary_key=True),
    sa.Column("artifact_uuid", _uuid(), sa.ForeignKey("artifacts.artifact_uuid", ondelete="CASCADE"), nullable=False),
    sa.Column("fault", sa.String(16), nullable=False),
    sa.Column("found_at", Moment, nullable=False),
    sa.Column("mended_at", Moment),
    sa.CheckConstraint("fault IN ('missing','damaged')", name="fault"),
)
sa.Index(
    "uq_artifact_faults_open",
    artifact_faults.c.artifact_uuid,
    unique=True,
    sqlite_where=sa.text("mended_at IS NULL"),
    postgresql_where=sa.text("mended_at IS NULL"),
)

artifact_retirements = sa.Table(
    "artifact_retirements",
    metadata,
    sa.Column("artifact_uuid", _uuid(), sa.ForeignKey("artifacts.artifact_uuid", ondelete="CASCADE"), primary_key=True),
    sa.Column("retired_at", Moment, nullable=False),
)

purged_jobs = sa.Table(
    "purged_jobs",
    metadata,
    sa.Column("job_id", _uuid(), primary_key=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("purged_at", Moment, nullable=False),
    sa.Column("archive", sa.String(255), nullable=False),
    sa.Column("archive_sha256", _digest(), nullable=False),
)

job_artifacts = sa.Table(
    "job_artifacts",
    metadata,
    sa.Column("job_id", _uuid(), _job_fk(), primary_key=True),
    sa.Column("role", sa.String(8), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("artifact_uuid", _uuid(), sa.ForeignKey("artifacts.artifact_uuid"), nullable=False),
    sa.UniqueConstraint("job_id", "role", "artifact_uuid"),
    sa.CheckConstraint("role IN ('input','result')", name="role"),
)

hash_index = sa.Table(
    "hash_index",
    metadata,
    sa.Column("scope", sa.String(160), primary_key=True),
    sa.Column("sha256", _digest(), primary_key=True),
    sa.Column("pointer", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("job_id", _uuid(), nullable=False),
)

url_index = sa.Table(
    "url_index",
    metadata,
    sa.Column("scope", sa.String(160), primary_key=True),
    sa.Column("url_sha256", _digest(), primary_key=True),
    sa.Column("canonical_url", sa.Text, nullable=False),
    sa.Column("sha256", _digest(), nullable=False),
    sa.Column("pointer", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("content_type", sa.String(255)),
    sa.Column("etag", sa.String(1024)),
    sa.Column("last_modified", sa.String(128)),
    sa.Column("seen_at", Moment, nullable=False),
)

manifest = sa.Table(
    "manifest",
    metadata,
    sa.Column("artifact_uuid", _uuid(), primary_key=True),
    sa.Column("job_id", _uuid(), _job_fk(), nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("sha256", _digest(), nullable=False),
    sa.Column("pointer", sa.Text, nullable=False),
    sa.Column("shard_prefix", sa.String(8)),
    sa.Column("byte_size", sa.BigInteger, nullable=False),
    sa.Column("resume_decision", sa.String(32)),
    sa.Column("resume_reason", sa.String(64)),
    sa.Column("bytes_written", sa.BigInteger),
    sa.Column("resumed_from_bytes", sa.BigInteger),
    sa.Column("elapsed_ms", sa.BigInteger),
    sa.Column("fsync_ms", sa.BigInteger),
    sa.Column("avg_write_mibps", sa.Float),
    sa.Column("dedupe_action", sa.String(16)),
    sa.Column("quota_json", _json()),
    sa.Column("created_at", Moment, nullable=False),
    sa.Index("ix_manifest_job", "job_id"),
)

cursors = sa.Table(
    "cursors",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("position", sa.Text, nullable=False),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    # When a worker of the node last said that it takes from its queue of that kind.
    sa.Column("net_at", Moment),
    sa.Column("disk_at", Moment),
    sa.Column("steady_since", Moment, nullable=False),
    sa.Column("drained_at", Moment),
    # Two machines of one name would each look for parts that the other one has.
    sa.Column("folder_id", sa.String(64)),
)

stores = sa.Table(
    "stores",
    metadata,
    sa.Column("backend", sa.String(32), primary_key=True),
    sa.Column("store_id", sa.String(64), nullable=False),
    sa.Column("recorded_at", Moment, nullable=False),
)

schema_history = sa.Table(
    "schema_history",
    metadata,
    sa.Column("revision", sa.String(32), primary_key=True),
    sa.Column("works_from", sa.String(32), nullable=False),
    sa.Column("migrated_at", Moment, nullable=False),
)
