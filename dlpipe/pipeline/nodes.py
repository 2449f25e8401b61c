"""Jobs and the nodes on whose disks their parts are (OPS-4): what lay on one that is gone begins afresh elsewhere.

Nothing here is needed for a file to be right: a stage that does not find the part that it expects fails or begins
anew. It is needed for jobs to come to where their bytes are, and away from where nobody is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dlpipe.core.errors import InvalidInput, LeaseUnavailable, Misconfigured
from dlpipe.core.flow import Queue
from dlpipe.core.nodes import NodePolicy, Stand, keeps, stands
from dlpipe.core.ports import Database, Hint, Staging, Unit
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.round import Round


def standing(deps: Deps) -> Mapping[str, Stand]:
    """How each node stands; none where staging folders are shared."""
    policy = deps.policy.nodes
    if policy is None:
        return {}
    with deps.database.read() as unit:
        return stands(unit.nodes.list_(), policy)


def at_home(unit: Unit, hints: Sequence[Hint], policy: NodePolicy | None) -> list[Hint]:
    """Each hint for the node where its part is, if a further run may go on there, else for any."""
    if policy is None:
        return [replace(hint, node=None) if hint.node else hint for hint in hints]
    if not any(hint.node for hint in hints):
        return list(hints)
    found = stands(unit.nodes.list_(), policy)
    away = {hint.job_id for hint in hints if hint.node and not keeps(found.get(hint.node))}
    unit.nodes.unpin(sorted(away))
    return [replace(hint, node=None) if hint.job_id in away else hint for hint in hints]


def gone(this: Round) -> None:
    """Of nodes that are gone, nothing is waited for: neither what they held back nor messages in their queues."""
    for name, stand in standing(this.deps).items():
        if stand is Stand.GONE:
            with this.unit() as unit:
                count = unit.nodes.hand_on(name)
            if count:
                this.count("jobs_handed_on", count)
                this.found("nodes_gone", name, f"{count} jobs begin afresh elsewhere")


def sweepers(deps: Deps) -> list[str]:
    """The other nodes that are there to look after their own folders."""
    here = deps.policy.nodes
    return [name for name, stand in standing(deps).items() if here and name != here.name and stand is not Stand.GONE]


# ── signs of life ─────────────────────────────────────────────────────────────────────────────────


def beat(database: Database, staging: Staging, policy: NodePolicy, kinds: Sequence[Queue]) -> bool:
    """Say that this node takes from its queues of these kinds; answer whether it is to take no new jobs."""
    folder_id = staging.identity()
    with database.write() as unit:
        node = unit.nodes.beat(policy, kinds, folder_id)
    if node is None:
        raise Misconfigured(
            f"another machine is the node {policy.name!r}",
            code="node_name_taken",
            hint="Give each machine a name of its own (DLPIPE_NODE). If this one takes over from one that has just "
            f"ended, start it again in {policy.fresh_s:.0f} s.",
        )
    return node.drains


# ── draining ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Drained:
    """How far it has come: `running` runs whose parts are there, `held` of them by a worker."""

    node: str
    stand: Stand
    running: int
    held: int
    handed_on: int = 0
    elsewhere: bool = True
    """Is there another node that takes jobs?"""


def drain(deps: Deps, name: str, *, on: bool) -> Drained:
    """Let the node take no new jobs from now on, or take them again."""
    policy = _policy(deps)
    with deps.database.write() as unit:
        if not unit.nodes.drain(name, on=on):
            known = ", ".join(node.name for node in unit.nodes.list_()) or "none"
            raise InvalidInput(
                f"no worker of a node {name!r} was ever heard",
                code="node_unknown",
                hint=f"Nodes that are known: {known}. A machine's name is its setting `node` ({policy.name!r} here).",
            )
    return look(deps, name)


def look(deps: Deps, name: str) -> Drained:
    found = standing(deps)
    with deps.database.read() as unit:
        running, held = unit.nodes.jobs_on(name)
    elsewhere = any(stand is Stand.WORKING for other, stand in found.items() if other != name)
    return Drained(name, found[name], running, len(held), elsewhere=elsewhere)


def all_of_them(deps: Deps) -> list[Drained]:
    _policy(deps)
    return [look(deps, name) for name in standing(deps)]


def hand_back(deps: Deps, name: str) -> Drained:
    """What waits on the node is due elsewhere; who works there is asked to stop, and then hands back by itself."""
    with deps.database.write() as unit:
        handed_on = unit.nodes.hand_on(name)
        _, held = unit.nodes.jobs_on(name)
    for job_id in held:
        try:
            deps.leases.stop(job_id)
        except LeaseUnavailable:
            break  # they come to their end, or their leases do
    return replace(look(deps, name), handed_on=handed_on)


def _policy(deps: Deps) -> NodePolicy:
    if deps.policy.nodes is None:
        raise Misconfigured(
            "all nodes share one staging folder, so that no job depends on one of them",
            code="staging_shared",
            hint="End the node's workers: what they hold goes on elsewhere. Where each node has its own folder, set "
            'store.staging to "node".',
        )
    return deps.policy.nodes
