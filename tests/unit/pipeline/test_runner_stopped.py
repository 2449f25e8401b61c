"""A stage that a lost lease stops: the job is handed back at no attempt, but not for ever (ADR 48)."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import LeaseLost, Overtaken, Retryable, WorkerEnding
from dlpipe.core.states import Status
from dlpipe.db.clock import after
from dlpipe.db.schema import artifact_jobs
from dlpipe.pipeline.dispatch import dispatch
from dlpipe.pipeline.runner import Dropped, Failed
from tests.fakes.source import Says
from tests.world import RETRY_S, World, carry_out

URL = "http://files.example/a.bin"
BODY = b"0123456789abcdef" * 20_000
DAY = 86_400.0


@pytest.fixture
def job(world: World) -> str:
    world.source.put(URL, BODY)
    return world.plan(URL)


@pytest.mark.parametrize("waited_s", [0.0, 7 * DAY - 600.0])
def test_a_job_whose_lease_is_lost_is_handed_back_and_costs_no_attempt(world: World, job: str, waited_s: float) -> None:
    lose_the_lease(world, job, waited_s)
    assert world.run("stream", job) == Dropped("lease_lost")
    row = world.row(job)
    assert (row.attempts, row.due_at is not None, row.postponed_since is not None) == (0, True, True)
    assert world.view(job).status is not Status.FAILED


def test_a_job_is_not_handed_back_for_ever(world: World, job: str) -> None:
    lose_the_lease(world, job, 7 * DAY + 1.0)
    assert world.run("stream", job) == Failed("lease_lost", None)
    assert "put off for 7.0 days" in (world.view(job).error_message_safe or "")


def test_the_end_of_a_worker_ends_no_job_however_long_it_has_waited(world: World, job: str) -> None:
    lose_the_lease(world, job, 8 * DAY, WorkerEnding("the process is ending"))
    assert world.run("stream", job) == Dropped("worker_ending")
    assert world.row(job).due_at is not None


def test_the_end_of_a_worker_is_no_wait(world: World, job: str) -> None:
    """Else a job that no server has put off would stand behind those that are put off."""
    lose_the_lease(world, job, 0.0, WorkerEnding("the process is ending"))
    assert world.run("stream", job) == Dropped("worker_ending")
    assert world.row(job).postponed_since is None


def lose_the_lease(world: World, job: str, waited_s: float, lost: LeaseLost | None = None) -> None:
    world.run_to("stream", job)
    with world.database.engine.begin() as connection:
        connection.execute(sa.update(artifact_jobs).values(postponed_since=after(-waited_s) if waited_s else None))
    world.source.script(URL, Says(body=[lost or LeaseLost("it was not renewed in time")]))


OVERTAKEN = Says(body=[Overtaken("a later holder of this job works on the part")])


def test_a_part_that_names_a_later_holder_that_the_ledger_does_not_know_costs_an_attempt(
    world: World, job: str
) -> None:
    """Handed back it would be due at once, and the same again, for ever."""
    world.run_to("stream", job)
    world.source.script(URL, OVERTAKEN)
    assert world.run("stream", job) == Failed("part_overtaken", RETRY_S)
    assert world.row(job).attempts == 1


def test_a_job_that_a_later_holder_has_is_left_to_it(world: World, job: str) -> None:
    world.run_to("stream", job)

    def overtake() -> None:
        world.sql("UPDATE artifact_jobs SET fence = fence + 1, lease_owner = 'another'")

    world.source.script(URL, Says(body=[overtake, *(OVERTAKEN.body or ())]))
    assert world.run("stream", job) == Dropped("lease_lost")
    assert (world.row(job).attempts, world.row(job).due_at, world.view(job).error_code) == (0, None, None)


@pytest.mark.parametrize("fence", [1 << 40, (1 << 63) - 1, 1 << 70])
def test_a_forged_fence_in_a_sidecar_does_not_keep_a_job_for_ever(world: World, job: str, fence: int) -> None:
    world.source.script(URL, Says(body=[BODY[:1000], Retryable("cut", code="body_cut")]))
    world.drive()
    (sidecar,) = (world.root / ".staging").rglob("*.json")
    lines = sidecar.read_bytes().splitlines(keepends=True)
    told = json.loads(lines[0])
    sidecar.write_bytes(b"".join([json.dumps(told | {"fence": fence}).encode() + b"\n", *lines[1:]]))
    for _ in range(world.deps.policy.retry.max_attempts + 1):
        world.make_due(job)
        dispatch(world.deps)
        for hint in world.publisher.queue:
            carry_out(world.deps, hint)
        world.publisher.queue.clear()
    assert world.row(job).due_at is None
    assert world.view(job).status in (Status.FAILED, Status.COMPLETED)
