"""A large file takes no more memory than a small one. STREAM-2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.core.flow import OpType
from dlpipe.db import SqlDatabase
from dlpipe.net.client import Hub
from tests.rangeserver import Body, RangeServer
from tests.streaming import NET, Child, Site, real, run_to_stream
from tests.world import World

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines("broker", "store"),
]

MIB = 1 << 20
SMALL, LARGE = 64 * MIB, 4096 * MIB


@pytest.fixture
def site(ledger_url: str, tmp_path: Path) -> Site:
    return Site(ledger_url, tmp_path / "store")


@pytest.fixture
def world(site: Site) -> Iterator[World]:
    database = SqlDatabase(site.database_url)
    hub = Hub(NET)
    made = World(database, site.root)
    made.deps = real(made.deps, site, hub)
    yield made
    hub.close()
    database.close()


def peak_kib(world: World, site: Site, size: int) -> int:
    """The most memory that a process of its own takes to stream so many bytes."""
    body = Body(size)
    with RangeServer(body, f"/{size}.bin") as server:
        job = world.plan(server.url)
        run_to_stream(world, job, 1)
        outcome, peak = Child(site, job, 1).result()
    assert outcome == "done: STREAMING"
    found = world.op(job, OpType.STREAM).result
    assert found is not None
    assert found["size"] == size
    for part in (world.root / ".staging").rglob("*.part"):
        part.unlink()
    return peak


def test_4_gib_take_less_than_1_3_times_the_memory_of_64_mib(
    world: World, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = peak_kib(world, site, SMALL), peak_kib(world, site, LARGE)
    with capsys.disabled():
        print(f"\npeak resident size: {small >> 10} MiB for 64 MiB, {large >> 10} MiB for 4 GiB")
    assert large < 1.3 * small
