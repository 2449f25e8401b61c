"""`dlpipe cancel`, `pause`, `resume`, `retry`, `refresh`, `replay`: what is wanted of jobs, by id or by a filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.cli.completion import codes, hosts, job_ids
from dlpipe.cli.jobs import scoped, unknown
from dlpipe.core.flow import REPLAYABLE
from dlpipe.core.model import JobView, Scope
from dlpipe.core.states import Purpose, Status
from dlpipe.core.wishes import Wish

_DONE = {
    Wish.CANCEL: "canceled",
    Wish.PAUSE: "paused",
    Wish.RESUME: "resumed",
    Wish.RETRY: "made due again",
    Wish.REFRESH: "marked for a refresh",
    Wish.REPLAY: "marked for a replay",
}


def _wish(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in reversed(
        (
            click.argument("job_ids", metavar="[JOB]...", nargs=-1, shell_complete=job_ids),
            click.option("--host", shell_complete=hosts, help="All jobs on this host."),
            click.option("--code", shell_complete=codes, help="All jobs whose last error has this code."),
            click.option("--work", "work_id", help="All jobs of this work."),
            click.option("--all", "everything", is_flag=True, help="All jobs of the tenant and project."),
            click.option("--dry-run", is_flag=True, help="Say which jobs are meant, and change nothing."),
            scoped,
        )
    ):
        command = add(command)
    return command


@click.command(
    epilog="""\b
Examples:
  dlpipe cancel JOB JOB
  dlpipe cancel --host files.example.org --dry-run

\b
Exit status: 0 all of them are canceled, 1 some had ended or are unknown, 2 wrong use.
"""
)
@_wish
def cancel(**asked: Any) -> int:
    """Cancel jobs that are not done yet. A result that is registered stays.

    Of a finished job that is refreshed, only the refresh is taken back: it is completed again, with what it had. A
    filter means no downloads of torrents: those are canceled by their ids.
    """
    return _carry_out(Wish.CANCEL, **asked)


@click.command(
    epilog="""\b
Examples:
  dlpipe pause JOB
  dlpipe pause --host files.example.org
  dlpipe jobs --paused

\b
Exit status: 0 all of them are paused, 1 some had ended or are unknown, 2 wrong use.
"""
)
@_wish
def pause(**asked: Any) -> int:
    """Let jobs wait until they are resumed. What runs stops at its next bytes, and keeps what it has."""
    return _carry_out(Wish.PAUSE, **asked)


@click.command(
    epilog="""\b
Examples:
  dlpipe resume JOB
  dlpipe resume --all

\b
Exit status: 0 none of them is paused any more, 1 some had ended or are unknown, 2 wrong use.
"""
)
@_wish
def resume(**asked: Any) -> int:
    """Let paused jobs go on from the bytes that they have; the pause has cost no attempt."""
    return _carry_out(Wish.RESUME, **asked)


@click.command(
    epilog="""\b
Examples:
  dlpipe jobs --status failed --by code
  dlpipe retry --code http_404 --host files.example.org --dry-run
  dlpipe retry --code http_404 --host files.example.org
  dlpipe retry JOB JOB

\b
Exit status: 0 all of them are tried again, 1 some had not failed for good or are unknown, 2 wrong use.
"""
)
@_wish
def retry(**asked: Any) -> int:
    """Try jobs again that failed for good; their attempts are given back."""
    return _carry_out(Wish.RETRY, **asked)


@click.command(
    epilog="""\b
Examples:
  dlpipe refresh 6d0c3a53-0c6b-5a8e-9d5e-3f8f2c1b7a10
  dlpipe refresh --host files.example.org --dry-run

\b
What the server still has as it was changes nothing. What has changed becomes a further result of the same job; the
earlier ones stay, and stay readable, also when the new run fails. Until the new file is in its place, `dlpipe cancel`
takes the wish back. A canceled job stays canceled. Exit status: 0 all are due, 1 some are not (on their way already,
canceled, or unknown), 2 wrong use.
"""
)
@_wish
def refresh(**asked: Any) -> int:
    """Ask the servers whether they have something newer than these finished jobs brought, and fetch it."""
    return _carry_out(Wish.REFRESH, **asked)


@click.command(
    epilog="""\b
Examples:
  dlpipe replay 6d0c3a53-0c6b-5a8e-9d5e-3f8f2c1b7a10
  dlpipe replay --from index --work 10.5281/zenodo.1234
  dlpipe replay --all --dry-run

\b
A replay is a further run of a finished job that asks no server. From `stream` on (the default) it reads and hashes
all bytes of the stored file and looks at its first ones, as if they came anew; from `finalize` on it makes its place
last, from `index` on it puts the rows of the indexes back that are missing, from `dedupe` on it shares equal files
again. The same bytes keep their artifact. When the stored file is missing or damaged the job fails with file_missing
or file_damaged and keeps its results; `dlpipe retry` then fetches it anew. Until the run has begun, `dlpipe cancel`
takes the wish back.

\b
Exit status: 0 all are due, 1 some are not (on their way already, canceled, nothing stored, or unknown), 2 wrong use.
"""
)
@click.option("--from", "from_stage", type=click.Choice(REPLAYABLE), default=REPLAYABLE[0], show_default=True,
              help="The first stage that is done again.")  # fmt: skip
@_wish
def replay(from_stage: str, **asked: Any) -> int:
    """Do the stages of finished jobs again from their stored files, without the network."""
    return _carry_out(Wish.REPLAY, from_stage=from_stage, **asked)


def _carry_out(
    wish: Wish, *, job_ids: tuple[str, ...], host: str | None, code: str | None, work_id: str | None,
    everything: bool, dry_run: bool, tenant_id: str, project_id: str, as_json: bool, from_stage: str | None = None,
) -> int:  # fmt: skip
    by_filter = everything or any(one is not None for one in (host, code, work_id))
    if bool(job_ids) == by_filter:
        raise click.UsageError(
            "Give the ids of jobs, or else --host, --code, --work or --all. See --help for examples."
        )
    if job_ids and dry_run:
        raise click.UsageError("--dry-run tells which jobs a filter means; ids mean themselves.")
    scope = Scope(tenant_id, project_id)
    if not by_filter:
        return _each(wish, scope, job_ids, from_stage, as_json)
    only = {"host": host, "code": code, "work_id": work_id, "everything": everything, "dry_run": dry_run}
    return _all(wish, only, scope, from_stage, as_json)


def _all(wish: Wish, only: Mapping[str, Any], scope: Scope, from_stage: str | None, as_json: bool) -> int:
    import dlpipe

    dry_run = only["dry_run"]

    def tell(job: JobView) -> None:
        if as_json:
            output.as_json({"job_id": job.job_id, "host": job.host, "error_code": job.error_code, "done": not dry_run})
        elif dry_run:
            output.say(f"{job.job_id} {job.host} {job.error_code or '-'}")

    ask: dict[Wish, Callable[..., int]] = {
        Wish.CANCEL: dlpipe.cancel_jobs,
        Wish.PAUSE: dlpipe.pause_jobs,
        Wish.RESUME: dlpipe.resume_jobs,
        Wish.RETRY: dlpipe.retry_jobs,
        Wish.REFRESH: dlpipe.refresh_jobs,
        Wish.REPLAY: dlpipe.replay_jobs,
    }
    begin = {} if from_stage is None else {"from_stage": from_stage}
    count = ask[wish](**only, **begin, told=tell, tenant_id=scope.tenant_id, project_id=scope.project_id)
    if not as_json:
        jobs = "1 job" if count == 1 else f"{count} jobs"
        output.say(f"{jobs} would be {_DONE[wish]}; nothing was changed" if dry_run else f"{jobs} {_DONE[wish]}")
    if count and not dry_run:
        _say_who_works(wish)
    return EXIT_OK


def _say_who_works(wish: Wish) -> None:
    """What is wanted of a job that waits has to be done by somebody."""
    if wish not in (Wish.CANCEL, Wish.PAUSE):
        output.say_who_works()


def _each(wish: Wish, scope: Scope, job_ids: tuple[str, ...], from_stage: str | None, as_json: bool) -> int:
    import dlpipe
    from dlpipe.cli import records

    exit_code, some = EXIT_OK, False
    for job_id in job_ids:
        before = dlpipe.get_job(job_id, tenant_id=scope.tenant_id, project_id=scope.project_id)
        view = _one(wish, scope, job_id, from_stage)
        if view is None or before is None:
            exit_code = unknown(job_id, scope)
            continue
        # Of a job at its end, a cancel takes back the further run that it waited for.
        taken_back = wish is Wish.CANCEL and before.purpose is not None and view.status in records.DONE
        granted = _granted(wish, before, view) or taken_back
        some = some or granted
        if not granted:
            exit_code = EXIT_FAILED
        if as_json:
            output.as_json({"job_id": job_id, "status": view.status.value, "paused": view.paused_at is not None})
        else:
            stands = f"{view.status.value}, paused" if view.paused_at else view.status.value
            aside = " (its further run is taken back)" if taken_back else f" (nothing to {wish})"
            output.say(f"{job_id} {stands}" + ("" if granted and not taken_back else aside))
    if some:
        _say_who_works(wish)
    return exit_code


def _one(wish: Wish, scope: Scope, job_id: str, from_stage: str | None) -> JobView | None:
    import dlpipe

    if from_stage is not None:
        return dlpipe.replay_job(job_id, from_stage=from_stage, tenant_id=scope.tenant_id, project_id=scope.project_id)
    ask = {
        Wish.CANCEL: dlpipe.cancel_job,
        Wish.PAUSE: dlpipe.pause_job,
        Wish.RESUME: dlpipe.resume_job,
        Wish.RETRY: dlpipe.retry_job,
        Wish.REFRESH: dlpipe.refresh_job,
    }[wish]
    return ask(job_id, tenant_id=scope.tenant_id, project_id=scope.project_id)


def _granted(wish: Wish, before: JobView, view: JobView) -> bool:
    match wish:
        case Wish.CANCEL:
            return view.status is Status.CANCELED
        case Wish.PAUSE:
            return view.paused_at is not None
        case Wish.RESUME:
            return view.paused_at is None and view.status in (Status.PENDING, Status.PROCESSING)
        case Wish.RETRY:
            return view.status is Status.PENDING
        case Wish.REFRESH:
            was_at_an_end = before.status not in (Status.PENDING, Status.PROCESSING)
            return view.status is Status.PENDING and (was_at_an_end or view.purpose is Purpose.REFRESH)
        case Wish.REPLAY:
            return view.status is Status.PENDING and view.purpose is Purpose.REPLAY
