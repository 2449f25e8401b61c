"""`dlpipe backfill`: files that were downloaded before become finished jobs (PLAN-7)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, forms, output
from dlpipe.cli.columns import Columns
from dlpipe.cli.inputs import Inputs, delimiter_known
from dlpipe.cli.jobs import scoped
from dlpipe.core.backfill import FIELDS, NEEDED
from dlpipe.core.downloads import Sharing
from dlpipe.core.model import Scope

if TYPE_CHECKING:
    from dlpipe.pipeline.backfill import Answered, Line, Refused

_TOLD_EVERY = 1_000


@click.command(
    epilog="""\b
Examples:
  dlpipe backfill downloads.csv --root /data/pdfs
  dlpipe backfill old.csv --root /data --map url=link --map path=file --dry-run
  zcat old.jsonl.gz | dlpipe backfill - --root /data --json
  dlpipe backfill --from-database sqlite:///old.db --table downloads --root /data

\b
FILE is read as `dlpipe plan` reads its own: a CSV with a header, or JSONL; UTF-8, also gzip, bzip2 or xz. Each row
needs a url and a path, and may have work_id, artifact_id, sha256, content_type and downloaded_at; other columns are
left out. Paths are relative to --root, or absolute and below it; symlinks are not followed. Each file is hashed,
compared with its sha256 if one is given, and taken into the store: by a clone where the file system can, else by a
copy. The originals are neither changed nor removed; with --sharing link they become read-only, and the store shares
their bytes.
A repeat passes over what is done, so after an interruption simply start it again.
Exit status: 0 all rows are done, 1 some were refused, 2 wrong use, 130 interrupted.
"""
)
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--format", "format_", type=click.Choice(("auto", "csv", "jsonl")), default="auto",
              help="How FILE is written; auto goes by its ending and first line.")  # fmt: skip
@click.option("--delimiter", metavar="CHARACTER", callback=delimiter_known,
              help="What parts the columns of a CSV; else it is seen from the header (, ; tab or |).")  # fmt: skip
@click.option("--from-database", "database_url", metavar="URL", help="Read a table of this database instead.")
@click.option("--table", default="downloads", show_default=True, help="Which table of it.")
@click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."),
              show_default=True, help="The folder that all files are below.")  # fmt: skip
@click.option("--map", "maps", multiple=True, metavar="FIELD=COLUMN",
              help="Take FIELD from COLUMN, or in JSONL from the name COLUMN; may be repeated.")  # fmt: skip
@click.option("--sharing", type=click.Choice([one.value for one in Sharing]), default=Sharing.CLONE.value,
              show_default=True, help="How the bytes get into the store.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check the rows, read no file, and change nothing.")
@scoped
def backfill(
    file: str | None, format_: str, delimiter: str | None, database_url: str | None, table: str, root: Path,
    maps: tuple[str, ...], sharing: str, dry_run: bool, tenant_id: str, project_id: str, as_json: bool,
) -> int:  # fmt: skip
    """Turn files that were downloaded before into finished jobs, hashed, indexed and registered."""
    from dlpipe.pipeline import backfill as filling
    from dlpipe.tasks import deps

    if (file is None) == (database_url is None):
        raise click.UsageError("Give a file, or else --from-database. See --help for examples.")
    columns = Columns.parse(maps, frozenset(FIELDS), ignore_unknown=True, needed=NEEDED)
    counts: Counter[str] = Counter()

    def tell(one: Answered | Refused) -> None:
        refused = isinstance(one, filling.Refused)
        counts["refused" if isinstance(one, filling.Refused) else one.outcome] += 1
        if as_json:
            output.as_json({**({"outcome": "refused"} if refused else {}), **asdict(one)})
        elif isinstance(one, filling.Refused):
            output.note(f"refused: line {one.number}: {one.message} [{one.code}] {one.hint}")
        if sys.stderr.isatty() and counts.total() % _TOLD_EVERY == 0:
            output.note(_told(counts))

    if file is None:
        lines = _of_table(database_url or "", table, columns)
    else:
        lines = _of_file(file, forms.Form(columns, format_, delimiter), tell)
    scope = Scope(tenant_id, project_id)
    for one in filling.backfill(deps(), scope, str(root.absolute()), lines, sharing=Sharing(sharing), dry_run=dry_run):
        tell(one)
    if not as_json:
        output.say(_told(counts))
    return EXIT_FAILED if counts["refused"] else EXIT_OK


def _told(counts: Mapping[str, int]) -> str:
    words = {"done": "taken in", "fit": "fit to be taken in", "known": "done before", "refused": "refused"}
    return ", ".join(f"{counts[name]} {word}" for name, word in words.items() if counts.get(name)) or "no rows"


def _of_file(file: str, form: forms.Form, refuse: Callable[[Refused], None]) -> Iterator[Line]:
    """The rows that can be read, the others refused on the way; the file as a whole is judged before the first."""
    wanted = Inputs((), (file,), form)
    wanted.check()
    return _readable(wanted, refuse)


def _readable(wanted: Inputs, refuse: Callable[[Refused], None]) -> Iterator[Line]:
    from dlpipe.pipeline.backfill import Line, Refused

    with closing(wanted):
        for entry in wanted.entries():
            if entry.bad is None:
                yield Line(entry.line, entry.fields)
            else:
                refuse(Refused(entry.line, entry.bad.code, entry.bad.message, entry.bad.hint))


def _of_table(url: str, table: str, columns: Columns) -> Iterator[Line]:
    from dlpipe.db import downloads_table
    from dlpipe.pipeline.backfill import Line

    held_by = {name: columns.mapped.get(name, name) for name in FIELDS}
    found = downloads_table.rows(url, table, sorted(set(held_by.values())), [held_by[name] for name in NEEDED])
    return (
        Line(number, {name: row.get(column) for name, column in held_by.items()})
        for number, row in enumerate(found, start=1)
    )
