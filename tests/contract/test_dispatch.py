"""Which jobs are published, when, and how many; and what becomes of dead holders (HEAL-1, HEAL-2, LEASE-5)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dlpipe.core import flow, states
from dlpipe.core.flow import STAGES
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Held, Hint
from dlpipe.core.states import State, Status
from dlpipe.db.clock import after, now
from tests.ledgers import FOR_GOOD, LATER, SOON, UNKNOWN, Bench, everything

S = State
ALL = 1000


def due(bench: Bench, limit: int = ALL, window: int = ALL, per_host: int = ALL) -> list[Hint]:
    with bench.database.write() as unit:
        return unit.backlog.take_due(limit, window, per_host)


def lost(bench: Bench, lost_after_s: float, limit: int = ALL) -> list[Hint]:
    with bench.database.write() as unit:
        return unit.backlog.take_lost(limit, lost_after_s)


def ids(hints: list[Hint]) -> list[str]:
    return [hint.job_id for hint in hints]


def jobs_on(bench: Bench, *hosts: str) -> list[str]:
    return [bench.job(url=f"https://{host}/{number}") for number, host in enumerate(hosts)]


def test_a_due_job_is_published_once(bench: Bench) -> None:
    job_id = bench.job()
    assert due(bench) == [Hint(job_id, 1, STAGES)]
    assert bench.row(job_id)["published_at"] is not None
    assert bench.row(job_id)["due_at"] is not None  # until its run is claimed
    assert due(bench) == []


def test_a_job_whose_time_has_not_come_is_left_alone(bench: Bench) -> None:
    waiting, held = bench.job(not_before="2040-01-01"), bench.job()
    bench.fail(bench.hold("head", held), LATER)
    assert due(bench) == []
    bench.set(waiting, due_at=after(-0.001))
    assert ids(due(bench)) == [waiting]


@pytest.mark.parametrize("state", list(State))
def test_a_job_without_a_due_time_is_never_published(bench: Bench, state: State) -> None:
    bench.set(bench.job(), state=state, due_at=None)
    assert due(bench) == []


@pytest.mark.parametrize("state", sorted(set(State) - states.FINISHED))
def test_the_hint_names_the_next_run_and_what_it_has_to_do(bench: Bench, state: State) -> None:
    job_id = bench.job()
    bench.set(job_id, state=state, run=4)
    begins = states.start_target(state)
    assert begins is not None
    assert due(bench) == [Hint(job_id, 5, flow.remaining(begins))]


def test_the_highest_priority_goes_first_and_then_who_waits_longest(bench: Bench) -> None:
    late, early, low, high = (bench.job(priority=priority) for priority in (0, 0, -7, 9))
    bench.set(early, due_at=after(-60.0))
    bench.set(low, due_at=after(-600.0))
    assert ids(due(bench, limit=3)) == [high, early, late]
    assert ids(due(bench)) == [low]


def test_the_window_counts_what_is_published_or_at_work(bench: Bench) -> None:
    first, second, *rest = jobs_on(bench, *"abcde")
    for number, job_id in enumerate((first, second, *rest)):
        bench.set(job_id, due_at=after(-100.0 + number))
    assert ids(due(bench, window=2)) == [first, second]
    assert due(bench, window=2) == []
    held = bench.hold("head", first)  # at work, and so still in the window
    assert due(bench, window=2) == []
    bench.fail(held, FOR_GOOD)
    assert ids(due(bench, window=2)) == rest[:1]
    assert ids(due(bench, window=3, limit=1)) == rest[1:2]
    assert due(bench, window=1) == []  # made smaller while jobs are on their way


def test_one_host_cannot_fill_the_window(bench: Bench) -> None:
    a1, a2, a3, b1, b2 = jobs_on(bench, "a", "a", "a", "b", "b")
    for number, job_id in enumerate((a1, a2, a3, b1, b2)):
        bench.set(job_id, due_at=after(-100.0 + number))
    assert ids(due(bench, limit=3, per_host=2)) == [a1, a2, b1]
    assert ids(due(bench, per_host=2)) == [b2]
    assert due(bench, per_host=2) == []
    bench.fail(bench.hold("head", a1), FOR_GOOD)
    assert ids(due(bench, per_host=2)) == [a3]


def test_no_room_is_no_hint(bench: Bench) -> None:
    jobs_on(bench, "a", "b")
    for bounds in ({"limit": 0}, {"window": 0}, {"per_host": 0}):
        assert due(bench, **bounds) == []


def test_two_dispatchers_never_publish_the_same_job(bench: Bench) -> None:
    jobs, together = {bench.job() for _ in range(40)}, Barrier(4)

    def one(_: int) -> list[str]:
        together.wait()
        return ids(due(bench, limit=15))

    with ThreadPoolExecutor(4) as pool:
        taken = [job_id for part in pool.map(one, range(4)) for job_id in part]
    assert len(taken) == len(set(taken))
    assert set(taken) <= jobs
    assert {*taken, *ids(due(bench))} == jobs


def test_waiting_counts_what_is_published_and_held_by_nobody(bench: Bench) -> None:
    first, second, _ = (bench.job() for _ in range(3))
    due(bench, limit=2)
    assert _waiting(bench) == 2
    published = next(job_id for job_id in (first, second) if bench.row(job_id)["published_at"])
    job = bench.hold("head", published)
    assert _waiting(bench) == 1
    bench.advance(job, "head", S.HEAD_DONE)  # now its next message is on its way
    assert _waiting(bench) == 2


def _waiting(bench: Bench) -> int:
    with bench.database.read() as unit:
        return unit.backlog.waiting()


def test_a_message_that_must_be_lost_is_sent_again_for_what_is_left_of_the_run(bench: Bench) -> None:
    unstarted, midway, done, held, unpublished = (bench.job() for _ in range(5))
    due(bench, limit=ALL)
    bench.set(unpublished, published_at=None)
    bench.carry(midway, S.RESUME_OK)
    bench.carry(done, S.DEDUPED)
    bench.hold("head", held)
    assert lost(bench, 60.0) == []
    again = {hint.job_id: hint for hint in lost(bench, -1.0)}
    assert again == {unstarted: Hint(unstarted, 1, STAGES), midway: Hint(midway, 1, STAGES[2:])}
    assert lost(bench, 60.0) == []


def test_of_the_lost_the_oldest_go_first(bench: Bench) -> None:
    jobs = [bench.job() for _ in range(3)]
    due(bench)
    for number, job_id in enumerate(jobs):
        bench.set(job_id, published_at=after(-1000.0 + number))
    assert ids(lost(bench, 60.0, limit=2)) == jobs[:2]
    assert ids(lost(bench, 60.0, limit=2)) == jobs[2:]


def test_a_hint_that_could_not_be_sent_makes_its_job_due_again(bench: Bench) -> None:
    unstarted, midway = bench.job(), bench.job()
    due(bench)
    bench.carry(midway, S.HEAD_DONE)
    before = bench.row(midway)
    with bench.database.write() as unit:
        unit.backlog.unpublish([unstarted, midway, UNKNOWN])
        unit.backlog.unpublish([])
    assert bench.row(midway) == before  # it is in the middle of its run: found as lost, not as due
    assert ids(due(bench)) == [unstarted]


def test_held_and_expired_are_told_apart_by_the_databases_clock(bench: Bench) -> None:
    live, over, _ = (bench.job() for _ in range(3))
    bench.hold("head", live, token="live")
    bench.hold("head", over, token="over", ttl_s=0.0)
    with bench.database.read() as unit:
        held, expired = unit.backlog.held(ALL), unit.backlog.expired(ALL)
        assert (unit.backlog.held(0), unit.backlog.expired(0)) == ([], [])
    assert [(one.job.job_id, one.token) for one in held] == [(live, "live")]
    assert [(one.job.job_id, one.token) for one in expired] == [(over, "over")]
    assert (expired[0].job.state, expired[0].job.run, expired[0].job.fence) == (S.LEASED, 1, 1)


def test_a_renewed_lease_lives_on(bench: Bench) -> None:
    job_id = bench.job()
    job = bench.hold("head", job_id, ttl_s=0.0)
    with bench.database.write() as unit:
        assert unit.jobs.renew([(job_id, job.fence), (UNKNOWN, 1)], 600.0) == {UNKNOWN}
        assert unit.jobs.renew([], 600.0) == set()
        assert [one.job.job_id for one in unit.backlog.held(ALL)] == [job_id]


AT_WORK = (S.LEASED, S.HEAD_DONE, S.RESUME_OK, S.STREAMING, S.FINALIZED, S.INDEXED)


def abandoned(bench: Bench, state: State) -> ArtifactJob:
    """A job in the middle of its work, whose holder is gone."""
    job_id = bench.job()
    bench.hold("head", job_id)
    bench.set(job_id, state=state, published_at=now(), lease_until=after(-1.0))
    with bench.database.read() as unit:
        return next(one.job for one in unit.backlog.expired(ALL) if one.job.job_id == job_id)


@pytest.mark.parametrize("state", AT_WORK)
def test_an_orphan_is_due_at_once_under_a_new_fence(bench: Bench, state: State) -> None:
    job = abandoned(bench, state)
    with bench.database.write() as unit:
        assert unit.backlog.orphan(Held(job, "t"), None) is True
    row = bench.row(job.job_id)
    assert (row["state"], row["fence"], row["run"], row["attempts"]) == (state, job.fence + 1, 1, 1)
    assert (row["lease_owner"], row["lease_until"], row["published_at"]) == (None, None, None)
    assert row["status"] == states.status_of(state, retry_due=True)
    assert [hint.run for hint in due(bench)] == [2]


@pytest.mark.parametrize("state", AT_WORK)
def test_an_orphan_whose_attempts_are_used_up_ends(bench: Bench, state: State) -> None:
    job = abandoned(bench, state)
    with bench.database.write() as unit:
        assert unit.backlog.orphan(Held(job, "t"), FOR_GOOD) is True
    view = bench.view(job.job_id)
    assert (view.state, view.status, view.error_code, view.attempts) == (S.FAILED, Status.FAILED, "http_404", 1)
    assert view.failed_at is not None
    assert due(bench) == []


def test_only_the_holder_that_was_seen_is_orphaned(bench: Bench) -> None:
    job = abandoned(bench, S.LEASED)
    before = everything(bench.database)
    with bench.database.write() as unit:
        assert unit.backlog.orphan(Held(job, "another token"), None) is False
    assert everything(bench.database) == before


@pytest.mark.parametrize("state", AT_WORK)
def test_a_claim_handed_back_is_due_at_once_and_costs_no_attempt(bench: Bench, state: State) -> None:
    job = abandoned(bench, state)
    with bench.database.write() as unit:
        assert unit.jobs.hand_back(job) is True
    row = bench.row(job.job_id)
    assert (row["state"], row["run"], row["attempts"], row["lease_owner"]) == (state, 1, 0, None)
    assert row["status"] == states.status_of(state, retry_due=True)
    assert [hint.run for hint in due(bench)] == [2]


def test_a_failure_that_may_pass_is_published_again_when_its_time_has_come(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), SOON)
    assert due(bench) == [Hint(job_id, 2, STAGES)]
