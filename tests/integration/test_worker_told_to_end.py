"""SIGTERM in the middle of a large stream: the worker ends in time, and the bytes it has are not fetched again."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.fleet import Fleet
from tests.servers import wait_until
from tests.webserver import WebServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MIB = 1 << 20
SIZE, HALF = 32 * MIB, 12 * MIB
POOLS = ("threads", "prefork")


@pytest.mark.parametrize("pool", POOLS)
def test_a_stream_is_handed_back_with_its_bytes(pool: str, fleet: Fleet, web: WebServer) -> None:
    """Its server goes on sending, slowly: between two chunks the worker hears that it is to end."""
    body = os.urandom(SIZE)
    url = web.put("/large", body, bytes_per_s=16 * MIB)
    old = fleet.worker("old", pool=pool, size=2, DLPIPE_LEASE_TTL_S="60", DLPIPE_LEASE_RENEW_S="5")
    fleet.plan([url])
    fleet.until(lambda: web.sent("/large") >= HALF, "the stream to be half-way", old)
    told = time.monotonic()
    old.send(signal.SIGTERM)
    fleet.until(lambda: not old.lives, "the worker to end", within_s=15)
    assert time.monotonic() - told < 15
    job = fleet.job(url)
    assert (job.state, job.lease_owner, job.attempts) == ("STREAMING", None, 0)
    assert job.due_at is not None, "not handed back"
    assert not old.says("ends by force")
    fetched = web.sent("/large")
    assert fetched < SIZE, "it was not interrupted at all"
    fleet.worker("new", pool=pool, size=2)
    fleet.beat()
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: body})
    assert len(web.gets("/large")) == 2
    assert web.sent("/large") <= SIZE + MIB


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_whose_server_is_silent_ends_by_force_after_the_grace_time(
    pool: str, fleet: Fleet, web: WebServer
) -> None:
    body = os.urandom(8 * MIB)
    url = web.put("/silent", body, hold_at=4 * MIB)
    old = fleet.worker("old", pool=pool, size=2, DLPIPE_WORKER_GRACE_S="1")
    fleet.plan([url])
    fleet.until(lambda: web.sent("/silent") >= 4 * MIB, "the server to fall silent", old)
    old.send(signal.SIGTERM)
    wait_until(lambda: not old.lives, "the worker to end", 15)
    assert old.says("ends by force")
    web.release("/silent")
    fleet.worker("new", pool=pool, size=2)
    fleet.beat()
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: body})
