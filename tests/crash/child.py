"""What a worker does that is killed at a crash point. It runs in a process of its own, and ends there."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import redis

from dlpipe.core import crash
from dlpipe.db import SqlDatabase
from dlpipe.lease.lock import RedisLeases
from dlpipe.pipeline import runner
from dlpipe.pipeline.dispatch import dispatch
from tests.fakes.source import FakeSource, Page
from tests.world import make_deps

SURVIVED = 7


@dataclass(frozen=True)
class Site:
    """Where the worker works."""

    database_url: str
    root: Path
    redis_url: str
    pages: dict[str, Page]


def die_in_stage(site: Site, stage: str, job_id: str, run: int, point: str, time: int) -> None:
    """Carry out one stage, and die when that point is passed for the `time`-th time."""
    leases = RedisLeases(redis.Redis.from_url(site.redis_url), ttl_s=100.0, renew_s=40.0)
    deps = make_deps(SqlDatabase(site.database_url), site.root, leases=leases, source=FakeSource(dict(site.pages)))
    _arm(point, time)
    runner.run(deps, stage, job_id, run)
    os._exit(SURVIVED)


def die_in_dispatch(site: Site, point: str) -> None:
    _arm(point, 1)
    dispatch(make_deps(SqlDatabase(site.database_url), site.root))
    os._exit(SURVIVED)


def _arm(point: str, time: int) -> None:
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed == time:
            os.kill(os.getpid(), signal.SIGKILL)

    crash.arm(hook)
