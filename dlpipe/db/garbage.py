"""What the ledger says of blobs, across all tenants: which are wanted, and what to forget of one that goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core import results
from dlpipe.core.flow import OpType
from dlpipe.core.layout import place_of
from dlpipe.core.results import FinalizeResult
from dlpipe.core.states import State
from dlpipe.db.schema import LIVE, artifact_jobs, artifact_ops, artifact_retirements, artifacts, hash_index

_A, _H, _O, _T = artifacts.c, hash_index.c, artifact_ops.c, artifact_jobs.c
_CHUNK = 500


def is_retired() -> sa.ColumnElement[bool]:
    """Of an artifact: was it given up?"""
    return sa.exists().where(artifact_retirements.c.artifact_uuid == _A.artifact_uuid).correlate(artifacts)


class SqlGarbage:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def wanted(self, pointers: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for begin in range(0, len(pointers), _CHUNK):
            some = pointers[begin : begin + _CHUNK]
            # By the digest, which has an index.
            digests = sorted({place_of(pointer).sha256 for pointer in some})
            named = sa.select(_A.storage_pointer).where(_A.sha256.in_(digests), ~is_retired())
            found |= set(some) & set(self._connection.scalars(named))
        left = set(pointers) - found  # none, as a rule: what jobs have placed is asked for the others only
        return found | (left & self._placed()) if left else found

    def _placed(self) -> set[str]:
        """What jobs have placed that they are yet to register, however long they have been waiting."""
        before = sa.select(_T.job_id).where(
            sa.text(LIVE),  # as the index of parts has it
            _T.part.is_not(None),
            _T.state.in_((State.STREAMING.value, State.FINALIZED.value)),
        )
        rows = self._connection.execute(
            sa.select(_O.result_json).where(
                _O.job_id.in_(before), _O.op_type == OpType.FINALIZE.value, _O.state == "finished"
            )
        )
        placed = (results.decode(OpType.FINALIZE, row.result_json) for row in rows)
        return {one.pointer for one in placed if isinstance(one, FinalizeResult)}

    def forget(self, pointers: Sequence[str]) -> None:
        digests = sorted({place_of(pointer).sha256 for pointer in pointers})
        entries = sa.select(hash_index).where(_H.sha256.in_(digests), _H.pointer.in_(sorted(pointers)))
        for entry in self._connection.execute(entries).all():
            here = (_H.scope == entry.scope, _H.sha256 == entry.sha256, _H.pointer == entry.pointer)
            other = self._other(entry, pointers)
            if other is not None:
                moved = {"pointer": other.storage_pointer, "job_id": other.created_by_job_id}
                self._connection.execute(sa.update(hash_index).where(*here).values(**moved))
            elif not self._connection.scalar(
                sa.select(sa.exists().where(_A.sha256 == entry.sha256, _A.storage_pointer == entry.pointer))
            ):
                self._connection.execute(sa.delete(hash_index).where(*here))

    def _other(self, entry: Any, going: Sequence[str]) -> Any:
        """Another registered copy within the same bounds."""
        tenant, _, project = entry.scope.partition("/")
        within = [] if tenant == "*" else [_A.tenant_id == tenant, *([_A.project_id == project] if project else [])]
        copies = (
            sa.select(_A.storage_pointer, _A.created_by_job_id)
            .where(_A.sha256 == entry.sha256, _A.storage_pointer.not_in(sorted(going)), ~is_retired(), *within)
            .order_by(_A.created_at, _A.artifact_uuid)
            .limit(1)
        )
        return self._connection.execute(copies).first()
