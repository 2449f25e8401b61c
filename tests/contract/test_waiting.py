"""How long a job has been put off without using up an attempt, and for room, by the database's clock.

`db/waiting.py` keeps both clocks; `core/waits.py` says when they end a job (STREAM-7, HOST-3).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dlpipe.core import flow
from dlpipe.core.model import ArtifactJob
from dlpipe.core.nodes import NodePolicy
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


def as_if_earlier(bench: Bench, job_id: str, seconds: float, *also: str) -> None:
    """All that the row says of its wait, and these columns, happened so long before."""
    row, gone = bench.row(job_id), timedelta(seconds=seconds)
    bench.set(job_id, **{name: row[name] and row[name] - gone for name in ("postponed_since", "room_since", *also)})


def under_way(bench: Bench, job_id: str) -> ArtifactJob:
    """A second run, in the middle of `stream`."""
    for name, target in WAY[:2]:
        bench.advance(bench.hold(name, job_id, run=2), name, target)
    return bench.hold("stream", job_id, run=2)


def as_if_passed(bench: Bench, job_id: str, seconds: float) -> None:
    """The wait that was asked for is over, and the next run is due now."""
    as_if_earlier(bench, job_id, seconds, "due_at")


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


@pytest.mark.parametrize("after_it", ["found", "claimed again", "handed back"])
def test_the_time_after_the_lease_of_a_run_is_not_counted(bench: Bench, after_it: str) -> None:
    """The machine was off, or the ledger was away: the job was not put off by that."""
    job_id = without_room_since_an_hour(bench)
    job = under_way(bench, job_id)
    bench.expire(job_id)
    as_if_earlier(bench, job_id, 8 * DAY, "lease_until", "published_at")
    match after_it:
        case "found":
            with bench.database.write() as unit:
                (held,) = unit.backlog.expired(10)
                assert unit.backlog.orphan(held, None)
            job = bench.hold("head", job_id, run=3)
        case "claimed again":
            job = bench.hold("stream", job_id, run=2)
        case _:
            assert hand_back(bench, job)
            job = bench.hold("head", job_id, run=3)
    assert job.waited.put_off_s == AN_HOUR
    assert job.waited.room_s == AN_HOUR


@pytest.mark.parametrize("sent_again", [False, True])
def test_the_time_between_two_stages_is_not_counted(bench: Bench, sent_again: bool) -> None:
    """Its message waited for a worker, or was lost and sent again, day by day."""
    job_id = without_room_since_an_hour(bench)
    bench.advance(bench.hold("head", job_id, run=2), "head", State.HEAD_DONE)
    for _ in range(8):
        as_if_earlier(bench, job_id, DAY, "published_at")
        if sent_again:
            with bench.database.write() as unit:
                assert [hint.job_id for hint in unit.backlog.take_lost(9, 60.0, ["resume_decide"])] == [job_id]
    waited = bench.hold("resume_decide", job_id, run=2).waited
    assert waited.put_off_s == AN_HOUR
    assert waited.room_s == AN_HOUR


def test_a_message_that_is_sent_again_before_its_run_moves_no_clock(bench: Bench) -> None:
    job_id = put_off_since_an_hour(bench)
    bench.set(job_id, published_at=after(-1800.0))
    with bench.database.write() as unit:
        assert len(unit.backlog.take_lost(9, 60.0, ["head"])) == 1
    assert bench.hold("head", job_id, run=2).waited.put_off_s == AN_HOUR


def test_the_time_for_which_a_job_lay_on_a_node_that_is_gone_is_not_counted(bench: Bench) -> None:
    job_id = without_room_since_an_hour(bench)
    for name, target in WAY[:2]:
        bench.advance(bench.hold(name, job_id, run=2), name, target)
    bench.set(job_id, node="gone")
    as_if_earlier(bench, job_id, 8 * DAY, "published_at")
    with bench.database.write() as unit:
        assert unit.nodes.hand_on("gone") == 1
    waited = bench.hold("head", job_id, run=3).waited
    assert waited.put_off_s == AN_HOUR
    assert waited.room_s == AN_HOUR


def test_the_time_before_a_node_passes_a_job_on_is_not_counted(bench: Bench) -> None:
    job_id = put_off_since_an_hour(bench)
    bench.advance(bench.hold("head", job_id, run=2), "head", State.HEAD_DONE)
    as_if_earlier(bench, job_id, 8 * DAY, "published_at")
    with bench.database.write() as unit:
        unit.jobs.claim(flow.stage("resume_decide"), job_id, 2, "t", 60.0, NodePolicy("takes-none"))
    assert bench.view(job_id).error_code == "node_takes_none"
    bench.set(job_id, due_at=after(0.0))
    assert bench.hold("head", job_id, run=3).waited.put_off_s == AN_HOUR


def test_a_clock_for_room_that_an_older_release_left_is_not_gone_by(bench: Bench) -> None:
    """It knows one clock alone, and ends that one with the file in its place."""
    job_id = bench.job()
    bench.set(job_id, room_since=after(-8 * DAY))
    assert bench.hold("head", job_id).waited == Waited()
    assert bench.row(job_id)["room_since"] is None


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


@pytest.mark.parametrize("overtaken", [False, True])
def test_only_the_holder_ends_the_wait_for_room(bench: Bench, overtaken: bool) -> None:
    job_id = without_room_since_an_hour(bench)
    job = bench.hold("head", job_id, run=2)
    if overtaken:
        bench.set(job_id, fence=job.fence + 1)
    with bench.database.write() as unit:
        unit.jobs.has_room(job)
    assert (bench.row(job_id)["room_since"] is None) is not overtaken
    assert bench.row(job_id)["postponed_since"] is not None


@pytest.mark.parametrize("waits", [True, False])
def test_a_hand_back_is_a_wait_unless_the_worker_ends(bench: Bench, waits: bool) -> None:
    job_id = bench.job()
    job = bench.hold("head", job_id)
    with bench.database.write() as unit:
        assert unit.jobs.hand_back(job, waits=waits)
    assert (bench.row(job_id)["postponed_since"] is not None) is waits


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
