"""A stage that fails, and an op that is met again: one guarded write, and only success is a result. LEDGER-5."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import LeaseLost, LedgerUnavailable, Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.ports import Endings, Glance, Unit
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import State, Status
from dlpipe.db.schema import artifact_ops
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done, Dropped, Failed
from dlpipe.pipeline.stages.index import Index
from tests.fakes.source import Says
from tests.world import RETRY_S, World, finished, job_of, sha256

URL = "http://files.example/a.bin"
BODY = b"0123456789abcdef" * 20_000


@pytest.fixture
def job(world: World) -> str:
    world.source.put(URL, BODY)
    return world.plan(URL)


# ── failures ───────────────────────────────────────────────────────────────────────────────


def test_a_server_that_always_says_later_loses_the_job_in_the_end(world: World, job: str) -> None:
    later = Postponed("files.example: later", code="retry_after", after_s=3600.0)
    for run in range(1, 20):
        world.source.fail_head(URL, later)
        outcome = world.run("head", job, run)
        assert isinstance(outcome, Failed)
        if outcome.due_after_s is None:
            break
        assert (outcome.code, world.row(job).attempts) == ("retry_after", 0)
        # As if the server had asked for a day, and it had passed.
        world.sql("UPDATE artifact_jobs SET postponed_since = postponed_since - 86400000, due_at = due_at - 3600000")
    assert run == 8  # after the first wait, seven days of them
    view = world.view(job)
    assert (view.status, view.error_code) == (Status.FAILED, "postponed_too_long")
    with world.database.write() as unit:
        unit.owned(Scope()).retry(job)
    again = world.run("head", job, 9)
    assert isinstance(again, Failed)
    assert again.due_after_s is not None  # whoever retries it gives it as long again


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
    def single(self) -> Iterator[Endings]:
        with self.write() as unit:
            yield unit.endings

    @contextmanager
    def read(self) -> Iterator[Unit]:
        with self._inner.read() as unit:
            yield unit

    @contextmanager
    def glance(self) -> Iterator[Glance]:
        with self.read() as unit:
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
    assert world.run("stream", job) == Failed("internal_error", RETRY_S)
    view = world.view(job)
    assert (view.error_code, view.error_debug_id) == ("internal_error", "debug")
    assert (view.status, view.attempts) == (Status.PENDING, 1)
    assert view.error_message_safe == "an unexpected KeyError"
    assert "debug_id=debug KeyError at" in caplog.text
    assert "secret" not in caplog.text
    assert world.op(job, OpType.STREAM).result_code == "internal_error"


def test_a_claim_that_the_ledger_did_not_let_end_is_handed_back_and_costs_no_attempt(world: World, job: str) -> None:
    deps, world.deps = world.deps, replace(world.deps, database=Flaky(world, 2))
    assert world.run("head", job) == Dropped("ledger_unavailable")
    assert world.row(job).lease_owner is not None
    world.deps = deps  # the ledger answers again; the process remembers
    world.run("head", world.plan(URL, artifact_id="next"))
    row = world.row(job)
    assert (row.lease_owner, row.attempts, row.due_at is not None, deps.unreturned) == (None, 0, True, [])
    world.drive()
    assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize(
    "failure",
    [Postponed("not yet", code="host_open", after_s=30.0), Says(body=[LeaseLost("it was not renewed in time")])],
    ids=["a wait", "a lost lease"],
)
def test_a_failure_that_the_ledger_did_not_take_is_handed_back_too(
    world: World, job: str, failure: Says | StageFailure
) -> None:
    world.run_to("stream", job)
    world.source.script(URL, failure)
    deps, world.deps = world.deps, replace(world.deps, database=Flaky(world, 2))
    assert world.run("stream", job) == Dropped("ledger_unavailable")
    world.deps = deps
    world.run("head", world.plan(URL, artifact_id="next"))
    row = world.row(job)
    assert (row.lease_owner, row.attempts, row.due_at is not None, deps.unreturned) == (None, 0, True, [])


def test_a_job_whose_stored_result_cannot_be_read_ends_instead_of_being_sent_for_ever(world: World, job: str) -> None:
    world.run_to("resume_decide", job)
    with world.database.engine.begin() as connection:
        connection.execute(sa.update(artifact_ops).values(result_json="{}"))
    assert world.run("resume_decide", job) == Failed("result_unreadable", None)
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, "result_unreadable")


@pytest.mark.parametrize(
    ("failure", "attempts", "status", "state", "due_after_s"),
    [
        (Permanent("gone", code="http_404"), 1, Status.FAILED, State.FAILED, None),
        (Retryable("busy", code="http_5xx"), 1, Status.PENDING, State.FAILED, RETRY_S),
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
        assert world.run("index", job) == Failed("no_space", RETRY_S)
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
        unit.owned(Scope()).retry(job)


def test_an_op_of_an_earlier_run_keeps_its_first_result(world: World, job: str) -> None:
    again(world, job)
    first = world.op(job, OpType.FINALIZE)
    world.drive()
    (second,) = (op for op in world.ops(job) if op.op_type == OpType.FINALIZE)
    assert (second.result, second.finished_at) == (first.result, first.finished_at)
    assert (first.run, second.run) == (1, 2)
    assert world.state(job) is State.DEDUPED
    assert len(world.artifacts(job)) == 1


def test_a_crash_while_replaying_an_earlier_runs_op_is_carried_on_by_the_same_message(world: World, job: str) -> None:
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


def test_other_bytes_of_the_same_size_are_not_taken_for_the_effect(world: World, job: str) -> None:
    world.run_to("finalize", job)
    world.leave_claimed("finalize", job)
    world.expire(job)
    place = world.deps.store.place("default", "default", sha256(BODY), ".bin")
    target = world.root.joinpath(*place.folders, place.name)
    target.parent.mkdir(parents=True)
    target.write_bytes(b"!" * len(BODY))
    assert world.run("finalize", job) == Done(State.FINALIZED)
    assert target.read_bytes() == BODY
    assert BODY in world.blobs().values()
