"""`dlpipe artifacts`, `open`, `export`: the files that are registered, their bytes, and what is told of them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

import click

from dlpipe.cli import EXIT_OK, output
from dlpipe.cli.completion import job_ids
from dlpipe.cli.jobs import scoped, unknown
from dlpipe.cli.spans import Span
from dlpipe.core.errors import InvalidInput
from dlpipe.core.model import Scope
from dlpipe.core.telemetry import COLUMNS, Told

_BLOCK = 1 << 20
_ROW_GROUP = 10_000
_LINK_S = 600.0
_FORMULA = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20")
"""What a cell begins with that a spreadsheet works out; Japanese ones take the wide forms as well."""
_WHOLE_NUMBERS = ("byte_size", "run", "bytes_written", "resumed_from_bytes", "elapsed_ms", "fsync_ms")


@click.command(
    epilog="""\b
Examples:
  dlpipe artifacts
  dlpipe artifacts JOB --json
  dlpipe artifacts --limit 1000 --after ARTIFACT

\b
Exit status: 0 told, 1 no such job here, or the ledger did not answer, 2 wrong use, or a setting that cannot be.
"""
)
@click.argument("job_id", metavar="[JOB]", required=False, shell_complete=job_ids)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--after", metavar="ARTIFACT", help="Go on after this artifact of an earlier page.")
@scoped
def artifacts(job_id: str | None, limit: int, after: str | None, tenant_id: str, project_id: str, as_json: bool) -> int:
    """List registered files, those of the newest jobs first, or the files of one job."""
    import dlpipe

    if job_id is not None and dlpipe.get_job(job_id, tenant_id=tenant_id, project_id=project_id) is None:
        return unknown(job_id, Scope(tenant_id, project_id))
    found = list(
        dlpipe.list_artifacts(job_id=job_id, limit=limit, after=after, tenant_id=tenant_id, project_id=project_id)
    )
    if as_json:
        for artifact in found:
            output.as_json(asdict(artifact))
        return EXIT_OK
    output.table(
        ["artifact", "size", "type", "sha256", "created", "job"],
        (
            (a.artifact_uuid, output.size(a.byte_size), a.content_type or a.artifact_type, a.sha256,
             output.when(a.created_at), a.job_id)
            for a in found
        ),
    )  # fmt: skip
    if len(found) == limit:
        output.note(f"there may be more: --after {found[-1].artifact_uuid}")
    return EXIT_OK


@click.command(
    "open",
    epilog="""\b
Examples:
  less "$(dlpipe open ARTIFACT)"
  dlpipe open ARTIFACT - | sha256sum
  dlpipe open ARTIFACT --link --expires 10m

\b
The file is the store's own and read-only: copy it before you change it. A signed link
lets whoever has it read the file until it expires; there are none of files on a disk.
Exit status: 0 printed, 1 no such artifact here, or its file is not there, 2 wrong use, or a setting that cannot be.
""",
)
@click.argument("artifact_uuid", metavar="ARTIFACT")
@click.argument("to", metavar="[-]", required=False, type=click.Choice(["-"]))
@click.option("--link", "wants_link", is_flag=True, help="Print a signed link to a file in an object store.")
@click.option("--expires", "expires_s", type=Span(), metavar="SPAN",
              help="How long the link holds, e.g. 90s, 12h; at most 7d, and 10m if not said.")  # fmt: skip
@scoped
def open_(
    artifact_uuid: str,
    to: str | None,
    wants_link: bool,
    expires_s: float | None,
    tenant_id: str,
    project_id: str,
    as_json: bool,
) -> int:
    """Print where a registered file lies on this machine or in its bucket, or, with -, its bytes."""
    import dlpipe
    from dlpipe.tasks import deps

    if to is not None and as_json:
        raise click.UsageError("- prints the file's bytes, and --json an object: choose one of them.")
    if wants_link and to is not None:
        raise click.UsageError("- prints the file's bytes, and --link an address: choose one of them.")
    if expires_s is not None and not wants_link:
        raise click.UsageError("--expires belongs to --link.")
    if wants_link:
        wanted_s = _LINK_S if expires_s is None else expires_s
        link = dlpipe.link_artifact(artifact_uuid, expires_s=wanted_s, tenant_id=tenant_id, project_id=project_id)
        if as_json:
            output.as_json({"artifact_uuid": artifact_uuid, "link": link})
        else:
            output.say(link)
        return EXIT_OK
    # Asked for before it is told: what is not there with its size is an error, not a path.
    with dlpipe.open_artifact(artifact_uuid, tenant_id=tenant_id, project_id=project_id) as stream:
        if to is not None:
            shutil.copyfileobj(stream, sys.stdout.buffer, _BLOCK)
            sys.stdout.buffer.flush()
            return EXIT_OK
    with deps().database.read() as unit:
        record = unit.owned(Scope(tenant_id, project_id)).artifact(artifact_uuid)
    path = deps().store.path(record.storage_pointer) if record else None
    if as_json:
        output.as_json({"artifact_uuid": artifact_uuid, "path": path})
    else:
        output.exact(path or "")
    return EXIT_OK


@click.command(
    epilog="""\b
Examples:
  dlpipe export --jsonl > manifest.jsonl
  dlpipe export --csv -o manifest.csv
  dlpipe export --parquet -o manifest.parquet      (needs: pip install 'dlpipe[parquet]')

\b
A FILE is there when all of it is written, and not before.
Exit status: 0 all is written, 1 the ledger did not answer or FILE cannot be written, 2 wrong use, or a setting that
cannot be.
"""
)
@click.option("--jsonl", "format_", flag_value="jsonl", default=True, help="One JSON object a line (the default).")
@click.option("--csv", "format_", flag_value="csv", help="A table with a header.")
@click.option("--parquet", "format_", flag_value="parquet", help="A Parquet file; only with -o.")
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write to FILE instead of standard output.")  # fmt: skip
@click.option("--tenant", "tenant_id", default="default", show_default=True)
@click.option("--project", "project_id", default="default", show_default=True)
def export(format_: str, file: Path | None, tenant_id: str, project_id: str) -> int:
    """Write down every registered file with its job and what was measured on its way, as the jobs were planned."""
    import dlpipe

    write = _writer(format_, file)
    rows = dlpipe.export(tenant_id=tenant_id, project_id=project_id)
    if file is None:
        count = write(rows, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        with _whole(file) as stream:
            count = write(rows, stream)
        output.note(f"{count} files told in {file}")
    return EXIT_OK


Write = Callable[[Iterable[Told], IO[bytes]], int]


def _writer(format_: str, file: Path | None) -> Write:
    """How this format is written; what is missing for it is told before anything is read."""
    if format_ != "parquet":
        return {"jsonl": _jsonl, "csv": _csv}[format_]
    if file is None:
        raise click.UsageError("A Parquet file is not for a terminal or a pipe: name it with -o FILE.")
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "Parquet needs pyarrow, which is not installed",
            code="pyarrow_missing",
            hint="Install it (pip install 'dlpipe[parquet]'), or use --jsonl or --csv.",
        ) from None
    return _parquet


def _jsonl(rows: Iterable[Told], stream: IO[bytes]) -> int:
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007 - the last one is the answer
        stream.write(output.json_line(asdict(row)).encode() + b"\n")
    return count


def _csv(rows: Iterable[Told], stream: IO[bytes]) -> int:
    import io

    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    try:
        table = csv.writer(text)
        table.writerow(COLUMNS)
        count = 0
        for count, row in enumerate(rows, start=1):  # noqa: B007
            table.writerow(_plain(value) for value in asdict(row).values())
        return count
    finally:
        text.detach()


def _plain(value: object) -> object:
    """A cell, made to be looked at: without control characters, and no formula of a spreadsheet. JSONL is exact."""
    if isinstance(value, dict):
        return output.safe(json.dumps(value, sort_keys=True))
    if isinstance(value, str):
        shown = output.safe(value)
        return "'" + shown if shown.startswith(_FORMULA) else shown
    return value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else value


def _parquet(rows: Iterable[Told], stream: IO[bytes]) -> int:
    import pyarrow as arrow
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    kinds = {"created_at": arrow.timestamp("ms", tz="UTC"), "avg_write_mibps": arrow.float64()}
    kinds |= dict.fromkeys(_WHOLE_NUMBERS, arrow.int64())
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in COLUMNS])
    count = 0
    with parquet.ParquetWriter(stream, schema) as table:
        for group in _groups(rows):
            told = [{**asdict(row), "quota": json.dumps(row.quota) if row.quota else None} for row in group]
            table.write_table(arrow.Table.from_pylist(told, schema=schema))
            count += len(group)
    return count


def _groups(rows: Iterable[Told]) -> Iterator[list[Told]]:
    group: list[Told] = []
    for row in rows:
        group.append(row)
        if len(group) == _ROW_GROUP:
            yield group
            group = []
    if group:
        yield group


@contextmanager
def _whole(file: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when all of it is written."""
    handle, temporary = tempfile.mkstemp(prefix=".dlpipe-", dir=file.parent)
    try:
        with open(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, file)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now
