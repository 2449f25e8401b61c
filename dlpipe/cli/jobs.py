"""`dlpipe jobs`, `show`, `ops`: what is known of jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.cli.completion import codes, hosts, job_ids
from dlpipe.core.downloads import JOB_TYPE_TORRENT
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.states import Status


def scoped(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(command)
    command = click.option("--project", "project_id", default="default", show_default=True)(command)
    return click.option("--tenant", "tenant_id", default="default", show_default=True)(command)


def _view_dict(view: Any) -> dict[str, Any]:
    told = asdict(view)
    scope = told.pop("scope")
    return {**scope, **told}


@click.command(
    epilog="""\b
Examples:
  dlpipe jobs --status failed --by code
  dlpipe jobs --status failed --code http_404 --host files.example.org
  dlpipe jobs --limit 1000 --json
  dlpipe why $(dlpipe jobs --work W1 --ids)

\b
Exit status: 0 told, 1 the ledger did not answer, 2 wrong use, or a setting that cannot be, 130 interrupted.
"""
)
@click.option("--status", type=click.Choice([s.value for s in Status]), help="Only jobs that stand so.")
@click.option("--code", shell_complete=codes, help="Only jobs whose last error has this code.")
@click.option("--host", shell_complete=hosts, help="Only jobs on this host.")
@click.option("--work", "work_id", help="Only jobs of this work.")
@click.option("--paused", is_flag=True, help="Only jobs that are paused.")
@click.option("--by", type=click.Choice(["code", "host", "status"]), help="Count them by this instead of listing them.")
@click.option("--ids", "only_ids", is_flag=True, help="Print the ids alone, one a line.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--after", metavar="JOB", shell_complete=job_ids, help="Go on after this job of an earlier page.")
@scoped
def jobs(
    status: str | None, code: str | None, host: str | None, work_id: str | None, paused: bool, by: str | None,
    only_ids: bool, limit: int, after: str | None, tenant_id: str, project_id: str, as_json: bool,
) -> int:  # fmt: skip
    """List jobs of all kinds, the newest first, or count them by what they have in common."""
    import dlpipe

    if only_ids and (by is not None or as_json):
        raise click.UsageError("--ids prints ids alone: leave out --by and --json.")
    only: dict[str, Any] = {
        "status": status, "code": code, "host": host, "work_id": work_id, "paused": paused or None, "limit": limit,
        "tenant_id": tenant_id, "project_id": project_id,
    }  # fmt: skip
    if by is not None:
        return _tallies(by, dlpipe.count_jobs(by, **only), as_json)
    found = list(dlpipe.list_jobs(after=after, **only))
    if as_json:
        for view in found:
            output.as_json(_view_dict(view))
        return EXIT_OK
    if only_ids:
        for view in found:
            click.echo(view.job_id)
        return EXIT_OK
    output.table(
        ["job", "status", "state", "run", "updated", "what"],
        (
            (v.job_id, "paused" if v.paused_at else v.status, v.state, v.run, output.when(v.updated_at),
             _what(v) if v.error_code else v.url)
            for v in found
        ),
    )  # fmt: skip
    if len(found) == limit:
        output.note(f"there may be more: --after {found[-1].job_id}")
    return EXIT_OK


def _what(view: Any) -> str:
    debug = f" (debug id {view.error_debug_id})" if view.error_debug_id else ""
    return f"{view.error_code}: {view.error_message_safe}{debug}"


_TELLING: dict[str, tuple[str, ...]] = {
    OpType.HEAD: ("http_status", "content_length", "content_type", "known_sha256", "revalidated"),
    OpType.RESUME: ("decision", "reason", "range_start"),
    OpType.STREAM: ("size", "bytes_written", "resumed_from_bytes", "elapsed_ms", "fsync_ms", "length_unproven"),
    OpType.FINALIZE: ("sha256", "already_there"),
    OpType.INDEX: ("artifact_uuid",),
    OpType.DEDUPE: ("action", "saved_bytes"),
}


def _tallies(by: str, found: list[Any], as_json: bool) -> int:
    if as_json:
        for tally in found:
            output.as_json({by: tally.value, **asdict(tally)})
        return EXIT_OK
    output.table(
        ["jobs", by, "for example", "what"],
        ((t.jobs, t.value or "-", t.job_id, _what(t) if t.error_code else "-") for t in found),
    )
    return EXIT_OK


@click.command(
    epilog="""\b
Examples:
  dlpipe show JOB
  dlpipe show JOB --json

\b
Exit status: 0 told, 1 no such job here, or the ledger did not answer, 2 wrong use, or a setting that cannot be.
"""
)
@click.argument("job_id", metavar="JOB", shell_complete=job_ids)
@scoped
def show(job_id: str, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Show all that is known of a job."""
    import dlpipe
    from dlpipe.cli import records
    from dlpipe.tasks import deps

    view = dlpipe.get_job(job_id, tenant_id=tenant_id, project_id=project_id)
    if view is None:
        return unknown(job_id, Scope(tenant_id, project_id))
    told = {**_view_dict(view), **records.of_job(deps(), view, view.url)}
    if view.status not in records.ENDED:
        told |= {"error_code": view.error_code, "error_message_safe": view.error_message_safe}
        told["progress_bytes"] = deps().progress.get([job_id]).get(job_id, (None, None))[0]
    results = records.all_results(deps(), view)
    if as_json:
        output.as_json({**told, "results": results})
        return EXIT_OK
    for name, value in told.items():
        if value not in (None, ()):
            click.echo(f"{name:20} {_plain(value)}")
    for one in results:
        fault = f", {one['fault']} since {output.when(one['fault_found_at'])}" if one["fault"] else ""
        click.echo(
            f"{'result':20} {one['sha256']}, {output.size(one['byte_size'])}, "
            f"of {output.when(one['created_at'])}{fault}: {output.safe(one['path'])}"
        )
    return EXIT_OK


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return output.when(value)
    return output.safe(", ".join(map(str, value)) if isinstance(value, tuple) else value)


@click.command(
    epilog="""\b
Examples:
  dlpipe why JOB
  dlpipe why JOB --json

\b
Exit status: 0 told, 1 no such job here, or the ledger did not answer, 2 wrong use, or a setting that cannot be.
"""
)
@click.argument("job_id", metavar="JOB", shell_complete=job_ids)
@scoped
def why(job_id: str, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Say in one paragraph where a job is, why, and what happens next."""
    import dlpipe

    told = dlpipe.explain_job(job_id, tenant_id=tenant_id, project_id=project_id)
    if told is None:
        return unknown(job_id, Scope(tenant_id, project_id))
    if as_json:
        output.as_json({"job_id": job_id, **asdict(told)})
    else:
        click.echo(output.safe(told.text))
    return EXIT_OK


@click.command(
    epilog="""\b
Examples:
  dlpipe ops JOB
  dlpipe ops JOB --json

\b
Exit status: 0 told, 1 no such job here, or the ledger did not answer, 2 wrong use, or a setting that cannot be.
"""
)
@click.argument("job_id", metavar="JOB", shell_complete=job_ids)
@scoped
def ops(job_id: str, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Show the ledger's record of a job, stage by stage."""
    import dlpipe

    known = dlpipe.get_job(job_id, tenant_id=tenant_id, project_id=project_id)
    found = dlpipe.list_ops(job_id, tenant_id=tenant_id, project_id=project_id)
    if known is None:
        return unknown(job_id, Scope(tenant_id, project_id))
    if as_json:
        for op in found:
            output.as_json(asdict(op))
        return EXIT_OK
    if known.job_type == JOB_TYPE_TORRENT:
        output.note("a download has no stages of its own: qBittorrent transfers it; see `dlpipe torrents show`")
        return EXIT_OK
    output.table(
        ["run", "op", "state", "fence", "started", "finished", "result"],
        (
            (o.run, o.op_type, o.state, o.fence, output.when(o.started_at), output.when(o.finished_at),
             _brief(o.op_type, o.result) or o.result_code or "-")
            for o in found
        ),
    )  # fmt: skip
    return EXIT_OK


def _brief(op: str, result: Any) -> str:
    """What people look for; --json has all of it."""
    told = {name: (result or {}).get(name) for name in _TELLING.get(op, ())}
    return " ".join(f"{name}={value}" for name, value in told.items() if value not in (None, False, ""))


def unknown(job_id: str, scope: Scope, what: str = "job", listed_by: str = "dlpipe jobs") -> int:
    """Tell that there is no such job here, or what is left of one that was purged."""
    import dlpipe

    left = dlpipe.get_purged_job(job_id, tenant_id=scope.tenant_id, project_id=scope.project_id)
    if left is not None:
        output.note(f"error: job {job_id} ended as {left.status}, and was purged [job_purged]")
        output.note(f"  Its record is in the archive {output.safe(left.archive)} of {output.when(left.purged_at)}.")
        return EXIT_FAILED
    output.note(f"error: no such {what} here: {output.safe(job_id)} [job_unknown]")
    output.note(f"  Check the id, and --tenant and --project; `{listed_by}` lists them.")
    return EXIT_FAILED
