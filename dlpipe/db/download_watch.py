"""What the sync round writes of jobs that it did not change: that they were looked at, and when the client answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from dlpipe.core.downloads import Look
from dlpipe.db.download_schema import DOWNLOAD_ACTIVE, DOWNLOAD_FOLLOWED, download_jobs, torrent_clients
from dlpipe.db.inserts import insert_ignoring
from dlpipe.db.schema import jobs

_D, _C = download_jobs.c, torrent_clients.c


def mark_checked(connection: sa.Connection, looks: Sequence[Look], now: datetime) -> None:
    looked = {look.job_id: look for look in looks}
    # Not waiting for a row that another round holds: that round looks at it, and two that marked the same
    # rows in different orders would wait for each other.
    free = sa.select(_D.job_id).where(_D.job_id.in_(looked), sa.text(DOWNLOAD_ACTIVE))
    mine = sorted(connection.scalars(free.with_for_update(skip_locked=True)))
    if not mine:
        return
    rows = [_values(looked[job_id], now) for job_id in mine]
    connection.execute(
        sa.update(download_jobs)
        .where(_D.job_id == sa.bindparam("job"))
        .values(
            checked_at_utc=sa.bindparam("at"),
            size_bytes=sa.func.coalesce(sa.bindparam("size", type_=sa.BigInteger), _D.size_bytes),
            done_bytes=sa.bindparam("done"),
            moved_at_utc=sa.bindparam("moved"),
        ),
        rows,
    )
    shown = [{"job": row["job"], "percent": row["percent"]} for row in rows if row["percent"] is not None]
    if shown:
        connection.execute(
            sa.update(jobs)
            .where(jobs.c.job_id == sa.bindparam("job"), jobs.c.progress != sa.bindparam("percent"))
            .values(progress=sa.bindparam("percent")),
            shown,
        )


def _values(look: Look, now: datetime) -> dict[str, Any]:
    return {
        "job": look.job_id,
        "at": now,
        "size": look.size_bytes,
        "done": look.movement.done_bytes if look.movement else None,
        "moved": look.movement.since if look.movement else None,
        "percent": look.percent,
    }


def answered(connection: sa.Connection, source: str, now: datetime, gap_s: float) -> bool:
    known = connection.execute(sa.select(torrent_clients).where(_C.source == source).with_for_update()).first()
    if known is None:
        connection.execute(insert_ignoring(connection, torrent_clients).values(source=source, answered_at_utc=now))
        return False
    last = known.answered_at_utc
    gap = known.outage_since_utc is not None or (last is not None and now - last > timedelta(seconds=gap_s))
    connection.execute(
        sa.update(torrent_clients).where(_C.source == source).values(answered_at_utc=now, outage_since_utc=None)
    )
    if gap:
        connection.execute(
            sa.update(download_jobs)
            .where(sa.text(DOWNLOAD_FOLLOWED), _D.source == source, _D.first_not_found_at_utc.is_not(None))
            .values(first_not_found_at_utc=None, updated_at_utc=now, row_version=_D.row_version + 1)
        )
    return gap


def outage(connection: sa.Connection, source: str, now: datetime) -> None:
    connection.execute(insert_ignoring(connection, torrent_clients).values(source=source, outage_since_utc=now))
    connection.execute(
        sa.update(torrent_clients)
        .where(_C.source == source, _C.outage_since_utc.is_(None))
        .values(outage_since_utc=now)
    )
