"""The exactly-once record of effects: started by the holder of a fence, finished once."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dlpipe.core import flow
from dlpipe.core import results as codec
from dlpipe.core.errors import LeaseLost
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import StartedOp
from dlpipe.core.results import Recorded, Result, Results
from dlpipe.db.clock import now
from dlpipe.db.indexes import prefer_indexes
from dlpipe.db.inserts import own_values
from dlpipe.db.ready import Ready
from dlpipe.db.schema import artifact_jobs, artifact_ops

_O = artifact_ops.c
BY_STAGE = sa.case({stage.op.value: at for at, stage in enumerate(flow.STAGES)}, value=_O.op_type)
"""Orders ops of one claim, which may have begun and ended at one moment."""


def _bound(column: sa.Column[Any]) -> sa.BindParameter[Any]:
    return sa.bindparam(f"the_{column.name}", type_=column.type)


_KEY, _JOB, _RUN, _FENCE, _TYPE, _RESULT, _CODE = (
    _bound(_O[name]) for name in "op_key job_id run fence op_type result_json result_code".split()
)
_OF_JOB = Ready(
    sa.select(_O.op_key, _O.op_type, _O.state, _O.run, _O.result_json).where(_O.job_id == _JOB).order_by(_O.fence)
)
_IS_THERE = sa.select(_O.op_key).where(_O.op_key == _KEY)


def _start(insert: Any) -> sa.Executable:
    finished = _O.state == "finished"
    return (  # type: ignore[no-any-return]
        insert(artifact_ops)
        .values(op_key=_KEY, job_id=_JOB, run=_RUN, op_type=_TYPE, state="started", fence=_FENCE, started_at=now())
        .on_conflict_do_update(
            index_elements=[_O.op_key],
            where=_O.fence <= _FENCE,
            set_={
                # A finished op is of the run that recorded it, until this one records it again.
                "run": sa.case((finished, _O.run), else_=_RUN),
                "fence": _FENCE,
                "state": sa.case((finished, _O.state), else_="started"),
                "started_at": sa.case((finished, _O.started_at), else_=now()),
                "result_code": sa.case((finished, _O.result_code), else_=None),
            },
        )
        .returning(_O.state, _O.run, _O.result_json)
    )


_START = {"postgresql": Ready(_start(postgresql.insert)), "sqlite": Ready(_start(sqlite.insert))}


def finishing(key: Any, fence: Any, run: Any, code: Any, result: Any) -> sa.Update:
    """An op that is finished already keeps its first result; the guard is the fence alike."""
    return (
        sa.update(artifact_ops)
        .where(_O.op_key == key, _O.fence == fence)
        .values(
            **own_values(artifact_ops, updated=True)
            | {
                "state": "finished",
                "run": run,
                "finished_at": sa.func.coalesce(_O.finished_at, now()),
                "result_code": sa.case((_O.state == "finished", _O.result_code), else_=code),
                "result_json": sa.func.coalesce(_O.result_json, result),
            }
        )
    )


_FINISH = Ready(finishing(_KEY, _FENCE, _RUN, _CODE, _RESULT))
_FAIL = (
    sa.update(artifact_ops)
    .where(_O.op_key == _KEY, _O.fence == _FENCE, _O.state == "started")
    .values(state="failed", result_code=_CODE)
)


class SqlLedger:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._read: dict[str, set[str]] = {}
        """The ops that jobs were seen to have in this transaction."""

    def results(self, job_id: str, run: int, *, first: bool = False) -> Results:
        if first:
            self._read[job_id] = set()
            return Results(run, {})
        rows = _OF_JOB(self._connection, {_JOB.key: job_id}).rows
        self._read[job_id] = {row.op_key for row in rows}
        latest = {
            OpType(row.op_type): Recorded(row.run, codec.decode(OpType(row.op_type), row.result_json))
            for row in rows
            if row.state == "finished"
        }
        return Results(run, latest, self._read[job_id])

    def start(self, op_key: str, op_type: OpType, job: ArtifactJob) -> StartedOp:
        seen = self._is_there(op_key, job.job_id)
        values = {_KEY.key: op_key, _JOB.key: job.job_id, _RUN.key: job.run, _TYPE.key: op_type.value}
        start = _START[self._connection.dialect.name]
        started = start(self._connection, {**values, _FENCE.key: job.fence}).first()
        if started is None:
            raise LeaseLost("the op was taken over by a later fence")
        if started.state != "finished":
            return StartedOp(op_key, op_type, job.run, job.fence, seen=seen)
        prior = codec.decode(op_type, started.result_json)
        return StartedOp(op_key, op_type, job.run, job.fence, seen=True, prior=prior, prior_run=started.run)

    def _is_there(self, op_key: str, job_id: str) -> bool:
        """A claim has just read the job's ops, and since then nobody else can start one."""
        if job_id in self._read:
            return op_key in self._read[job_id]
        return self._connection.execute(_IS_THERE, {_KEY.key: op_key}).first() is not None

    def finish(self, op: StartedOp, result: Result, code: str) -> None:
        values = {_KEY.key: op.op_key, _FENCE.key: op.fence, _RUN.key: op.run, _CODE.key: code}
        changed = _FINISH(self._connection, {**values, _RESULT.key: codec.encode(op.op_type, result)})
        if changed.rowcount == 0:
            raise LeaseLost("the op was taken over by a later fence")

    def fail(self, op: StartedOp, code: str) -> None:
        self._connection.execute(_FAIL, {_KEY.key: op.op_key, _FENCE.key: op.fence, _CODE.key: code})

    def mark_abandoned(self, limit: int) -> int:
        prefer_indexes(self._connection)
        overtaken = (
            sa.select(_O.op_key)
            .join(artifact_jobs, artifact_jobs.c.job_id == _O.job_id)
            .where(_O.state == "started", artifact_jobs.c.fence > _O.fence)
            .limit(limit)
        )
        return self._connection.execute(
            sa.update(artifact_ops)
            .where(_O.op_key.in_(overtaken), _O.state == "started")
            .values(state="abandoned", result_code="fence_overtaken")
        ).rowcount

    def get_effect_result(self, op_key: str) -> Result | None:
        row = self._connection.execute(
            sa.select(_O.op_type, _O.result_json).where(_O.op_key == op_key, _O.state == "finished")
        ).first()
        return codec.decode(OpType(row.op_type), row.result_json) if row else None
