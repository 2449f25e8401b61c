"""What a message comes to: done once, replayed, dropped, or failed with a code. LEDGER-1…6, LEASE-2…4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dlpipe.core import flow
from dlpipe.core.errors import LedgerUnavailable, Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.ports import Unit
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import State, Status
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done, Dropped, Failed
from dlpipe.pipeline.stages.index import Index
from tests.fakes.source import Says
from tests.world import World, finished, job_of, sha256

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
    before = dict.fromkeys(("artifacts", "manifest", "hash_index"), [])
    assert world.run("stream", job) == Dropped("lease_lost")
    after = world.everything()
    assert {table: after[table] for table in before} == before
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


def test_canceled_in_mid_stream_the_late_bytes_are_not_registered(world: World, job: str) -> None:
    world.run_to("stream", job)

    def cancel() -> None:
        with world.database.write() as unit:
            assert unit.jobs.cancel(Scope(), job) is Status.CANCELED

    world.source.script(URL, Says(body=[BODY[:HALF], cancel, BODY[HALF:]]))
    assert world.run("stream", job) == Dropped("lease_lost")
    assert world.run("finalize", job) == Dropped("job_at_an_end")
    reconcile(world.deps)
    world.drive()
    assert (world.state(job), world.artifacts(job), world.blobs()) == (State.CANCELED, [], {})


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────


class Flaky:
    """A database that does not answer the n-th write."""

    def __init__(self, world: World, broken: int) -> None:
        self._inner, self._left = world.database, broken

    @contextmanager
    def write(self) -> Iterator[Unit]:
        self._left -= 1
        if self._left == 0:
            raise LedgerUnavailable("the test has switched it off")
        with self._inner.write() as unit:
            yield unit

    @contextmanager
    def read(self) -> Iterator[Unit]:
        with self._inner.read() as unit:
            yield unit


@pytest.mark.parametrize(("broken", "state"), [(1, "PLANNED"), (2, "LEASED")])
def test_when_the_ledger_does_not_answer_the_message_is_dropped(
    world: World, job: str, broken: int, state: str
) -> None:
    deps, world.deps = world.deps, replace(world.deps, database=Flaky(world, broken))
    assert world.run("head", job) == Dropped("ledger_unavailable")
    world.deps = deps
    assert (world.row(job).state, finished(world.ops(job))) == (state, [])
    world.expire(job)
    reconcile(world.deps)
    world.drive()
    assert world.state(job) is State.DEDUPED


def test_an_unexpected_exception_is_retryable_and_has_a_debug_id(
    world: World, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.run_to("stream", job)
    secret = "http://user:secret@host/"
    world.source.script(URL, Says(body=[KeyError(secret)]))
    assert world.run("stream", job) == Failed("internal_error", pytest.approx(1.0))
    view = world.view(job)
    assert (view.error_code, view.error_debug_id) == ("internal_error", "debug")
    assert (view.status, view.attempts) == (Status.PENDING, 1)
    assert view.error_message_safe == "an unexpected KeyError"
    assert "debug_id=debug" in caplog.text
    assert world.op(job, OpType.STREAM).result_code == "internal_error"


@pytest.mark.parametrize(
    ("failure", "attempts", "status", "state", "due_after_s"),
    [
        (Permanent("gone", code="http_404"), 1, Status.FAILED, State.FAILED, None),
        (Retryable("busy", code="http_5xx"), 1, Status.PENDING, State.FAILED, 1.0),
        (Retryable("busy", code="http_429", after_s=90.0), 1, Status.PENDING, State.FAILED, 90.0),
        (Postponed("not yet", code="host_open", after_s=30.0), 0, Status.PENDING, State.FAILED, 30.0),
    ],
    ids=["permanent", "retryable", "the server's wish", "postponed uses no attempt"],
)
def test_a_failure_is_one_write(
    world: World,
    job: str,
    failure: StageFailure,
    attempts: int,
    status: Status,
    state: State,
    due_after_s: float | None,
) -> None:
    world.run_to("stream", job)
    world.source.script(URL, failure)
    assert world.run("stream", job) == Failed(failure.code, due_after_s)
    row, view = world.row(job), world.view(job)
    assert (row.attempts, row.state, row.lease_owner, row.published_at) == (attempts, state, None, None)
    assert (view.status, view.error_code, view.error_message_safe) == (status, failure.code, failure.message)
    assert (row.due_at is None) == (due_after_s is None)
    op = world.op(job, OpType.STREAM)
    assert (op.state, op.result_code, op.result) == ("failed", failure.code, None)  # only success is a result
    before = world.everything()
    assert isinstance(world.run("finalize", job), Dropped)
    assert world.everything() == before


def test_a_job_ends_when_its_attempts_are_used_up(world: World, job: str) -> None:
    world.source.script(URL, *[Retryable("busy", code="http_5xx")] * 5)
    for _ in range(5):
        assert world.view(job).status is Status.PENDING
        world.make_due(job)
        world.drive()
    view = world.view(job)
    assert (view.status, view.attempts, view.due_at) == (Status.FAILED, 5, None)
    assert view.error_message_safe == "busy (given up after 5 attempts)"
    world.drive()
    assert len(world.source.gets(URL)) == 5


def test_a_job_whose_file_is_in_place_waits_where_it_is(world: World, job: str, monkeypatch: Any) -> None:
    world.run_to("index", job)
    with monkeypatch.context() as broken:
        broken.setattr(Index, "record", _refuse)
        assert world.run("index", job) == Failed("no_space", pytest.approx(1.0))
    assert (world.state(job), world.view(job).status) == (State.FINALIZED, Status.PROCESSING)
    gets = len(world.source.asked)
    world.make_due(job)
    world.drive()
    assert (world.state(job), world.row(job).run) == (State.DEDUPED, 2)
    assert len(world.source.asked) == gets  # the run did only what remained


def _refuse(*_: object) -> State:
    raise Retryable("full", code="no_space")


# ── replay across runs ────────────────────────────────────────────────────────────────────────────


def again(world: World, job: str) -> None:
    """The job failed for good after its file was in place, and is retried from the start."""
    world.run_to("index", job)
    world.leave_claimed("index", job)
    row = job_of(world, job)
    with world.database.write() as unit:
        unit.jobs.fail(row, FailureWrite("x", "x", "x", None))
    with world.database.write() as unit:
        unit.jobs.retry(Scope(), job)


def test_an_op_of_an_earlier_run_keeps_its_first_result(world: World, job: str) -> None:
    again(world, job)
    first = world.op(job, OpType.FINALIZE)
    world.drive()
    (second,) = (op for op in world.ops(job) if op.op_type == OpType.FINALIZE)
    assert (second.result, second.finished_at) == (first.result, first.finished_at)
    assert (first.run, second.run) == (1, 2)
    assert world.state(job) is State.DEDUPED
    assert len(world.artifacts(job)) == 1


def test_a_crash_while_replaying_an_earlier_runs_op_is_carried_on_by_the_same_message(
    world: World, job: str
) -> None:
    """The claim moved the op to run 2 without recording it there: it must not count as done in run 2."""
    again(world, job)
    world.run_to("finalize", job, run=2)
    world.leave_claimed("finalize", job, run=2)
    world.expire(job)
    assert world.run("finalize", job, run=2) == Done(State.FINALIZED)
    world.run("index", job, run=2)
    assert world.run("dedupe", job, run=2) == Done(State.DEDUPED)
    assert set(world.blobs().values()) == {BODY}


def test_an_op_once_started_is_asked_about_before_it_is_performed_again(world: World, job: str) -> None:
    world.run_to("finalize", job)
    world.leave_claimed("finalize", job)
    world.expire(job)
    (part,) = (world.root / ".staging").rglob("*.part")
    place = world.deps.store.place("default", "default", sha256(BODY), ".bin")
    target = world.root.joinpath(*place.folders, place.name)
    target.parent.mkdir(parents=True)
    part.rename(target)
    target.chmod(0o444)
    assert world.run("finalize", job) == Done(State.FINALIZED)
    assert world.op(job, OpType.FINALIZE).result == {
        "sha256": sha256(BODY),
        "size": len(BODY),
        "already_there": True,
    }
    assert world.staged() == []


def overtake(world: World, job: str) -> None:
    """Reconcile gives the job away while its holder sleeps."""
    with world.database.read() as unit:
        (held,) = unit.jobs.held(10)
    with world.database.write() as unit:
        assert unit.jobs.orphan(held, None)
