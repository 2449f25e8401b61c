"""What the TAB key offers, and `dlpipe completion`, which prints what a shell needs for that.

Completing is no use of dlpipe: it makes and changes nothing, says nothing, and gives up rather than be waited for.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
from click.shell_completion import BashComplete, add_completion_class, get_completion_class

from dlpipe.cli import EXIT_OK, output
from dlpipe.core.errors import Misconfigured
from dlpipe.core.states import Status
from dlpipe.core.wishes import JobFilter

if TYPE_CHECKING:
    from dlpipe.db import SqlDatabase

VARIABLE = "_DLPIPE_COMPLETE"
DEADLINE_S = 3.0
_NEWEST = 200
SHELLS = ("bash", "zsh", "fish")
_PENDING = (JobFilter(status=Status.PENDING), JobFilter(status=Status.PROCESSING))
_DONE = (JobFilter(status=Status.COMPLETED), JobFilter(status=Status.SKIPPED))
_MEANT = {
    "cancel": _PENDING,
    "pause": _PENDING,
    "resume": (JobFilter(paused=True),),
    "retry": (JobFilter(status=Status.FAILED),),
    "refresh": _DONE,
    "replay": _DONE,
}
"""Of which jobs a command is likely to mean one; any other command means all."""
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command(
    epilog="""\b
Examples:
  eval "$(dlpipe completion bash)"                        (for this shell; in ~/.bashrc for all)
  dlpipe completion bash > ~/.local/share/bash-completion/completions/dlpipe
  dlpipe completion zsh > ~/.zfunc/_dlpipe                (a folder of your fpath)
  dlpipe completion fish > ~/.config/fish/completions/dlpipe.fish

\b
Commands, options, their choices, ids of jobs, error codes and hosts are completed. The last three are read from the
ledger if there is one. Exit status: 0 printed, 2 wrong use.
"""
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the script that lets a shell complete these commands."""
    from dlpipe.cli import dlpipe

    found = get_completion_class(shell)
    assert found is not None, shell  # noqa: S101 - the choices are those that click knows
    output.exact(found(dlpipe, {}, "dlpipe", VARIABLE).source())
    return EXIT_OK


class _Bash(BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Bash takes --option=value apart into three words."""
        args, incomplete = super().get_completion_args()
        return (args[:-1] if args[-1:] == ["="] else args), incomplete


def answer(group: click.Group) -> None:
    """Answer the shell, and end this process: with nothing when anything is wrong or takes long."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(EXIT_OK))
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end of the process
    add_completion_class(_Bash)
    try:
        group.main(prog_name="dlpipe", complete_var=VARIABLE, standalone_mode=False)
    except BaseException:  # noqa: BLE001, RUF100 - whatever it is, the prompt is no place for it
        os._exit(EXIT_OK)


def _of_jobs(value: Callable[[Any], str | None], *only: JobFilter) -> Complete:
    """Complete with what the newest jobs have."""

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        ledger = _ledger()
        if ledger is None:
            return []
        from dlpipe.core.model import DEFAULT_PROJECT, DEFAULT_TENANT, Scope

        said = context.params
        scope = Scope(said.get("tenant_id") or DEFAULT_TENANT, said.get("project_id") or DEFAULT_PROJECT)
        with ledger.read() as unit:
            meant = only or _MEANT.get(context.info_name or "", (JobFilter(),))
            jobs = [job for each in meant for job in unit.owned(scope).list_(each, _NEWEST, None)]
        found = dict.fromkeys(value(job) for job in jobs)
        return [each for each in found if each and each.startswith(begun)]

    return complete


job_ids = _of_jobs(lambda job: str(job.job_id))
codes = _of_jobs(lambda job: job.error_code, JobFilter(status=Status.FAILED), *_PENDING)
hosts = _of_jobs(lambda job: job.host, JobFilter())


def _ledger() -> SqlDatabase | None:
    """The ledger, if there is one that this version can read; none is ever made here."""
    from dlpipe import wiring
    from dlpipe.db import SqlDatabase

    found = SqlDatabase(wiring.settings().database_uri)
    file = found.sqlite_file
    if file is not None:
        if not file.is_file():
            return None
        found = SqlDatabase(f"sqlite:///file:{quote(str(file))}?mode=ro&uri=true")
    try:
        found.check_schema()
    except Misconfigured:
        return None
    return found
