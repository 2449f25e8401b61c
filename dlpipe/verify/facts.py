"""What the database says, read and never written: snapshots, and the rows of many jobs at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dlpipe.db import download_schema as downloads
from dlpipe.db import schema
from dlpipe.verify import rules

PAGE = 500
_BUSY_S = 30.0
_JOBS, _T, _OPS, _A = schema.jobs.c, schema.artifact_jobs.c, schema.artifact_ops.c, schema.artifacts.c
_NOW = {"sqlite": "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)", "postgresql": "clock_timestamp()"}

Row = Any
"""A row of the result: its columns by name."""


class DatabaseTrouble(Exception):
    """The database did not answer, or not as one that can be checked. The text names no values."""


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
    url_known: bool = False
    """Its URL is in the index."""


class Ledger:
    """Opens the database for reading only."""

    def __init__(self, url: str) -> None:
        self._url = sa.engine.make_url(url)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        if self._sqlite:
            self._engine = sa.create_engine("sqlite://", creator=self._open_file, poolclass=sa.pool.NullPool)
            sa.event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        else:
            self._engine = sa.create_engine(
                self._url,
                hide_parameters=True,
                pool_pre_ping=True,
                connect_args={
                    "connect_timeout": 10,
                    "application_name": "dlpipe verify",
                    "options": "-c default_transaction_read_only=on -c timezone=UTC -c lock_timeout=20000",
                },
            )

    def close(self) -> None:
        self._engine.dispose()

    def schema_version(self) -> str | None:
        """The revision of its tables; None when it has none, or is not there."""
        if self._sqlite and not Path(self._url.database or "").is_file():
            return None
        with self.snapshot() as now:
            return now.schema_version()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One consistent look at all tables, from one transaction that could not write if it wanted to."""
        file = Path(self._url.database) if self._sqlite and self._url.database else None
        at_rest = file is not None and not _wal(file).exists()
        before = _stamp(file) if file is not None and at_rest else None
        try:
            with self._engine.connect() as plain:
                options: dict[str, Any] = {"stream_results": True}
                if not self._sqlite:
                    options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
                with plain.execution_options(**options) as connection, connection.begin():
                    yield Snapshot(connection)
        except DBAPIError as error:
            raise DatabaseTrouble(f"the database did not answer ({type(error.orig).__name__})") from error
        if file is not None and before is not None and _stamp(file) != before:
            raise DatabaseTrouble("somebody began to write while it was read as a database at rest")

    def _open_file(self) -> sqlite3.Connection:
        file = Path(self._url.database or "").absolute()
        # Nobody has it open: then SQLite need not leave its side files either, nor have the right to make them.
        how = "mode=ro" if _wal(file).exists() else "immutable=1"
        connection = sqlite3.connect(f"{file.as_uri()}?{how}", uri=True, timeout=_BUSY_S, check_same_thread=False)
        connection.isolation_level = None
        connection.execute("PRAGMA query_only=ON").close()
        return connection


def _wal(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


class Snapshot:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.now: datetime = self._scalar(
            sa.select(sa.literal_column(_NOW[connection.dialect.name], type_=_JOBS.created_at.type))
        )

    def _rows(self, query: sa.Select[Any]) -> Iterable[Row]:
        return self._connection.execute(query)

    def _scalar(self, query: sa.Select[Any]) -> Any:
        return self._connection.execute(query).scalar()

    def schema_version(self) -> str | None:
        if not sa.inspect(self._connection).has_table("alembic_version"):
            return None
        found: str | None = self._connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return found

    def sizes(self) -> tuple[int, int, int]:
        """Jobs, artifacts and the bytes of those, to tell how far a check is."""
        artifacts, size = self._connection.execute(
            sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_A.byte_size), 0)).select_from(schema.artifacts)
        ).one()
        return self._scalar(sa.select(sa.func.count()).select_from(schema.jobs)), int(artifacts), int(size)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def pages(self) -> Iterator[list[JobFacts]]:
        """All jobs by id, so many at a time; rows whose job does not exist come with their neighbours."""
        last: str | None = None
        while True:
            query = sa.select(_JOBS.job_id).order_by(_JOBS.job_id).limit(PAGE)
            ids = [row.job_id for row in self._rows(query if last is None else query.where(_JOBS.job_id > last))]
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

        for row in self._rows(sa.select(schema.jobs).where(which(_JOBS.job_id))):
            of(row.job_id).job = row
        for row in self._rows(sa.select(schema.artifact_jobs).where(which(_T.job_id))):
            of(row.job_id).detail = row
        light = [column for column in downloads.download_jobs.c if column.name != "source_bytes"]
        for row in self._rows(sa.select(*light).where(which(downloads.download_jobs.c.job_id))):
            of(row.job_id).download = row
        for row in self._rows(sa.select(schema.artifact_ops).where(which(_OPS.job_id)).order_by(_OPS.fence)):
            of(row.job_id).ops.append(row)
        for row in self._rows(sa.select(schema.artifacts).where(which(_A.created_by_job_id))):
            of(row.created_by_job_id).made.append(row)
        for row in self._rows(sa.select(schema.manifest).where(which(schema.manifest.c.job_id))):
            of(row.job_id).manifest.append(row)
        results, files = schema.job_artifacts, downloads.download_files
        query = sa.select(results, _A.tenant_id, _A.project_id, _A.created_by_job_id, _A.sha256, _A.storage_pointer)
        joined = query.outerjoin(schema.artifacts, _A.artifact_uuid == results.c.artifact_uuid)
        for row in self._rows(joined.where(which(results.c.job_id), results.c.role == "result")):
            of(row.job_id).results.append(row)
        for row in self._rows(sa.select(files).where(which(files.c.job_id))):
            of(row.job_id).files.append(row)
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
            for row in self._rows(query):
                for facts in digests[row.url_sha256]:
                    facts.url_known = True

    # ── files and parts ───────────────────────────────────────────────────────────────────────────

    def artifacts_of(self, digests: Collection[str]) -> dict[str, list[Row]]:
        """The artifacts with these hashes by their pointers, with the state of the job that made each."""
        columns = (_A.storage_pointer, _A.byte_size, _A.sha256, _A.created_by_job_id, _T.state, _T.due_at)
        query = sa.select(*columns).outerjoin(schema.artifact_jobs, _T.job_id == _A.created_by_job_id)
        found: dict[str, list[Row]] = {}
        for row in self._rows(query.where(_A.sha256.in_(sorted(digests)))):
            found.setdefault(row.storage_pointer, []).append(row)
        return found

    def brought(self) -> Iterator[Row]:
        """What jobs brought that have registered nothing, with the owner and the state of each."""
        done = ("DEDUPED", "SKIPPED_DUPLICATE", "PLANNED")
        yield from self._rows(
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
        return {(r.tenant_id, r.project_id) for q in (linking, following) for r in self._rows(q.distinct())}

    def wanted_urls(self, tenant: str) -> Iterator[str]:
        """The URLs of all jobs of a tenant that may yet have bytes staged."""
        under_way = ("PLANNED", "LEASED", "HEAD_DONE", "RESUME_OK", "STREAMING")
        query = (
            sa.select(_T.canonical_url)
            .join(schema.jobs, _JOBS.job_id == _T.job_id)
            .where(
                _JOBS.tenant_id == tenant,
                sa.or_(_T.state.in_(under_way), sa.and_(_T.state == "FAILED", _T.due_at.is_not(None))),
            )
        )
        for row in self._rows(query):
            yield row.canonical_url

    def linked(self) -> Iterator[Row]:
        """Pairs of files that were made one."""
        index, manifest = schema.hash_index.c, schema.manifest.c
        yield from self._rows(
            sa.select(manifest.pointer, manifest.job_id, index.pointer.label("twin"))
            .join(schema.hash_index, index.sha256 == manifest.sha256)
            .join(schema.artifacts, _A.artifact_uuid == manifest.artifact_uuid)
            .where(
                manifest.dedupe_action == "hardlink",
                index.pointer != manifest.pointer,
                _in_scope(index.scope),
            )
        )

    # ── what is registered ────────────────────────────────────────────────────────────────────────

    def makerless(self) -> Iterator[Row]:
        yield from self._rows(sa.select(_A.artifact_uuid).where(_A.created_by_job_id.is_(None)))

    def hashes_without_artifact(self) -> Iterator[Row]:
        index = schema.hash_index.c
        artifact = sa.exists().where(
            _A.sha256 == index.sha256, _A.storage_pointer == index.pointer, _A.byte_size == index.size
        )
        yield from self._rows(sa.select(index.scope, index.sha256).where(~artifact))

    def artifacts_without_hash(self) -> Iterator[Row]:
        index = schema.hash_index.c
        entry = sa.exists().where(index.sha256 == _A.sha256, _in_scope(index.scope))
        yield from self._rows(sa.select(_A.artifact_uuid, _A.sha256, _A.created_by_job_id).where(~entry))

    def urls(self) -> Iterator[Row]:
        """All of the URL index, with whether an artifact bears each entry out."""
        index = schema.url_index.c
        artifact = sa.exists().where(
            _A.sha256 == index.sha256,
            _A.storage_pointer == index.pointer,
            _A.byte_size == index.size,
            _A.tenant_id == index.scope,
        )
        columns = (index.scope, index.url_sha256, index.canonical_url, artifact.label("borne_out"))
        yield from self._rows(sa.select(*columns).execution_options(yield_per=PAGE))

    def manifest_without_artifact(self) -> Iterator[Row]:
        artifact = sa.exists().where(_A.artifact_uuid == schema.manifest.c.artifact_uuid)
        yield from self._rows(sa.select(schema.manifest.c.artifact_uuid, schema.manifest.c.job_id).where(~artifact))

    def books(self) -> Iterator[Row]:
        """Books whose state is not what their assets make of it."""
        book, asset = downloads.books.c, downloads.media_assets.c
        available = sa.exists().where(
            asset.tenant_id == book.tenant_id,
            asset.project_id == book.project_id,
            asset.user_id == book.user_id,
            asset.book_id == book.book_id,
            asset.available,
        )
        right = sa.case((available, "Library"), else_="Archive")
        yield from self._rows(sa.select(book.tenant_id, book.project_id, book.book_id).where(book.state != right))

    def completed_without_asset(self) -> Iterator[Row]:
        row, asset = downloads.download_jobs.c, downloads.media_assets.c
        whose = ("tenant_id", "project_id", "user_id", "book_id", "media_type")
        there = sa.exists().where(*(asset[name] == row[name] for name in whose))
        yield from self._rows(sa.select(row.job_id).where(row.status == "completed", ~there))


def _between(column: sa.ColumnElement[Any], after: str | None, upto: str | None) -> sa.ColumnElement[bool]:
    bounds: list[sa.ColumnElement[bool]] = [column.is_not(None)]
    if after is not None:
        bounds.append(column > after)
    if upto is not None:
        bounds.append(column <= upto)
    return sa.and_(*bounds)


def _in_scope(scope: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Within whatever bounds equal files are one there: the whole, a tenant, or one of his projects."""
    within = _A.tenant_id + "/"
    return sa.or_(scope == "*", scope == _A.tenant_id, sa.func.substr(scope, 1, sa.func.length(within)) == within)
