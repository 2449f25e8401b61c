"""Nodes with staging folders of their own: when each was heard last, and the jobs whose parts are there (OPS-4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dlpipe.core import flow
from dlpipe.core.flow import Queue
from dlpipe.core.nodes import Node, NodePolicy
from dlpipe.core.states import State
from dlpipe.db.backlog import NEXT, STAGED, WAITING
from dlpipe.db.clock import after, now
from dlpipe.db.guards import IDLE, in_states
from dlpipe.db.indexes import prefer_indexes
from dlpipe.db.schema import artifact_jobs, nodes
from dlpipe.db.waiting import when_idle

_N, _T = nodes.c, artifact_jobs.c
_HEARD = {Queue.NET: _N.net_at, Queue.DISK: _N.disk_at}
_UNDER_WAY = frozenset(state for state in State if flow.needs_part(state)) - {State.PLANNED, State.FAILED}


class SqlNodes:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    # ── signs of life ─────────────────────────────────────────────────────────────────────────────

    def beat(self, here: NodePolicy, kinds: Collection[Queue], folder_id: str) -> Node | None:
        heard = {_HEARD[kind].name: now() for kind in kinds}
        steady = sa.and_(*(column > after(-here.fresh_s) for column in _HEARD.values()))
        anybody = sa.or_(*(column > after(-here.fresh_s) for column in _HEARD.values()))
        insert = postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
        first = {"name": here.name, "steady_since": now(), "folder_id": folder_id, **heard}
        changed = self._connection.execute(
            insert(nodes)
            .values(**first)
            .on_conflict_do_update(
                index_elements=[_N.name],
                where=sa.or_(_N.folder_id.is_(None), _N.folder_id == folder_id, ~sa.func.coalesce(anybody, False)),
                set_={
                    **heard,
                    "steady_since": sa.case((steady, _N.steady_since), else_=now()),
                    "folder_id": folder_id,
                },
            )
            .returning(_N.name)
        )
        if changed.first() is None:
            return None
        return next(node for node in self.list_() if node.name == here.name)

    def list_(self) -> list[Node]:
        at: datetime = self._connection.execute(sa.select(now())).scalar_one()
        rows = self._connection.execute(sa.select(nodes).order_by(_N.name)).all()
        return [_node(row, at) for row in rows]

    def drain(self, name: str, *, on: bool) -> bool:
        value = sa.func.coalesce(_N.drained_at, now()) if on else None
        changed = self._connection.execute(sa.update(nodes).where(_N.name == name).values(drained_at=value))
        return changed.rowcount > 0

    # ── the jobs on a node ────────────────────────────────────────────────────────────────────────

    def jobs_on(self, name: str) -> tuple[int, list[str]]:
        prefer_indexes(self._connection)
        rows = self._connection.execute(sa.select(_T.job_id, _T.lease_owner).where(*_on(name))).all()
        return len(rows), [row.job_id for row in rows if row.lease_owner is not None]

    def waiting(self) -> Mapping[tuple[str, str], int]:
        prefer_indexes(self._connection)
        where = sa.case((NEXT.in_(STAGED), sa.func.coalesce(_T.node, "")), else_="").label("place")
        query = sa.select(NEXT, where, sa.func.count().label("n")).where(*WAITING).group_by(NEXT, where)
        return {(row.stage, row.place): row.n for row in self._connection.execute(query)}

    def hand_on(self, name: str) -> int:
        prefer_indexes(self._connection)
        self.forget(name)
        idle = sa.select(_T.job_id).where(*_on(name), _T.lease_owner.is_(None)).order_by(_T.job_id)
        taken = list(self._connection.scalars(idle.with_for_update(skip_locked=True)))
        if not taken:
            return 0
        return self._connection.execute(
            sa.update(artifact_jobs)
            .where(_T.job_id.in_(taken), *_on(name), _T.lease_owner.is_(None))
            .values(fence=_T.fence + 1, **IDLE, due_at=now(), node=None, **when_idle(_T.published_at))
        ).rowcount

    def forget(self, name: str) -> None:
        """Of jobs whose run has not begun and was sent already."""
        sent = (_T.published_at.is_not(None), _T.due_at.is_not(None), _T.node == name, _T.lease_owner.is_(None))
        found = sa.select(_T.job_id).where(*sent).order_by(_T.job_id).with_for_update(skip_locked=True)
        self.unpin(list(self._connection.scalars(found)))

    def unpin(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self._connection.execute(sa.update(artifact_jobs).where(_T.job_id.in_(job_ids)).values(node=None))


def _on(name: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Its run is under way, and its part is there."""
    return (_T.published_at.is_not(None), _T.due_at.is_(None), _T.node == name, in_states(_UNDER_WAY))


def _node(row: Any, at: datetime) -> Node:
    heard = [row.net_at, row.disk_at]
    silent_s = float("inf") if None in heard else (at - min(heard)).total_seconds()
    steady_s = (at - row.steady_since).total_seconds()
    return Node(row.name, silent_s, steady_s, row.drained_at is not None, row.folder_id)
