"""What a user has: media assets, and the state of the books that they belong to (TORRENT-7)."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dlpipe.core.torrents import DownloadJob
from dlpipe.db.download_schema import books, media_assets

_M = media_assets.c


def make_available(connection: sa.Connection, job: DownloadJob, local_path: str) -> None:
    """The asset is there now; where it once came from (source_url) stays as it was recorded first."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    found = {"available": True, "local_path": local_path, "job_id": job.job_id, "updated_at": job.updated_at_utc}
    connection.execute(
        make(media_assets)
        .values(
            asset_id=str(uuid.uuid4()),
            tenant_id=job.tenant_id,
            project_id=job.project_id,
            user_id=job.user_id,
            book_id=job.book_id,
            media_type=job.media_type,
            source_url=job.source_url,
            **found,
        )
        .on_conflict_do_update(
            index_elements=[_M.tenant_id, _M.project_id, _M.user_id, _M.book_id, _M.media_type], set_=found
        )
    )
    recompute_book(connection, job)


def recompute_book(connection: sa.Connection, job: DownloadJob) -> None:
    """`Library` when the book has an available asset, else `Archive`."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    whose = {
        "tenant_id": job.tenant_id, "project_id": job.project_id, "user_id": job.user_id, "book_id": job.book_id,
    }  # fmt: skip
    has = sa.exists().where(*(_M[name] == value for name, value in whose.items()), _M.available.is_(True))
    state = {"state": sa.case((has, "Library"), else_="Archive"), "updated_at": job.updated_at_utc}
    connection.execute(
        make(books).values(**whose, **state).on_conflict_do_update(index_elements=list(whose), set_=state)
    )
