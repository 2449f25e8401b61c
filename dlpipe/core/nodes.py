"""Nodes whose staging folders are their own (OPS-4): what one is to be thought of, and who may keep a job.

A node gives a sign of life as long as it takes from its queues, and the database's clock tells how long ago that was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dlpipe.core.retries import RetryPolicy

MISSED_BEATS = 3


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """Where this process is, and how long a node may be silent."""

    name: str
    beat_s: float = 10.0
    gone_after_s: float = 120.0
    retry: RetryPolicy = RetryPolicy()
    """How long jobs wait for a node."""

    @property
    def fresh_s(self) -> float:
        """A sign that is older is no sign any more."""
        return self.beat_s * MISSED_BEATS


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    silent_s: float
    """Since it last took from each of its queues."""
    steady_s: float
    """Since its signs come without a break; of one that is silent it says nothing."""
    drains: bool = False
    folder_id: str | None = None


class Stand(StrEnum):
    WORKING = "working"
    SILENT = "silent"  # it may come back
    DRAINING = "draining"  # it takes nothing new
    GONE = "gone"  # what lay on it is lost


def judge(node: Node, nodes: Iterable[Node], policy: NodePolicy) -> Stand:
    """Gone is only who was silent while another one, which could take its jobs, was heard all the time.

    When no node is heard it is the broker or the database that was away, and then none is gone. A node that is silent
    for longer than any job may wait is gone even if those that are heard all the time take no jobs.
    """
    steady = [
        one
        for one in nodes
        if one.name != node.name and one.silent_s < policy.fresh_s and one.steady_s >= policy.gone_after_s
    ]
    too_long = policy.retry.postpone_max_s < node.silent_s < math.inf
    if node.silent_s >= policy.gone_after_s and any(too_long or not one.drains for one in steady):
        return Stand.GONE
    if node.drains:
        return Stand.DRAINING
    return Stand.SILENT if node.silent_s >= policy.fresh_s else Stand.WORKING


def stands(nodes: Iterable[Node], policy: NodePolicy) -> Mapping[str, Stand]:
    known = list(nodes)
    return {node.name: judge(node, known, policy) for node in known}


def keeps(stand: Stand | None) -> bool:
    """May a further run of a job go on with the part that lies there? None: no such node was ever heard."""
    return stand in (Stand.WORKING, Stand.SILENT)
