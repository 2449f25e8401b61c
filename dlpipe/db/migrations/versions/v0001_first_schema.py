"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from dlpipe.db.clock import Moment

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_UUID = sa.String(length=36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")
_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:

    op.create_table(
        "artifacts",
        sa.Column("artifact_uuid", _UUID, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("artifact_type", sa.String(length=32), nullable=False),
        sa.Column("storage_backend", sa.String(length=32), nullable=False),
        sa.Column("storage_pointer", sa.Text(), nullable=False),
        sa.Column("content_type", sa.String(length=255), nullable=True),
        sa.Column("byte_size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("schema_version", sa.SmallInteger(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("created_by_job_id", _UUID, nullable=True),
        sa.CheckConstraint("byte_size >= 0", name=op.f("ck_artifacts_byte_size")),
        sa.PrimaryKeyConstraint("artifact_uuid", name=op.f("pk_artifacts")),
    )
    op.create_index("ix_artifacts_job", "artifacts", ["created_by_job_id"], unique=False)
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"], unique=False)
    op.create_table(
        "books",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=128), nullable=False),
        sa.Column("book_id", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.CheckConstraint("state IN ('Library','Archive')", name=op.f("ck_books_state")),
        sa.PrimaryKeyConstraint("tenant_id", "project_id", "user_id", "book_id", name=op.f("pk_books")),
    )
    op.create_table(
        "hash_index",
        sa.Column("scope", sa.String(length=160), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("pointer", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("job_id", _UUID, nullable=False),
        sa.PrimaryKeyConstraint("scope", "sha256", name=op.f("pk_hash_index")),
    )
    op.create_table(
        "jobs",
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("job_type", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("progress", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("idempotency_key", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error_message_safe", sa.String(length=1024), nullable=True),
        sa.Column("error_debug_id", sa.String(length=32), nullable=True),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.Column("completed_at", Moment(), nullable=True),
        sa.Column("failed_at", Moment(), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending','processing','completed','failed','skipped','canceled')",
            name=op.f("ck_jobs_status"),
        ),
        sa.CheckConstraint("progress BETWEEN 0 AND 100", name=op.f("ck_jobs_progress")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
    )
    op.create_index("ix_jobs_scope_created", "jobs", ["tenant_id", "project_id", "created_at", "job_id"], unique=False)
    op.create_index("ix_jobs_scope_status", "jobs", ["tenant_id", "project_id", "status", "created_at"], unique=False)
    op.create_table(
        "media_assets",
        sa.Column("asset_id", _UUID, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=128), nullable=False),
        sa.Column("book_id", sa.String(length=128), nullable=False),
        sa.Column("media_type", sa.String(length=64), nullable=False),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("local_path", sa.Text(), nullable=True),
        sa.Column("source_url", sa.Text(), nullable=True),
        sa.Column("job_id", _UUID, nullable=True),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("asset_id", name=op.f("pk_media_assets")),
        sa.UniqueConstraint(
            "tenant_id", "project_id", "user_id", "book_id", "media_type", name=op.f("uq_media_assets_owner")
        ),
    )
    op.create_table(
        "url_index",
        sa.Column("scope", sa.String(length=160), nullable=False),
        sa.Column("url_sha256", sa.String(length=64), nullable=False),
        sa.Column("canonical_url", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("pointer", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("content_type", sa.String(length=255), nullable=True),
        sa.Column("etag", sa.String(length=1024), nullable=True),
        sa.Column("last_modified", sa.String(length=128), nullable=True),
        sa.Column("seen_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "url_sha256", name=op.f("pk_url_index")),
    )
    op.create_table(
        "artifact_jobs",
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("work_id", sa.String(length=512), nullable=False),
        sa.Column("artifact_id", sa.String(length=512), nullable=False),
        sa.Column("canonical_url", sa.Text(), nullable=False),
        sa.Column("request_url", sa.Text(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("run", sa.Integer(), server_default="0", nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lease_owner", sa.String(length=160), nullable=True),
        sa.Column("lease_until", Moment(), nullable=True),
        sa.Column("due_at", Moment(), nullable=True),
        sa.Column("published_at", Moment(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("node", sa.String(length=128), nullable=True),
        sa.Column("ext", sa.String(length=16), nullable=True),
        sa.Column("expected_sha256", sa.String(length=64), nullable=True),
        sa.Column("expected_media_type", sa.String(length=255), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("mirrors", _JSON, nullable=True),
        sa.CheckConstraint(
            "state IN ('PLANNED','LEASED','HEAD_DONE','RESUME_OK','STREAMING','FINALIZED','INDEXED',"
            "'DEDUPED','FAILED','SKIPPED_DUPLICATE','CANCELED')",
            name=op.f("ck_artifact_jobs_state"),
        ),
        sa.CheckConstraint("(lease_owner IS NULL) = (lease_until IS NULL)", name=op.f("ck_artifact_jobs_lease_pair")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_artifact_jobs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_artifact_jobs")),
    )
    op.create_index(
        "ix_artifact_jobs_due",
        "artifact_jobs",
        [sa.literal_column("priority DESC"), "due_at"],
        unique=False,
        sqlite_where=sa.text("due_at IS NOT NULL AND published_at IS NULL"),
        postgresql_where=sa.text("due_at IS NOT NULL AND published_at IS NULL"),
    )
    op.create_index(
        "ix_artifact_jobs_lease",
        "artifact_jobs",
        ["lease_until"],
        unique=False,
        sqlite_where=sa.text("lease_until IS NOT NULL"),
        postgresql_where=sa.text("lease_until IS NOT NULL"),
    )
    op.create_index(
        "ix_artifact_jobs_published",
        "artifact_jobs",
        ["published_at", "host"],
        unique=False,
        sqlite_where=sa.text("published_at IS NOT NULL"),
        postgresql_where=sa.text("published_at IS NOT NULL"),
    )
    op.create_table(
        "artifact_ops",
        sa.Column("op_key", sa.String(length=64), nullable=False),
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("op_type", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("started_at", Moment(), nullable=False),
        sa.Column("finished_at", Moment(), nullable=True),
        sa.Column("result_code", sa.String(length=64), nullable=True),
        sa.Column("result_json", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(state = 'finished') = (result_json IS NOT NULL AND finished_at IS NOT NULL)",
            name=op.f("ck_artifact_ops_finished"),
        ),
        sa.CheckConstraint("state IN ('started','finished','failed','abandoned')", name=op.f("ck_artifact_ops_state")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_artifact_ops_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("op_key", name=op.f("pk_artifact_ops")),
    )
    op.create_index("ix_artifact_ops_job", "artifact_ops", ["job_id"], unique=False)
    op.create_index(
        "ix_artifact_ops_started",
        "artifact_ops",
        ["started_at"],
        unique=False,
        sqlite_where=sa.text("state = 'started'"),
        postgresql_where=sa.text("state = 'started'"),
    )
    op.create_table(
        "download_jobs",
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=128), nullable=False),
        sa.Column("book_id", sa.String(length=128), nullable=False),
        sa.Column("media_type", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("source_url", sa.Text(), nullable=False),
        sa.Column("source_bytes", sa.LargeBinary(), nullable=True),
        sa.Column("external_job_id", sa.String(length=128), nullable=True),
        sa.Column("created_at_utc", Moment(), nullable=False),
        sa.Column("updated_at_utc", Moment(), nullable=False),
        sa.Column("completed_at_utc", Moment(), nullable=True),
        sa.Column("first_not_found_at_utc", Moment(), nullable=True),
        sa.Column("checked_at_utc", Moment(), nullable=True),
        sa.Column("failure_reason", sa.String(length=1024), nullable=True),
        sa.Column("row_version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due_at_utc", Moment(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("removal", sa.String(length=24), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("done_bytes", sa.BigInteger(), nullable=True),
        sa.Column("moved_at_utc", Moment(), nullable=True),
        sa.CheckConstraint(
            "status IN ('queued','downloading','completed','failed','canceled')",
            name=op.f("ck_download_jobs_status"),
        ),
        sa.CheckConstraint("removal IN ('remove','remove_with_files')", name=op.f("ck_download_jobs_removal")),
        sa.CheckConstraint(
            "status IN ('queued','downloading') OR due_at_utc IS NULL", name=op.f("ck_download_jobs_due_while_active")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_download_jobs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_download_jobs")),
    )
    for name, columns, where in (
        (
            "ix_download_jobs_followed",
            ["checked_at_utc"],
            "status IN ('queued','downloading') AND external_job_id IS NOT NULL",
        ),
        ("ix_download_jobs_due", ["due_at_utc"], "due_at_utc IS NOT NULL"),
        ("ix_download_jobs_removal", ["updated_at_utc"], "removal IS NOT NULL"),
        (
            "uq_download_jobs_active",
            ["tenant_id", "project_id", "user_id", "book_id", "media_type"],
            "status IN ('queued','downloading')",
        ),
    ):
        op.create_index(
            name,
            "download_jobs",
            columns,
            unique=name.startswith("uq_"),
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    op.create_index("ix_download_jobs_external", "download_jobs", ["external_job_id"], unique=False)
    op.create_table(
        "download_files",
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("byte_size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("artifact_uuid", _UUID, nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact_uuid"], ["artifacts.artifact_uuid"], name=op.f("fk_download_files_artifact_uuid")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_download_files_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "position", name=op.f("pk_download_files")),
    )
    op.create_table(
        "torrent_clients",
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("answered_at_utc", Moment(), nullable=True),
        sa.Column("outage_since_utc", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_torrent_clients")),
    )
    op.create_table(
        "job_artifacts",
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("artifact_uuid", _UUID, nullable=False),
        sa.CheckConstraint("role IN ('input','result')", name=op.f("ck_job_artifacts_role")),
        sa.ForeignKeyConstraint(
            ["artifact_uuid"], ["artifacts.artifact_uuid"], name=op.f("fk_job_artifacts_artifact_uuid")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_job_artifacts_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "role", "position", name=op.f("pk_job_artifacts")),
        sa.UniqueConstraint("job_id", "role", "artifact_uuid", name=op.f("uq_job_artifacts_job_id_role_artifact_uuid")),
    )
    op.create_table(
        "manifest",
        sa.Column("artifact_uuid", _UUID, nullable=False),
        sa.Column("job_id", _UUID, nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("pointer", sa.Text(), nullable=False),
        sa.Column("shard_prefix", sa.String(length=8), nullable=True),
        sa.Column("byte_size", sa.BigInteger(), nullable=False),
        sa.Column("resume_decision", sa.String(length=32), nullable=True),
        sa.Column("resume_reason", sa.String(length=64), nullable=True),
        sa.Column("bytes_written", sa.BigInteger(), nullable=True),
        sa.Column("resumed_from_bytes", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_ms", sa.BigInteger(), nullable=True),
        sa.Column("fsync_ms", sa.BigInteger(), nullable=True),
        sa.Column("avg_write_mibps", sa.Float(), nullable=True),
        sa.Column("dedupe_action", sa.String(length=16), nullable=True),
        sa.Column("quota_json", _JSON, nullable=True),
        sa.Column("created_at", Moment(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_manifest_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("artifact_uuid", name=op.f("pk_manifest")),
    )
    op.create_index("ix_manifest_job", "manifest", ["job_id"], unique=False)
