"""Plan if absent: insert, on conflict do nothing; then say what stands there (PLAN-3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core.errors import LedgerUnavailable
from dlpipe.core.layout import part_slug
from dlpipe.core.model import JOB_TYPE_ARTIFACT, JobSpec, PlanAnswer
from dlpipe.core.states import State, Status
from dlpipe.db.clock import now
from dlpipe.db.inserts import insert_ignoring
from dlpipe.db.schema import artifact_jobs, job_artifacts, jobs, purged_jobs

BATCH = 400


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
    at = connection.scalar(sa.select(now()))
    unique = {spec.job_id: spec for spec in specs}
    created = set(
        connection.scalars(
            insert_ignoring(connection, jobs)
            .values(
                [
                    {
                        "job_id": spec.job_id,
                        "tenant_id": spec.scope.tenant_id,
                        "project_id": spec.scope.project_id,
                        "job_type": JOB_TYPE_ARTIFACT,
                        "status": Status.PENDING.value,
                        "idempotency_key": spec.job_key,
                        "request_id": spec.request_id,
                        "created_at": at,
                        "updated_at": at,
                    }
                    for spec in unique.values()
                ]
            )
            .returning(jobs.c.job_id)
        )
    )
    if created:
        fences = earlier_fences(connection, sorted(created))
        connection.execute(
            sa.insert(artifact_jobs),
            [
                {
                    "job_id": spec.job_id,
                    "tenant_id": spec.scope.tenant_id,
                    "work_id": spec.work_id,
                    "artifact_id": spec.artifact_id,
                    "canonical_url": spec.url.canonical,
                    "request_url": spec.url.request,
                    "host": spec.url.host[:255],
                    "state": State.PLANNED.value,
                    "fence": fences.get(spec.job_id, 0),
                    "due_at": spec.not_before or at,
                    "priority": spec.priority,
                    "ext": spec.ext,
                    "expected_sha256": spec.expected_sha256,
                    "expected_media_type": spec.expected_media_type,
                    "max_bytes": spec.max_bytes,
                    "mirrors": list(spec.mirrors) or None,
                    "part": part_slug(spec.scope.tenant_id, spec.url.canonical),
                }
                for spec in unique.values()
                if spec.job_id in created
            ],
        )
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
    artifacts = results_of(connection, done)
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


def results_of(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
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
