"""The tables of downloads that follow a torrent, and of the library that they fill."""

from __future__ import annotations

import sqlalchemy as sa

from dlpipe.db.clock import Moment
from dlpipe.db.schema import artifacts, jobs, metadata

_UUID = jobs.c.job_id.type
_DIGEST = artifacts.c.sha256.type


def _of_job() -> sa.ForeignKey:
    return sa.ForeignKey(jobs.c.job_id, ondelete="CASCADE")


download_jobs = sa.Table(
    "download_jobs",
    metadata,
    sa.Column("job_id", _UUID, _of_job(), primary_key=True),
    # Beside those in `jobs`, as what is unique per user is unique within his tenant and project only (JOB-5).
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64), nullable=False),
    sa.Column("user_id", sa.String(128), nullable=False),
    sa.Column("book_id", sa.String(128), nullable=False),
    sa.Column("media_type", sa.String(64), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("source", sa.String(32), nullable=False),
    sa.Column("source_url", sa.Text, nullable=False),
    sa.Column("source_bytes", sa.LargeBinary),
    sa.Column("external_job_id", sa.String(128)),
    sa.Column("created_at_utc", Moment, nullable=False),
    sa.Column("updated_at_utc", Moment, nullable=False),
    sa.Column("completed_at_utc", Moment),
    sa.Column("first_not_found_at_utc", Moment),
    sa.Column("checked_at_utc", Moment),
    sa.Column("failure_reason", sa.String(1024)),
    sa.Column("row_version", sa.BigInteger, nullable=False, server_default="0"),
    # What is ours to do next, and when: hand it to the client while queued, register its files while downloading.
    sa.Column("due_at_utc", Moment),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("removal", sa.String(24)),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("done_bytes", sa.BigInteger),
    sa.Column("moved_at_utc", Moment),
    sa.CheckConstraint("status IN ('queued','downloading','completed','failed','canceled')", name="status"),
    sa.CheckConstraint("removal IN ('remove','remove_with_files')", name="removal"),
    sa.CheckConstraint("status IN ('queued','downloading') OR due_at_utc IS NULL", name="due_while_active"),
)
DOWNLOAD_ACTIVE = "status IN ('queued','downloading')"
DOWNLOAD_FOLLOWED = f"{DOWNLOAD_ACTIVE} AND external_job_id IS NOT NULL"
sa.Index(
    "uq_download_jobs_active",
    download_jobs.c.tenant_id,
    download_jobs.c.project_id,
    download_jobs.c.user_id,
    download_jobs.c.book_id,
    download_jobs.c.media_type,
    unique=True,
    sqlite_where=sa.text(DOWNLOAD_ACTIVE),
    postgresql_where=sa.text(DOWNLOAD_ACTIVE),
)
sa.Index(
    "ix_download_jobs_followed",
    download_jobs.c.checked_at_utc,
    sqlite_where=sa.text(DOWNLOAD_FOLLOWED),
    postgresql_where=sa.text(DOWNLOAD_FOLLOWED),
)
sa.Index(
    "ix_download_jobs_due",
    download_jobs.c.due_at_utc,
    sqlite_where=sa.text("due_at_utc IS NOT NULL"),
    postgresql_where=sa.text("due_at_utc IS NOT NULL"),
)
sa.Index(
    "ix_download_jobs_removal",
    download_jobs.c.updated_at_utc,
    sqlite_where=sa.text("removal IS NOT NULL"),
    postgresql_where=sa.text("removal IS NOT NULL"),
)
sa.Index("ix_download_jobs_external", download_jobs.c.external_job_id)

download_files = sa.Table(
    "download_files",
    metadata,
    sa.Column("job_id", _UUID, _of_job(), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("byte_size", sa.BigInteger, nullable=False),
    sa.Column("sha256", _DIGEST, nullable=False),
    sa.Column("artifact_uuid", _UUID, sa.ForeignKey(artifacts.c.artifact_uuid), nullable=False),
)

torrent_clients = sa.Table(
    "torrent_clients",
    metadata,
    sa.Column("source", sa.String(32), primary_key=True),
    sa.Column("answered_at_utc", Moment),
    sa.Column("outage_since_utc", Moment),
)

media_assets = sa.Table(
    "media_assets",
    metadata,
    sa.Column("asset_id", _UUID, primary_key=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64), nullable=False),
    sa.Column("user_id", sa.String(128), nullable=False),
    sa.Column("book_id", sa.String(128), nullable=False),
    sa.Column("media_type", sa.String(64), nullable=False),
    sa.Column("available", sa.Boolean, nullable=False),
    sa.Column("local_path", sa.Text),
    sa.Column("source_url", sa.Text),
    sa.Column("job_id", _UUID),
    sa.Column("updated_at", Moment, nullable=False),
    sa.UniqueConstraint("tenant_id", "project_id", "user_id", "book_id", "media_type", name="uq_media_assets_owner"),
)

books = sa.Table(
    "books",
    metadata,
    sa.Column("tenant_id", sa.String(64), primary_key=True),
    sa.Column("project_id", sa.String(64), primary_key=True),
    sa.Column("user_id", sa.String(128), primary_key=True),
    sa.Column("book_id", sa.String(128), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
    sa.CheckConstraint("state IN ('Library','Archive')", name="state"),
)
