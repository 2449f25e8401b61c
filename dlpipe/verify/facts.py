"""What the database says, read and never written: snapshots, and the rows of many jobs at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from dlpipe.db import download_schema as downloads
from dlpipe.db import schema
from dlpipe.verify import rules

PAGE = 500
_JOBS, _T, _OPS, _A = schema.jobs.c, schema.artifact_jobs.c, schema.artifact_ops.c, schema.artifacts.c
_HISTORY = schema.schema_history
_NOW = {"sqlite": "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)", "postgresql": "clock_timestamp()"}

Row = Any
"""A row of the result: its columns by name."""


@dataclass(slots=True)
class JobFacts:
    """All rows that belong to one job id."""

    job_id: str
    job: Row = None
    detail: Row = None
    download: Row = None
    ops: list[Row] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)
    """Its result rows, with the artifacts that they name."""
    made: list[Row] = field(default_factory=list)
    """The artifacts that name it as their maker."""
    manifest: list[Row] = field(default_factory=list)
    files: list[Row] = field(default_factory=list)
    """The files of a download, with their artifacts."""
    purged: Row = None
    """What a purge left of it; the job may have been planned again since."""
    url_known: bool = False
    """Its URL is in the index."""

    def newest_result(self) -> Row | None:
        """What the latest run brought or found, which may be what an earlier one had registered."""
        runs = {row.artifact_uuid: row.run or 0 for row in self.manifest}
        known = [row for row in self.results if row.sha256 is not None]
        return max(known, key=lambda row: (runs.get(row.artifact_uuid, 0), row.position), default=None)

    def is_former(self, artifact: Row) -> bool:
        """Was it made before the job was purged and planned again? Then its op and its rows went with the purge."""
        listed = any(row.artifact_uuid == artifact.artifact_uuid for row in self.results)
        return self.purged is not None and not listed and artifact.created_at < self.job.created_at


class Snapshot:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.now: datetime = self._scalar(
            sa.select(sa.literal_column(_NOW[connection.dialect.name], type_=_JOBS.created_at.type))
        )

    def rows(self, query: sa.Select[Any]) -> Iterable[Row]:
        return self._connection.execute(query)

    def _scalar(self, query: sa.Select[Any]) -> Any:
        return self._connection.execute(query).scalar()

    def schema_version(self) -> tuple[str | None, str | None]:
        tables = sa.inspect(self._connection)
        if not tables.has_table("alembic_version"):
            return None, None
        found: str | None = self._scalar(sa.select(sa.column("version_num")).select_from(sa.table("alembic_version")))
        if not tables.has_table(_HISTORY.name):
            return found, None
        return found, self._scalar(sa.select(_HISTORY.c.works_from).where(_HISTORY.c.revision == found))

    def sizes(self) -> tuple[int, int, int]:
        """Jobs, artifacts and the bytes of those, to tell how far a check is."""
        artifacts, size = self._connection.execute(
            sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_A.byte_size), 0)).select_from(schema.artifacts)
        ).one()
        return self._scalar(sa.select(sa.func.count()).select_from(schema.jobs)), int(artifacts), int(size)

    def backends(self) -> set[str]:
        """Which kinds of store artifacts are in."""
        return {row.storage_backend for row in self.rows(sa.select(_A.storage_backend).distinct())}

    def store_mark(self) -> str | None:
        """The id that the local store has to bear; None when none is on record yet."""
        found: str | None = self._scalar(sa.select(schema.stores.c.store_id).where(schema.stores.c.backend == "local"))
        return found

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def pages(self) -> Iterator[list[JobFacts]]:
        """All jobs by id, so many at a time; rows whose job does not exist come with their neighbours."""
        last: str | None = None
        while True:
            query = sa.select(_JOBS.job_id).order_by(_JOBS.job_id).limit(PAGE)
            ids = [row.job_id for row in self.rows(query if last is None else query.where(_JOBS.job_id > last))]
            upto = ids[-1] if len(ids) == PAGE else None
            after = last
            yield self._facts(lambda column, a=after, b=upto: _between(column, a, b))  # type: ignore[misc]
            if upto is None:
                return
            last = upto

    def jobs(self, job_ids: Collection[str]) -> list[JobFacts]:
        return self._facts(lambda column: column.in_(sorted(job_ids)))

    def _facts(self, which: Callable[[sa.ColumnElement[Any]], sa.ColumnElement[bool]]) -> list[JobFacts]:
        found: dict[str, JobFacts] = {}

        def of(job_id: str) -> JobFacts:
            return found.setdefault(job_id, JobFacts(job_id))

        for row in self.rows(sa.select(schema.jobs).where(which(_JOBS.job_id))):
            of(row.job_id).job = row
        for row in self.rows(sa.select(schema.artifact_jobs).where(which(_T.job_id))):
            of(row.job_id).detail = row
        light = [column for column in downloads.download_jobs.c if column.name != "source_bytes"]
        for row in self.rows(sa.select(*light).where(which(downloads.download_jobs.c.job_id))):
            of(row.job_id).download = row
        for row in self.rows(sa.select(schema.artifact_ops).where(which(_OPS.job_id)).order_by(_OPS.fence)):
            of(row.job_id).ops.append(row)
        for row in self.rows(_with_faults(*schema.artifacts.c).where(which(_A.created_by_job_id))):
            of(row.created_by_job_id).made.append(row)
        for row in self.rows(sa.select(schema.manifest).where(which(schema.manifest.c.job_id))):
            of(row.job_id).manifest.append(row)
        results, files = schema.job_artifacts, downloads.download_files
        query = sa.select(results, _A.tenant_id, _A.project_id, _A.created_by_job_id, _A.sha256, _A.storage_pointer)
        joined = query.outerjoin(schema.artifacts, _A.artifact_uuid == results.c.artifact_uuid)
        for row in self.rows(joined.where(which(results.c.job_id), results.c.role == "result")):
            of(row.job_id).results.append(row)
        for row in self.rows(sa.select(files).where(which(files.c.job_id))):
            of(row.job_id).files.append(row)
        for row in self.rows(sa.select(schema.purged_jobs).where(which(schema.purged_jobs.c.job_id))):
            of(row.job_id).purged = row
        self._look_up_urls(found)
        return [found[job_id] for job_id in sorted(found)]

    def _look_up_urls(self, found: dict[str, JobFacts]) -> None:
        wanted: dict[str, dict[str, list[JobFacts]]] = {}
        for facts in found.values():
            if facts.job is not None and facts.detail is not None and facts.detail.state in ("INDEXED", "DEDUPED"):
                digest = rules.url_digest(facts.detail.canonical_url)
                wanted.setdefault(facts.job.tenant_id, {}).setdefault(digest, []).append(facts)
        index = schema.url_index.c
        for tenant, digests in wanted.items():
            query = sa.select(index.url_sha256).where(index.scope == tenant, index.url_sha256.in_(digests))
            for row in self.rows(query):
                for facts in digests[row.url_sha256]:
                    facts.url_known = True

    # ── files and parts ───────────────────────────────────────────────────────────────────────────

    def artifacts_of(self, digests: Collection[str]) -> dict[str, list[Row]]:
        """The artifacts with these hashes by their pointers, with the state of the job that made each."""
        columns = (_A.storage_pointer, _A.byte_size, _A.sha256, _A.created_by_job_id, _T.state, _T.due_at, _T.purpose)
        query = _with_faults(*columns).outerjoin(schema.artifact_jobs, _T.job_id == _A.created_by_job_id)
        found: dict[str, list[Row]] = {}
        for row in self.rows(query.where(_A.sha256.in_(sorted(digests)))):
            found.setdefault(row.storage_pointer, []).append(row)
        return found

    def indexed(self, digests: Collection[str]) -> dict[str, list[Row]]:
        """What the index of hashes has of these."""
        index = schema.hash_index.c
        found: dict[str, list[Row]] = {}
        query = sa.select(index.scope, index.sha256, index.pointer, index.size)
        for row in self.rows(query.where(index.sha256.in_(sorted(digests)))):
            found.setdefault(row.sha256, []).append(row)
        return found

    def brought(self) -> Iterator[Row]:
        """What jobs brought that have registered nothing, with the owner and the state of each."""
        done = ("DEDUPED", "SKIPPED_DUPLICATE", "PLANNED")
        yield from self.rows(
            sa.select(_OPS.op_type, _OPS.result_json, _T.state, _T.due_at, _JOBS.tenant_id, _JOBS.project_id)
            .join(schema.artifact_jobs, _T.job_id == _OPS.job_id)
            .join(schema.jobs, _JOBS.job_id == _OPS.job_id)
            .where(_T.state.not_in(done), _OPS.op_type.in_(("STREAM", "FINALIZE")), _OPS.state == "finished")
        )

    def bringing(self) -> set[tuple[str, str]]:
        """The tenants and projects in which files may get their names this moment, before any row says so."""
        rows = downloads.download_jobs.c
        linking = (
            sa.select(_JOBS.tenant_id, _JOBS.project_id)
            .join(schema.artifact_jobs, _T.job_id == _JOBS.job_id)
            .where(_T.state == "LEASED", _T.lease_owner.is_not(None))
        )
        following = sa.select(rows.tenant_id, rows.project_id).where(
            rows.status == "downloading", rows.due_at_utc.is_not(None)
        )
        return {(r.tenant_id, r.project_id) for q in (linking, following) for r in self.rows(q.distinct())}

    def wanted_urls(self, tenant: str) -> Iterator[str]:
        """The URLs of all jobs of a tenant that may yet have bytes staged."""
        under_way = ("PLANNED", "LEASED", "HEAD_DONE", "RESUME_OK", "STREAMING")
        query = (
            sa.select(_T.canonical_url)
            .join(schema.jobs, _JOBS.job_id == _T.job_id)
            .where(
                _JOBS.tenant_id == tenant,
                sa.or_(_T.state.in_(under_way), sa.and_(_T.state.in_(rules.AGAIN), _T.due_at.is_not(None))),
            )
        )
        for row in self.rows(query):
            yield row.canonical_url


def _with_faults(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Artifacts, with what their file is marked as having, if it is, and whether they were given up."""
    marks, retired = schema.artifact_faults.c, schema.artifact_retirements.c
    query = sa.select(*columns, marks.fault, marks.found_at, retired.retired_at).select_from(schema.artifacts)
    return query.outerjoin(
        schema.artifact_faults, sa.and_(marks.artifact_uuid == _A.artifact_uuid, marks.mended_at.is_(None))
    ).outerjoin(schema.artifact_retirements, retired.artifact_uuid == _A.artifact_uuid)


def _between(column: sa.ColumnElement[Any], after: str | None, upto: str | None) -> sa.ColumnElement[bool]:
    bounds: list[sa.ColumnElement[bool]] = [column.is_not(None)]
    if after is not None:
        bounds.append(column > after)
    if upto is not None:
        bounds.append(column <= upto)
    return sa.and_(*bounds)
