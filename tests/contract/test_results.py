"""What is exported and explained, on both engines: pages that meet, one scope only (JOB-4, JOB-5, OPS-7)."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from dlpipe.core.model import ArtifactRecord
from dlpipe.core.states import State
from dlpipe.core.wishes import JobFilter
from dlpipe.db.clock import after
from tests.ledgers import FOR_GOOD, FOREIGN, OWN, UNKNOWN, Bench

POINTER = "local:default/default/aa/" + "a" * 64


def uuid(number: int) -> str:
    return f"00000000-0000-5000-8000-{number:012d}"


def register(bench: Bench, job_id: str, *numbers: int) -> None:
    with bench.database.write() as unit:
        for number in numbers:
            record = ArtifactRecord(uuid(number), OWN, "file", "local", POINTER, None, 7, "a" * 64, 1, job_id)
            unit.registry.add_artifact(record)
            measures = {"run": 1, "sha256": "a" * 64, "pointer": POINTER, "byte_size": 7, "quota_json": {"need": 7}}
            unit.registry.note(uuid(number), job_id, measures)


def test_pages_of_results_meet_without_gap_or_overlap(bench: Bench) -> None:
    # Two results of one job, and uuids in another order than their jobs: neither decides alone.
    jobs = [bench.job() for _ in range(4)]
    for job_id, numbers in zip(jobs, [(9, 2), (7,), (), (1, 8)], strict=True):
        register(bench, job_id, *numbers)
    with bench.database.read() as unit:
        for newest_first in (False, True):
            whole = [told.artifact_uuid for told in unit.owned(OWN).results(99, None, newest_first=newest_first)]
            paged: list[str] = []
            while page := unit.owned(OWN).results(2, paged[-1] if paged else None, newest_first=newest_first):
                paged += [told.artifact_uuid for told in page]
            assert paged == whole
            assert sorted(whole) == [uuid(number) for number in (1, 2, 7, 8, 9)]
        of_one = unit.owned(OWN).results(9, None, job_id=jobs[0])
        assert [told.artifact_uuid for told in of_one] == [uuid(9), uuid(2)]


def test_a_result_is_told_with_its_job_and_measures_and_without_its_place(bench: Bench) -> None:
    job_id = bench.job(url="https://e.org/a?token=hunter2", work_id="W")
    register(bench, job_id, 1)
    with bench.database.read() as unit:
        (told,) = unit.owned(OWN).results(9, None)
    assert (told.job_id, told.work_id, told.url, told.run) == (job_id, "W", "https://e.org/a?token=REDACTED", 1)
    assert told.quota == {"need": 7}
    assert POINTER not in repr(asdict(told))


def test_results_of_others_are_not_told(bench: Bench) -> None:
    job_id = bench.job()
    register(bench, job_id, 1, 2)
    with bench.database.read() as unit:
        assert unit.owned(OWN).artifact(uuid(1)) is not None
        for scope in FOREIGN:
            assert unit.owned(scope).results(9, None) == []
            assert unit.owned(scope).results(9, uuid(1)) == unit.owned(scope).results(9, UNKNOWN) == []
            assert unit.owned(scope).results(9, None, job_id=job_id) == []
            assert unit.owned(scope).artifact(uuid(1)) is unit.owned(scope).artifact(UNKNOWN) is None


def test_a_standing_says_whose_turn_it_is_by_the_databases_clock(bench: Bench) -> None:
    waiting, held = bench.job(), bench.job()
    bench.hold("head", held)
    with bench.database.read() as unit:
        free, busy = unit.owned(OWN).standing(waiting), unit.owned(OWN).standing(held)
    assert free is not None
    assert busy is not None
    assert (free.published_at, free.lease_until) == (None, None)
    assert busy.lease_until is not None
    assert 500 < (busy.lease_until - busy.at).total_seconds() <= 600


@pytest.mark.parametrize(("by", "expected"), [
    ("code", {("http_404", 2), (None, 1)}), ("host", {("example.com", 2), ("other.example", 1)}),
    ("status", {("failed", 2), ("pending", 1)}),
])  # fmt: skip
def test_jobs_are_counted_by_what_they_have_in_common(bench: Bench, by: str, expected: set[tuple[str, int]]) -> None:
    first, second = bench.job(), bench.job()
    bench.job(url="https://other.example/a")
    bench.job(tenant_id="other")
    for job_id in (first, second):
        bench.fail(bench.hold("head", job_id), FOR_GOOD)
    with bench.database.read() as unit:
        tallies = unit.owned(OWN).tally(by, JobFilter(), 9)
        assert {(tally.value, tally.jobs) for tally in tallies} == expected
        assert [tally.jobs for tally in tallies] == sorted((tally.jobs for tally in tallies), reverse=True)
        assert len(unit.owned(OWN).tally(by, JobFilter(), 1)) == 1


def test_a_filter_lets_through_what_it_names(bench: Bench) -> None:
    lost, paused = bench.in_state(State.FAILED, work_id="W"), bench.job(url="https://other.example/a")
    bench.set(paused, paused_at=after(0.0))
    cases = {
        JobFilter(code="http_404"): lost, JobFilter(work_id="W"): lost, JobFilter(ended=True): lost,
        JobFilter(host="other.example"): paused, JobFilter(paused=True): paused, JobFilter(ended=False): paused,
    }  # fmt: skip
    with bench.database.read() as unit:
        for only, job_id in cases.items():
            assert [view.job_id for view in unit.owned(OWN).list_(only, 9, None)] == [job_id], only
        assert unit.owned(OWN).list_(JobFilter(job_type="torrent_download"), 9, None) == []
