"""Healing: what a dead worker left becomes due again, and nobody who lives is disturbed. HEAL-2, HEAL-5, HEAL-6."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlpipe.core.errors import LeaseLost
from dlpipe.core.flow import stage
from dlpipe.core.states import State, Status
from dlpipe.pipeline.reconcile import Report, reconcile
from tests.fakes.leases import FakeLease
from tests.world import World, job_of

URL = "http://files.example/a.bin"


@pytest.fixture
def job(world: World) -> str:
    world.source.put(URL, b"abc" * 1000)
    return world.plan(URL)


def claim(world: World, job: str, at: str = "head", run: int = 1) -> str:
    token = world.leave_claimed(at, job, run)
    world.leases.held[job] = FakeLease(token)
    return token


def test_nothing_to_heal_is_nothing_done(world: World, job: str) -> None:
    world.drive()
    before = world.everything()
    assert reconcile(world.deps) == Report()
    assert world.everything() == before


def test_a_job_of_a_dead_owner_is_due_again_at_once(world: World, job: str) -> None:
    world.leases.dead.add(claim(world, job))
    report = reconcile(world.deps)
    assert report == Report(orphans_requeued=1, dead_owners=1, dispatched=1, ops_abandoned=1)
    assert world.leases.held == {}
    assert [hint.run for hint in world.publisher.queue] == [2]
    assert (world.row(job).attempts, world.row(job).lease_owner) == (1, None)
    world.drive()
    assert world.state(job) is State.DEDUPED


def test_a_live_holder_is_left_alone(world: World, job: str) -> None:
    claim(world, job)
    before = world.everything()
    assert reconcile(world.deps) == Report()
    assert world.everything() == before


def test_a_lease_that_ran_out_in_the_row_but_lives_in_redis_is_left_alone(world: World, job: str) -> None:
    claim(world, job)
    world.expire(job)
    before = world.everything()
    assert reconcile(world.deps) == Report()
    assert world.everything() == before


def test_a_lease_that_ran_out_in_both_is_an_orphan(world: World, job: str) -> None:
    claim(world, job)
    world.leases.held.clear()
    assert reconcile(world.deps) == Report()  # Redis lost it, the row still holds
    world.expire(job)
    assert reconcile(world.deps).orphans_requeued == 1
    world.drive()
    assert world.state(job) is State.DEDUPED


def test_the_dead_holders_own_writes_are_refused_from_then_on(world: World, job: str) -> None:
    world.leases.dead.add(claim(world, job))
    late = job_of(world, job)
    reconcile(world.deps)
    with pytest.raises(LeaseLost), world.database.write() as unit:
        unit.jobs.advance(late, stage("head"), State.HEAD_DONE)
    with world.database.write() as unit:
        assert not unit.jobs.hand_back(late)
        assert unit.jobs.renew([(job, late.fence)], 100.0) == {job}


def test_a_job_whose_workers_keep_dying_ends(world: World, job: str) -> None:
    for run in range(1, 6):
        world.leases.dead.add(claim(world, job, run=run))
        report = reconcile(world.deps)
        assert (report.orphans_requeued, report.orphans_exhausted) == ((1, 0) if run < 5 else (0, 1))
    view = world.view(job)
    assert (view.status, view.error_code, view.due_at) == (Status.FAILED, "attempts_exhausted", None)
    assert view.failed_at is not None
    assert reconcile(world.deps) == Report()


def test_an_orphan_whose_file_is_in_place_does_only_what_remains(world: World, job: str) -> None:
    world.run_to("index", job)
    world.leases.dead.add(claim(world, job, "index"))
    world.source.asked.clear()
    reconcile(world.deps)
    (hint,) = world.publisher.queue
    assert [row.name for row in hint.stages] == ["index", "dedupe"]
    world.drive()
    assert (world.state(job), world.source.asked) == (State.DEDUPED, [])


def test_a_started_op_whose_fence_was_overtaken_is_marked(world: World, job: str) -> None:
    world.leases.dead.add(claim(world, job))
    assert reconcile(world.deps).ops_abandoned == 1
    (op,) = world.ops(job)
    assert (op.state, op.result_code, op.result) == ("abandoned", "fence_overtaken", None)


def test_two_at_once_do_no_harm(world: World, job: str) -> None:
    world.leases.dead.add(claim(world, job))
    start = threading.Barrier(4)

    def heal() -> Report:
        start.wait(20)
        return reconcile(world.deps)

    with ThreadPoolExecutor(4) as pool:
        reports = [future.result() for future in [pool.submit(heal) for _ in range(4)]]
    assert sum(report.orphans_requeued for report in reports) == 1
    assert sum(report.dispatched for report in reports) == 1
    assert world.row(job).attempts == 1
    world.drive()
    assert world.state(job) is State.DEDUPED


def test_a_message_lost_in_the_middle_of_a_run_is_sent_again(world: World, job: str) -> None:
    world.run_to("stream", job)
    world.age(job)
    report = reconcile(world.deps)
    assert report == Report(lost_messages=1)
    world.drive()
    assert (world.state(job), world.row(job).run) == (State.DEDUPED, 1)
