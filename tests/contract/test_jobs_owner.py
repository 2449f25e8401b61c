"""What owners see and wish, on both engines; a foreign id is an unknown id (JOB-5, JOB-6, JOB-8, JOB-9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core import states
from dlpipe.core.model import ArtifactRecord, Scope
from dlpipe.core.ports import Unit
from dlpipe.core.states import Moment, State, Status
from dlpipe.core.wishes import JobFilter, Wish
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import after, now
from dlpipe.db.owned import SqlOwned
from dlpipe.db.schema import jobs
from tests.ledgers import FOR_GOOD, FOREIGN, OWN, SOON, UNKNOWN, Bench, everything, fill

S = State
UUID = "11111111-1111-5111-8111-111111111111"
NO_JOBS = ["ABCDEFAB-0000-5000-8000-000000000000", "", "x", "not-a-uuid", "0" * 36, "%", UUID + "\n"]


def result_of(job_id: str) -> ArtifactRecord:
    sha256 = "ab" * 32
    pointer = f"local:default/default/ab/{sha256}.bin"
    return ArtifactRecord(UUID, OWN, "file", "local", pointer, None, 7, sha256, 1, job_id)


def cancel(bench: Bench, job_id: str, scope: Scope = OWN) -> Status | None:
    with bench.database.write() as unit:
        return unit.owned(scope).cancel(job_id)


def retry(bench: Bench, job_id: str, scope: Scope = OWN) -> Status | None:
    with bench.database.write() as unit:
        return unit.owned(scope).retry(job_id)


@pytest.mark.parametrize("state", list(State))
def test_a_job_is_canceled_where_the_table_lets_it(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    before, everything_before = bench.row(job_id), everything(bench.database)
    allowed = state in states.sources(S.CANCELED, Moment.CANCEL) and state is not S.FAILED
    status = cancel(bench, job_id)
    if not allowed:
        assert status == before["status"]
        assert everything(bench.database) == everything_before
        return
    row = bench.row(job_id)
    assert status == row["status"] == Status.CANCELED
    assert (row["state"], row["fence"]) == (S.CANCELED, before["fence"] + 1)
    assert (row["due_at"], row["published_at"], row["lease_owner"], row["lease_until"]) == (None, None, None, None)
    assert cancel(bench, job_id) is Status.CANCELED
    assert bench.row(job_id) == row  # twice is once


def test_a_job_that_waits_for_its_retry_can_be_canceled(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), SOON)
    assert cancel(bench, job_id) is Status.CANCELED
    assert bench.view(job_id).state is S.CANCELED


@pytest.mark.parametrize("state", list(State))
def test_only_what_failed_for_good_is_retried(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    bench.set(job_id, attempts=5)
    before, row = everything(bench.database), bench.row(job_id)
    status = retry(bench, job_id)
    if state is not S.FAILED:
        assert status == row["status"]
        assert everything(bench.database) == before
        return
    after_it = bench.row(job_id)
    assert status == after_it["status"] == Status.PENDING
    assert (after_it["state"], after_it["attempts"], after_it["run"]) == (S.FAILED, 0, row["run"])
    assert after_it["due_at"] is not None
    assert after_it["fence"] == row["fence"]
    assert bench.view(job_id).failed_at is None
    bench.carry(job_id, S.DEDUPED, run=2)


def test_a_retry_that_waits_already_is_not_brought_forward(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), replace(SOON, due_after_s=300.0))
    before = everything(bench.database)
    assert retry(bench, job_id) is Status.PENDING
    assert everything(bench.database) == before


@pytest.mark.parametrize("state", list(State))
def test_status_and_state_agree_whatever_happened(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    view = bench.view(job_id)
    waits = view.due_at is not None
    assert (view.state, view.status) == (state, states.status_of(state, retry_due=waits))
    with bench.database.read() as unit:
        assert unit.jobs.get_current_state(job_id) is state


def test_a_view_tells_what_an_owner_may_know(bench: Bench) -> None:
    job_id = bench.job(url="https://user.example/a.pdf?sig=hunter2&x=1#f", request_id="r")
    view = bench.view(job_id)
    assert (view.job_id, view.scope, view.job_type) == (job_id, OWN, "artifact_download")
    assert (view.work_id, view.artifact_id, view.request_id, view.run, view.attempts) == ("w", "a", "r", 0, 0)
    assert view.url == "https://user.example/a.pdf?sig=REDACTED&x=1"
    assert (view.progress, view.completed_at, view.failed_at, view.artifacts) == (0, None, None, ())


def test_a_job_that_failed_can_still_be_asked_for(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), FOR_GOOD)
    view = bench.view(job_id)
    assert (view.status, view.error_code, view.error_message_safe, view.error_debug_id) == (
        Status.FAILED, "http_404", "the server answered 404", "d1",
    )  # fmt: skip
    assert view.failed_at is not None


def test_pages_of_a_list_meet_without_gap_or_overlap(bench: Bench) -> None:
    made = [bench.job() for _ in range(7)]
    with bench.database.engine.begin() as connection:
        # Two at the same moment: then the id decides.
        for number, job_id in enumerate(made):
            moment = sa.update(jobs).where(jobs.c.job_id == job_id).values(created_at=after(-100.0 + number // 2))
            connection.execute(moment)
        order = sa.select(jobs.c.job_id).order_by(jobs.c.created_at.desc(), jobs.c.job_id.desc())
        newest_first = list(connection.scalars(order))
    found: list[str] = []
    with bench.database.read() as unit:
        while page := unit.owned(OWN).list_(None, 2, found[-1] if found else None):
            found += [view.job_id for view in page]
    assert found == newest_first


def test_a_list_can_be_of_one_status(bench: Bench) -> None:
    pending, canceled = bench.in_state(S.PLANNED), bench.in_state(S.CANCELED)
    with bench.database.read() as unit:
        assert [view.job_id for view in unit.owned(OWN).list_(Status.CANCELED, 9, None)] == [canceled]
        assert [view.job_id for view in unit.owned(OWN).list_(Status.PENDING, 9, None)] == [pending]
        assert unit.owned(OWN).list_(Status.COMPLETED, 9, None) == []


@pytest.mark.parametrize("only", [None, Status.FAILED, Status.COMPLETED, JobFilter(ended=True)])
def test_a_list_that_is_asked_for_again_and_again_is_not_planned_each_time(
    postgres_url: str, only: JobFilter | Status | None
) -> None:
    database = SqlDatabase(postgres_url)
    fill(database, 4_000)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        for _ in range(15):  # from the fifth on it is prepared, and five times after that it is planned all the same
            assert len(SqlOwned(connection, OWN).list_(only, 9, None)) == 9
        plans = "SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE '%%download_jobs%%'"
        assert connection.exec_driver_sql(plans).scalar_one() >= 1
    database.close()


def test_counts_name_every_status(bench: Bench) -> None:
    for state in (S.PLANNED, S.PLANNED, S.CANCELED, S.FAILED, S.HEAD_DONE):
        bench.in_state(state)
    bench.job(tenant_id="other")
    expected = dict.fromkeys(Status, 0) | {
        Status.PENDING: 2, Status.CANCELED: 1, Status.FAILED: 1, Status.PROCESSING: 1,
    }  # fmt: skip
    with bench.database.read() as unit:
        assert unit.owned(OWN).counts() == expected
        assert unit.jobs.counts() == expected | {Status.PENDING: 3}


Question = Callable[[Unit, Scope, str], Any]
QUESTIONS: dict[str, Question] = {
    "get": lambda unit, scope, job_id: unit.owned(scope).get(job_id),
    "get_many": lambda unit, scope, job_id: unit.owned(scope).get_many([job_id]),
    "list after": lambda unit, scope, job_id: unit.owned(scope).list_(None, 9, job_id),
    "cancel": lambda unit, scope, job_id: unit.owned(scope).cancel(job_id),
    "refresh": lambda unit, scope, job_id: unit.owned(scope).refresh(job_id),
    "replay": lambda unit, scope, job_id: unit.owned(scope).replay(job_id, "stream"),
    "retry": lambda unit, scope, job_id: unit.owned(scope).retry(job_id),
    "pause": lambda unit, scope, job_id: unit.owned(scope).pause(job_id),
    "resume": lambda unit, scope, job_id: unit.owned(scope).resume(job_id),
    "standing": lambda unit, scope, job_id: unit.owned(scope).standing(job_id),
    "results": lambda unit, scope, job_id: unit.owned(scope).results(9, None, job_id=job_id),
    "ops": lambda unit, scope, job_id: unit.owned(scope).ops(job_id),
    "artifacts_of": lambda unit, scope, job_id: unit.owned(scope).artifacts_of(job_id),
    "measures_of": lambda unit, scope, job_id: unit.owned(scope).measures_of(job_id),
}


def finished_job(bench: Bench) -> str:
    """A job with something to show for every question."""
    from dlpipe.core.flow import OpType
    from dlpipe.core.results import HeadResult

    job_id = bench.job()
    job = bench.hold("head", job_id)
    with bench.database.write() as unit:
        unit.ledger.finish(unit.ledger.start("op", OpType.HEAD, job), HeadResult(200, ""), "ok")
        unit.registry.add_artifact(ArtifactRecord(UUID, OWN, "file", "local", "p", None, 7, "a" * 64, 1, job_id))
        unit.registry.note(UUID, job_id, {"run": 1, "sha256": "a" * 64, "pointer": "p", "byte_size": 7})
    return job_id


@pytest.mark.parametrize("state", [S.PLANNED, S.FAILED, S.DEDUPED])
@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_a_foreign_job_answers_like_an_unknown_one_and_is_not_touched(bench: Bench, name: str, state: State) -> None:
    job_id, ask = finished_job(bench), QUESTIONS[name]
    bench.set(job_id, state=state, lease_owner=None, lease_until=None, due_at=now() if state is S.PLANNED else None)
    before = everything(bench.database)
    with bench.database.write() as unit:
        unknown = ask(unit, OWN, UNKNOWN)
        assert unknown in (None, [])
        for scope in FOREIGN:
            assert ask(unit, scope, job_id) == unknown
    assert everything(bench.database) == before


@pytest.mark.parametrize("job_id", NO_JOBS)
@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_what_can_be_no_id_answers_like_an_unknown_one(bench: Bench, name: str, job_id: str) -> None:
    finished_job(bench)
    with bench.database.write() as unit:
        assert QUESTIONS[name](unit, OWN, job_id) == QUESTIONS[name](unit, OWN, UNKNOWN)
        assert unit.jobs.get_current_state(job_id) is None


def test_the_owner_gets_answers_to_all_of_it(bench: Bench) -> None:
    """So that the refusals above are about the scope."""
    job_id = finished_job(bench)
    bench.job()
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(created_at=after(60.0)))
    for name, ask in QUESTIONS.items():
        with bench.database.write() as unit:
            assert ask(unit, OWN, job_id) not in (None, []), name


def test_lists_and_counts_show_only_the_scopes_own(bench: Bench) -> None:
    mine, theirs = bench.job(), bench.job(tenant_id="other")
    with bench.database.read() as unit:
        assert [view.job_id for view in unit.owned(OWN).list_(None, 9, None)] == [mine]
        assert [view.job_id for view in unit.owned(OWN).get_many([mine, theirs, UNKNOWN, "x"])] == [mine]
        assert unit.owned(OWN).get_many([]) == []
        assert unit.owned(Scope("default", "other")).list_(None, 9, None) == []
        assert unit.owned(Scope("other")).counts()[Status.PENDING] == 1


@pytest.mark.parametrize("wish", list(Wish))
@pytest.mark.parametrize("state", [S.PLANNED, S.FAILED, S.DEDUPED])
def test_a_wish_for_the_job_of_another_is_not_granted(bench: Bench, wish: Wish, state: State) -> None:
    job_id = bench.in_state(state)
    if wish is Wish.RESUME:
        bench.set(job_id, paused_at=now())
    before = everything(bench.database)
    with bench.database.write() as unit:
        for scope in FOREIGN:
            assert unit.owned(scope).grant(wish, [job_id, UNKNOWN, "x"]) == []
        assert unit.owned(OWN).grant(wish, []) == []
    assert everything(bench.database) == before


def test_a_job_whose_result_is_registered_is_not_canceled_after_a_retry(bench: Bench) -> None:
    job_id = bench.in_state(S.INDEXED)
    with bench.database.write() as unit:
        unit.registry.add_artifact(result_of(job_id))
    bench.fail(bench.hold("dedupe", job_id), FOR_GOOD)
    assert retry(bench, job_id) is Status.PROCESSING
    row = bench.row(job_id)
    assert (row["state"], row["attempts"], row["due_at"] is not None) == (S.INDEXED.value, 0, True)
    assert cancel(bench, job_id) is Status.PROCESSING
    again = bench.hold("dedupe", job_id, run=2)
    assert (again.run, again.state) == (2, S.INDEXED), "what remains is done by a run of its own"


def test_a_further_run_that_failed_for_good_is_retried_from_its_start(bench: Bench) -> None:
    """Its earlier result is no reason to end it before it has looked."""
    job_id = bench.in_state(S.DEDUPED)
    with bench.database.write() as unit:
        unit.registry.add_artifact(result_of(job_id))
        unit.owned(OWN).refresh(job_id)
    bench.fail(bench.hold("head", job_id, run=2), FOR_GOOD)
    assert retry(bench, job_id) is Status.PENDING
    assert bench.row(job_id)["state"] == S.FAILED.value
