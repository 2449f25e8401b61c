"""`dlpipe jobs`, `show`, `ops`, `cancel`, `retry`, `refresh`: jobs by their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.core.states import Status


def _scoped(command: Callable[..., Any]) -> Callable[..., Any]:
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
  dlpipe jobs --status failed
  dlpipe jobs --limit 1000 --json
"""
)
@click.option("--status", type=click.Choice([s.value for s in Status]), help="Only jobs that stand so.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--after", metavar="JOB", help="Go on after this job of an earlier page.")
@_scoped
def jobs(status: str | None, limit: int, after: str | None, tenant_id: str, project_id: str, as_json: bool) -> int:
    """List jobs, the newest first."""
    from dlpipe import wiring
    from dlpipe.core.model import Scope

    with wiring.database().read() as unit:
        found = unit.owned(Scope(tenant_id, project_id)).list_(Status(status) if status else None, limit, after)
    if as_json:
        for view in found:
            output.as_json(_view_dict(view))
        return EXIT_OK
    output.table(
        ["job", "status", "state", "run", "updated", "what"],
        ((v.job_id, v.status, v.state, v.run, output.when(v.updated_at), v.error_code or v.url) for v in found),
    )
    if len(found) == limit:
        output.note(f"there may be more: --after {found[-1].job_id}")
    return EXIT_OK


@click.command()
@click.argument("job_id", metavar="JOB")
@_scoped
def show(job_id: str, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Show all that is known of a job."""
    from dlpipe.cli import records
    from dlpipe.core.model import Scope
    from dlpipe.tasks import deps

    with deps().database.read() as unit:
        view = unit.owned(Scope(tenant_id, project_id)).get(job_id)
    if view is None:
        return _unknown(job_id)
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
            click.echo(f"{name:20} {output.safe(value)}")
    for one in results:
        fault = f", {one['fault']} since {output.when(one['fault_found_at'])}" if one["fault"] else ""
        click.echo(
            f"{'result':20} {one['sha256']}, {output.size(one['byte_size'])}, "
            f"of {output.when(one['created_at'])}{fault}: {output.safe(one['path'])}"
        )
    return EXIT_OK


@click.command()
@click.argument("job_id", metavar="JOB")
@_scoped
def ops(job_id: str, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Show the ledger's record of a job, stage by stage."""
    from dlpipe import wiring
    from dlpipe.core.model import Scope

    scope = Scope(tenant_id, project_id)
    with wiring.database().read() as unit:
        known = unit.owned(scope).get(job_id)
        found = unit.owned(scope).ops(job_id)
    if known is None:
        return _unknown(job_id)
    if as_json:
        for op in found:
            output.as_json(asdict(op))
        return EXIT_OK
    output.table(
        ["run", "op", "state", "fence", "started", "finished", "result"],
        (
            (o.run, o.op_type, o.state, o.fence, output.when(o.started_at), output.when(o.finished_at),
             _brief(o.result) or o.result_code or "-")
            for o in found
        ),
    )  # fmt: skip
    return EXIT_OK


def _brief(result: Any) -> str:
    return " ".join(f"{k}={v}" for k, v in (result or {}).items() if v not in (None, False, ""))


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@_scoped
def cancel(job_ids: tuple[str, ...], tenant_id: str, project_id: str, as_json: bool) -> int:
    """Cancel jobs that are not done yet. A result that is registered stays.

    Of a finished job that waits for a refresh, only the refresh is taken back.
    """
    return _each(job_ids, tenant_id, project_id, as_json, "cancel", Status.CANCELED)


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@_scoped
def retry(job_ids: tuple[str, ...], tenant_id: str, project_id: str, as_json: bool) -> int:
    """Try jobs again that failed for good; their attempts are given back."""
    return _each(job_ids, tenant_id, project_id, as_json, "retry", Status.PENDING)


@click.command(
    epilog="""\b
Examples:
  dlpipe refresh 6d0c3a53-0c6b-5a8e-9d5e-3f8f2c1b7a10
  dlpipe jobs --status completed --json | jq -r .job_id | xargs dlpipe refresh

\b
What the server still has as it was changes nothing. What has changed becomes a further result of the same job; the
earlier ones stay, and stay readable, also when the new run fails. Until the new run has begun, `dlpipe cancel` takes
the wish back. A canceled job stays canceled. Exit status: 0 all are due, 1 some are not (on their way already,
canceled, or unknown), 2 wrong use.
"""
)
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@_scoped
def refresh(job_ids: tuple[str, ...], tenant_id: str, project_id: str, as_json: bool) -> int:
    """Ask the servers whether they have something newer than these finished jobs brought, and fetch it."""
    return _each(job_ids, tenant_id, project_id, as_json, "refresh", Status.PENDING)


def _each(job_ids: tuple[str, ...], tenant_id: str, project_id: str, as_json: bool, wish: str, wanted: Status) -> int:
    from dlpipe.cli import records
    from dlpipe.core.model import Scope
    from dlpipe.pipeline import wishes
    from dlpipe.pipeline.planner import nudge
    from dlpipe.tasks import deps

    scope, code = Scope(tenant_id, project_id), EXIT_OK
    for job_id in job_ids:
        taken_back = False
        if wish == "cancel":
            with deps().database.read() as unit:
                before = unit.owned(scope).get(job_id)
            status = wishes.cancel(deps(), scope, job_id)
            taken_back = before is not None and before.purpose is not None and status in records.DONE
        else:
            with deps().database.write() as unit:
                owned = unit.owned(scope)
                status = owned.refresh(job_id) if wish == "refresh" else owned.retry(job_id)
        if status is None:
            code = _unknown(job_id)
            continue
        if status is not wanted and not taken_back:
            code = EXIT_FAILED
        if as_json:
            output.as_json({"job_id": job_id, "status": status.value})
        else:
            what = " (its further run is taken back)" if taken_back else f" (nothing to {wish})"
            click.echo(f"{job_id} {status.value}" + ("" if status is wanted else what))
    if wish != "cancel":
        nudge(deps())
    return code


def _unknown(job_id: str) -> int:
    output.note(f"error: no such job here: {output.safe(job_id)} [job_unknown]")
    output.note("  Check the id, and --tenant and --project; `dlpipe jobs` lists them.")
    return EXIT_FAILED
