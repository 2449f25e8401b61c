"""`dlpipe backfill`: files that were downloaded before become finished jobs (PLAN-7)."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.cli.jobs import scoped
from dlpipe.core.backfill import FIELDS, NEEDED
from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import InvalidInput
from dlpipe.core.model import Scope

_TOLD_EVERY = 1_000


@click.command(
    epilog="""\b
Examples:
  dlpipe backfill downloads.csv --root /data/pdfs
  dlpipe backfill old.csv --root /data --map link=url --map file=path --dry-run
  dlpipe backfill --from-database sqlite:///old.db --table downloads --root /data

\b
Each row needs a url and a path, and may have work_id, artifact_id, sha256, content_type and downloaded_at. Paths are
relative to --root, or absolute and below it; symlinks are not followed. Each file is hashed, compared with its sha256
if one is given, and taken into the store: by a clone where the file system can, else by a copy. The originals are
neither changed nor removed; with --sharing link they become read-only, and the store shares their bytes.
A repeat passes over what is done, so after an interruption simply start it again.
Exit status: 0 all rows are done, 1 some were refused, 2 wrong use, 130 interrupted.
"""
)
@click.argument("file", required=False, metavar="[FILE.csv]", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--from-database", "database_url", metavar="URL", help="Read a table of this database instead.")
@click.option("--table", default="downloads", show_default=True, help="Which table of it.")
@click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."),
              show_default=True, help="The folder that all files are below.")  # fmt: skip
@click.option("--map", "mapped", multiple=True, metavar="COLUMN=FIELD", help="This column holds that field.")
@click.option("--sharing", type=click.Choice([one.value for one in Sharing]), default=Sharing.CLONE.value,
              show_default=True, help="How the bytes get into the store.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check the rows, read no file, and change nothing.")
@scoped
def backfill(
    file: Path | None, database_url: str | None, table: str, root: Path, mapped: tuple[str, ...], sharing: str,
    dry_run: bool, tenant_id: str, project_id: str, as_json: bool,
) -> int:  # fmt: skip
    """Turn files that were downloaded before into finished jobs, hashed, indexed and registered."""
    from dlpipe.pipeline import backfill as filling
    from dlpipe.tasks import deps

    if (file is None) == (database_url is None):
        raise click.UsageError("Give a CSV file, or else --from-database. See --help for examples.")
    columns = _columns(mapped)
    numbered = _of_file(file, columns) if file is not None else _of_table(database_url or "", table, columns)
    lines = (filling.Line(number, fields) for number, fields in numbered)
    counts: Counter[str] = Counter()
    scope = Scope(tenant_id, project_id)
    for one in filling.backfill(deps(), scope, str(root.absolute()), lines, sharing=Sharing(sharing), dry_run=dry_run):
        refused = isinstance(one, filling.Refused)
        counts["refused" if isinstance(one, filling.Refused) else one.outcome] += 1
        if as_json:
            output.as_json({**({"outcome": "refused"} if refused else {}), **asdict(one)})
        elif isinstance(one, filling.Refused):
            output.note(f"refused: line {one.number}: {one.message} [{one.code}] {one.hint}")
        if sys.stderr.isatty() and counts.total() % _TOLD_EVERY == 0:
            output.note(_told(counts))
    if not as_json:
        click.echo(_told(counts))
    return EXIT_FAILED if counts["refused"] else EXIT_OK


def _told(counts: Mapping[str, int]) -> str:
    words = {"done": "taken in", "fit": "fit to be taken in", "known": "done before", "refused": "refused"}
    return ", ".join(f"{counts[name]} {word}" for name, word in words.items() if counts.get(name)) or "no rows"


def _columns(mapped: tuple[str, ...]) -> dict[str, str]:
    """Which column holds which field; by default those of the same name."""
    columns = {name: name for name in FIELDS}
    for pair in mapped:
        column, equals, name = pair.rpartition("=")
        if not equals or not column or name not in FIELDS:
            raise click.UsageError(f"--map {pair}: write COLUMN=FIELD, and as FIELD one of {', '.join(FIELDS)}.")
        columns[name] = column
    return columns


def _of_file(file: Path, columns: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with open(file, encoding="utf-8-sig", newline="", errors="surrogateescape") as stream:
            reader = csv.DictReader(stream)
            head = reader.fieldnames or []
            for name in NEEDED:
                if columns[name] not in head:
                    raise _no_column(file, columns[name])
            for row in reader:
                yield reader.line_num, {name: (row.get(column) or "").strip() for name, column in columns.items()}
    except csv.Error as error:
        raise InvalidInput(
            f"{output.safe(file)} is not a CSV file that can be read: {error}",
            code="file_not_csv",
            hint="The rows before it are done; correct the file and repeat.",
        ) from None


def _no_column(file: Path, column: str) -> InvalidInput:
    return InvalidInput(
        f"{output.safe(file)} has no column {output.safe(column)!r}",
        code="columns_missing",
        hint="The first line names the columns; --map COLUMN=FIELD says which one holds what.",
    )


def _of_table(url: str, table: str, columns: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    from dlpipe.db import downloads_table

    found = downloads_table.rows(url, table, sorted(set(columns.values())), [columns[name] for name in NEEDED])
    for number, row in enumerate(found, start=1):
        yield number, {name: row.get(column) for name, column in columns.items()}
