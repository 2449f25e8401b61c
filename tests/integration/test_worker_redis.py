"""Lose the broker, lose nothing: Redis is emptied, killed and restarted under busy workers, and all jobs end."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.fleet import QUICK, Fleet
from tests.servers import Valkey
from tests.shelf import Shelf
from tests.webserver import WebServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("it is about Redis", "broker"),
]

TWO_MINUTES_S = 120.0
RESTARTS = 10


@pytest.fixture
def broker() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


@pytest.mark.timeout(300)
def test_redis_emptied_in_the_middle_of_200_jobs_loses_none(
    broker: Valkey, web: WebServer, tmp_path: Path, ledger_settings: Mapping[str, str], shelf: Shelf
) -> None:
    """With the settings that dlpipe has by itself, and nobody's help."""
    bodies = {web.put(f"/{n}", body): body for n in range(200) if (body := os.urandom(2_000 + n))}
    with Fleet(tmp_path / "home", broker, shelf, **ledger_settings, **shelf.settings) as fleet:
        workers = [fleet.worker(name) for name in ("w1", "w2")]
        fleet.beat()
        fleet.plan(list(bodies))
        fleet.until(lambda: fleet.done() >= 40, "forty jobs to end")
        with broker.client() as client:
            client.flushall()
        assert fleet.done() < 200
        emptied = time.monotonic()
        fleet.until(lambda: fleet.done() == 200, "all jobs to end", within_s=TWO_MINUTES_S)
        assert time.monotonic() - emptied < TWO_MINUTES_S
        fleet.assert_each_once(bodies)
        assert all(worker.lives for worker in workers)
    for n in range(200):
        assert len(web.gets(f"/{n}")) <= 2, "a job was fetched more often than it was interrupted"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ack_emulation", ["false", "true"])
def test_redis_killed_ten_times_under_partly_busy_workers(
    ack_emulation: str,
    broker: Valkey,
    web: WebServer,
    tmp_path: Path,
    ledger_settings: Mapping[str, str],
    shelf: Shelf,
) -> None:
    slow = {web.put(f"/slow-{n}", body, hold_at=50_000): body for n in range(3) if (body := os.urandom(100_000))}
    quick: dict[str, bytes] = {}
    settings = {**QUICK, "DLPIPE_BROKER_ACK_EMULATION": ack_emulation, "DLPIPE_LEASE_TTL_S": "4"}
    settings |= {**ledger_settings, **shelf.settings}
    with Fleet(tmp_path / "home", broker, shelf, **settings) as fleet:
        workers = [fleet.worker(name) for name in ("w1", "w2")]
        pids = [worker.pid for worker in workers]
        beat = fleet.beat()
        fleet.plan(list(slow))
        fleet.until(lambda: all(web.sent(f"/slow-{n}") >= 50_000 for n in range(3)), "the workers to be partly busy")
        for restart in range(RESTARTS):
            fresh = {web.put(f"/{restart}-{n}", body): body for n in range(5) if (body := os.urandom(3_000))}
            quick |= fresh
            fleet.plan(list(fresh))
            broker.restart()
            wanted = len(quick)
            fleet.until(lambda n=wanted: fleet.done() >= n, f"the jobs of restart {restart} to end", within_s=90)
        for n in range(3):
            web.release(f"/slow-{n}")
        fleet.until(lambda: fleet.done() == len(quick) + len(slow), "all jobs to end", within_s=90)
        assert [worker.pid for worker in workers if worker.lives] == pids
        assert beat.lives
        fleet.assert_each_once(quick | slow)
