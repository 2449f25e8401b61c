"""Archives of purged jobs: files that are whole, durable and read back before anybody deletes what they hold.

A file is written under a temporary name, which its writer keeps locked; one whose writer died is cleared away.
"""

from __future__ import annotations

import csv
import fcntl
import gzip
import hashlib
import importlib.util
import io
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import DlpipeError, InvalidInput
from dlpipe.core.model import Scope
from dlpipe.core.purging import COLUMNS, NESTED, TIMES, ArchiveFile
from dlpipe.store.folders import READ_BYTES

FORMATS = ("jsonl", "csv", "parquet")
_PREFIX = ".dlpipe-"
_ROW_GROUP = 500
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileArchive:
    """A folder of archives in one format."""

    def __init__(
        self, directory: Path, format_: str = "jsonl", *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        if format_ == "parquet" and importlib.util.find_spec("pyarrow") is None:
            raise InvalidInput(
                "Parquet needs pyarrow, which is not installed",
                code="pyarrow_missing",
                hint="Install it (pip install pyarrow), or use --jsonl or --csv.",
            )
        self.directory = directory
        self._write, self._count, self._suffix = {
            "jsonl": (_write_jsonl, _count_jsonl, ".jsonl.gz"),
            "csv": (_write_csv, _count_csv, ".csv.gz"),
            "parquet": (_write_parquet, _count_parquet, ".parquet"),
        }[format_]
        self._clock = clock

    def write(self, scope: Scope, rows: Iterable[Mapping[str, Any]]) -> ArchiveFile:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clear()
        with self._temporary() as (stream, temporary):
            written = self._write(rows, stream)
            stream.flush()
            os.fsync(stream.fileno())
            crash_point("purge.written")
            sha256, size = _hash(temporary)
            found = self._count(temporary)
            if found != written:
                raise DlpipeError(
                    f"of {written} archived jobs {found} can be read back",
                    code="archive_unreadable",
                    hint="Nothing was deleted. Check the disk that the archive lies on, and repeat.",
                )
            at = self._clock().strftime("%Y%m%dT%H%M%SZ")
            name = f"jobs-{scope.tenant_id}-{scope.project_id}-{at}-{sha256[:12]}{self._suffix}"
            os.rename(temporary, self.directory / name)
            _settle(self.directory)
        crash_point("purge.archived")
        return ArchiveFile(name, sha256, written, size)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[IO[bytes], Path]]:
        path = self.directory / f"{_PREFIX}{uuid.uuid4().hex}.tmp"
        fd = os.open(path, _MAKE, 0o600)  # it holds request URLs, and those can hold secrets
        with open(fd, "w+b") as stream:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                yield stream, path
            finally:
                with suppress(FileNotFoundError):
                    path.unlink()

    def _clear(self) -> None:
        """What was left by writers that died; who is alive has the lock, or has it before his file is written to."""
        for path in self.directory.glob(f"{_PREFIX}*.tmp"):
            with suppress(OSError), open(path, "rb") as stream:
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(stream.fileno()).st_size:
                    path.unlink()


def _settle(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _hash(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size


# ── formats ───────────────────────────────────────────────────────────────────────────────────────


def _json(value: object) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=True)


def _plain(value: object) -> object:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)


def _write_jsonl(rows: Iterable[Mapping[str, Any]], stream: IO[bytes]) -> int:
    count = 0
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed:
        for count, row in enumerate(rows, start=1):  # noqa: B007 - the last one is the answer
            packed.write(_json({name: row[name] for name in COLUMNS}).encode() + b"\n")
    return count


def _count_jsonl(path: Path) -> int:
    with gzip.open(path, "rb") as lines:
        return sum(1 for line in lines if json.loads(line)["job_id"])


def _write_csv(rows: Iterable[Mapping[str, Any]], stream: IO[bytes]) -> int:
    count = 0
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        table = csv.writer(text)
        table.writerow(COLUMNS)
        for count, row in enumerate(rows, start=1):  # noqa: B007
            table.writerow(_cell(name, row[name]) for name in COLUMNS)
    return count


def _cell(name: str, value: Any) -> object:
    if name in NESTED:
        return _json(value)
    return _plain(value) if isinstance(value, datetime) else value


def _count_csv(path: Path) -> int:
    before = csv.field_size_limit(sys.maxsize)  # a job's ops are one cell; the bound is the whole process's
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
            return sum(1 for row in csv.DictReader(text) if row["job_id"])
    finally:
        csv.field_size_limit(before)


def _write_parquet(rows: Iterable[Mapping[str, Any]], stream: IO[bytes]) -> int:
    import pyarrow as arrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    moment = arrow.timestamp("us", tz="UTC")
    schema = arrow.schema([(name, moment if name in TIMES else arrow.string()) for name in COLUMNS])
    count, group = 0, list[dict[str, Any]]()
    with parquet.ParquetWriter(stream, schema) as table:

        def put() -> None:
            if group:
                table.write_table(arrow.Table.from_pylist(group, schema=schema))
                group.clear()

        for count, row in enumerate(rows, start=1):  # noqa: B007
            group.append({name: _json(row[name]) if name in NESTED else row[name] for name in COLUMNS})
            if len(group) == _ROW_GROUP:
                put()
        put()
    return count


def _count_parquet(path: Path) -> int:
    import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    file = parquet.ParquetFile(path)
    return sum(batch.num_rows for batch in file.iter_batches(columns=list(COLUMNS)))
