"""SIGTERM in the middle of a large stream: the worker ends in time, and the bytes it has are not fetched again."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.fleet import QUICK, Fleet, Process, is_gone
from tests.servers import Valkey, wait_until
from tests.tlsfront import TlsFront
from tests.webserver import WebServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]

MIB = 1 << 20
SIZE, HALF = 32 * MIB, 12 * MIB
SILENT, SENT = 8 * MIB, 5 * MIB
POOLS = ("threads", "prefork")
PATIENT = {"DLPIPE_LEASE_TTL_S": "60", "DLPIPE_LEASE_RENEW_S": "5"}


@pytest.fixture
def own_fleet(broker: Valkey, tmp_path: Path) -> Iterator[Fleet]:
    with broker.client() as client:
        client.flushall()
    with Fleet(tmp_path / "home", broker, **QUICK) as fleet:
        yield fleet


@dataclass
class Line:
    """Where the web server is reached, plainly or encrypted, and what a worker has to know for that."""

    url: str
    settings: dict[str, str] = field(default_factory=dict)


@pytest.fixture(params=["http", "https"])
def line(request: pytest.FixtureRequest, web: WebServer, tmp_path: Path) -> Iterator[Line]:
    if request.param == "http":
        yield Line(web.url)
        return
    authority = Authority(tmp_path / "authority")
    with TlsFront(int(web.url.rpartition(":")[2]), authority.sign("localhost"), tmp_path) as front:
        yield Line(f"https://localhost:{front.port}", {"DLPIPE_NET_CA_FILE": str(authority.file)})


def tell(process: Process, number: signal.Signals) -> Callable[[], bool]:
    """Send it; answers what tells whether the process, and all that it had forked, have ended."""
    forked = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send(number)
    return lambda: not process.lives and all(map(is_gone, forked))


@pytest.mark.everywhere
@pytest.mark.parametrize("pool", POOLS)
def test_a_stream_is_handed_back_with_its_bytes(pool: str, line: Line, fleet: Fleet, web: WebServer) -> None:
    """Its server goes on sending, slowly: between two chunks the worker hears that it is to end."""
    body = os.urandom(SIZE)
    web.put("/large", body, bytes_per_s=16 * MIB)
    url = f"{line.url}/large"
    fleet.env |= line.settings
    old = fleet.worker("old", pool=pool, size=2, **PATIENT)
    fleet.plan([url])
    fleet.until(lambda: web.sent("/large") >= HALF, "the stream to be half-way", old)
    told = time.monotonic()
    fleet.until(tell(old, signal.SIGTERM), "the worker to end", within_s=15)
    assert time.monotonic() - told < 15
    assert_handed_back(fleet, url, old)
    assert web.sent("/large") < SIZE, "it was not interrupted at all"
    assert_goes_on(fleet, web, url, body, pool)
    assert web.sent("/large") <= SIZE + MIB


@pytest.mark.parametrize("pool", POOLS)
def test_what_had_arrived_is_not_fetched_again(pool: str, fleet: Fleet, web: WebServer) -> None:
    """The kernel holds what a stopped worker did not read, some MiB of it, when it is told to end."""
    body = os.urandom(SIZE)
    url = web.put("/fast", body, hold_at=SENT)
    old = fleet.worker("old", pool=pool, size=2, **PATIENT)
    fleet.plan([url])
    fleet.until(lambda: web.sent("/fast") >= SENT, "the server to have sent it", old)
    fleet.until(tell(old, signal.SIGTERM), "the worker to end", within_s=15)
    assert_handed_back(fleet, url, old)
    web.release("/fast")
    assert_goes_on(fleet, web, url, body, pool)
    assert_at_most_twice(web, "/fast", SENT)


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_waits_for_no_silent_server(pool: str, line: Line, fleet: Fleet, web: WebServer) -> None:
    body = os.urandom(SILENT)
    web.put("/silent", body, hold_at=SENT)
    url = f"{line.url}/silent"
    fleet.env |= line.settings
    old = fleet.worker("old", pool=pool, size=2, **PATIENT, DLPIPE_WORKER_GRACE_S="20")
    fleet.plan([url])
    fleet.until(lambda: web.sent("/silent") >= SENT and taken(fleet), "the server to fall silent", old)
    told = time.monotonic()
    fleet.until(tell(old, signal.SIGTERM), "the worker to end", within_s=19)
    assert time.monotonic() - told < 19
    assert_handed_back(fleet, url, old)
    web.release("/silent")
    assert_goes_on(fleet, web, url, body, pool)
    assert_at_most_twice(web, "/silent", SENT)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_worker_waits_for_no_first_word_of_a_server(method: str, pool: str, fleet: Fleet, web: WebServer) -> None:
    url = web.put("/mute", b"worth fetching", mute=method)
    old = fleet.worker("old", pool=pool, size=2, **PATIENT, DLPIPE_WORKER_GRACE_S="20")
    fleet.plan([url])
    fleet.until(lambda: any(one.method == method for one in web.log), "the server to be asked", old)
    fleet.until(tell(old, signal.SIGTERM), "the worker to end", within_s=19)
    job = fleet.job(url)
    assert (job.lease_owner, job.attempts) == (None, 0)
    assert not old.says("ends by force")
    web.release("/mute")
    fleet.worker("new", pool=pool, size=2)
    fleet.beat()
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: b"worth fetching"})


@pytest.mark.own_engines("the ledger's file is locked by hand")
@pytest.mark.parametrize("how", ["by force", "killed"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_forced_end_costs_no_bytes_either(pool: str, how: str, line: Line, own_fleet: Fleet, web: WebServer) -> None:
    """By force: what it holds cannot be handed back in time, as the database lets nobody write."""
    fleet = own_fleet
    body = os.urandom(SILENT)
    web.put("/silent", body, hold_at=SENT)
    url = f"{line.url}/silent"
    fleet.env |= line.settings
    old = fleet.worker("old", pool=pool, size=2, DLPIPE_WORKER_GRACE_S="1")
    fleet.plan([url])
    fleet.until(lambda: web.sent("/silent") >= SENT and taken(fleet), "the server to fall silent", old)
    with closing(sqlite3.connect(fleet.home / "ledger.db", isolation_level=None, timeout=30)) as writer:
        if how == "by force":
            writer.execute("BEGIN IMMEDIATE")
        wait_until(tell(old, signal.SIGTERM if how == "by force" else signal.SIGKILL), "the worker to end", 15)
    assert old.says("ends by force") is (how == "by force")
    web.release("/silent")
    assert_goes_on(fleet, web, url, body, pool)
    assert_at_most_twice(web, "/silent", SENT)


@pytest.mark.everywhere
@pytest.mark.parametrize("pool", POOLS)
def test_messages_that_a_worker_does_not_begin_with_are_put_back(pool: str, fleet: Fleet, web: WebServer) -> None:
    held_up = web.put("/mute", b"held up", mute="HEAD")
    old = fleet.worker("old", "-Q", "net", "--prefetch-multiplier", "4", pool=pool, size=1, **PATIENT)
    fleet.plan([held_up])
    fleet.until(lambda: any(one.method == "HEAD" for one in web.log), "the server to be asked", old)
    bodies = {web.put(f"/{n}", body): body for n in range(3) if (body := os.urandom(1000))}
    fleet.plan(list(bodies))
    fleet.until(lambda: fleet.waiting() == 0, "the worker to have taken all messages", old)
    fleet.until(tell(old, signal.SIGTERM), "the worker to end", within_s=15)
    assert fleet.waiting() == len(bodies), old.log.read_text()
    web.release("/mute")
    fleet.worker("new", pool=pool, size=1)
    # Reconcile, with which a worker starts, may have the one that was held up end as soon as they do.
    fleet.until(lambda: fleet.done() >= len(bodies), "those jobs to end")
    fleet.beat()
    fleet.until(lambda: fleet.done() == len(bodies) + 1, "the job that was held up to end")
    fleet.assert_each_once(bodies | {held_up: b"held up"})


def taken(fleet: Fleet) -> bool:
    """Has the worker taken what the server had to send? Then it waits for more."""
    parts = (fleet.home / "store" / ".staging").rglob("*.part")
    return sum(part.stat().st_size for part in parts) >= SENT - MIB // 4


def assert_handed_back(fleet: Fleet, url: str, old: Process) -> None:
    job = fleet.job(url)
    assert (job.state, job.lease_owner, job.attempts) == ("STREAMING", None, 0)
    assert job.due_at is not None, "not handed back"
    assert not old.says("ends by force")


def assert_goes_on(fleet: Fleet, web: WebServer, url: str, body: bytes, pool: str) -> None:
    fleet.worker("new", pool=pool, size=2)
    fleet.beat()
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: body})
    assert len(web.gets("/" + url.rpartition("/")[2])) == 2


def assert_at_most_twice(web: WebServer, path: str, sent: int) -> None:
    """By what the second request asked for. What a server could send into a dying connection tells nothing."""
    asked = web.gets(path)[1].range
    assert asked is not None, "all of it was fetched again"
    start = int(asked.removeprefix("bytes=").rstrip("-"))
    assert sent - MIB <= start <= sent, f"{sent - start} bytes came twice"
