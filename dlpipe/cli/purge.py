"""`dlpipe purge`: jobs that ended long ago go into an archive, and then out of the ledger (OPS-8)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from dlpipe.cli import EXIT_OK, output
from dlpipe.cli.jobs import scoped
from dlpipe.cli.spans import Span
from dlpipe.core.model import Scope
from dlpipe.core.purging import ENDED, PurgeFilter
from dlpipe.core.states import Status


@click.command(
    epilog="""\b
Examples:
  dlpipe purge --older-than 90d --dry-run
  dlpipe purge --older-than 90d
  dlpipe purge --older-than 30d --status failed --status canceled --csv --archive /backup/dlpipe
  dlpipe purge --older-than 365d --artifacts && dlpipe gc
  dlpipe purge --older-than 30d --superseded

\b
A job goes with its ops, its list of results and its manifest rows; the registered files stay, are read by their ids,
and answer for their URLs and hashes as before. Planned again, a job has the id that it had. With --artifacts the files
are given up as well: they can be read no more, and `dlpipe gc` may collect them.
The archive holds URLs as they were planned, which may be secret, so only its owner may read it. Nothing is deleted
before its archive is on disk and was read back. Interrupted and repeated, a purge goes on; some jobs may then be in
two archives.
Exit status: 0 done, 1 the archive or the ledger failed, 2 wrong use, 130 interrupted.
"""
)
@click.option("--older-than", "older_than_s", type=Span(), required=True, metavar="SPAN",
              help="Jobs that nothing has happened to for so long, e.g. 90d, 12h.")  # fmt: skip
@click.option("--status", "statuses", multiple=True, type=click.Choice([status.value for status in ENDED]),
              help="Only jobs that ended so; may be given several times.")  # fmt: skip
@click.option("--archive", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where to write archives; otherwise `archive` in the data directory.")  # fmt: skip
@click.option("--jsonl", "format_", flag_value="jsonl", default=True, help="JSON lines, packed by gzip (the default).")
@click.option("--csv", "format_", flag_value="csv", help="CSV, packed by gzip.")
@click.option("--parquet", "format_", flag_value="parquet", help="Parquet (needs: pip install 'dlpipe[parquet]').")
@click.option("--artifacts", "retire", is_flag=True, help="Give up their files as well; `dlpipe gc` collects them.")
@click.option("--superseded", is_flag=True,
              help="Purge no job: give up the results that refreshes have replaced by newer ones.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Count the jobs, and change nothing.")
@scoped
def purge(
    older_than_s: float, statuses: tuple[str, ...], directory: Path | None, format_: str, retire: bool,
    superseded: bool, dry_run: bool, tenant_id: str, project_id: str, as_json: bool,
) -> int:  # fmt: skip
    """Archive jobs that ended long ago, then delete them from the ledger."""
    from dlpipe import wiring
    from dlpipe.pipeline import purge as purging
    from dlpipe.tasks import deps

    scope = Scope(tenant_id, project_id)
    only = PurgeFilter(older_than_s, tuple(Status(status) for status in statuses) or ENDED)
    if superseded:
        if dry_run or retire or directory:
            raise click.UsageError("--superseded purges no job: it goes with --older-than and --status only.")
        given_up = purging.retire_superseded(deps(), scope, only)
        if as_json:
            output.as_json({"given_up": given_up})
        else:
            results = "1 replaced result" if given_up == 1 else f"{given_up} replaced results"
            output.say(f"{results} given up; `dlpipe gc` collects what no other job wants")
        return EXIT_OK
    if dry_run:
        counts = {status.value: count for status, count in purging.rehearse(deps(), scope, only).items()}
        if as_json:
            output.as_json({"dry_run": True, "jobs": sum(counts.values()), "by_status": counts})
        else:
            told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            output.say(f"{_jobs(sum(counts.values()))} would be purged; nothing was changed" + (told and f" ({told})"))
        return EXIT_OK
    archive = wiring.archive(directory, format_)
    purged = 0
    for volume in purging.purge(deps(), scope, only, archive, retire=retire):
        purged += volume.purged
        if as_json:
            file = asdict(volume.file) | {"path": str(archive.directory / volume.file.name)}
            output.as_json({"archive": file, "purged": volume.purged, "kept": volume.kept})
        else:
            output.note(f"{_jobs(volume.file.rows)} in {archive.directory / volume.file.name}")
            output.note(f"  sha256 {volume.file.sha256}")
            if volume.kept:
                output.note(f"  {_jobs(volume.kept)} of them stayed: they were taken up meanwhile")
    if not as_json:
        output.say(f"{_jobs(purged)} purged")
    return EXIT_OK


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
