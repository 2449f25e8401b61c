"""How long a job has been put off without using up an attempt, and for room, by the database's clock.

`db/waiting.py` keeps both clocks; `core/waits.py` says when they end a job (STREAM-7, HOST-3).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dlpipe.core.model import ArtifactJob
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import State
from dlpipe.core.waits import Waited
from dlpipe.db.clock import after
from tests.ledgers import FOR_GOOD, SOON, WAY, Bench

PUT_OFF = FailureWrite("retry_after", "later", "d", 0.0, uses_attempt=False)
BUSY = FailureWrite("host_busy", "not now", "d", 0.0, uses_attempt=False)
NO_ROOM = FailureWrite("quota_exceeded", "no room", "d", 0.0, uses_attempt=False)
DAY = 86_400.0
AN_HOUR = pytest.approx(3600.0, abs=600.0)
NO_TIME = pytest.approx(0.0, abs=600.0)


def put_off_since_an_hour(bench: Bench) -> str:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), PUT_OFF)
    bench.set(job_id, postponed_since=after(-3600.0))
    return job_id


def without_room_since_an_hour(bench: Bench) -> str:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), NO_ROOM)
    bench.set(job_id, postponed_since=after(-3600.0), room_since=after(-3600.0))
    return job_id


def hand_back(bench: Bench, job: ArtifactJob) -> bool:
    with bench.database.write() as unit:
        return unit.jobs.hand_back(job)


def as_if_passed(bench: Bench, job_id: str, seconds: float) -> None:
    """The wait that was asked for is over, and the next run is due now."""
    row = bench.row(job_id)
    gone = timedelta(seconds=seconds)
    clocks = {name: row[name] and row[name] - gone for name in ("postponed_since", "room_since")}
    bench.set(job_id, due_at=row["due_at"] - gone, **clocks)


def test_how_long_a_job_is_put_off_is_counted_from_the_first_time_and_by_the_ledgers_clock(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), SOON)
    assert bench.row(job_id)["postponed_since"] is None
    bench.fail(bench.hold("head", job_id, run=2), BUSY)
    first = bench.row(job_id)["postponed_since"]
    assert first is not None
    for run, write in ((3, PUT_OFF), (4, NO_ROOM), (5, SOON)):
        bench.fail(bench.hold("head", job_id, run=run), write)
        assert abs(bench.row(job_id)["postponed_since"] - first) < timedelta(minutes=10)
    bench.set(job_id, postponed_since=after(-3600.0))
    assert bench.hold("head", job_id, run=6).waited.put_off_s == AN_HOUR


def test_the_time_in_which_nobody_asked_the_server_is_not_counted(bench: Bench) -> None:
    """A long line before its host, a pause, a scheduler that was off: none of that is the server's doing."""
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), NO_ROOM)
    since = after(-30 * DAY)
    bench.set(job_id, postponed_since=since, room_since=since, due_at=after(-30 * DAY + 60.0))
    waited = bench.hold("head", job_id, run=2).waited
    assert 59.0 <= waited.put_off_s < 600.0
    assert 59.0 <= waited.room_s < 600.0


def test_a_wait_that_costs_an_attempt_is_not_counted(bench: Bench) -> None:
    job_id = put_off_since_an_hour(bench)
    failed = FailureWrite("http_503", "not there", "d", 30 * DAY)
    bench.fail(bench.hold("head", job_id, run=2), failed)
    as_if_passed(bench, job_id, 30 * DAY)
    assert bench.hold("head", job_id, run=3).waited.put_off_s == AN_HOUR


def test_of_the_wait_for_room_other_waits_are_no_part(bench: Bench) -> None:
    job_id = without_room_since_an_hour(bench)
    bench.fail(bench.hold("head", job_id, run=2), replace(BUSY, due_after_s=DAY))
    as_if_passed(bench, job_id, DAY)
    waited = bench.hold("head", job_id, run=3).waited
    assert waited.put_off_s == pytest.approx(DAY + 3600.0, abs=600.0)
    assert waited.room_s == AN_HOUR


@pytest.mark.parametrize(("anew", "room_s"), [(False, AN_HOUR), (True, NO_TIME)], ids=["none", "some"])
def test_the_wait_for_room_begins_anew_once_there_was_some(bench: Bench, anew: bool, room_s: float) -> None:
    job_id = without_room_since_an_hour(bench)
    bench.fail(bench.hold("head", job_id, run=2), replace(NO_ROOM, anew=anew))
    waited = bench.hold("head", job_id, run=3).waited
    assert waited.put_off_s == AN_HOUR
    assert waited.room_s == room_s


def test_a_job_that_is_handed_back_again_and_again_waits_as_well(bench: Bench) -> None:
    job_id = bench.job()
    assert hand_back(bench, bench.hold("head", job_id))
    assert bench.row(job_id)["postponed_since"] is not None
    bench.set(job_id, postponed_since=after(-3600.0))
    job = bench.hold("head", job_id, run=2)
    assert job.waited.put_off_s == AN_HOUR
    assert hand_back(bench, job)
    assert bench.hold("head", job_id, run=3).waited.put_off_s == AN_HOUR


@pytest.mark.parametrize("stage", ["resume_decide", "stream"])
def test_answers_to_head_do_not_end_the_count(bench: Bench, stage: str) -> None:
    job_id = put_off_since_an_hour(bench)
    for name, target in WAY:
        job = bench.hold(name, job_id, run=2)
        assert job.waited.put_off_s > 3000.0
        if name == stage:
            return
        bench.advance(job, name, target)


def test_the_count_ends_with_the_file_in_its_place(bench: Bench) -> None:
    job_id = bench.carry(without_room_since_an_hour(bench), State.FINALIZED, run=2)
    assert (bench.row(job_id)["postponed_since"], bench.row(job_id)["room_since"]) == (None, None)


@pytest.mark.parametrize("wish", ["retry", "refresh"])
def test_the_count_begins_anew_when_its_owner_wants_another_try(bench: Bench, wish: str) -> None:
    job_id = without_room_since_an_hour(bench)
    bench.fail(bench.hold("head", job_id, run=2), FOR_GOOD)
    with bench.database.write() as unit:
        getattr(unit.owned(bench.scope(job_id)), wish)(job_id)
    assert bench.hold("head", job_id, run=3).waited == Waited()
