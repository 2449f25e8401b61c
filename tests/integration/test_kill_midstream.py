"""Kill −9 at random moments of downloads, large and larger: the hash is right each time, and little comes twice."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dlpipe.core.flow import OpType
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.net.client import Hub
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done
from dlpipe.store.part import LARGE_BYTES
from tests.rangeserver import Body, RangeServer, Served
from tests.servers import state_of, wait_until
from tests.streaming import NET, OVERLAP, Child, Site, after_death, real, run_to_stream
from tests.world import World

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.no_engines("broker", "store"),
]

MIB = 1 << 20
DOWNLOADS, KILLS = 10, 5


@pytest.fixture
def site(ledger_url: str, tmp_path: Path) -> Site:
    return Site(ledger_url, tmp_path / "store")


@pytest.fixture
def world(site: Site) -> Iterator[World]:
    database = SqlDatabase(site.database_url)
    made = World(database, site.root)
    hub = Hub(NET)
    made.deps = real(made.deps, site, hub)
    yield made
    hub.close()
    database.close()


@dataclass
class Death:
    """What one killed process had asked for, been sent, and not been given by the kernel."""

    start: int
    sent: int
    unread: int

    @property
    def read(self) -> int:
        """Where in the file the process was: what it had read, it could have kept."""
        return self.start + self.sent - self.unread


class Killer:
    """Kills the client when so many bytes of the answer have gone out.

    It is stopped first, in whatever it is doing, so that the kernel's queues can be read as they are at its death.
    """

    def __init__(self, server: RangeServer) -> None:
        self._server = server
        self._at = 0
        self._pid = 0
        self._done = threading.Event()
        self.death: Death | None = None
        server.on_sent = self._sent

    def kill(self, child: Child, after: int) -> Death:
        self._done.clear()
        self.death = None
        self._pid, self._at = child.pid, after
        assert self._done.wait(60), "the moment did not come"
        assert child.gone() == -signal.SIGKILL
        assert self.death is not None
        return self.death

    def _sent(self, served: Served) -> None:
        if self._at == 0 or served.sent < self._at:
            return
        self._at = 0
        os.kill(self._pid, signal.SIGSTOP)
        wait_until(lambda: state_of(self._pid) in "Tt", "the process stands still")
        self.death = Death(served.start, served.sent, self._server.in_the_kernel(served))
        os.kill(self._pid, signal.SIGKILL)
        self._done.set()


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's queues in /proc")


@linux
def test_whenever_it_is_killed_the_bytes_are_right_and_at_most_a_mebibyte_comes_twice(
    world: World, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_again_and_again(world, site, capsys, Body(256 * MIB), DOWNLOADS, MIB)


@linux
def test_of_a_large_file_three_mebibytes_and_what_is_compared_come_twice_at_most(
    world: World, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_again_and_again(world, site, capsys, Body(LARGE_BYTES), 3, 3 * MIB + OVERLAP)


def killed_again_and_again(
    world: World, site: Site, capsys: pytest.CaptureFixture[str], body: Body, downloads: int, most: int
) -> None:
    """After none of the kills does more than that come twice."""
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    chance = random.Random(seed)
    right = body.sha256()
    lost: list[int] = []
    with RangeServer(body) as server:
        killer = Killer(server)
        for number in range(downloads):
            moments = sorted(chance.sample(range(1, body.size - MIB), KILLS))
            job = world.plan(f"{server.url}?{number}")
            lost += one_download(world, site, server, killer, job, moments)
            streamed = world.op(job, OpType.STREAM).result
            assert streamed is not None
            assert (streamed["sha256"], streamed["size"]) == (right, body.size)
            assert world.run("finalize", job, world.row(job).run) == Done(State.FINALIZED)  # hashes it from the disk
            for path in world.root.glob("default/default/*/*"):
                assert path.name.startswith(right)
                path.unlink()  # the next one is to take room of its own
    with capsys.disabled():
        print(
            f"\nkill -9: {body.size // MIB} MiB, seed {seed}, {len(lost)} kills, came twice: "
            f"most {max(lost) >> 10} KiB, mean {sum(lost) // len(lost) >> 10} KiB"
        )
    assert len(lost) == downloads * KILLS
    assert max(lost) <= most, f"seed {seed}: {max(lost)} bytes came twice"


def one_download(
    world: World, site: Site, server: RangeServer, killer: Killer, job: str, moments: list[int]
) -> list[int]:
    """Kill it at each of these offsets, then let it end; answers how much came twice after each kill."""
    lost: list[int] = []
    run, before = 1, Death(0, 0, 0)
    for moment in [*moments, None]:
        run_to_stream(world, job, run)
        asked = len(server.gets)
        child = Child(site, job, run)
        if moment is None:
            assert child.result()[0] == "done: STREAMING"
            death = before
        else:
            death = killer.kill(child, max(1, moment - before.read))
            run = after_death(world, job, reconcile)
        (served,) = server.gets[asked:]
        if before.sent:
            lost.append(before.read - served.start)
        before = death
    return lost


PIECE, CONNECTIONS = MIB, 4


def test_over_several_connections_no_finished_piece_comes_twice(
    world: World, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each connection that is cut off had at most one piece in hand, wherever its bytes were at that moment."""
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    body = Body(64 * MIB)
    policy = replace(site.policy, segments=SegmentPolicy(CONNECTIONS, MIB, CONNECTIONS, PIECE))
    site = replace(site, policy=policy)
    world.deps = replace(world.deps, policy=policy)
    moments = sorted(random.Random(seed).sample(range(MIB, body.size), 10))
    with RangeServer(body) as server:
        job, run = world.plan(server.url), 1
        for moment in moments:
            run_to_stream(world, job, run)
            child = Child(site, job, run)
            kill_when_sent(server, child.pid, moment)
            if child.gone() == 0:
                break  # it ended before the moment came
            run = after_death(world, job, reconcile)
        else:
            run_to_stream(world, job, run)
            assert Child(site, job, run).result()[0] == "done: STREAMING"
    sent = sum(served.sent for served in server.gets)
    with capsys.disabled():
        print(
            f"\nkill -9 over {CONNECTIONS} connections: seed {seed}, came twice: {(sent - body.size) >> 10} KiB in all"
        )
    streamed = world.op(job, OpType.STREAM).result
    assert streamed is not None
    assert (streamed["sha256"], streamed["size"]) == (body.sha256(), body.size)
    assert len(server.gets) >= body.size // PIECE
    assert sent - body.size <= len(moments) * (CONNECTIONS * PIECE + OVERLAP), f"seed {seed}"


def kill_when_sent(server: RangeServer, pid: int, total: int) -> None:
    lock, dead = threading.Lock(), False

    def look(served: Served) -> None:
        nonlocal dead
        with lock:
            if not dead and sum(one.sent for one in list(server.gets)) >= total:
                dead = True
                os.kill(pid, signal.SIGKILL)

    server.on_sent = look
