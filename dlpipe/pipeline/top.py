"""Gather what `dlpipe top` shows. Whoever does not answer is left out and named; the others are asked all the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dlpipe.core import top
from dlpipe.core.errors import LeaseUnavailable, LedgerUnavailable
from dlpipe.core.model import Scope
from dlpipe.core.ports import Database, Progress, Publisher, Watch
from dlpipe.core.top import Around, LastRound, Look, OriginState, Snapshot
from dlpipe.pipeline.deps import Policy

BROKER_EVERY_S = 2.0
AWAY_S = 10.0
"""A broker that did not answer is left alone for so long: each question would hold up the display."""


@dataclass
class Watcher:
    """Looks again and again; rates come from the look before."""

    database: Database
    progress: Progress
    watch: Watch
    publisher: Publisher
    policy: Policy
    scope: Scope
    clock: Callable[[], float] = time.monotonic
    idle: Callable[[], bool] = lambda: False
    """Is it certain that nobody runs whom Redis and the broker could tell of?"""
    _before: Snapshot | None = None
    _nodes: list[str] = field(default_factory=list)
    _queued: int | None = None
    _ask_broker_at: float = field(default=float("-inf"))

    def look(self) -> Snapshot:
        troubles: list[str] = []
        tenant, project = self.scope.tenant_id, self.scope.project_id
        try:
            with self.database.read() as unit:
                look = unit.owned(self.scope).overview()
                in_flight = unit.backlog.in_flight()
                self._nodes = [node.name for node in unit.nodes.list_()] if self.policy.nodes else []
        except LedgerUnavailable as error:
            return self._without_ledger(error.message)
        around = self._around(look, in_flight, troubles)
        self._before = top.picture(tenant, project, look, around, self._before, troubles)
        return self._before

    def _without_ledger(self, what: str) -> Snapshot:
        """What was seen last, and that it is no longer known to be so."""
        trouble = f"{what}: what is shown is older"
        if self._before is None:
            return Snapshot(None, self.scope.tenant_id, self.scope.project_id, {}, troubles=(what,))
        return replace(self._before, troubles=(trouble,))

    def _around(self, look: Look, in_flight: Mapping[str, int], troubles: list[str]) -> Around:
        origins: Mapping[str, OriginState] = {}
        last_round: LastRound | None = None
        progress: Mapping[str, tuple[int, int | None]] = {}
        if self.idle():
            troubles.append("nothing runs here: `dlpipe up` starts workers and a scheduler")
            return self._known(in_flight)
        try:
            last_round = self.watch.last_round()
            names = {one.origin for one in look.at_work} | {one.origin for one in look.waiters}
            origins = self.watch.origins(sorted(names))
            progress = self.progress.get([one.job_id for one in look.at_work])
        except LeaseUnavailable as error:
            troubles.append(f"{error.message}: no bytes, hosts and rounds are shown")
        queued = self._ask_broker()
        if queued is None:
            troubles.append("the broker did not answer: the depth of its queues is not known")
        known = self._known(in_flight)
        return replace(known, progress=progress, origins=origins, last_round=last_round, queued=queued)

    def _known(self, in_flight: Mapping[str, int]) -> Around:
        """Without what Redis and the broker would tell."""
        policy = self.policy
        return Around(
            progress={},
            origins={},
            in_flight=in_flight,
            window=policy.window,
            per_host=policy.window_per_host,
            lease_ttl_s=policy.lease_ttl_s,
        )

    def _ask_broker(self) -> int | None:
        now = self.clock()
        if now >= self._ask_broker_at:
            queues = self.publisher.waiting(self._nodes)
            self._queued = None if queues is None else sum(queue.messages for queue in queues)
            self._ask_broker_at = self.clock() + (AWAY_S if self._queued is None else BROKER_EVERY_S)
        return self._queued
