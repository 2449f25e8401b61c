"""`dlpipe nodes` and `dlpipe drain`: machines whose staging folders are their own, and how one of them is taken out."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.cli.spans import Span

if TYPE_CHECKING:
    from dlpipe.pipeline.deps import Deps
    from dlpipe.pipeline.nodes import Drained

LOOK_EVERY_S = 0.5


@click.command(
    epilog="""\b
Examples:
  dlpipe nodes
  dlpipe nodes --json

\b
How a node stands: `working`; `silent` for some beats, it may come back; `draining`, it takes nothing new; `gone`, and
what lay on it begins afresh elsewhere. RUNS are under way with their bytes there, HELD of them by a worker.
Exit status: 0 done, 1 the ledger did not answer, 2 wrong use, or all nodes share one staging folder.
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def nodes(as_json: bool) -> int:
    """List the nodes that have staging folders of their own."""
    from dlpipe.pipeline import nodes as machines
    from dlpipe.tasks import deps

    found = machines.all_of_them(deps())
    if as_json:
        for one in found:
            output.as_json(_plain(one))
        return EXIT_OK
    output.table(["node", "stands", "runs", "held"], ((n.node, n.stand, n.running, n.held) for n in found))
    return EXIT_OK


@click.command(
    epilog="""\b
Examples:
  dlpipe drain
  dlpipe drain node-3 --wait --timeout 1h && ssh node-3 systemctl stop dlpipe.target
  dlpipe drain node-3 --now --wait
  dlpipe drain node-3 --undo

\b
From then on the node takes no new jobs. Those whose bytes are there come to their end there; with --now they are handed
back instead, and begin afresh on another node, without an attempt being used up. It lasts until --undo, also over
restarts of the node's workers. Files that are in the store are not concerned.
Exit status: 0 it is drained (with --wait: and nothing is there any more), 1 something was still there when the time of
--timeout was over, or the ledger did not answer, 2 wrong use, an unknown node, or all nodes share one staging folder,
130 interrupted: it stays drained.
"""
)
@click.argument("node", required=False)
@click.option("--wait", is_flag=True, help="Wait until none of its jobs is there any more, and say how far it is.")
@click.option("--now", is_flag=True, help="Hand back what is there, instead of letting it come to its end.")
@click.option("--timeout", "timeout_s", type=Span(), metavar="SPAN", help="With --wait: no longer than this.")
@click.option("--undo", is_flag=True, help="Let it take new jobs again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line; the last one is how it ended.")
def drain(node: str | None, wait: bool, now: bool, timeout_s: float | None, undo: bool, as_json: bool) -> int:
    """Let a node (this machine, if none is named) take no new jobs, so that it can be taken out."""
    from dlpipe import wiring
    from dlpipe.pipeline import nodes as machines
    from dlpipe.tasks import deps

    if undo and (wait or now):
        raise click.UsageError("--undo lets the node work again: it goes with neither --wait nor --now.")
    if timeout_s is not None and not wait:
        raise click.UsageError("--timeout bounds the waiting: it goes with --wait.")
    held = deps()
    name = node if node is not None else wiring.settings().node
    found = machines.drain(held, name, on=not undo)
    if undo:
        _tell(found, "takes new jobs again", as_json)
        return EXIT_OK
    if not found.elsewhere:
        output.note("no other node takes jobs at present: what is handed back waits until one does")
    if now:
        found = machines.hand_back(held, name)
        output.note(f"{found.handed_on} jobs were handed back, {found.held} at work were asked to stop")
    if wait:
        found = _until_empty(held, found, now, timeout_s)
    _tell(found, "is drained", as_json)
    return EXIT_FAILED if wait and found.running else EXIT_OK


def _until_empty(deps: Deps, found: Drained, now: bool, timeout_s: float | None) -> Drained:
    from dlpipe.pipeline import nodes as machines

    began, told = time.monotonic(), ""
    while found.running and (timeout_s is None or time.monotonic() - began < timeout_s):
        said = f"{found.running} runs are still there, {found.held} of them at work"
        if said != told:
            output.note(said)
        told = said
        time.sleep(LOOK_EVERY_S)
        found = machines.hand_back(deps, found.node) if now else machines.look(deps, found.node)
    return found


def _tell(found: Drained, what: str, as_json: bool) -> None:
    if as_json:
        output.as_json(_plain(found))
        return
    left = f"; {found.running} runs are there, {found.held} of them at work" if found.running else ""
    output.say(f"{found.node} {what}{left}")


def _plain(found: Drained) -> dict[str, object]:
    return {**asdict(found), "stand": found.stand.value}
