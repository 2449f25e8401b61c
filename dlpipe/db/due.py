"""Which due jobs are sent next (HEAL-1): by priority, shared among tenants, no more than a host may have, and those
that were never put off before those that were (HOST-3).

The due jobs of one priority and tenant are a lane. Lanes, and the hosts within one, are found by stepping from one
value to the next through an index, so a million jobs of one tenant, or of one host that is full, cost one step.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from dlpipe.core.sharing import shares
from dlpipe.db import cursors
from dlpipe.db.clock import now
from dlpipe.db.indexes import prefer_indexes, through
from dlpipe.db.schema import artifact_jobs

_T = artifact_jobs.c
_LOCK = 7_236_482_916
MAX_TENANTS = 1_000
"""Looked at in one round and priority; where there are more, the next round goes on behind them."""
AHEAD = 4
"""So many times as many of those who wait longest are looked at for some that were never put off."""
MAX_HOSTS = 1_000
"""Looked at in one round and lane whose longest waiting jobs are for hosts that have enough; the next goes on."""


class Due:
    """One round: what it takes is marked as published at once, and counts against the room."""

    def __init__(self, connection: sa.Connection, limit: int, window: int, per_host: int) -> None:
        self._connection = connection
        # Two that count the same room would both fill it, so whoever finds another one at it leaves it to that one
        # instead of waiting. SQLite has one writer anyway.
        others = connection.dialect.name == "postgresql" and not connection.scalar(
            sa.select(sa.func.pg_try_advisory_xact_lock(_LOCK))
        )
        prefer_indexes(connection)
        self._at: datetime = connection.execute(sa.select(now())).scalar_one()
        self._per_host = per_host
        self._hosts: Counter[str] = Counter()
        self._tenants: Counter[str] = Counter()
        for row in connection.execute(
            sa.select(_T.tenant_id, _T.host, sa.func.count().label("n"))
            .where(_T.published_at.is_not(None))
            .group_by(_T.tenant_id, _T.host)
        ):
            self._hosts[row.host] += row.n
            self._tenants[row.tenant_id] += row.n
        self._room = 0 if others else min(limit, window - self._hosts.total())

    def take(self) -> list[Any]:
        """Rows (job_id, run, state, due_at) in the order in which to send them."""
        taken: list[Any] = []
        priority = self._next_priority(None) if self._room > 0 else None
        while priority is not None and self._room > 0:
            tenants, is_all = self._waiting(priority)
            while tenants and self._room > 0:
                sent = self._turn(priority, tenants)
                if not sent:
                    break
                taken += sent
            if not is_all:
                break  # the others of this priority come before lower ones: in the next round
            priority = self._next_priority(priority)
        return taken

    def _turn(self, priority: int, tenants: list[str]) -> list[Any]:
        """Give each tenant its share of the room; who has no more to send leaves the list."""
        chosen: list[str] = []
        for tenant, share in shares(self._room, {one: self._tenants[one] for one in tenants}).items():
            found = self._choose(priority, tenant, share)
            self._tenants[tenant] += len(found)
            chosen += found
            if len(found) < share:
                tenants.remove(tenant)
        sent = self._publish(chosen)
        self._room -= len(sent)
        return sent

    # ── one lane ──────────────────────────────────────────────────────────────────────────────────

    def _choose(self, priority: int, tenant: str, want: int) -> list[str]:
        """Who waits longest, of hosts that may have more; the jobs of a page that were never put off come first."""
        lane = (_T.priority == priority, _T.tenant_id == tenant, _T.due_at <= self._at)
        page = self._rows("ix_artifact_jobs_due", AHEAD * want, *lane)
        chosen = self._fitting(page, want)
        if len(chosen) == want or len(page) < AHEAD * want:
            return chosen
        # Those who wait longest want a host that has enough; what may be sent stands behind them, by host.
        for host in self._hosts_behind(priority, tenant):
            room = min(self._per_host - self._hosts[host], want - len(chosen))
            if room > 0:
                behind = self._rows("ix_artifact_jobs_due_host", AHEAD * want, *lane, _T.host == host)
                chosen += self._fitting([row for row in behind if row.job_id not in chosen], room)
        return chosen

    def _hosts_behind(self, priority: int, tenant: str) -> list[str]:
        """Hosts of the lane that have due jobs, going on where the last look ended: most may wait for a later time."""
        memory = f"dispatch.{priority}.{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
        after = cursors.get(self._connection, memory)
        lane = (_T.priority == priority, _T.tenant_id == tenant)
        heads, last = self._heads("ix_artifact_jobs_due_host", _T.host, lane, after, MAX_HOSTS)
        if last != after:
            cursors.put(self._connection, memory, last)
        return heads

    def _rows(self, index: str, limit: int, *lane: sa.ColumnElement[bool]) -> Sequence[Any]:
        query = _unsent(_T.job_id, _T.host, _T.postponed_since).where(*lane).order_by(_T.due_at).limit(limit)
        return self._connection.execute(through(index, query)).all()

    def _fitting(self, rows: Sequence[Any], want: int) -> list[str]:
        chosen: list[str] = []
        for row in sorted(rows, key=lambda row: row.postponed_since is not None):
            if len(chosen) < want and self._hosts[row.host] < self._per_host:
                self._hosts[row.host] += 1
                chosen.append(row.job_id)
        return chosen

    def _publish(self, job_ids: Sequence[str]) -> list[Any]:
        if not job_ids:
            return []
        free = _unsent(_T.job_id).where(_T.job_id.in_(job_ids)).order_by(_T.job_id).with_for_update(skip_locked=True)
        mine = list(self._connection.scalars(free))
        if not mine:
            return []
        changed = sa.update(artifact_jobs).where(_T.job_id.in_(mine)).values(published_at=now())
        rows = self._connection.execute(changed.returning(_T.job_id, _T.run, _T.state, _T.due_at, _T.node))
        by_id = {row.job_id: row for row in rows}
        return [by_id[job_id] for job_id in job_ids if job_id in by_id]

    # ── from value to value ───────────────────────────────────────────────────────────────────────

    def _next_priority(self, below: int | None) -> int | None:
        query = _unsent(_T.priority).order_by(_T.priority.desc()).limit(1)
        if below is not None:
            query = query.where(_T.priority < below)
        found: int | None = self._connection.scalar(through("ix_artifact_jobs_due", query))
        return found

    def _waiting(self, priority: int) -> tuple[list[str], bool]:
        """The tenants with due jobs of that priority, who waits longest first; and whether that is all of them."""
        memory = f"dispatch.{priority}"
        after = cursors.get(self._connection, memory)
        of_priority = (_T.priority == priority,)
        heads, last = self._heads("ix_artifact_jobs_due", _T.tenant_id, of_priority, after, MAX_TENANTS)
        if last != after:
            cursors.put(self._connection, memory, last)
        return heads, not last

    def _heads(
        self, index: str, column: sa.ColumnElement[str], fixed: Sequence[sa.ColumnElement[bool]], after: str, limit: int
    ) -> tuple[list[str], str]:
        """The values of a column behind `after` whose first job is due; where to go on, empty at the end."""

        def smallest(behind: Any) -> Any:
            query = _unsent(column).where(*fixed, column > behind).order_by(column).limit(1)
            return through(index, query).correlate_except(artifact_jobs).scalar_subquery()

        walk = sa.select(smallest(after).label("value")).cte("walk", recursive=True)
        walk = walk.union_all(sa.select(smallest(walk.c.value)).where(walk.c.value.is_not(None)))
        first = _unsent(_T.due_at).where(*fixed, column == walk.c.value).order_by(_T.due_at).limit(1)
        head = through(index, first).correlate_except(artifact_jobs).scalar_subquery().label("head")
        rows = self._connection.execute(sa.select(walk.c.value, head).where(walk.c.value.is_not(None)).limit(limit))
        found = rows.all()
        due = sorted((row for row in found if row.head <= self._at), key=lambda row: row.head)
        return [row.value for row in due], found[-1].value if len(found) == limit else ""


def _unsent(*columns: Any) -> sa.Select[Any]:
    return sa.select(*columns).where(_T.due_at.is_not(None), _T.published_at.is_(None), _T.paused_at.is_(None))
