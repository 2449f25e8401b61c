"""`dlpipe up`, `down` and `status`: the processes of one machine."""

from __future__ import annotations

import os
import signal
import time

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output

POLL_S = 0.2
STOP_GRACE_S = 20.0


@click.command(
    epilog="""\b
Examples:
  dlpipe up
  DLPIPE_HOME=/srv/files dlpipe up

\b
Exit status: 0 it ran until Ctrl-C, SIGTERM or a dlpipe down told it to end, 1 one runs already, 2 wrong use, or a
setting that cannot be.
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when all of it runs.")
def up(as_json: bool) -> int:
    """Run workers, scheduler and a private Redis here until Ctrl-C.

    Logs are in DLPIPE_HOME/log. A process that ends is started again; when this command ends, all of them do.
    """
    from dlpipe import wiring
    from dlpipe.pipeline.reconcile import reconcile
    from dlpipe.tasks import deps

    chosen = wiring.settings()
    made = wiring.stack(lambda _pid: reconcile(deps()), ready=True)
    if made is None:
        raise click.UsageError(
            "DLPIPE_REDIS_URL or DLPIPE_BROKER_URL is set, so Redis is elsewhere: start workers with "
            "'celery -A dlpipe worker' and 'celery -A dlpipe beat'."
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wiring.database()  # made here when there is none, so that it is said here and not in a worker's log
    try:
        if not made.try_start():
            output.note(f"a stack runs already on {chosen.home_dir}; `dlpipe status` tells more")
            return EXIT_FAILED
        pids = ", ".join(f"{name} {pid}" for name, pid in made.pids.items())
        output.note(f"running on {chosen.home_dir} ({pids}); Ctrl-C ends it, logs are in {chosen.home_dir / 'log'}")
        if as_json:
            output.as_json({"home": str(chosen.home_dir), "pid": os.getpid(), "services": made.pids})
        while True:
            made.poll()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        output.note("stopping; work that is under way is handed back with its bytes (Ctrl-C again to end at once)")
    finally:
        made.stop(STOP_GRACE_S)
    return EXIT_OK


@click.command(
    epilog="""\b
Examples:
  dlpipe down
  dlpipe down --timeout 120

\b
Exit status: 0 nothing runs any more, 1 it did not end in time, 2 wrong use, or a setting that cannot be.
"""
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=40.0, show_default=True,
              help="Seconds to wait for the end.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: whether nothing runs any more.")
def down(timeout_s: float, as_json: bool) -> int:
    """End what `up` or `fetch` runs on this data directory."""
    from dlpipe import wiring
    from dlpipe.embedded import stack

    home = wiring.settings().home_dir
    ran = stack.running(home) is not None
    stopped = not ran or stack.ask_to_stop(home, timeout_s)
    if not ran:
        output.note(f"nothing runs on {home}")
    elif stopped:
        output.note("stopped")
    else:
        output.note(f"it did not end within {timeout_s:.0f} s, or runs where this process cannot reach it")
    if as_json:
        output.as_json({"stopped": stopped})
    return EXIT_OK if stopped else EXIT_FAILED


@click.command(
    epilog="""\b
Examples:
  dlpipe status
  dlpipe status --json

\b
Exit status: 0 told, 1 the ledger did not answer, 2 wrong use, or a setting that cannot be.
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool) -> int:
    """Say what runs here and how many jobs stand where.

    Jobs of all tenants and projects are counted; `dlpipe jobs --by status` counts those of one.
    """
    from dlpipe import wiring
    from dlpipe.embedded import stack

    chosen = wiring.settings()
    running = stack.running(chosen.home_dir) if chosen.private_redis else None
    fresh = chosen.private_database and not (chosen.home_dir / "ledger.db").exists()
    counts: dict[str, int] = {}
    if not fresh:
        with wiring.database().read() as unit:
            counts = {status.value: n for status, n in unit.jobs.counts().items()}
    told = {
        "home": str(chosen.home_dir),
        "redis": "private" if chosen.private_redis else "elsewhere",
        "running": running is not None,
        "pid": running.pid if running else None,
        "started_at": running.started_at if running else None,
        "services": dict(running.services) if running else {},
        "jobs": counts,
    }
    if as_json:
        output.as_json(told)
        return EXIT_OK
    if running:
        services = ", ".join(f"{name} {pid}" for name, pid in running.services.items())
        output.say(f"running since {running.started_at} on {chosen.home_dir}: {services}")
    elif chosen.private_redis:
        output.say(f"nothing runs on {chosen.home_dir}; start it with: dlpipe up")
    else:
        output.say("Redis is elsewhere; its workers are not shown here (see Flower)")
    if fresh:
        output.say("no ledger yet; it is made by the first fetch or plan")
    else:
        output.table(["status", "jobs"], counts.items())
    return EXIT_OK
