"""A worker stopped past its lease has lost it, and takes nothing from the next one. LEASE-3."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import redis

from dlpipe.core.errors import LeaseBusy
from dlpipe.lease.lock import PREFIX, RedisLeases
from tests.servers import Valkey, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines(),
]

WORKER = """
import sys
import redis
from dlpipe.core.errors import LeaseLost
from dlpipe.lease.lock import RedisLeases

leases = RedisLeases(redis.Redis.from_url(sys.argv[1]), ttl_s=float(sys.argv[2]), renew_s=0.3)
with leases.hold("j") as lease:
    print("token", lease.token, flush=True)
    for line in sys.stdin:
        if line == "leave\\n":
            break
        try:
            lease.check()
            print("held", flush=True)
        except LeaseLost:
            print("lost", flush=True)
print("left", flush=True)
"""


@dataclass
class Worker:
    process: subprocess.Popen[str]
    token: str = ""

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def client(server: Valkey) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def worker(server: Valkey, client: redis.Redis) -> Iterator[Worker]:
    with working(server, ttl_s=1.0) as worker:
        yield worker


@contextmanager
def working(server: Valkey, ttl_s: float) -> Iterator[Worker]:
    """Another process that holds the lease of job j."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, server.url, str(ttl_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        worker = Worker(process)
        worker.token = worker.hear().removeprefix("token ")
        yield worker
        process.kill()


@pytest.fixture
def leases(client: redis.Redis) -> Iterator[RedisLeases]:
    leases = RedisLeases(client, ttl_s=60.0, renew_s=20.0)
    yield leases
    leases.close()


def test_a_running_worker_keeps_its_lease_beyond_the_ttl(
    server: Valkey, leases: RedisLeases, client: redis.Redis
) -> None:
    with working(server, ttl_s=2.0) as worker:
        renewals, last = 0, client.pttl(PREFIX + "j")
        while renewals < 8:  # each after 0.3 s
            now = client.pttl(PREFIX + "j")
            assert now > 0
            renewals, last = renewals + (now > last), now
        with pytest.raises(LeaseBusy), leases.hold("j"):
            pass
        worker.say("check")
        assert worker.hear() == "held"


def test_a_stopped_worker_has_lost_its_lease_when_it_comes_back(
    worker: Worker, leases: RedisLeases, client: redis.Redis
) -> None:
    os.kill(worker.process.pid, signal.SIGSTOP)
    wait_until(lambda: not client.exists(PREFIX + "j"), "the lease to run out")
    assert not leases.owner_is_dead(worker.token)  # stopped is not dead
    with leases.hold("j") as ours:
        worker.say("check")  # waits in the pipe: the first thing that it reads when it wakes up
        os.kill(worker.process.pid, signal.SIGCONT)
        assert worker.hear() == "lost"
        worker.say("leave")
        assert worker.hear() == "left"
        assert client.get(PREFIX + "j") == ours.token.encode()
        ours.check()
        assert leases.heartbeat.beat()
        ours.check()


def test_a_stopped_worker_does_not_bring_an_expired_lease_back(worker: Worker, client: redis.Redis) -> None:
    os.kill(worker.process.pid, signal.SIGSTOP)
    wait_until(lambda: not client.exists(PREFIX + "j"), "the lease to run out")
    os.kill(worker.process.pid, signal.SIGCONT)
    worker.say("check")
    assert worker.hear() == "lost"
    assert not client.exists(PREFIX + "j")


def test_the_lease_of_a_killed_worker_can_be_released_at_once(
    worker: Worker, leases: RedisLeases, client: redis.Redis
) -> None:
    client.persist(PREFIX + "j")  # so that it is not the TTL that frees it
    assert not leases.release_dead("j", worker.token)
    worker.process.kill()
    worker.process.wait(10)
    client.persist(PREFIX + "j")
    assert leases.owner_is_dead(worker.token)
    assert leases.release_dead("j", worker.token)
    with leases.hold("j") as ours:
        ours.check()
