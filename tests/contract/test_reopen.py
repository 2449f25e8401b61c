"""A further run of a job that had come to its end, on both engines (PLAN-6, HEAL-3, STATE-4, STATE-5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlpipe.core import states
from dlpipe.core.model import ArtifactRecord, Fault
from dlpipe.core.ports import Hint, KnownBlob, Refused
from dlpipe.core.states import Moment, Purpose, State, Status
from dlpipe.db.clock import after
from tests.ledgers import FOR_GOOD, FOREIGN, LATER, OWN, SOON, UNKNOWN, Bench, everything

S = State
ENDS = sorted(states.refreshable())
WITH_A_FILE = [S.FINALIZED, S.INDEXED, S.DEDUPED, S.SKIPPED_DUPLICATE]
UUID = "11111111-1111-5111-8111-111111111111"


def refresh(bench: Bench, job_id: str) -> Status | None:
    with bench.database.write() as unit:
        return unit.owned(OWN).refresh(job_id)


def cancel(bench: Bench, job_id: str) -> Status | None:
    with bench.database.write() as unit:
        return unit.owned(OWN).cancel(job_id)


def retry(bench: Bench, job_id: str) -> Status | None:
    with bench.database.write() as unit:
        return unit.owned(OWN).retry(job_id)


def reopen(bench: Bench, job_id: str, fence: int | None = None, fault: Fault = Fault.MISSING) -> bool:
    seen = bench.row(job_id)["fence"] if fence is None else fence
    with bench.database.write() as unit:
        return unit.backlog.reopen(job_id, seen, fault)


def hints(bench: Bench) -> list[Hint]:
    with bench.database.write() as unit:
        return unit.backlog.take_due(9, 9, 9)


# ── an owner's wish ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", list(State))
def test_refresh_makes_a_finished_job_due_and_leaves_any_other_alone(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    bench.set(job_id, attempts=3)
    before, row = everything(bench.database), bench.row(job_id)
    status = refresh(bench, job_id)
    if state not in (*ENDS, S.FAILED):
        assert (status, everything(bench.database)) == (row["status"], before)
        return
    now = bench.row(job_id)
    assert status == now["status"] == Status.PENDING
    assert (now["state"], now["run"], now["attempts"], now["purpose"]) == (state, 1, 0, "refresh")
    assert bench.view(job_id).purpose is Purpose.REFRESH
    (hint,) = hints(bench)
    assert (hint.run, hint.stages[0].name, len(hint.stages)) == (2, "head", 6)
    assert bench.hold("head", job_id, run=2).purpose is Purpose.REFRESH
    assert bench.view(job_id).status is Status.PROCESSING


def test_a_refresh_twice_is_one_run(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    refresh(bench, job_id)
    before = everything(bench.database)
    assert refresh(bench, job_id) is Status.PENDING
    assert everything(bench.database) == before


def test_nobody_starts_a_finished_job_unless_a_run_is_wanted(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    before = everything(bench.database)
    assert bench.claim("head", job_id, run=2) == Refused("job_at_an_end")
    assert hints(bench) == []
    assert everything(bench.database) == before


def test_late_messages_of_the_run_before_say_nothing_to_a_job_that_waits(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    refresh(bench, job_id)
    before = everything(bench.database)
    for stage in ("head", "stream", "dedupe"):
        bench.claim(stage, job_id, run=1)
        bench.claim(stage, job_id, run=0)
        bench.claim(stage, job_id, run=3)
    assert everything(bench.database) == before


@pytest.mark.parametrize("state", ENDS)
def test_a_wish_that_has_not_begun_can_be_taken_back(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    was = bench.view(job_id)
    refresh(bench, job_id)
    assert cancel(bench, job_id) is was.status
    assert hints(bench) == []
    now = bench.view(job_id)
    assert (now.state, now.status, now.progress, now.due_at, now.purpose) == (state, was.status, 100, None, None)
    assert now.completed_at == was.completed_at


def test_a_message_of_a_run_that_is_wished_for_no_more_begins_nothing(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    refresh(bench, job_id)
    (hint,) = hints(bench)
    cancel(bench, job_id)
    before = everything(bench.database)
    assert bench.claim(hint.stages[0].name, job_id, run=hint.run) == Refused("job_at_an_end")
    assert everything(bench.database) == before


ON_ITS_WAY = {S.LEASED: "head", S.HEAD_DONE: "resume_decide", S.RESUME_OK: "stream", S.STREAMING: "finalize"}


def begun(bench: Bench, end: State, upto: State) -> str:
    """A refresh of a job that is at its end has come so far."""
    job_id = bench.in_state(end)
    refresh(bench, job_id)
    if upto is S.LEASED:
        bench.hold("head", job_id, run=2)
    else:
        bench.carry(job_id, upto, run=2)
    return job_id


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("upto", ON_ITS_WAY)
@pytest.mark.parametrize("end", ENDS)
def test_canceling_a_further_run_that_has_begun_brings_the_job_back_to_its_end(
    bench: Bench, end: State, upto: State, held: bool
) -> None:
    was = bench.view(bench.in_state(end)).status
    job_id = begun(bench, end, upto)
    if upto is S.LEASED and not held:
        bench.free(job_id)
    elif upto is not S.LEASED and held and upto is not S.RESUME_OK:
        bench.hold(ON_ITS_WAY[upto], job_id, run=2)
    before = bench.row(job_id)
    completed_at = bench.view(job_id).completed_at
    assert completed_at is not None
    assert cancel(bench, job_id) is was
    row, now = bench.row(job_id), bench.view(job_id)
    assert (now.state, now.status, now.progress, now.purpose, now.due_at) == (end, was, 100, None, None)
    assert (now.completed_at, now.withdrawn_run, now.run) == (completed_at, 2, 2)
    assert (row["lease_owner"], row["published_at"], row["stood"]) == (None, None, None)
    assert row["fence"] == before["fence"] + 1  # whoever is at it can record nothing any more
    assert hints(bench) == []
    assert cancel(bench, job_id) is was
    assert bench.row(job_id) == row  # twice is once


@pytest.mark.parametrize("end", ENDS)
def test_a_further_run_that_waits_for_its_retry_can_be_taken_back(bench: Bench, end: State) -> None:
    job_id = bench.in_state(end)
    was = bench.view(job_id).status
    refresh(bench, job_id)
    bench.fail(bench.hold("head", job_id, run=2), SOON)
    assert cancel(bench, job_id) is was
    assert (bench.view(job_id).state, bench.view(job_id).error_code) == (end, None)


def test_after_a_canceled_refresh_comes_another_one(bench: Bench) -> None:
    job_id = begun(bench, S.DEDUPED, S.RESUME_OK)
    cancel(bench, job_id)
    assert refresh(bench, job_id) is Status.PENDING
    assert [(hint.job_id, hint.run) for hint in hints(bench)] == [(job_id, 3)]
    bench.advance(bench.hold("head", job_id, run=3), "head", S.SKIPPED_DUPLICATE)
    assert bench.view(job_id).status is Status.SKIPPED


@pytest.mark.parametrize("end", ENDS)
def test_a_further_run_that_has_begun_is_paused_resumed_and_taken_back(bench: Bench, end: State) -> None:
    job_id = begun(bench, end, S.HEAD_DONE)
    with bench.database.write() as unit:
        paused = unit.owned(OWN).pause(job_id)
    assert paused is not None
    assert (paused.paused_at is not None, paused.purpose) == (True, Purpose.REFRESH)
    with bench.database.write() as unit:
        unit.owned(OWN).resume(job_id)
    assert [(hint.job_id, hint.run) for hint in hints(bench)] == [(job_id, 3)]
    bench.hold("head", job_id, run=3)
    with bench.database.write() as unit:
        unit.owned(OWN).pause(job_id)
    cancel(bench, job_id)
    now = bench.view(job_id)
    assert (now.state, now.paused_at, now.due_at, now.withdrawn_run) == (end, None, None, 3)


def test_from_its_new_file_on_a_further_run_goes_through(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    add(bench, job_id)
    refresh(bench, job_id)
    bench.carry(job_id, S.FINALIZED, run=2)
    before = bench.row(job_id)
    assert cancel(bench, job_id) is Status.PROCESSING
    assert bench.row(job_id) == before
    bench.advance(bench.hold("index", job_id, run=2), "index", S.INDEXED)
    bench.advance(bench.hold("dedupe", job_id, run=2), "dedupe", S.DEDUPED)


@pytest.mark.parametrize("state", [S.FINALIZED, S.INDEXED])
def test_a_job_that_has_a_result_is_not_canceled_while_its_lost_file_is_brought_again(
    bench: Bench, state: State
) -> None:
    job_id = bench.in_state(state)
    add(bench, job_id)
    assert reopen(bench, job_id)
    before = bench.row(job_id)
    assert cancel(bench, job_id) is Status.PENDING
    assert bench.row(job_id) == before


def test_the_purpose_stays_over_failures_and_ends_with_the_job(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    refresh(bench, job_id)
    bench.fail(bench.hold("head", job_id, run=2), SOON)
    assert bench.view(job_id).purpose is Purpose.REFRESH
    bench.fail(bench.hold("head", job_id, run=3), FOR_GOOD)
    assert (bench.view(job_id).status, bench.view(job_id).purpose) == (Status.FAILED, Purpose.REFRESH)
    assert retry(bench, job_id) is Status.PENDING
    job = bench.hold("head", job_id, run=4)
    assert job.purpose is Purpose.REFRESH
    bench.advance(job, "head", S.SKIPPED_DUPLICATE)
    assert (bench.view(job_id).purpose, bench.row(job_id)["due_at"]) == (None, None)


def test_a_refresh_that_fails_for_good_leaves_what_was_registered(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    registered = add(bench, job_id)
    refresh(bench, job_id)
    assert bench.view(job_id).artifacts == (UUID,)
    bench.fail(bench.hold("head", job_id, run=2), FOR_GOOD)
    assert (bench.view(job_id).status, bench.view(job_id).artifacts) == (Status.FAILED, (UUID,))
    assert artifacts(bench, job_id) == [registered]


# ── a file that is gone ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("state", list(State))
def test_a_job_whose_file_is_gone_is_due_from_the_start(bench: Bench, state: State, fault: Fault) -> None:
    job_id = bench.in_state(state)
    bench.set(job_id, attempts=3)
    before, row = everything(bench.database), bench.row(job_id)
    if state not in WITH_A_FILE:
        assert not reopen(bench, job_id, fault=fault)
        assert everything(bench.database) == before
        return
    assert reopen(bench, job_id, fault=fault)
    view, now = bench.view(job_id), bench.row(job_id)
    assert (view.state, view.purpose, view.status) == (states.reopened(state), Purpose.REPAIR, Status.PENDING)
    assert view.status == states.status_of(State(now["state"]), retry_due=True)
    assert (view.error_code, now["fence"], now["attempts"]) == (f"file_{fault}", row["fence"] + 1, 0)
    (hint,) = hints(bench)
    assert (hint.run, hint.stages[0].name, len(hint.stages)) == (2, "head", 6)
    job = bench.hold("head", job_id, run=2)
    assert (job.state, job.purpose) == (S.LEASED, Purpose.REPAIR)
    bench.free(job_id)
    bench.carry(job_id, S.DEDUPED, run=2)
    assert (bench.view(job_id).purpose, bench.view(job_id).error_code) == (None, None)


@pytest.mark.parametrize("state", WITH_A_FILE)
def test_of_two_that_saw_the_same_one_reopens(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    seen = bench.row(job_id)["fence"]
    assert reopen(bench, job_id, seen)
    before = everything(bench.database)
    assert not reopen(bench, job_id, seen)
    assert not reopen(bench, job_id)  # he looked a moment later: it is due already
    assert not reopen(bench, UNKNOWN, seen)
    assert everything(bench.database) == before


def test_who_looked_before_the_file_was_brought_back_reopens_nothing(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    seen = bench.row(job_id)["fence"]
    assert reopen(bench, job_id, seen)
    bench.carry(job_id, S.INDEXED, run=2)
    bench.advance(bench.hold("dedupe", job_id, run=2), "dedupe", S.DEDUPED)
    assert bench.row(job_id)["due_at"] is None
    before = everything(bench.database)
    assert not reopen(bench, job_id, seen)
    assert everything(bench.database) == before


@pytest.mark.parametrize("state", [S.FINALIZED, S.INDEXED])
def test_who_holds_the_job_is_not_disturbed(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    stage = "index" if state is S.FINALIZED else "dedupe"
    job = bench.hold(stage, job_id)
    before = everything(bench.database)
    assert not reopen(bench, job_id)
    assert everything(bench.database) == before
    bench.expire(job_id)
    assert reopen(bench, job_id)  # nobody holds it any more, and whatever he still writes is refused
    with pytest.raises(Exception, match="fence"):
        bench.advance(job, stage, S.INDEXED if state is S.FINALIZED else S.DEDUPED)


@pytest.mark.parametrize("write", [SOON, LATER])
def test_a_job_that_waits_to_go_on_with_what_remains_starts_anew(bench: Bench, write: object) -> None:
    job_id = bench.in_state(S.FINALIZED)
    bench.set(job_id, due_at=after(300.0 if write is LATER else 0.0), published_at=None)
    assert reopen(bench, job_id)
    (hint,) = hints(bench)  # at once, whatever it waited for
    assert hint.stages[0].name == "head"


def test_a_repair_goes_on_with_what_remains_once_the_file_is_back(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    reopen(bench, job_id)
    bench.carry(job_id, S.FINALIZED, run=2)
    assert bench.view(job_id).purpose is Purpose.REPAIR
    bench.set(job_id, due_at=after(0.0), published_at=None)
    (hint,) = hints(bench)
    assert (hint.run, hint.stages[0].name) == (3, "index")
    assert bench.hold("index", job_id, run=3).purpose is Purpose.REPAIR


def test_a_file_that_is_lost_while_a_refresh_is_wanted_needs_no_further_run(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    refresh(bench, job_id)
    before = everything(bench.database)
    assert not reopen(bench, job_id)
    assert everything(bench.database) == before


def test_a_purpose_is_one_of_those_that_are_known(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    with pytest.raises(Exception, match="purpose"):
        bench.set(job_id, purpose="whim")


def test_the_table_is_where_reopening_is_written() -> None:
    assert {step.source for step in states.TABLE if step.moment is Moment.REOPEN} == set(WITH_A_FILE)


# ── marks on artifacts ────────────────────────────────────────────────────────────────────────────


SHA, POINTER = "a" * 64, "local:default/default/aa/" + "a" * 64


def add(bench: Bench, job_id: str, uuid: str = UUID, pointer: str = POINTER, sha256: str = SHA) -> ArtifactRecord:
    with bench.database.write() as unit:
        unit.registry.add_artifact(ArtifactRecord(uuid, OWN, "file", "local", pointer, None, 7, sha256, 1, job_id))
    return artifacts(bench, job_id)[-1]


def artifacts(bench: Bench, job_id: str) -> list[ArtifactRecord]:
    with bench.database.read() as unit:
        return unit.owned(OWN).artifacts_of(job_id)


def faulty(bench: Bench) -> list[str]:
    with bench.database.read() as unit:
        return [record.artifact_uuid for record in unit.registry.faulty(9)]


def mark(bench: Bench, uuid: str = UUID, fault: Fault = Fault.MISSING) -> bool:
    with bench.database.write() as unit:
        return unit.registry.add_fault(uuid, fault)


def mend(bench: Bench, sha256: str = SHA, pointer: str = POINTER) -> int:
    with bench.database.write() as unit:
        return unit.registry.mend(sha256, pointer)


def test_a_mark_is_seen_by_the_owner_and_stays_until_it_is_mended(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    plain = add(bench, job_id)
    assert (plain.fault, plain.fault_found_at, faulty(bench)) == (None, None, [])
    assert mark(bench)
    before = everything(bench.database)
    assert not mark(bench)
    assert not mark(bench, fault=Fault.DAMAGED)
    assert everything(bench.database) == before
    (marked,) = artifacts(bench, job_id)
    assert (marked.fault, faulty(bench)) == (Fault.MISSING, [UUID])
    assert marked.fault_found_at is not None
    assert mend(bench) == 1
    assert mend(bench) == 0
    assert artifacts(bench, job_id) == [plain]
    assert mark(bench, fault=Fault.DAMAGED)  # it happens again
    assert artifacts(bench, job_id)[0].fault is Fault.DAMAGED


def test_a_file_is_mended_for_all_whose_file_it_is_and_for_nobody_else(bench: Bench) -> None:
    other, third = UUID.replace("1", "2"), UUID.replace("1", "3")
    add(bench, bench.in_state(S.DEDUPED))
    add(bench, bench.in_state(S.DEDUPED), other)
    add(bench, bench.in_state(S.DEDUPED), third, POINTER.replace("default/", "other/", 1))
    for uuid in (UUID, other, third):
        mark(bench, uuid)
    with bench.database.read() as unit:
        assert [r.artifact_uuid for r in unit.registry.faulty(1)] == [UUID]
        assert [r.artifact_uuid for r in unit.registry.faulty(9, UUID)] == [other, third]
    assert mend(bench) == 2
    assert faulty(bench) == [third]


def test_only_what_is_registered_can_be_marked(bench: Bench) -> None:
    with pytest.raises(Exception, match=r"(?i)foreign"):
        mark(bench, UNKNOWN)


def test_the_newest_result_of_a_job_that_is_these_bytes(bench: Bench) -> None:
    job_id, other = bench.in_state(S.DEDUPED), bench.in_state(S.DEDUPED)
    first = add(bench, job_id)
    add(bench, job_id, UUID.replace("1", "2"), sha256="b" * 64)
    with bench.database.read() as unit:
        assert unit.registry.result_of(job_id, SHA) == first
        assert unit.registry.result_of(job_id, "c" * 64) is None
        assert unit.registry.result_of(other, SHA) is None
    newest = add(bench, job_id, UUID.replace("1", "3"), POINTER + ".pdf")
    with bench.database.read() as unit:
        assert unit.registry.result_of(job_id, SHA) == newest


def test_what_a_scope_may_not_see_it_may_not_reopen(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    before = everything(bench.database)
    with bench.database.write() as unit:
        for scope in FOREIGN:
            assert unit.owned(scope).refresh(job_id) is None
    assert everything(bench.database) == before


def test_a_marked_file_is_not_what_a_url_is_known_by(bench: Bench) -> None:
    add(bench, bench.in_state(S.DEDUPED))
    blob = KnownBlob(SHA, POINTER, 7)
    with bench.database.write() as unit:
        unit.registry.see_url("default", "https://example.com/x", blob)
        unit.registry.see_url("default", "https://example.com/y", replace(blob, pointer=POINTER + ".pdf"))
        assert unit.registry.known_url("default", "https://example.com/x", 9.0) == blob
    mark(bench, fault=Fault.DAMAGED)
    with bench.database.read() as unit:
        for trust_s in (9.0, None):
            assert unit.registry.known_url("default", "https://example.com/x", trust_s) is None
            assert unit.registry.known_url("default", "https://example.com/y", trust_s) is not None
    mend(bench)
    with bench.database.read() as unit:
        assert unit.registry.known_url("default", "https://example.com/x", None) == blob
