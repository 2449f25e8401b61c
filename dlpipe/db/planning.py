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
from dlpipe.db.inserts import ignoring
from dlpipe.db.schema import artifact_jobs, job_artifacts, jobs, purged_jobs

BATCH = 2_000
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
    dialect = connection.dialect
    add_jobs, add_details = _bulk(dialect.name)
    at = {"at": connection.scalar(_NOW)}
    created: set[str] = set()
    for rows in _documents(_job_row(spec) for spec in unique.values()):
        created.update(connection.scalars(add_jobs, {"rows": rows, **at}))
    for rows in _documents(_detail_row(spec, dialect) for spec in unique.values() if spec.job_id in created):
        connection.execute(add_details, {"rows": rows, **at})
    known = _known(connection, [spec.job_key for spec in unique.values() if spec.job_id not in created])
    answers = []
    for spec in specs:
        if spec.job_id in created:
            answers.append(PlanAnswer(spec.job_id, "created", Status.PENDING, State.PLANNED))
            known[spec.job_key] = PlanAnswer(spec.job_id, "known", Status.PENDING, State.PLANNED)
            created.discard(spec.job_id)  # the same spec twice in one call is created once
        elif spec.job_key in known:
            answers.append(known[spec.job_key])
        else:
            raise LedgerUnavailable(f"job {spec.job_id} was neither inserted nor found")
    return answers


# ── many rows in one statement ────────────────────────────────────────────────────────────────────
#
# A batch goes in as one JSON document: a statement of thousands of values takes longer to spell and to read than its
# rows take to insert, and each size of batch would be another statement.

_NOW = sa.select(now())
_JOB_NAMES = ("job_id", "tenant_id", "project_id", "idempotency_key", "request_id")
_DETAIL_NAMES = (
    "job_id", "tenant_id", "work_id", "artifact_id", "canonical_url", "request_url", "host", "due_at", "priority",
    "ext", "expected_sha256", "expected_media_type", "max_bytes", "mirrors", "part",
)  # fmt: skip


def _job_row(spec: JobSpec) -> tuple[Any, ...]:
    return spec.job_id, spec.scope.tenant_id, spec.scope.project_id, spec.job_key, spec.request_id


def _detail_row(spec: JobSpec, dialect: Dialect) -> tuple[Any, ...]:
    tenant, url = spec.scope.tenant_id, spec.url
    return (
        spec.job_id, tenant, spec.work_id, spec.artifact_id, url.canonical, url.request, url.host[:255],
        _MOMENT.process_bind_param(spec.not_before, dialect), spec.priority, spec.ext, spec.expected_sha256,
        spec.expected_media_type, spec.max_bytes, list(spec.mirrors) or None, part_slug(tenant, url.canonical),
    )  # fmt: skip


_MOMENT = Moment()


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
def _bulk(dialect: str) -> tuple[Any, sa.Insert]:
    """The two inserts of a batch; the first answers the ids that no row had."""
    at = sa.bindparam("at", type_=Moment)
    new = _from_document(dialect, jobs, _JOB_NAMES)
    fixed: dict[str, Any] = {"created_at": at, "updated_at": at}
    fixed |= {"job_type": sa.literal(JOB_TYPE_ARTIFACT), "status": sa.literal(Status.PENDING.value)}
    # SQLite takes ON CONFLICT for a part of the query unless that has a WHERE.
    add_jobs = ignoring(dialect, jobs).from_select(*_selected(new, fixed, sa.true())).returning(jobs.c.job_id)
    detail = _from_document(dialect, artifact_jobs, _DETAIL_NAMES)
    earlier = sa.select(purged_jobs.c.fence).where(purged_jobs.c.job_id == detail["job_id"]).scalar_subquery()
    detail["due_at"] = sa.func.coalesce(detail["due_at"], at)
    # Where the fence of a purged job had come to it goes on from, or whoever held it in its earlier life would be taken
    # for a later holder, and its bytes in staging for a later one's.
    fixed = {"state": sa.literal(State.PLANNED.value), "fence": sa.func.coalesce(earlier, 0)}
    return add_jobs, sa.insert(artifact_jobs).from_select(*_selected(detail, fixed, sa.true()))


def _selected(
    read: Mapping[str, Any], fixed: Mapping[str, Any], where: sa.ColumnElement[bool]
) -> tuple[list[str], sa.Select[Any]]:
    columns = {**read, **fixed}
    return list(columns), sa.select(*columns.values()).where(where)


def _from_document(dialect: str, table: sa.Table, names: Sequence[str]) -> dict[str, Any]:
    """The columns of that table, read by position from each row of the document, in the document's order."""
    given = sa.bindparam("rows", type_=sa.Text())
    if dialect == "sqlite":
        each = sa.func.json_each(given).table_valued("value")
        return {
            name: sa.type_coerce(sa.func.json_extract(each.c.value, f"$[{at}]"), table.c[name].type)
            for at, name in enumerate(names)
        }
    each = sa.func.jsonb_array_elements(sa.cast(given, postgresql.JSONB)).table_valued(
        sa.column("value", postgresql.JSONB)
    )
    texts = ((name, each.c.value.op("->>", return_type=sa.Text())(at)) for at, name in enumerate(names))
    return {name: text if _is_text(table.c[name]) else sa.cast(text, table.c[name].type) for name, text in texts}


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
