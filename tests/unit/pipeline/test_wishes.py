"""Cancel: what runs stops at its next chunk, and nothing of it counts. JOB-9."""

from __future__ import annotations

import os

import pytest

from dlpipe.core.model import Scope
from dlpipe.core.states import State, Status
from dlpipe.pipeline import wishes
from dlpipe.pipeline.runner import Dropped
from tests.fakes.source import Says
from tests.world import World

URL = "http://files.example/a.bin"
BODY = os.urandom(50_000)
OWN = Scope()


@pytest.fixture(autouse=True)
def _page(world: World) -> None:
    world.source.put(URL, BODY)


def test_a_running_stream_stops_at_its_next_chunk(world: World) -> None:
    job = world.plan(URL)
    world.run_to("stream", job)
    late: list[str] = []
    world.source.script(
        URL,
        Says(
            body=[
                BODY[:1000],
                lambda: late.append(str(wishes.cancel(world.deps, OWN, job))),
                BODY[1000:2000],
                lambda: late.append("asked for more"),
                BODY[2000:],
            ]
        ),
    )
    assert world.run("stream", job) == Dropped("lease_lost")
    assert late == ["canceled"]
    row = world.row(job)
    assert (world.state(job), row.lease_owner, row.due_at) == (State.CANCELED, None, None)
    world.drive()
    assert (world.blobs(), world.artifacts(job)) == ({}, [])


def test_a_waiting_job_is_canceled_at_once(world: World) -> None:
    job = world.plan(URL)
    assert wishes.cancel(world.deps, OWN, job) is Status.CANCELED
    world.drive()
    assert world.source.asked == []


def test_what_is_registered_stays(world: World) -> None:
    job = world.fetch(URL)
    assert wishes.cancel(world.deps, OWN, job) is Status.COMPLETED
    assert len(world.artifacts(job)) == 1


def test_a_foreign_job_is_unknown_and_its_worker_is_not_told(world: World) -> None:
    job = world.plan(URL)
    with world.leases.hold(job) as lease:
        assert wishes.cancel(world.deps, Scope("other"), job) is None
        lease.check()


def test_without_redis_the_cancel_stands(world: World) -> None:
    job = world.plan(URL)
    world.leases.down = True
    assert wishes.cancel(world.deps, OWN, job) is Status.CANCELED
