"""The stream stage in a process of its own, over the real network layer, as the kill and memory tests want it."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from dlpipe.core.retries import RetryPolicy
from dlpipe.db import SqlDatabase
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.pipeline import runner
from dlpipe.pipeline.deps import Deps, Policy, StreamPolicy
from dlpipe.sources.http import HttpSource
from dlpipe.store import LocalStaging
from tests.world import World, make_deps

OVERLAP = 64 << 10
NET = NetPolicy(allow_private=True)


@dataclass(frozen=True)
class Site:
    database_url: str
    root: Path
    policy: Policy = Policy(retry=RetryPolicy(max_attempts=10_000), stream=StreamPolicy(overlap_bytes=OVERLAP))


def real(deps: Deps, site: Site, hub: Hub) -> Deps:
    """With the network, the clock and the staging of production."""
    staging = LocalStaging(site.root, preallocate_bytes=64 << 20)
    return replace(deps, source=HttpSource(hub), staging=staging, policy=site.policy, clock=time.monotonic)


def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.streaming"])
    return made


def stream(site: Site, job_id: str, run: int, told: Connection) -> None:
    """Carry out the stream stage; tell how it ended, and the most memory that it took, in KiB."""
    deps = real(make_deps(SqlDatabase(site.database_url), site.root), site, Hub(NET))
    outcome = runner.run(deps, "stream", job_id, run)
    told.send((str(outcome), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


class Child:
    """One stream stage in a process of its own."""

    def __init__(self, site: Site, job_id: str, run: int) -> None:
        self._hears, tells = multiprocessing.Pipe(duplex=False)
        self.process: BaseProcess = context().Process(target=stream, args=(site, job_id, run, tells))
        self.process.start()
        tells.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def result(self, within_s: float = 110.0) -> tuple[str, int]:
        assert self._hears.poll(within_s), "the stream did not end"
        told: tuple[str, int] = self._hears.recv()
        self.gone()
        return told

    def gone(self) -> int | None:
        self.process.join(20)
        code = self.process.exitcode
        self.process.close()
        self._hears.close()
        return code


def run_to_stream(world: World, job_id: str, run: int) -> None:
    for stage in ("head", "resume_decide"):
        outcome = world.run(stage, job_id, run)
        assert isinstance(outcome, runner.Done), f"{stage}: {outcome}"


def after_death(world: World, job_id: str, reconcile: Callable[[Deps], object]) -> int:
    """As the beat does when a worker is gone; answers the number of the run that is due."""
    world.leases.dead.add(world.row(job_id).lease_owner)
    reconcile(world.deps)
    row = world.row(job_id)
    assert row.lease_owner is None, "the dead worker's claim still stands"
    return int(row.run) + 1
