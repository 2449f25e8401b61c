"""What a message comes to: done once, replayed, dropped, or failed with a code. LEDGER-1…6, LEASE-2…4."""

from __future__ import annotations

from typing import Any

import pytest

from dlpipe.core import crash, flow
from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.states import State, Status
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done, Dropped
from tests.fakes.source import Says
from tests.world import World, finished

URL = "http://files.example/a.bin"
BODY = b"0123456789abcdef" * 20_000
STAGES = [row.name for row in flow.STAGES]
HALF = len(BODY) // 2


@pytest.fixture
def job(world: World) -> str:
    world.source.put(URL, BODY)
    return world.plan(URL)


# ── messages that come late, early, doubled ───────────────────────────────────────────────────────


def test_each_stage_moves_the_job_one_state_on(world: World, job: str) -> None:
    states = []
    for name in STAGES:
        outcome = world.run(name, job)
        assert outcome == Done(world.state(job))
        states.append(world.state(job))
    assert states == ["HEAD_DONE", "RESUME_OK", "STREAMING", "FINALIZED", "INDEXED", "DEDUPED"]
    assert world.row(job).fence == len(STAGES)
    assert finished(world.ops(job)) == [row.op for row in flow.STAGES]


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_message_five_times_is_one_effect(world: World, job: str, stage: str) -> None:
    world.run_to(stage, job)
    first = world.run(stage, job)
    assert isinstance(first, Done)
    before, asked = world.everything(), list(world.source.asked)
    for _ in range(4):
        assert world.run(stage, job) == Done(first.state, replayed=True)
    assert world.everything() == before
    assert world.source.asked == asked


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_stage_that_comes_too_early_has_no_effect(world: World, job: str, stage: str) -> None:
    before = world.everything()
    assert isinstance(world.run(stage, job), Dropped)  # nothing has begun
    assert world.everything() == before
    world.run("head", job)
    before = world.everything()
    for name in STAGES[STAGES.index(stage) + 1 :] or [stage]:
        if name != "resume_decide":
            assert world.run(name, job) == Dropped("out_of_order")
    assert world.everything() == before


@pytest.mark.parametrize("run", [0, 1])
def test_a_message_of_an_older_run_has_no_effect(world: World, job: str, run: int) -> None:
    world.leave_claimed("head", job)
    world.expire(job)
    reconcile(world.deps)
    world.run_to("stream", job, run=2)
    before = world.everything()
    for stage in STAGES:
        assert world.run(stage, job, run=run) == Dropped("older_run")
    assert world.everything() == before


def test_a_message_of_a_run_that_nobody_started_has_no_effect(world: World, job: str) -> None:
    world.run_to("stream", job)
    before = world.everything()
    for stage in STAGES:
        assert world.run(stage, job, run=2) == Dropped("out_of_order")
        assert world.run(stage, job, run=7) == Dropped("out_of_order")
    assert world.everything() == before


def test_a_message_for_no_job_is_dropped(world: World) -> None:
    assert world.run("head", "6f1c8c0e-3d0b-5b7e-9a55-6d1b1f4b8f10") == Dropped("unknown_job")


def test_a_claim_that_finds_nothing_to_build_on_is_undone(world: World, job: str) -> None:
    """The unit is rolled back inside its block: neither fence nor lease nor op may stay."""
    world.run("head", job)
    world.sql("DELETE FROM artifact_ops")
    before = world.everything()
    assert world.run("resume_decide", job) == Dropped("out_of_order")
    assert world.everything() == before
    assert world.leases.held == {}


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


def test_while_somebody_else_holds_the_lease_nothing_happens(world: World, job: str) -> None:
    world.leases.take(job)
    before = world.everything()
    assert world.run("head", job) == Dropped("lease_busy")
    assert (world.everything(), world.source.asked) == (before, [])


def test_while_the_row_says_that_it_is_held_nothing_happens_even_without_redis(world: World, job: str) -> None:
    """FLUSHALL gives the lock away; the mirror in the row still keeps the second worker out (LEASE-5)."""
    world.leave_claimed("head", job)
    before = world.everything()
    assert world.run("head", job) == Dropped("lease_held")
    assert world.everything() == before


def test_without_redis_nothing_happens(world: World, job: str) -> None:
    world.leases.down = True
    before = world.everything()
    assert world.run("head", job) == Dropped("lease_unavailable")
    assert world.everything() == before


def test_a_lease_lost_in_mid_stream_records_nothing_and_is_handed_back(world: World, job: str) -> None:
    world.run_to("stream", job)
    world.source.script(URL, Says(body=[BODY[:HALF], lambda: world.leases.lose(job), BODY[HALF:]]))
    ops = len(finished(world.ops(job)))
    assert world.run("stream", job) == Dropped("lease_lost")
    row = world.row(job)
    assert (row.state, row.lease_owner, row.attempts) == ("STREAMING", None, 0)
    assert row.due_at is not None
    assert len(finished(world.ops(job))) == ops
    world.drive()
    assert world.state(job) is State.DEDUPED
    assert world.source.gets(URL)[-1].start == HALF  # what came before is kept


def test_a_worker_whose_fence_was_overtaken_records_nothing_though_it_feels_well(world: World, job: str) -> None:
    """Stopped, overtaken and woken up before its heartbeat noticed: only the fence in the row is left."""
    world.run_to("stream", job)
    world.source.script(URL, Says(body=[BODY[:HALF], lambda: overtake(world, job), BODY[HALF:]]))
    assert world.run("stream", job) == Dropped("lease_lost")
    after = world.everything()
    assert (after["artifacts"], after["manifest"], after["hash_index"]) == ([], [], [])
    assert OpType.STREAM not in finished(world.ops(job))
    assert (world.row(job).run, world.row(job).attempts) == (1, 1)  # as the healer left it
    world.drive()
    assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize("failure", [Retryable("x", code="x"), Permanent("x", code="x"), ValueError("x")])
def test_nor_does_its_failure_count(world: World, job: str, failure: Exception) -> None:
    world.run_to("stream", job)
    world.source.script(URL, Says(body=[lambda: overtake(world, job), failure]))
    assert world.run("stream", job) == Dropped("lease_lost")
    assert world.view(job).error_code is None
    world.drive()
    assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize("stage", STAGES)
def test_a_lease_lost_after_the_effect_keeps_it_from_the_record(world: World, job: str, stage: str) -> None:
    world.run_to(stage, job)
    before = finished(world.ops(job))
    crash.arm(lambda name: world.leases.lose(job) if name == f"{stage}.performed" else None)
    try:
        assert world.run(stage, job) == Dropped("lease_lost")
    finally:
        crash.arm(None)
    assert finished(world.ops(job)) == before
    assert world.row(job).due_at is not None
    world.drive()
    assert world.state(job) is State.DEDUPED
    assert (len(world.artifacts(job)), world.staged()) == (1, [])


def test_what_was_done_when_the_worker_was_told_to_end_is_recorded(world: World, job: str) -> None:
    """Handed back instead, a file that has its final name and no part any more would be fetched once more."""
    crash.arm(lambda name: world.leases.give_up() if name.endswith(".performed") else None)
    try:
        for stage in STAGES:
            assert isinstance(world.run(stage, job), Done), stage
    finally:
        crash.arm(None)
    assert world.state(job) is State.DEDUPED
    assert len(world.source.gets(URL)) == 1


def test_a_stream_is_handed_back_when_the_worker_is_told_to_end_and_no_lease_counts_as_lost(
    world: World, job: str
) -> None:
    world.run_to("stream", job)
    world.source.script(URL, Says(body=[BODY[:HALF], world.leases.give_up, BODY[HALF:]]))
    assert world.run("stream", job) == Dropped("worker_ending")
    row = world.row(job)
    assert (row.state, row.lease_owner, row.attempts) == ("STREAMING", None, 0)
    assert row.due_at is not None
    world.drive()
    assert world.state(job) is State.DEDUPED
    assert world.source.gets(URL)[-1].start == HALF


def test_an_op_that_a_later_fence_has_is_not_claimed(world: World, job: str) -> None:
    world.run("head", job)
    world.leave_claimed("resume_decide", job)
    world.expire(job)
    world.sql("UPDATE artifact_ops SET fence = 99 WHERE op_type = 'RESUME'")
    before = world.everything()
    assert world.run("resume_decide", job) == Dropped("lease_lost")
    assert world.everything() == before


def test_a_late_worker_cannot_record_into_the_next_holders_claim(world: World, job: str) -> None:
    """The next run stands in the same state and is held: nothing but the fence tells the two apart."""
    before: dict[str, Any] = {}

    def meanwhile(name: str) -> None:
        if name == "head.performed":
            overtake(world, job)
            world.leave_claimed("head", job, run=2)
            before.update(world.everything())

    crash.arm(meanwhile)
    try:
        assert world.run("head", job) == Dropped("lease_lost")
    finally:
        crash.arm(None)
    assert world.state(job) is State.LEASED
    assert world.everything() == before


def test_canceled_in_mid_stream_the_late_bytes_are_not_registered(world: World, job: str) -> None:
    world.run_to("stream", job)

    def cancel() -> None:
        with world.database.write() as unit:
            assert unit.owned(Scope()).cancel(job) is Status.CANCELED

    world.source.script(URL, Says(body=[BODY[:HALF], cancel, BODY[HALF:]]))
    assert world.run("stream", job) == Dropped("lease_lost")
    assert world.run("finalize", job) == Dropped("job_at_an_end")
    reconcile(world.deps)
    world.drive()
    assert (world.state(job), world.artifacts(job), world.blobs()) == (State.CANCELED, [], {})


def overtake(world: World, job: str) -> None:
    """Reconcile gives the job away while its holder sleeps."""
    with world.database.read() as unit:
        (held,) = unit.backlog.held(10)
    with world.database.write() as unit:
        assert unit.backlog.orphan(held, None)
