"""`dlpipe gc`: files of the store that nobody wants any more."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.cli.spans import Span


@click.command(
    epilog="""\b
Examples:
  dlpipe gc
  dlpipe gc --delete
  dlpipe gc --unknown --grace 30d --json

\b
Without --delete it only looks. A file is wanted as long as an artifact names it that was not given up with
`dlpipe purge --artifacts`, or a job is about to register it. With --delete an unwanted file is moved to `.trash` in the
store, from where it comes back if it turns out to be wanted; a later `dlpipe gc --delete` removes it for good once it
has been there for the grace, too. Files that share their bytes lose one name and keep the others.
--unknown means files as well that no artifact ever named. It is refused when most of the store is unknown: then the
store and the database do not belong together.
Exit status: 0 done, 1 it would be refused with --delete, 2 refused or wrong use, 130 interrupted.
"""
)
@click.option("--delete", "delete", is_flag=True, help="Act; otherwise it is a dry run.")
@click.option("--dry-run", "dry_run", is_flag=True, help="Only look (the default).")
@click.option("--grace", "grace_s", type=Span(), default="7d", show_default=True, metavar="SPAN",
              help="Leave alone what is younger, in the store and in the trash.")  # fmt: skip
@click.option("--unknown", is_flag=True, help="Files too that no artifact ever named.")
@click.option("--expect", type=click.IntRange(min=0), metavar="N",
              help="With --unknown: up to so many unknown files are meant to go.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line; the last one is the summary.")
def gc(delete: bool, dry_run: bool, grace_s: float, unknown: bool, expect: int | None, as_json: bool) -> int:
    """Find files of the store that nobody wants any more, and collect them when told to."""
    from dlpipe import wiring
    from dlpipe.pipeline import garbage
    from dlpipe.tasks import deps

    if delete and dry_run:
        raise click.UsageError("--delete acts, and --dry-run does not: choose one of them.")
    if expect is not None and not unknown:
        raise click.UsageError("--expect is about unknown files: it goes with --unknown.")

    def heard(what: str, path: str, size: int) -> None:
        if as_json:
            output.as_json({"what": what, "path": path, "size": size})
        else:
            output.cells([what, size, path])

    asked = garbage.Asked(grace_s, unknown, expect)
    held, chosen = deps(), wiring.settings()
    if chosen.store.url is not None:
        output.note("the folder is looked at; in the bucket everything stays")
        held = replace(held, store=wiring.folder_store(chosen))
    found = garbage.collect(held, wiring.trash(), asked, heard) if delete else garbage.survey(held, asked, heard)
    if as_json:
        output.as_json({**asdict(found), "dry_run": not delete})
        return EXIT_FAILED if found.doubt else EXIT_OK
    output.note(
        f"{found.looked_at} files: {found.wanted} wanted, {found.young} too young, {found.unknown} unknown, "
        f"{found.unwanted} unwanted ({output.size(found.unwanted_bytes)})"
    )
    if delete:
        output.note(
            f"{found.moved} moved to the trash, {found.restored} brought back, {found.removed} removed for good "
            f"({output.size(found.removed_bytes)})"
        )
    elif found.doubt:
        output.note(f"with --delete this would be refused: {found.doubt}")
        return EXIT_FAILED
    elif found.unwanted:
        output.note("nothing was changed; to act: --delete")
    return EXIT_OK
