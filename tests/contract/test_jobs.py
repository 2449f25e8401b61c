"""Claims, and what comes of them, on both engines: every guarded write against every state (STATE-3 … 7, LEASE-2)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dlpipe.core import flow, states
from dlpipe.core.errors import IllegalTransition
from dlpipe.core.model import Scope
from dlpipe.core.ports import Claimed, Past, Refused
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import Moment, State, Status
from dlpipe.db.clock import after, now
from tests.ledgers import FOR_GOOD, LATER, SOON, UNKNOWN, WAY, Bench, everything

S = State
STAGES = [row.name for row in flow.STAGES]
HELD = {"lease_owner": "t", "lease_until": after(600.0)}
FREE = {"lease_owner": None, "lease_until": None}


def test_a_claim_is_told_whose_the_job_is_among_those_of_others(bench: Bench) -> None:
    asked = [{"tenant_id": f"t{n}", "project_id": f"p{n}", "request_id": f"r{n}"} for n in range(3)]
    for fields in asked:
        job = bench.hold("head", bench.job(**fields))
        assert (job.scope, job.request_id) == (Scope(fields["tenant_id"], fields["project_id"]), fields["request_id"])


def test_the_first_claim_starts_the_first_run(bench: Bench) -> None:
    job_id = bench.job(tenant_id="t", ext="pdf", sha256="a" * 64, media_type="a/b", max_bytes=7)
    job = bench.hold("head", job_id, token="mine")
    row = bench.row(job_id)
    assert (row["state"], row["run"], row["fence"], row["lease_owner"], row["due_at"]) == ("LEASED", 1, 1, "mine", None)
    assert row["status"] == "processing"
    assert (job.state, job.run, job.fence, job.lease_owner, job.lease_live) == (S.LEASED, 1, 1, "mine", True)
    assert (job.job_id, job.scope.tenant_id, job.work_id, job.artifact_id) == (job_id, "t", "w", "a")
    assert (job.ext, job.expected_sha256, job.expected_media_type, job.max_bytes) == (".pdf", "a" * 64, "a/b", 7)


def test_each_claim_raises_the_fence_by_one(bench: Bench) -> None:
    job_id = bench.job()
    for number, (stage, target) in enumerate(WAY, start=1):
        job = bench.hold(stage, job_id)
        assert job.fence == bench.row(job_id)["fence"] == number
        bench.advance(job, stage, target)
    assert bench.row(job_id)["fence"] == len(WAY)


@pytest.mark.parametrize("state", list(State))
def test_within_a_run_a_stage_claims_only_where_the_table_lets_it(bench: Bench, state: State) -> None:
    for stage in STAGES:
        job_id = bench.job()
        bench.set(job_id, state=state, run=3, fence=7, due_at=None)
        before = everything(bench.database)
        claim = bench.claim(stage, job_id, run=3)
        row = bench.row(job_id)
        if state in states.claimable(stage):
            assert isinstance(claim, Claimed)
            assert (row["state"], row["run"], row["fence"]) == (states.on_claim(stage) or state, 3, 8)
            assert claim.job.state == row["state"]
            continue
        assert everything(bench.database) == before
        ended = states.is_terminal(state, retry_due=False)
        refused = Refused("job_at_an_end" if ended else "out_of_order")
        assert claim == (Past(state) if flow.is_past(state, stage) else refused)


@pytest.mark.parametrize("state", list(State))
def test_a_new_run_starts_where_the_table_lets_it_and_keeps_what_is_in_its_place(bench: Bench, state: State) -> None:
    for stage in STAGES:
        job_id = bench.job()
        bench.set(job_id, state=state, run=3, fence=7, due_at=now(), attempts=2)
        before = everything(bench.database)
        claim = bench.claim(stage, job_id, run=4)
        row = bench.row(job_id)
        if state in flow.startable(stage):
            assert isinstance(claim, Claimed)
            kept = state if state in (S.FINALIZED, S.INDEXED) else S.LEASED
            assert (row["state"], row["run"], row["fence"], row["due_at"]) == (kept, 4, 8, None)
            assert (claim.job.state, row["attempts"]) == (kept, 2)
            continue
        assert everything(bench.database) == before
        assert isinstance(claim, Refused)


@pytest.mark.parametrize("state", sorted(set(State) - states.FINISHED))
def test_no_run_starts_before_its_time_is_set(bench: Bench, state: State) -> None:
    job_id = bench.job()
    bench.set(job_id, state=state, run=3, fence=7, due_at=None)
    before = everything(bench.database)
    for stage in STAGES:
        assert isinstance(bench.claim(stage, job_id, run=4), Refused)
    assert everything(bench.database) == before


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (1, "older_run"),
        (2, "older_run"),
        (3, "out_of_order"),  # the run that is over
        (5, "out_of_order"),  # a run is left out
        (0, "older_run"),
        (-1, "older_run"),
    ],
)
def test_only_the_next_run_starts(bench: Bench, run: int, reason: str) -> None:
    job_id = bench.job()
    bench.set(job_id, state=S.LEASED, run=3, due_at=now())
    before = everything(bench.database)
    assert bench.claim("head", job_id, run) == Refused(reason)
    assert everything(bench.database) == before


@pytest.mark.parametrize("job_id", [UNKNOWN, "no uuid", "", "'; --"])
def test_a_job_that_nobody_knows_is_refused(bench: Bench, job_id: str) -> None:
    assert bench.claim("head", job_id) == Refused("unknown_job")


@pytest.mark.parametrize("token", ["t", "another"])
def test_a_live_lease_in_the_row_refuses_everybody(bench: Bench, token: str) -> None:
    running, starting = bench.job(), bench.job()
    bench.hold("head", running)
    bench.set(starting, **HELD)
    before = everything(bench.database)
    assert bench.claim("head", running, token=token) == Refused("lease_held")
    assert bench.claim("head", starting, token=token) == Refused("lease_held")
    assert everything(bench.database) == before


def test_a_lease_that_ran_out_makes_way(bench: Bench) -> None:
    job_id = bench.job()
    bench.hold("head", job_id, ttl_s=0.0)
    job = bench.hold("head", job_id, token="next")
    assert (job.fence, job.run, job.lease_owner) == (2, 1, "next")


def test_of_many_who_claim_at_once_one_is_given_the_job(bench: Bench) -> None:
    job_id, together = bench.job(), Barrier(6)

    def one(number: int) -> bool:
        together.wait()
        return isinstance(bench.claim("head", job_id, token=f"t{number}"), Claimed)

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(one, range(6))) == 1
    assert bench.row(job_id)["fence"] == 1


def test_a_message_for_a_stage_that_is_recorded_may_go_on(bench: Bench) -> None:
    job_id = bench.in_state(S.RESUME_OK)
    assert bench.claim("head", job_id) == Past(S.RESUME_OK)
    assert bench.claim("resume_decide", job_id) == Past(S.RESUME_OK)


@pytest.mark.parametrize(("stage", "target"), [*WAY, ("head", S.SKIPPED_DUPLICATE)])
def test_a_recorded_stage_frees_the_lease_and_sets_the_status(bench: Bench, stage: str, target: State) -> None:
    source = next(iter(states.sources(target, Moment.FINISH, stage)))
    job_id = bench.job()
    bench.set(job_id, state=source, run=1, fence=1, due_at=None, published_at=now(), attempts=1, **HELD)
    with bench.database.read() as unit:
        (held,) = unit.backlog.held(10)
    bench.advance(held.job, stage, target)
    row, whole = bench.row(job_id), bench.whole("jobs", job_id)
    assert (row["state"], row["fence"], row["run"], row["attempts"], row["due_at"]) == (target, 1, 1, 1, None)
    assert (row["lease_owner"], row["lease_until"]) == (None, None)
    ended = target in states.FINISHED
    assert (row["published_at"] is None) is ended  # while the chain goes on, the job is on its way
    assert (whole["completed_at"] is not None) is ended
    assert bench.view(job_id).progress == (100 if ended else flow.stage(stage).progress)
    if ended:
        assert (whole["status"], whole["progress"]) == (states.status_of(target, retry_due=False), 100)


def test_success_clears_the_errors_of_earlier_runs(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), SOON)
    bench.carry(job_id, S.DEDUPED, run=2)
    view = bench.view(job_id)
    assert (view.status, view.error_code, view.error_message_safe, view.error_debug_id) == (
        Status.COMPLETED, None, None, None,
    )  # fmt: skip
    assert (view.failed_at, view.attempts, view.run) == (None, 1, 2)


def test_a_step_that_the_table_does_not_have_is_refused_and_changes_nothing(bench: Bench) -> None:
    job_id = bench.job()
    for state in State:
        bench.set(job_id, state=state, run=1, fence=1, due_at=None, **HELD)
        with bench.database.read() as unit:
            (held,) = unit.backlog.held(10)
        before = everything(bench.database)
        for stage in STAGES:
            for target in State:
                if state in states.sources(target, Moment.FINISH, stage):
                    continue
                with pytest.raises(IllegalTransition) as refusal:
                    bench.advance(held.job, stage, target)
                assert (refusal.value.job_id, refusal.value.wanted, refusal.value.actual) == (job_id, target, state)
        assert everything(bench.database) == before


def test_from_planned_nobody_comes_to_streaming_and_the_refusal_says_all(bench: Bench) -> None:
    job_id = bench.job()
    job = bench.hold("head", job_id)
    bench.set(job_id, state=S.PLANNED, due_at=now(), **FREE)
    before = everything(bench.database)
    with pytest.raises(IllegalTransition) as refusal:
        bench.advance(job, "stream", S.STREAMING)
    assert everything(bench.database) == before
    assert set(refusal.value.allowed) == {"RESUME_OK"}
    assert refusal.value.actual == "PLANNED"
    message = str(refusal.value)
    assert all(word in message for word in (job_id, "STREAMING", "RESUME_OK", "PLANNED", "illegal_transition"))


NO_ATTEMPT = FailureWrite("part_busy", "not our turn", "d4", 7.0, uses_attempt=False)
STAYS = FailureWrite("part_busy", "not our turn", "d5", 7.0, keeps_state=True)
STATES_OF_WORK = (S.LEASED, S.HEAD_DONE, S.RESUME_OK, S.STREAMING, S.FINALIZED, S.INDEXED)


@pytest.mark.parametrize(
    "write", [FOR_GOOD, SOON, LATER, NO_ATTEMPT, STAYS], ids=["good", "soon", "later", "no", "stays"]
)
@pytest.mark.parametrize("state", STATES_OF_WORK)
def test_a_failure_is_recorded_from_every_state_of_work(bench: Bench, state: State, write: FailureWrite) -> None:
    job_id = bench.job()
    bench.hold("head", job_id)
    bench.set(job_id, state=state, published_at=now())
    with bench.database.read() as unit:
        (held,) = unit.backlog.held(10)
    bench.fail(held.job, write)
    row, whole = bench.row(job_id), bench.whole("jobs", job_id)
    waits = write.due_after_s is not None
    assert row["state"] == (state if write.keeps_state else S.FAILED)
    assert (row["due_at"] is not None) is waits
    assert row["attempts"] == (1 if write.uses_attempt else 0)
    assert (row["lease_owner"], row["lease_until"], row["published_at"], row["fence"]) == (None, None, None, 1)
    assert whole["status"] == states.status_of(State(row["state"]), retry_due=waits)
    assert (whole["failed_at"] is not None) is (not waits)
    assert (whole["error_code"], whole["error_message_safe"], whole["error_debug_id"]) == (
        write.code, write.message, write.debug_id,
    )  # fmt: skip
    if waits:
        delay = (row["due_at"] - whole["updated_at"]).total_seconds()
        assert write.due_after_s is not None
        assert 0 <= write.due_after_s - delay < 60  # the second statement comes later, much later on a busy machine


def test_a_long_message_is_kept_within_its_column(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), FailureWrite("c" * 64, "é" * 5000, "d", None))
    assert bench.view(job_id).error_message_safe == "é" * 1024
