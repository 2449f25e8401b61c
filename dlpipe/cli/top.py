"""`dlpipe top`: the running pipeline, looked at each second."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click

from dlpipe.cli import EXIT_OK, output, screen
from dlpipe.cli.jobs import scoped
from dlpipe.core.model import Scope
from dlpipe.pipeline.top import Watcher


@click.command(
    epilog="""\b
Examples:
  dlpipe top
  dlpipe top --once
  dlpipe top --json | jq .counts
  dlpipe top --json --every 5 >> pipeline.jsonl

\b
Shown are jobs by status, the jobs that workers have with their bytes, rate and lease, what the jobs that wait are
waiting for, and failures by code. Piped, or with --once, it looks once. Counts go up to 5000 ("5000+"); what waits is
said of the 500 oldest, and failures of the 500 newest, so that looking costs the same however many jobs there are.
Rates need a second look. Times are in UTC. Redis, the broker or the database may go away meanwhile: it says so, and
goes on.

\b
Exit status: 0 looked, 2 wrong use, 130 ended by Ctrl-C.
"""
)
@click.option("--every", "every_s", type=click.FloatRange(min=0.1, max=86_400), metavar="SECONDS",
              help="Look again and again, so far apart  [default: 1 on a terminal, else once].")  # fmt: skip
@click.option("--once", is_flag=True, help="Look once, and print it as plain text.")
@scoped
def top(every_s: float | None, once: bool, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Watch the running pipeline: who is at what, what waits and why, how fast it goes."""
    from dlpipe import tasks

    if once and every_s is not None:
        raise click.UsageError("--once looks once; leave out --every.")
    watcher = tasks.watcher(Scope(tenant_id, project_id))
    if as_json:
        return _lines(watcher, every_s)
    if once or not sys.stdout.isatty():
        return _texts(watcher, every_s)
    return _live(watcher, every_s or 1.0)


def _lines(watcher: Watcher, every_s: float | None) -> int:
    while True:
        output.as_json(asdict(watcher.look()))
        sys.stdout.flush()
        if every_s is None:
            return EXIT_OK
        time.sleep(every_s)


def _texts(watcher: Watcher, every_s: float | None) -> int:
    while True:
        for line in screen.render(watcher.look()):
            output.say(line)
        if every_s is None:
            return EXIT_OK
        output.say()
        time.sleep(every_s)


def _live(watcher: Watcher, every_s: float) -> int:
    """Until Ctrl-C. The size is asked for each time, so that a terminal may change it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    if console.is_dumb_terminal:  # it cannot be drawn on, but written to
        return _texts(watcher, every_s)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            seen = watcher.look()
            began = time.monotonic()
            while True:
                width, height = console.size
                lines = screen.render(seen, width, height)
                live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
                left_s = every_s - (time.monotonic() - began)
                if left_s <= 0:
                    break
                time.sleep(min(left_s, 0.25))  # a new size shows within that
