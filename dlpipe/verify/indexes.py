"""Rows against rows: what is registered, and what has to follow from it. Each function answers what does not fit."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from dlpipe.db import download_schema as downloads
from dlpipe.db import schema
from dlpipe.verify.facts import PAGE, Row, Snapshot

_A = schema.artifacts.c


class Indexes:
    def __init__(self, now: Snapshot) -> None:
        self._rows = now.rows

    def makerless(self) -> Iterator[Row]:
        yield from self._rows(sa.select(_A.artifact_uuid).where(_A.created_by_job_id.is_(None)))

    def hashes_without_artifact(self) -> Iterator[Row]:
        index = schema.hash_index.c
        artifact = sa.exists().where(
            _A.sha256 == index.sha256, _A.storage_pointer == index.pointer, _A.byte_size == index.size
        )
        yield from self._rows(sa.select(schema.hash_index).where(~artifact))

    def artifacts_without_hash(self) -> Iterator[Row]:
        index = schema.hash_index.c
        entry = sa.exists().where(index.sha256 == _A.sha256, _in_scope(index.scope))
        given_up = sa.exists().where(schema.artifact_retirements.c.artifact_uuid == _A.artifact_uuid)
        yield from self._rows(sa.select(_A.artifact_uuid, _A.sha256, _A.created_by_job_id).where(~entry, ~given_up))

    def urls(self) -> Iterator[Row]:
        """All of the URL index, with whether an artifact bears each entry out."""
        index = schema.url_index.c
        artifact = sa.exists().where(
            _A.sha256 == index.sha256,
            _A.storage_pointer == index.pointer,
            _A.byte_size == index.size,
            _A.tenant_id == index.scope,
        )
        columns = (index.scope, index.url_sha256, index.canonical_url, artifact.label("borne_out"))
        yield from self._rows(sa.select(*columns).execution_options(yield_per=PAGE))

    def manifest_without_artifact(self) -> Iterator[Row]:
        artifact = sa.exists().where(_A.artifact_uuid == schema.manifest.c.artifact_uuid)
        yield from self._rows(sa.select(schema.manifest.c.artifact_uuid, schema.manifest.c.job_id).where(~artifact))

    def books(self) -> Iterator[Row]:
        """Books whose state is not what their assets make of it."""
        book, asset = downloads.books.c, downloads.media_assets.c
        available = sa.exists().where(
            asset.tenant_id == book.tenant_id,
            asset.project_id == book.project_id,
            asset.user_id == book.user_id,
            asset.book_id == book.book_id,
            asset.available,
        )
        right = sa.case((available, "Library"), else_="Archive")
        yield from self._rows(sa.select(book.tenant_id, book.project_id, book.book_id).where(book.state != right))

    def completed_without_asset(self) -> Iterator[Row]:
        row, asset = downloads.download_jobs.c, downloads.media_assets.c
        whose = ("tenant_id", "project_id", "user_id", "book_id", "media_type")
        there = sa.exists().where(*(asset[name] == row[name] for name in whose))
        yield from self._rows(sa.select(row.job_id).where(row.status == "completed", ~there))

    def linked(self) -> Iterator[Row]:
        """Pairs of files that were made one."""
        index, manifest = schema.hash_index.c, schema.manifest.c
        yield from self._rows(
            sa.select(manifest.pointer, manifest.job_id, index.pointer.label("twin"))
            .join(schema.hash_index, index.sha256 == manifest.sha256)
            .join(schema.artifacts, _A.artifact_uuid == manifest.artifact_uuid)
            .where(
                manifest.dedupe_action == "hardlink",
                index.pointer != manifest.pointer,
                _in_scope(index.scope),
            )
        )


def _in_scope(scope: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Within whatever bounds equal files are one there: the whole, a tenant, or one of his projects."""
    within = _A.tenant_id + "/"
    return sa.or_(scope == "*", scope == _A.tenant_id, sa.func.substr(scope, 1, sa.func.length(within)) == within)
