"""The exactly-once record of effects: started by the holder of a fence, finished once."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dlpipe.core import results as codec
from dlpipe.core.errors import LeaseLost
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import StartedOp
from dlpipe.core.results import Recorded, Result, Results
from dlpipe.db.clock import now
from dlpipe.db.indexes import prefer_indexes
from dlpipe.db.schema import artifact_jobs, artifact_ops

_O = artifact_ops.c


class SqlLedger:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def results(self, job_id: str, run: int) -> Results:
        rows = self._connection.execute(
            sa.select(_O.op_type, _O.run, _O.result_json)
            .where(_O.job_id == job_id, _O.state == "finished")
            .order_by(_O.fence)
        )
        latest = {
            OpType(row.op_type): Recorded(row.run, codec.decode(OpType(row.op_type), row.result_json)) for row in rows
        }
        return Results(run, latest)

    def start(self, op_key: str, op_type: OpType, job: ArtifactJob) -> StartedOp:
        before = self._connection.execute(
            sa.select(_O.state, _O.run, _O.result_json).where(_O.op_key == op_key)
        ).first()
        make = postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
        finished = _O.state == "finished"
        started = self._connection.execute(
            make(artifact_ops)
            .values(
                op_key=op_key,
                job_id=job.job_id,
                run=job.run,
                op_type=op_type.value,
                state="started",
                fence=job.fence,
                started_at=now(),
            )
            .on_conflict_do_update(
                index_elements=[_O.op_key],
                where=_O.fence <= job.fence,
                set_={
                    # A finished op is of the run that recorded it, until this one records it again.
                    "run": sa.case((finished, _O.run), else_=job.run),
                    "fence": job.fence,
                    "state": sa.case((finished, _O.state), else_="started"),
                    "started_at": sa.case((finished, _O.started_at), else_=now()),
                    "result_code": sa.case((finished, _O.result_code), else_=None),
                },
            )
            .returning(_O.op_key)
        ).first()
        if started is None:
            raise LeaseLost("the op was taken over by a later fence")
        if before is None:
            return StartedOp(op_key, op_type, job.run, job.fence, seen=False)
        if before.state != "finished":
            return StartedOp(op_key, op_type, job.run, job.fence, seen=True)
        prior = codec.decode(op_type, before.result_json)
        return StartedOp(op_key, op_type, job.run, job.fence, seen=True, prior=prior, prior_run=before.run)

    def finish(self, op: StartedOp, result: Result, code: str) -> None:
        changed = self._connection.execute(
            sa.update(artifact_ops)
            .where(_O.op_key == op.op_key, _O.fence == op.fence)
            .values(
                # An op that is finished already keeps its first result; the guard is the fence alike.
                state="finished",
                run=op.run,
                finished_at=sa.func.coalesce(_O.finished_at, now()),
                result_code=sa.case((_O.state == "finished", _O.result_code), else_=code),
                result_json=sa.func.coalesce(_O.result_json, codec.encode(op.op_type, result)),
            )
        )
        if changed.rowcount == 0:
            raise LeaseLost("the op was taken over by a later fence")

    def fail(self, op: StartedOp, code: str) -> None:
        self._connection.execute(
            sa.update(artifact_ops)
            .where(_O.op_key == op.op_key, _O.fence == op.fence, _O.state == "started")
            .values(state="failed", result_code=code)
        )

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
