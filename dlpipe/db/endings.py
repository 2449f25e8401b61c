"""The end of a claim in one step: results on record, the state entered, and the next stage claimed or the lease free.

On PostgreSQL it is one statement, which needs no transaction around it; on SQLite, where nothing is sent anywhere, the
same parts one after the other. Either way the job's row comes first, and all others only if it was still ours (ADR 42).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dlpipe.core import results as codec
from dlpipe.core import states
from dlpipe.core.errors import LeaseLost
from dlpipe.core.ports import Ending
from dlpipe.core.states import Moment, State
from dlpipe.db.clock import after, now
from dlpipe.db.guards import MY_FENCE, MY_JOB, entering, following, guarded, mine, raise_why
from dlpipe.db.inserts import own_values
from dlpipe.db.ledger import finishing
from dlpipe.db.ready import Ready
from dlpipe.db.registering import registered_values, registering
from dlpipe.db.registry import SqlRegistry
from dlpipe.db.schema import artifact_jobs, artifact_ops, hash_index, jobs

_T, _O = artifact_jobs.c, artifact_ops.c
_OP = ("op_key", "op_type", "result_json")
_TTL_S = sa.bindparam("ttl_s", type_=sa.Float())
_RUN = sa.bindparam("my_run", type_=_T.run.type)


def _bound(name: str, at: int) -> sa.BindParameter[Any]:
    """Of the `at`-th op; that of the claimed stage is the first."""
    return sa.bindparam(f"{name}_{at}", type_=_O[name].type)


_Path = tuple[tuple[str, State], ...]
"""The stages that are recorded, and what each of them enters."""


def _moved(path: _Path, onward: str) -> sa.Update:
    """The job's row, which is the guard of everything else."""
    (first, entered), (_, target) = path[0], path[-1]
    for (_, before), (stage, state) in pairwise(path):
        if before not in states.sources(state, Moment.FINISH, stage):
            raise ValueError(f"{stage} does not lead from {before} to {state}")
    moved = guarded(states.sources(entered, Moment.FINISH, first))
    values = entering(target)
    if onward:
        if target not in states.claimable(onward):
            raise ValueError(f"{onward} does not claim in {target}")
        # The same row as after an end and a claim: the lease stays, under a fence of its own.
        del values["lease_owner"]
        claimed = states.on_claim(onward) or target
        values |= {"fence": _T.fence + 1, "state": claimed.value, "lease_until": after(_TTL_S)}
        moved = moved.where(_T.paused_at.is_(None))
    return moved.values(values)


def _op_rows(joined: int, *, onward: bool) -> list[list[sa.ColumnElement[Any]]]:
    """The ops that are new: those that are joined, under the claim's fence, and the next one, under the next."""
    names = ["op_key", "job_id", "run", "op_type", "state", "fence", "started_at", "finished_at", "result_code"]
    names.append("result_json")
    rows = []
    for at in range(1, joined + 1):
        key, kind, result = (_bound(name, at) for name in _OP)
        rows.append([key, MY_JOB, _RUN, kind, sa.literal("finished"), MY_FENCE, now(), now(), sa.literal("ok"), result])
    if onward:
        key, kind, nothing = _bound("op_key", joined + 1), _bound("op_type", joined + 1), sa.null()
        rows.append([key, MY_JOB, _RUN, kind, sa.literal("started"), MY_FENCE + 1, now(), nothing, nothing, nothing])
    told = [own_values(artifact_ops) | dict(zip(names, row, strict=True)) for row in rows]
    return [[sa.cast(value, _O[name].type).label(name) for name, value in row.items()] for row in told]


def _put(names: list[str], rows: sa.Select[Any]) -> sa.Insert:
    return sa.insert(artifact_ops).from_select(names, rows, include_defaults=False)


@cache
def _whole(path: _Path, onward: str, registers: tuple[str, ...]) -> Ready:
    """All of it as one statement of PostgreSQL; answers a row if the job was still ours."""
    held = sa.exists().where(_O.op_key == _bound("op_key", 0), _O.fence == MY_FENCE)
    entered = _moved(path, onward).where(held)
    moved = (entered.where(_is_first()) if registers else entered).returning(_T.job_id).cte("moved")
    followed = following(*path[-1]).where(jobs.c.job_id == moved.c.job_id).cte("followed")
    finished = _finish().where(_O.job_id == moved.c.job_id).cte("finished")
    parts = [followed, finished]
    rows = _op_rows(len(path) - 1, onward=bool(onward))
    if rows:
        found = sa.union_all(*(sa.select(*row).select_from(moved) for row in rows)).subquery()
        parts.append(_put(list(found.c.keys()), sa.select(found)).cte("made"))
    if not registers:
        return Ready(sa.select(moved.c.job_id).add_cte(*parts))
    added, linked, copied, others = registering(registers, moved)
    # Somebody else may register the same bytes at this moment: then nothing of all this may be, and this is how one
    # statement undoes itself. Who came earlier is seen by `_is_first`.
    is_first = 1 // sa.select(sa.func.count()).select_from(copied).scalar_subquery()
    return Ready(sa.select(moved.c.job_id, is_first.label("is_first")).add_cte(*parts, *others, linked, added))


_NOT_FIRST = "22012"
"""The SQLSTATE of a division by zero."""


def _is_first() -> sa.ColumnElement[bool]:
    return ~sa.exists().where(
        hash_index.c.scope == sa.bindparam("copy_scope", type_=hash_index.c.scope.type),
        hash_index.c.sha256 == sa.bindparam("copy_sha256", type_=hash_index.c.sha256.type),
    )


def _finish() -> sa.Update:
    key, _, result = (_bound(name, 0) for name in _OP)
    return finishing(key, MY_FENCE, _RUN, sa.literal("ok"), result)


@cache
def _one_by_one(path: _Path, onward: str) -> Sequence[Ready]:
    """The same for SQLite: the job's row, the op, and all others."""
    moved, followed = _moved(path, onward), following(*path[-1]).where(jobs.c.job_id == MY_JOB)
    rows = _op_rows(len(path) - 1, onward=bool(onward))
    made = [_put([one.name for one in row], sa.select(*row)) for row in rows]
    return [Ready(statement) for statement in (moved, _finish(), followed, *made)]


class SqlEndings:
    """The port `Endings` within a transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def end(self, ending: Ending) -> bool:
        return self._is_written(ending) or self._may_not(ending)

    def _may_not(self, ending: Ending) -> bool:
        """It is not written: False of one that may be possible in another way, else raise why."""
        if ending.onward is None and ending.registers is None:
            allowed = states.sources(ending.entered, Moment.FINISH, ending.stage.name)
            raise_why(self._connection, ending.job, ending.entered, allowed)
        return False

    def _is_written(self, ending: Ending) -> bool:
        path = ((ending.stage.name, ending.entered), *((one.stage.name, one.state) for one in ending.joined))
        onward = ending.onward.stage.name if ending.onward else ""
        values, new = _values(ending), ending.registers
        if self._connection.dialect.name == "postgresql":
            whole = _whole(path, onward, tuple(new.facts) if new is not None else ())
            return whole(self._connection, values).first() is not None
        registry = SqlRegistry(self._connection)
        if new is not None and registry.first_copy(new.dedupe_scope, new.record.sha256) is not None:
            return False
        moved, finished, *others = _one_by_one(path, onward)
        if moved(self._connection, values).rowcount == 0:
            return False
        if finished(self._connection, values).rowcount == 0:
            raise LeaseLost("the op was taken over by a later fence")
        for other in others:
            other(self._connection, values)
        if new is not None:
            registry.register(new)
        return True


class LoneEndings:
    """The port `Endings` on PostgreSQL without a transaction around it: each ending is one statement."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def end(self, ending: Ending) -> bool:
        try:
            return self._said(ending)
        except DBAPIError as error:
            if ending.registers is not None and getattr(error.orig, "sqlstate", None) == _NOT_FIRST:
                return False
            raise

    def _said(self, ending: Ending) -> bool:
        try:
            with self._engine.connect() as connection:
                return SqlEndings(connection).end(ending)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        # The server was restarted, or went away in the middle: nobody knows what came of it. Said once more it does
        # nothing when it had got through, and then what stands there is what it had to write.
        with self._engine.connect() as connection:
            again = SqlEndings(connection)
            if again._is_written(ending) or _stands(connection, ending):
                return True
            # Not said for a third time: the look has begun a transaction, which nobody commits.
            return again._may_not(ending)


def _stands(connection: sa.Connection, ending: Ending) -> bool:
    """Is the row as this ending leaves it?"""
    job, onward = ending.job, ending.onward
    op_key, op_state, fence, owner = ending.op.op_key, "finished", job.fence, None
    if onward is not None:
        op_key, op_state, fence, owner = onward.op_key, "started", job.fence + 1, job.lease_owner
    entered = (states.on_claim(onward.stage.name) if onward else None) or ending.state
    row = connection.execute(
        sa.select(_T.job_id)
        .join(artifact_ops, sa.and_(_O.job_id == _T.job_id, _O.op_key == op_key, _O.fence == fence))
        # A stream's claim enters the state that its end enters: one that was handed back is told by its op.
        .where(_O.state == op_state)
        .where(_T.job_id == job.job_id, _T.fence == fence, _T.state == entered.value)
        .where(_T.lease_owner.is_not_distinct_from(owner))
    ).first()
    return row is not None


def _values(ending: Ending) -> Mapping[str, Any]:
    job, op = ending.job, ending.op
    values: dict[str, Any] = {**mine(job), _RUN.key: job.run, "op_key_0": op.op_key}
    values["result_json_0"] = codec.encode(op.op_type, ending.result)
    for at, joined in enumerate(ending.joined, 1):
        values[f"op_key_{at}"], values[f"op_type_{at}"] = joined.op_key, joined.stage.op.value
        values[f"result_json_{at}"] = codec.encode(joined.stage.op, joined.result)
    if ending.registers is not None:
        values |= registered_values(ending.registers)
    if ending.onward is not None:
        at = len(ending.joined) + 1
        values[f"op_key_{at}"], values[f"op_type_{at}"] = ending.onward.op_key, ending.onward.stage.op.value
        values[_TTL_S.key] = ending.onward.lease_ttl_s
    return values
