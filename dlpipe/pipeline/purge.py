"""Jobs that ended long ago are written into an archive, and only then deleted, batch by batch (OPS-8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlpipe.core.crash import crash_point
from dlpipe.core.model import Scope
from dlpipe.core.ports.archive import Archive
from dlpipe.core.purging import ArchiveFile, Expired, PurgeFilter
from dlpipe.core.states import Status
from dlpipe.pipeline.deps import Deps

VOLUME = 10_000
"""Jobs in one archive file: what a kill can make be archived a second time, and what is kept in memory of them."""
PAGE = 200


@dataclass(frozen=True, slots=True)
class Volume:
    """One archive file, and how many of its jobs are gone for it."""

    file: ArchiveFile
    purged: int
    kept: int
    """They were taken up while they were archived, so the archive tells of them and they stay."""


def rehearse(deps: Deps, scope: Scope, only: PurgeFilter) -> Mapping[Status, int]:
    """How many jobs a purge would take."""
    with deps.database.read() as unit:
        return unit.owned(scope).count_expired(only)


def purge(
    deps: Deps, scope: Scope, only: PurgeFilter, archive: Archive, *, retire: bool = False, volume: int = VOLUME
) -> Iterator[Volume]:
    """Archive and delete all jobs that the filter means, file by file.

    Killed at any point, no job is half deleted, and none is deleted that no whole archive holds; a repeat goes on. A
    job that was archived and not deleted is then archived once more.
    """
    pages = _Pages(deps, scope, only)
    while True:
        taken: list[Expired] = []
        rows = pages.rows(volume, taken)
        first = next(rows, None)
        if first is None:
            return
        file = archive.write(scope, _again(first, rows))
        yield Volume(file, purged := _delete(deps, scope, taken, file, retire), len(taken) - purged)


def _again(first: Mapping[str, Any], rest: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    yield first
    yield from rest


def retire_superseded(deps: Deps, scope: Scope, only: PurgeFilter) -> int:
    """Give up what refreshes have replaced, batch by batch; answer how many results that are."""
    count = 0
    while True:
        with deps.database.write() as unit:
            given_up = unit.owned(scope).retire_superseded(only, deps.policy.batch)
        count += len(given_up)
        if not given_up:
            return count


class _Pages:
    """The expired jobs in their order, each met once."""

    def __init__(self, deps: Deps, scope: Scope, only: PurgeFilter) -> None:
        self._deps, self._scope, self._only = deps, scope, only
        self._after: Expired | None = None

    def rows(self, limit: int, taken: list[Expired]) -> Iterator[Mapping[str, Any]]:
        while len(taken) < limit:
            with self._deps.database.read() as unit:
                page = unit.owned(self._scope).expired(self._only, min(PAGE, limit - len(taken)), self._after)
            if not page:
                return
            self._after = _light(page[-1])
            for one in page:
                taken.append(_light(one))
                yield one.record


def _light(one: Expired) -> Expired:
    """Without the rows, which the archive has by now."""
    return Expired(one.job_id, one.created_at, one.updated_at, one.fence, {})


def _delete(deps: Deps, scope: Scope, taken: list[Expired], file: ArchiveFile, retire: bool) -> int:
    gone = 0
    for begin in range(0, len(taken), deps.policy.batch):
        batch = taken[begin : begin + deps.policy.batch]
        with deps.database.write() as unit:
            gone += len(unit.owned(scope).purge(batch, file, retire=retire))
            crash_point("purge.deleting")
        crash_point("purge.deleted")
    return gone
