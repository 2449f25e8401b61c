"""Plan if absent: insert, on conflict do nothing; then say what stands there (PLAN-3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect

from dlpipe.core.errors import LedgerUnavailable
from dlpipe.core.layout import part_slug
from dlpipe.core.model import JOB_TYPE_ARTIFACT, JobSpec, PlanAnswer
from dlpipe.core.states import State, Status
from dlpipe.db.clock import Moment, now
from dlpipe.db.inserts import ignoring, own_values
from dlpipe.db.schema import artifact_jobs, job_artifacts, jobs, purged_jobs

BATCH = 5_000
DOCUMENT_BYTES = 8 << 20
"""A batch of long URLs is written in several documents: PostgreSQL takes none beyond 256 MiB, and it is there whole."""


def plan_if_absent(connection: sa.Connection, specs: Sequence[JobSpec]) -> list[PlanAnswer]:
    # One order for all planners, so that two that insert the same keys wait for each other instead of deadlocking.
    order = sorted(range(len(specs)), key=lambda position: specs[position].job_id)
    answers: dict[int, PlanAnswer] = {}
    for begin in range(0, len(order), BATCH):
        positions = order[begin : begin + BATCH]
        batch = _plan_batch(connection, [specs[position] for position in positions])
        answers.update(zip(positions, batch, strict=True))
    return [answers[position] for position in range(len(specs))]


def _plan_batch(connection: sa.Connection, specs: Sequence[JobSpec]) -> list[PlanAnswer]:
    unique = {spec.job_id: spec for spec in specs}
    there = _add(connection, unique)
    known = _known(connection, [unique[job_id].job_key for job_id in there])
    answers = []
    for spec in specs:
        job_id = spec.job_id
        if job_id in unique and job_id not in there:
            answers.append(PlanAnswer(job_id, "created", Status.PENDING, State.PLANNED))
            del unique[job_id]  # the same spec twice in one call is created once
        elif job_id not in there:
            answers.append(PlanAnswer(job_id, "known", Status.PENDING, State.PLANNED))
        elif spec.job_key in known:
            answers.append(known[spec.job_key])
        else:
            raise LedgerUnavailable(f"job {job_id} was neither inserted nor found")
    return answers


def _add(connection: sa.Connection, unique: Mapping[str, JobSpec]) -> set[str]:
    """Insert those whose keys no row has; answer the ids of the others."""
    dialect, specs = connection.dialect, unique.values()
    if dialect.name == "postgresql":
        rows = _documents((*_job_row(spec), *_detail_row(spec, dialect)) for spec in specs)
        found = [row for document in rows for row in connection.execute(_both(), {"rows": document})]
        if late := [row.job_id for row in found if row.is_new]:
            connection.execute(_GO_ON, {"late": late})
        return {row.job_id for row in found if not row.is_new}
    add_jobs, add_details = _one_by_one(dialect.name)
    at = connection.scalar(sa.select(now()))
    created: set[str] = set()
    for document in _documents(_job_row(spec) for spec in specs):
        created.update(connection.scalars(add_jobs, {"rows": document, "at": at}))
    new = (spec for spec in specs if spec.job_id in created)
    for document in _documents((*_job_row(spec)[: len(_SHARED)], *_detail_row(spec, dialect)) for spec in new):
        connection.execute(add_details, {"rows": document, "at": at})
    return unique.keys() - created


# ── many rows in one statement ────────────────────────────────────────────────────────────────────
#
# A batch goes in as one JSON document: a statement of thousands of values takes longer to spell and to read than its
# rows take to insert, and each size of batch would be another statement.

_SHARED = ("job_id", "tenant_id")
_JOB_NAMES = (*_SHARED, "project_id", "idempotency_key", "request_id")
_DETAIL_NAMES = (
    "work_id", "artifact_id", "canonical_url", "request_url", "host", "due_at", "priority", "ext", "expected_sha256",
    "expected_media_type", "max_bytes", "mirrors", "part",
)  # fmt: skip


def _job_row(spec: JobSpec) -> tuple[Any, ...]:
    return spec.job_id, spec.scope.tenant_id, spec.scope.project_id, spec.job_key, spec.request_id


def _detail_row(spec: JobSpec, dialect: Dialect) -> tuple[Any, ...]:
    url, due_at = spec.url, spec.not_before
    return (
        spec.work_id, spec.artifact_id, url.canonical, url.request, url.host[:255],
        None if due_at is None else _MOMENT.process_bind_param(due_at, dialect), spec.priority, spec.ext,
        spec.expected_sha256, spec.expected_media_type, spec.max_bytes, spec.mirrors or None,
        part_slug(spec.scope.tenant_id, url.canonical),
    )  # fmt: skip


_MOMENT = Moment()
_Columns = Mapping[str, sa.ColumnElement[Any]]


def _documents(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    kept: list[str] = []
    size = 0
    for text in _spelled(iter(rows)):
        if kept and size + len(text) > DOCUMENT_BYTES:
            yield f"[{','.join(kept)}]"
            kept, size = [], 0
        kept.append(text)
        size += len(text) + 1
    if kept:
        yield f"[{','.join(kept)}]"


def _spelled(rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    """Rows, with commas between. To set the encoder up takes longer than to spell a row, so it spells some at once."""
    while some := list(islice(rows, _AT_ONCE)):
        text = _JSON.encode(some)[1:-1]
        if len(text) <= DOCUMENT_BYTES // _AT_ONCE:
            yield text
        else:
            yield from map(_JSON.encode, some)


_AT_ONCE = 32
_JSON = json.JSONEncoder(default=datetime.isoformat, separators=(",", ":"))


@cache
def _both() -> sa.Select[Any]:
    """For PostgreSQL: both rows of each job that is new, in one statement, which answers the ids that a row had.

    And those that are new although a row was there as it began: they were purged while it waited for that, and it does
    not see the fences that they left.
    """
    read = _from_document("postgresql", (*_JOB_NAMES, *_DETAIL_NAMES))
    given = sa.select(*(column.label(name) for name, column in read.items())).cte("given")
    read = {name: given.c[name] for name in read}
    moment = sa.select(now().label("at")).cte("moment")
    at = sa.select(moment.c.at).scalar_subquery()
    added = _new_jobs("postgresql", read, at).returning(jobs.c.job_id).cte("added")
    new = given.c.job_id.in_(sa.select(added.c.job_id))
    was_there = sa.exists().where(jobs.c.job_id == given.c.job_id)
    answer = sa.select(given.c.job_id, new.label("is_new")).where(sa.or_(sa.not_(new), was_there))
    return answer.add_cte(_details(read, at, new).cte("detailed"))


_GO_ON = (
    sa.update(artifact_jobs)
    .where(artifact_jobs.c.job_id == purged_jobs.c.job_id)
    .where(artifact_jobs.c.job_id.in_(sa.bindparam("late", expanding=True)))
    .values(fence=purged_jobs.c.fence)
)


@cache
def _one_by_one(dialect: str) -> tuple[Any, sa.Insert]:
    """The two inserts of a batch, of which the first answers the ids that no row had."""
    at = sa.bindparam("at", type_=Moment)
    of_job, of_detail = (_from_document(dialect, names) for names in (_JOB_NAMES, (*_SHARED, *_DETAIL_NAMES)))
    return _new_jobs(dialect, of_job, at).returning(jobs.c.job_id), _details(of_detail, at, sa.true())


def _new_jobs(dialect: str, read: _Columns, at: sa.ColumnElement[Any]) -> Any:
    new = {name: read[name] for name in _JOB_NAMES} | {"created_at": at, "updated_at": at}
    new |= {"job_type": sa.literal(JOB_TYPE_ARTIFACT), "status": sa.literal(Status.PENDING.value)}
    # SQLite takes ON CONFLICT for a part of the query unless that has a WHERE.
    new = own_values(jobs) | new
    rows = sa.select(*new.values()).where(sa.true())
    return ignoring(dialect, jobs).from_select(list(new), rows, include_defaults=False)


def _details(read: _Columns, at: sa.ColumnElement[Any], where: sa.ColumnElement[bool]) -> sa.Insert:
    new = {name: read[name] for name in (*_SHARED, *_DETAIL_NAMES)}
    new["due_at"] = sa.func.coalesce(new["due_at"], at)
    earlier = sa.select(purged_jobs.c.fence).where(purged_jobs.c.job_id == new["job_id"]).scalar_subquery()
    # Where the fence of a purged job had come to it goes on from, or whoever held it in its earlier life would be taken
    # for a later holder, and its bytes in staging for a later one's.
    new |= {"state": sa.literal(State.PLANNED.value), "fence": sa.func.coalesce(earlier, 0)}
    new = own_values(artifact_jobs) | new
    rows = sa.select(*new.values()).where(where)
    return sa.insert(artifact_jobs).from_select(list(new), rows, include_defaults=False)


def _from_document(dialect: str, names: Sequence[str]) -> dict[str, sa.ColumnElement[Any]]:
    """The columns of those names, read by position from each row of the document, in the document's order."""
    given = sa.bindparam("rows", type_=sa.Text())
    columns = {name: jobs.c[name] if name in jobs.c else artifact_jobs.c[name] for name in names}
    if dialect == "sqlite":
        each = sa.func.json_each(given).table_valued("value")
        return {
            name: sa.type_coerce(sa.func.json_extract(each.c.value, f"$[{at}]"), column.type)
            for at, (name, column) in enumerate(columns.items())
        }
    each = sa.func.jsonb_array_elements(sa.cast(given, postgresql.JSONB)).table_valued(
        sa.column("value", postgresql.JSONB)
    )
    texts = ((name, each.c.value.op("->>", return_type=sa.Text())(at)) for at, name in enumerate(names))
    return {name: text if _is_text(columns[name]) else sa.cast(text, columns[name].type) for name, text in texts}


def _is_text(column: sa.Column[Any]) -> bool:
    """Such values are not cast to the column's type: PostgreSQL would cut off what is too long."""
    return isinstance(column.type.dialect_impl(_POSTGRESQL), sa.String)


_POSTGRESQL: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]


def earlier_fences(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, int]:
    """Where the fences of purged jobs had come to: planned again, a job goes on from there, or whoever held it in its
    earlier life would be taken for a later holder, and its bytes in staging for a later one's."""
    earlier = sa.select(purged_jobs.c.job_id, purged_jobs.c.fence).where(purged_jobs.c.job_id.in_(job_ids))
    return {row.job_id: row.fence for row in connection.execute(earlier)}


def _known(connection: sa.Connection, keys: Sequence[str]) -> dict[str, PlanAnswer]:
    if not keys:
        return {}
    rows = connection.execute(
        sa.select(
            jobs.c.job_id, jobs.c.idempotency_key, jobs.c.status, artifact_jobs.c.state, artifact_jobs.c.paused_at
        )
        .join(artifact_jobs, artifact_jobs.c.job_id == jobs.c.job_id)
        .where(jobs.c.idempotency_key.in_(keys))
    ).all()
    done = [row.job_id for row in rows if row.status in (Status.COMPLETED, Status.SKIPPED)]
    artifacts = _results_of(connection, done)
    return {row.idempotency_key: _answer(row, artifacts.get(row.job_id, ())) for row in rows}


def _answer(row: Any, artifacts: tuple[str, ...]) -> PlanAnswer:
    status, state = Status(row.status), State(row.state)
    match status:
        case Status.COMPLETED | Status.SKIPPED:
            return PlanAnswer(row.job_id, "skipped", status, state, artifacts)
        case Status.FAILED:
            hint = f"It failed for good. To try again: dlpipe retry {row.job_id}, or dlpipe fetch --retry URL."
            return PlanAnswer(row.job_id, "failed", status, state, (), hint)
        case Status.CANCELED:
            hint = "It was canceled. Plan it under another artifact id to fetch it after all."
            return PlanAnswer(row.job_id, "canceled", status, state, (), hint)
        case _:
            hint = f"It is paused. To let it go on: dlpipe resume {row.job_id}." if row.paused_at else ""
            return PlanAnswer(row.job_id, "known", status, state, (), hint)


def _results_of(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The result artifacts of these jobs, in their order."""
    found: dict[str, tuple[str, ...]] = {}
    if job_ids:
        for row in connection.execute(
            sa.select(job_artifacts.c.job_id, job_artifacts.c.artifact_uuid)
            .where(job_artifacts.c.job_id.in_(job_ids), job_artifacts.c.role == "result")
            .order_by(job_artifacts.c.job_id, job_artifacts.c.position)
        ):
            found[row.job_id] = (*found.get(row.job_id, ()), row.artifact_uuid)
    return found
