"""Cancel and pause: what runs stops at its next chunk. Wishes for many jobs at once. JOB-8, JOB-9."""

from __future__ import annotations

import os

import pytest

from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.states import State, Status
from dlpipe.core.wishes import JobFilter, Wish
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


def test_a_paused_stream_stops_at_its_next_chunk_and_goes_on_from_its_bytes(world: World) -> None:
    job = world.plan(URL)
    world.run_to("stream", job)
    late: list[str] = []
    world.source.script(
        URL,
        Says(
            body=[
                BODY[:20_000],
                lambda: late.append(str(wishes.pause(world.deps, OWN, job))),
                BODY[20_000:30_000],
                lambda: late.append("asked for more"),
                BODY[30_000:],
            ]
        ),
    )
    assert world.run("stream", job) == Dropped("lease_lost")
    assert len(late) == 1
    world.drive()
    assert (world.state(job), world.row(job).run, world.blobs()) == (State.STREAMING, 1, {})
    assert [asked.method for asked in world.source.asked][-1] == "GET"
    assert wishes.resume(world.deps, OWN, job) is not None
    world.drive()
    resumed = world.op(job, OpType.STREAM).result
    assert resumed is not None
    assert 20_000 <= resumed["resumed_from_bytes"] < 50_000
    assert (world.state(job), world.row(job).attempts, world.row(job).run) == (State.DEDUPED, 0, 2)
    assert list(world.blobs().values()) == [BODY]


def test_a_paused_job_waits_without_asking_its_server(world: World) -> None:
    job = world.plan(URL)
    wishes.pause(world.deps, OWN, job)
    world.drive()
    assert world.source.asked == []
    wishes.resume(world.deps, OWN, job)
    world.drive()
    assert world.state(job) is State.DEDUPED


def test_a_foreign_job_is_not_paused_nor_resumed(world: World) -> None:
    job = world.plan(URL)
    for wish in (wishes.pause, wishes.resume, wishes.retry):
        assert wish(world.deps, Scope("other"), job) is None
    assert world.view(job).paused_at is None


def failed(world: World, *urls: str, tenant: str = "default") -> list[str]:
    jobs = [world.plan(url, tenant_id=tenant) for url in urls]
    world.drive()
    return jobs


def test_a_retry_by_filter_meets_each_job_once_in_bounded_batches(world: World) -> None:
    world.policy(batch=2)
    mine = failed(world, *(f"http://gone.example/{n}" for n in range(5)))
    other_host = failed(world, "http://lost.example/a")
    foreign = failed(world, "http://gone.example/0", tenant="other")
    only = JobFilter(host="gone.example", code="http_404")
    before = world.everything()
    dry = list(wishes.of_all(world.deps, OWN, Wish.RETRY, only, dry_run=True))
    assert [len(batch) for batch in dry] == [2, 2, 1]
    assert world.everything() == before
    done = list(wishes.of_all(world.deps, OWN, Wish.RETRY, only))
    assert [len(batch) for batch in done] == [2, 2, 1]
    assert {view.job_id for batch in done for view in batch} == set(mine)
    assert {str(world.view(job).status) for job in mine} == {"pending"}
    assert str(world.view(other_host[0]).status) == "failed"
    assert str(world.view(foreign[0], Scope("other")).status) == "failed"


def test_each_wish_for_all_reaches_those_whom_it_can_help(world: World) -> None:
    done, (lost,) = world.fetch(URL), failed(world, "http://gone.example/x")
    new = world.plan("http://files.example/new")
    for wish, meant in ((Wish.PAUSE, [new]), (Wish.RESUME, [new]), (Wish.RETRY, [lost])):
        reached = [view.job_id for batch in wishes.of_all(world.deps, OWN, wish, JobFilter()) for view in batch]
        assert reached == meant, wish
    canceled = [view.job_id for batch in wishes.of_all(world.deps, OWN, Wish.CANCEL, JobFilter()) for view in batch]
    assert sorted(canceled) == sorted([new, lost])
    assert str(world.view(done).status) == "completed"
