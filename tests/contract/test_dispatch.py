"""Which jobs are published, when, and how many; and what becomes of dead holders (HEAL-1, HEAL-2, LEASE-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import sqlalchemy as sa

from dlpipe.core import flow, states
from dlpipe.core.flow import STAGES, OpType, stage
from dlpipe.core.layout import part_slug
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Held, Hint
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.results import StreamResult
from dlpipe.core.states import State, Status
from dlpipe.db.clock import after, now
from dlpipe.db.due import AHEAD
from dlpipe.db.schema import artifact_jobs
from tests.ledgers import FOR_GOOD, LATER, SOON, UNKNOWN, Bench, everything, looking

S = State
ALL = 1000


def due(bench: Bench, limit: int = ALL, window: int = ALL, per_host: int = ALL) -> list[Hint]:
    with bench.database.write() as unit:
        return unit.backlog.take_due(limit, window, per_host)


EVERY = tuple(row.name for row in STAGES)


def lost(bench: Bench, lost_after_s: float, limit: int = ALL, stages: Sequence[str] = EVERY) -> list[Hint]:
    with bench.database.write() as unit:
        return unit.backlog.take_lost(limit, lost_after_s, stages)


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


def test_jobs_that_no_server_has_put_off_go_before_those_that_one_has(bench: Bench) -> None:
    offender, first, second = (bench.job() for _ in range(3))
    bench.fail(bench.hold("head", offender), FailureWrite("retry_after", "busy", "d", 120.0, False, put_off=True))
    bench.set(offender, due_at=after(-600.0))  # it waits longest
    bench.set(first, due_at=after(-60.0))
    bench.set(second, due_at=after(-1.0))
    assert ids(due(bench, limit=2)) == [first, second]
    assert ids(due(bench)) == [offender]


def test_jobs_that_were_put_off_are_not_kept_out_by_what_is_planned_behind_them(bench: Bench) -> None:
    put_off = [bench.job() for _ in range(AHEAD)]
    for number, job_id in enumerate(put_off):
        bench.set(job_id, due_at=after(-600.0 + number), postponed_since=after(-700.0))
    fresh = bench.job()
    assert ids(due(bench, limit=1)) == put_off[:1]
    assert ids(due(bench, limit=1)) == [fresh]


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
    assert _waiting(bench) == {"head": 2}
    published = next(job_id for job_id in (first, second) if bench.row(job_id)["published_at"])
    job = bench.hold("head", published)
    assert _waiting(bench) == {"head": 1}
    bench.advance(job, "head", S.HEAD_DONE)  # now its next message is on its way
    assert _waiting(bench) == {"head": 1, "resume_decide": 1}


def test_who_waits_for_what_follows_from_his_state_and_from_what_is_recorded(bench: Bench) -> None:
    states_of = {S.HEAD_DONE: "resume_decide", S.RESUME_OK: "stream", S.FINALIZED: "index", S.INDEXED: "dedupe"}
    jobs = {bench.job(): state for state in states_of}
    streaming, streamed, again = bench.job(), bench.job(), bench.job()
    due(bench, limit=ALL)
    for job_id, state in jobs.items():
        bench.carry(job_id, state)
    for job_id in (streaming, streamed):
        job = bench.hold("stream", bench.carry(job_id, S.RESUME_OK))
        if job_id == streamed:
            with bench.database.write() as unit:
                op = unit.ledger.start("k" * 64, OpType.STREAM, job)
                unit.ledger.finish(op, StreamResult("a" * 64, 1, 0, 1, 1, 1), "ok")
                unit.jobs.advance(job, stage("stream"), S.STREAMING)
        else:
            bench.free(job_id)
    bench.fail(bench.hold("head", again), SOON)
    due(bench, limit=ALL)
    assert _waiting(bench) == {
        "head": 1, "resume_decide": 1, "stream": 2, "finalize": 1, "index": 1, "dedupe": 1,
    }  # fmt: skip
    found = {hint.job_id: hint.stages[0].name for hint in lost(bench, -1.0)}
    expected = {job_id: states_of[state] for job_id, state in jobs.items()}
    assert found == {**expected, streaming: "stream", streamed: "finalize", again: "head"}


def test_only_messages_for_the_stages_that_are_asked_for_are_taken_for_lost(bench: Bench) -> None:
    fresh, placed = bench.job(), bench.job()
    due(bench, limit=ALL)
    bench.carry(placed, S.FINALIZED)
    assert ids(lost(bench, -1.0, stages=["index", "dedupe"])) == [placed]
    assert ids(lost(bench, -1.0, stages=["head"])) == [fresh]
    assert lost(bench, -1.0, stages=[]) == []


def _waiting(bench: Bench) -> Mapping[str, int]:
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


# ── fair across tenants ───────────────────────────────────────────────────────────────────────────


def of_tenant(bench: Bench, tenant: str, count: int, **fields: object) -> list[str]:
    return [bench.job(tenant_id=tenant, **fields) for _ in range(count)]


def tenants(bench: Bench, hints: list[Hint]) -> Counter[str]:
    return Counter(bench.scope(hint.job_id).tenant_id for hint in hints)


def test_a_tenant_with_many_jobs_cannot_keep_out_one_with_few(bench: Bench) -> None:
    of_tenant(bench, "many", 60)
    few = of_tenant(bench, "few", 5)  # planned last, so they have waited least
    taken = due(bench, limit=10)
    assert tenants(bench, taken) == {"many": 5, "few": 5}
    assert set(few) <= set(ids(taken))


def test_who_has_least_in_flight_is_next(bench: Bench) -> None:
    of_tenant(bench, "first", 10)
    assert tenants(bench, due(bench, limit=6)) == {"first": 6}
    of_tenant(bench, "second", 10)
    assert tenants(bench, due(bench, limit=4)) == {"second": 4}
    assert tenants(bench, due(bench, limit=4)) == {"second": 3, "first": 1}


def test_what_a_tenant_has_no_use_for_goes_to_the_others(bench: Bench) -> None:
    of_tenant(bench, "a", 1)
    of_tenant(bench, "b", 3)
    of_tenant(bench, "c", 50)
    assert tenants(bench, due(bench, limit=30)) == {"a": 1, "b": 3, "c": 26}


def test_a_higher_priority_goes_before_another_tenants_turn(bench: Bench) -> None:
    of_tenant(bench, "urgent", 8, priority=5)
    of_tenant(bench, "patient", 8)
    assert tenants(bench, due(bench, limit=8)) == {"urgent": 8}
    assert tenants(bench, due(bench, limit=8)) == {"patient": 8}


def test_jobs_whose_time_has_not_come_hold_up_nobody(bench: Bench) -> None:
    of_tenant(bench, "a", 5, priority=9, not_before="2040-01-01")
    of_tenant(bench, "b", 5, not_before="2040-01-01")
    of_tenant(bench, "c", 2)
    assert tenants(bench, due(bench)) == {"c": 2}


def test_jobs_behind_those_of_a_host_that_has_enough_are_sent_the_oldest_host_first(bench: Bench) -> None:
    busy = jobs_on(bench, *["busy"] * 8)
    behind = jobs_on(bench, "z", "y", "y", "x")
    for number, job_id in enumerate((*busy, *behind)):
        bench.set(job_id, due_at=after(-100.0 + number))
    assert ids(due(bench, limit=2, per_host=2)) == busy[:2]
    assert ids(due(bench, limit=3, per_host=2)) == behind[:3]
    assert ids(due(bench, limit=3, per_host=2)) == behind[3:]


def test_hosts_whose_jobs_wait_for_later_do_not_hide_those_behind_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlpipe.db.due.MAX_HOSTS", 3)
    for number in range(5):
        bench.job(url=f"https://a{number}.example/f", not_before="2040-01-01")
    jobs_on(bench, *["m.example"] * 9)
    (behind,) = jobs_on(bench, "z.example")
    sent = [job_id for _ in range(4) for job_id in ids(due(bench, limit=2, per_host=1))]
    assert behind in sent


def test_where_there_are_more_tenants_than_a_round_looks_at_the_next_one_goes_on_behind_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlpipe.db.due.MAX_TENANTS", 3)
    for number in range(8):
        of_tenant(bench, f"t{number}", 2)
    of_tenant(bench, "low", 1, priority=-1)
    rounds = [tenants(bench, due(bench, limit=3)) for _ in range(3)]
    assert [*rounds[0], *rounds[1]] == [f"t{number}" for number in range(6)]
    assert {"t6", "t7"} <= set(rounds[2])
    for _ in range(8):
        due(bench)
    assert due(bench) == []  # and everybody has come to his turn, the low priority too
    assert Counter(row["published_at"] is None for row in all_rows(bench)) == {False: 17}


def test_a_lower_priority_waits_until_all_tenants_of_the_higher_one_were_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlpipe.db.due.MAX_TENANTS", 3)
    for number in range(4):
        of_tenant(bench, f"t{number}", 1)
    of_tenant(bench, "low", 1, priority=-1)
    assert tenants(bench, due(bench)) == {"t0": 1, "t1": 1, "t2": 1}
    assert tenants(bench, due(bench)) == {"t3": 1, "low": 1}


def all_rows(bench: Bench) -> list[sa.RowMapping]:
    with looking(bench.database) as connection:
        return list(connection.execute(sa.select(artifact_jobs)).mappings())


def test_two_dispatchers_do_not_fill_the_window_twice(bench: Bench) -> None:
    for _ in range(60):
        bench.job()
    together = Barrier(4)

    def one(_: int) -> int:
        together.wait()
        return len(due(bench, limit=20, window=20))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(one, range(4))) == 20


# ── pages of holders, and mirrors that are stale ──────────────────────────────────────────────────


def test_leases_that_ran_out_are_read_page_by_page(bench: Bench) -> None:
    jobs = [bench.job() for _ in range(7)]
    for job_id in jobs:
        bench.hold("head", job_id)
        bench.set(job_id, lease_until=after(-5.0))  # several at the very same moment
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(artifact_jobs).values(lease_until=sa.select(after(-5.0)).scalar_subquery()))
    for read in ("expired", "held"):
        found: list[str] = []
        last = None
        while True:
            with bench.database.read() as unit:
                page = getattr(unit.backlog, read)(3, last)
            found += [one.job.job_id for one in page]
            if len(page) < 3:
                break
            last = page[-1]
        assert sorted(found) == sorted(jobs)
        with bench.database.engine.begin() as connection:
            connection.execute(sa.update(artifact_jobs).values(lease_until=sa.select(after(500.0)).scalar_subquery()))


@pytest.mark.parametrize("state", [S.DEDUPED, S.SKIPPED_DUPLICATE, S.CANCELED, S.FAILED])
def test_a_mirror_on_a_job_at_its_end_is_cleared_once_it_ran_out(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    bench.set(job_id, lease_owner="gone", lease_until=after(500.0))
    with bench.database.read() as unit:
        (held,) = unit.backlog.held(ALL)
    before = bench.row(job_id)
    with bench.database.write() as unit:
        assert unit.backlog.clear_mirror(held) is False  # it has not run out
    bench.expire(job_id)
    with bench.database.write() as unit:
        assert unit.backlog.clear_mirror(replace(held, token="another")) is False
        assert unit.backlog.clear_mirror(held) is True
        assert unit.backlog.clear_mirror(held) is False
    assert bench.row(job_id) == {**before, "lease_owner": None, "lease_until": None}


def test_the_mirror_of_a_job_in_its_run_is_not_cleared_but_an_orphan(bench: Bench) -> None:
    job = abandoned(bench, S.STREAMING)
    with bench.database.write() as unit:
        assert unit.backlog.clear_mirror(Held(job, "t")) is False


def test_a_mirror_on_a_job_that_is_due_is_cleared_and_the_job_stays_due(bench: Bench) -> None:
    job_id = bench.job()
    bench.set(job_id, lease_owner="gone", lease_until=after(-1.0))
    with bench.database.write() as unit:
        (held,) = unit.backlog.expired(ALL)
        assert unit.backlog.orphan(held, None) is False
        assert unit.backlog.clear_mirror(held) is True
    assert ids(due(bench)) == [job_id]


# ── what staging asks ─────────────────────────────────────────────────────────────────────────────

ENDED = (S.DEDUPED, S.SKIPPED_DUPLICATE, S.CANCELED, S.FAILED)


@pytest.mark.parametrize("state", list(S))
def test_a_part_is_wanted_as_long_as_a_job_that_goes_by_it_is_not_at_its_end(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state, url="https://example.com/x")
    part = part_slug("default", "https://example.com/x")
    with bench.database.read() as unit:
        assert unit.backlog.wanted_parts([part, "0" * 16]) == (set() if state in ENDED else {part})
        assert unit.backlog.wanted_parts([]) == set()
        assert unit.backlog.known([job_id, UNKNOWN, "job"]) == {job_id}
    if state in (S.FAILED, S.DEDUPED):  # a further run is wanted
        bench.set(job_id, due_at=after(500.0))
        with bench.database.read() as unit:
            assert unit.backlog.wanted_parts([part]) == {part}


def test_a_part_is_wanted_by_any_job_of_its_tenant_and_by_no_other(bench: Bench) -> None:
    url = "https://example.com/x"
    bench.in_state(S.CANCELED, url=url, artifact_id="one")
    part = part_slug("default", url)
    bench.job(url=url, tenant_id="other")
    with bench.database.read() as unit:
        assert unit.backlog.wanted_parts([part]) == set()
    bench.job(url=url, artifact_id="two")
    with bench.database.read() as unit:
        assert unit.backlog.wanted_parts([part]) == {part}


def test_a_job_is_read_as_workers_see_it(bench: Bench) -> None:
    job_id = bench.job(tenant_id="other")
    with bench.database.read() as unit:
        found = unit.backlog.get(job_id)
        assert (unit.backlog.get(UNKNOWN), unit.backlog.get("none")) == (None, None)
    assert found is not None
    assert (found.job_id, found.scope.tenant_id, found.state, found.fence) == (job_id, "other", S.PLANNED, 0)


def test_a_walk_goes_on_where_it_was_put(bench: Bench) -> None:
    with bench.database.write() as unit:
        assert unit.cursors.get("files") == ""
        unit.cursors.put("files", "a/b")
        unit.cursors.put("files", "a/c")
        unit.cursors.put("rows", "")
    with bench.database.read() as unit:
        assert (unit.cursors.get("files"), unit.cursors.get("rows")) == ("a/c", "")
