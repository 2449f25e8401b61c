"""Room is asked for before a part is made, and again as it grows; a refusal costs no attempt. STREAM-7."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import Retryable, WorkerEnding
from dlpipe.core.quota import QuotaPolicy, Room
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State, Status
from dlpipe.db.clock import after, now
from dlpipe.db.schema import artifact_jobs
from dlpipe.pipeline.runner import Failed
from dlpipe.store import LocalStaging
from tests.fakes.source import Says
from tests.world import DEFAULT, World

URL = "http://files.example/a.bin"
MIB = 1 << 20
BODY = os.urandom(3 * MIB)


class Volume(LocalStaging):
    """A volume whose free space the test sets; what the part takes of it is real."""

    free = 100 * MIB
    size = 200 * MIB

    def room(self, tenant: str, canonical_url: str) -> Room:
        return replace(super().room(tenant, canonical_url), volume="v", free=self.free, size=self.size)


@pytest.fixture(autouse=True)
def volume(world: World) -> Volume:
    made = Volume(world.root)
    world.deps = replace(world.deps, staging=made)
    world.source.put(URL, BODY)
    return made


def refused(world: World, job: str) -> None:
    assert world.view(job).error_code == "quota_exceeded"
    assert (world.row(job).attempts, world.view(job).status) == (0, Status.PENDING)


def at_once(world: World, job: str) -> None:
    world.make_due(job)
    world.drive()


def test_a_file_that_does_not_fit_is_refused_before_a_part_is_made(
    world: World, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.free = 3 * MIB - 1
    seen: list[str] = []
    claim = volume.claim

    def counted(*asked: Any) -> Any:
        seen.append("claimed")
        return claim(*asked)

    monkeypatch.setattr(volume, "claim", counted)
    job = world.plan(URL)
    world.run_to("stream", job)
    seen.clear()
    assert world.run("stream", job) == Failed("quota_exceeded", 60.0)
    refused(world, job)
    assert (seen, world.staged(), world.source.gets(URL)) == ([], [], [])
    assert world.reservations.held == {}
    volume.free = 3 * MIB
    at_once(world, job)
    assert world.state(job) is State.DEDUPED


def test_a_size_that_only_the_answer_tells_is_checked_before_a_byte_is_written(world: World, volume: Volume) -> None:
    volume.free = 33 * MIB
    world.source.put(URL, os.urandom(34 * MIB), head=False)
    job = world.fetch(URL)
    refused(world, job)
    assert (len(world.source.gets(URL)), world.staged()) == (1, [])


@pytest.mark.parametrize(
    ("floor", "margin", "ok"), [(97, 1.0, True), (98, 1.0, False), (90, 2.0, True), (90, 4.0, False)]
)
def test_floor_and_margin_are_kept_free(world: World, floor: int, margin: float, ok: bool) -> None:
    world.policy(quota=QuotaPolicy(floor * MIB, margin))
    job = world.fetch(URL)
    assert (world.state(job) is State.DEDUPED) == ok
    if not ok:
        refused(world, job)


def test_what_other_running_jobs_have_yet_to_write_is_not_free(world: World) -> None:
    world.reservations.reserve("v", "somebody", 98 * MIB, 1 << 60)
    job = world.fetch(URL)
    refused(world, job)
    world.reservations.now += 1000.0  # it died, and its promise ran out
    at_once(world, job)
    assert world.state(job) is State.DEDUPED


def test_while_it_runs_its_promise_is_known_and_afterwards_it_is_gone(world: World) -> None:
    seen: list[Any] = []
    look: Callable[[], None] = lambda: seen.append(dict(world.reservations.held))  # noqa: E731
    world.source.script(URL, Says(body=[look, BODY[:MIB], look, BODY[MIB:]]))
    job = world.fetch(URL)
    assert seen[0] == {job: len(BODY)}
    assert (world.state(job), world.reservations.held) == (State.DEDUPED, {})


@pytest.mark.parametrize("failure", [Retryable("cut", code="body_cut"), ValueError("a fault of ours")])
def test_a_failed_download_promises_nothing_any_more(world: World, failure: Exception) -> None:
    world.source.script(URL, Says(body=[BODY[:MIB], failure]))
    world.fetch(URL)
    assert world.reservations.held == {}


def test_only_new_bytes_count_when_going_on(world: World, volume: Volume) -> None:
    world.source.script(URL, Says(body=[BODY[: 2 * MIB], Retryable("cut", code="body_cut")]))
    job = world.fetch(URL)
    volume.free = MIB  # enough for the third that is missing
    at_once(world, job)
    assert world.state(job) is State.DEDUPED
    assert [get.start for get in world.source.gets(URL)] == [0, 2 * MIB]


def test_room_that_goes_meanwhile_stops_it_and_keeps_the_bytes(world: World, volume: Volume) -> None:
    def others_fill_it() -> None:
        volume.free = 0
        world.now += 11.0

    world.source.script(URL, Says(body=[BODY[:MIB], others_fill_it, BODY[MIB : 2 * MIB], BODY[2 * MIB :]]))
    job = world.fetch(URL)
    refused(world, job)
    volume.free = 100 * MIB
    at_once(world, job)
    assert world.state(job) is State.DEDUPED
    assert world.source.gets(URL)[-1].start == MIB


def test_a_body_without_a_length_is_looked_after_as_it_grows(world: World, volume: Volume) -> None:
    big = os.urandom(40 * MIB)
    world.source.put(URL, big, head=False, chunk=MIB)

    def mostly_full() -> None:
        volume.free = 31 * MIB

    world.source.script(
        URL,
        Says(
            body=[big[:MIB], mostly_full, big[MIB : 33 * MIB], big[33 * MIB :]],
            framing="chunked",
            without=("Content-Length",),
        ),
    )
    refused(world, world.fetch(URL))


def test_figures_and_decision_are_in_the_manifest(world: World) -> None:
    world.policy(quota=QuotaPolicy(MIB, 1.5))
    world.reservations.reserve("v", "somebody", 7 * MIB, 1 << 60)
    job = world.fetch(URL)
    with world.database.read() as unit:
        measures = unit.owned(DEFAULT).measures_of(job)
    assert measures is not None
    assert measures["quota_json"] == {
        "decision": "admitted",
        "free_bytes": 100 * MIB,
        "reserved_bytes": 7 * MIB,
        "need_bytes": len(BODY),
        "floor_bytes": MIB,
        "margin_percent": 150,
    }


def test_room_that_is_promised_already_is_not_asked_for_again(
    world: World, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    room = volume.room

    def counted(tenant: str, url: str) -> Room:
        asked.append(url)
        return room(tenant, url)

    monkeypatch.setattr(volume, "room", counted)
    world.source.put(URL, b"small")
    assert world.state(world.fetch(URL)) is State.DEDUPED
    assert len(asked) == 1
    asked.clear()
    other = f"{URL}?unknown"
    world.source.put(other, b"small too", head=False)  # what HEAD does not tell is asked for with the answer
    assert world.state(world.fetch(other)) is State.DEDUPED
    assert len(asked) == 2


# ── every wait for room ends ──────────────────────────────────────────────────────────────────────

NEVER = 1 << 62
DAY = 86_400.0


def failed(world: World, job: str, said: str) -> None:
    view = world.view(job)
    assert (view.status, view.error_code, view.due_at) == (Status.FAILED, "quota_exceeded", None)
    assert said in (view.error_message_safe or "")
    assert (world.staged(), world.reservations.held) == ([], {})


@pytest.mark.parametrize("head", [True, False], ids=["HEAD says so too", "HEAD says nothing"])
def test_a_file_that_the_volume_could_never_hold_ends_its_job_by_the_answer_to_get(
    world: World, volume: Volume, head: bool
) -> None:
    volume.size = 2 * MIB
    world.source.put(URL, BODY, head=head)
    job = world.fetch(URL)
    failed(world, job, "could never hold the file: it would take 3 MiB")
    assert len(world.source.gets(URL)) == 1


@pytest.mark.parametrize(("floor", "margin", "ok"), [(7, 1.0, True), (8, 1.0, False), (1, 4.0, False)])
def test_floor_and_margin_count_against_what_the_volume_could_hold(
    world: World, volume: Volume, floor: int, margin: float, ok: bool
) -> None:
    volume.size = 10 * MIB
    world.policy(quota=QuotaPolicy(floor * MIB, margin))
    assert (world.state(world.fetch(URL)) is State.DEDUPED) is ok


def test_a_floor_that_is_larger_than_the_volume_is_no_fault_of_the_file(world: World, volume: Volume) -> None:
    volume.size = 10 * MIB
    world.policy(quota=QuotaPolicy(100 * MIB))
    refused(world, world.fetch(URL))


@pytest.mark.parametrize("segments", [1, 4])
def test_a_length_that_head_alone_declares_never_ends_a_job(world: World, segments: int) -> None:
    world.policy(segments=SegmentPolicy(segments, min_bytes=1, piece_bytes=MIB))
    world.source.put(URL, BODY, head_length=NEVER)
    assert world.state(world.fetch(URL)) is State.DEDUPED


def test_another_source_is_asked_where_one_declares_more_than_the_volume_could_hold(world: World) -> None:
    mirror = "http://mirror.example/a.bin"
    world.source.put(mirror, BODY)
    world.source.put(URL, BODY, head=False)
    world.source.script(URL, Says(headers={"Content-Length": str(NEVER)}))
    job = world.fetch(URL, mirrors=[mirror])
    assert world.state(job) is State.DEDUPED


def test_a_body_without_a_length_ends_its_job_when_it_has_filled_the_volume(world: World, volume: Volume) -> None:
    volume.size = 80 * MIB
    page = os.urandom(MIB)
    world.source.put(URL, page, head=False)
    world.source.script(URL, Says(body=[page] * 99, framing="chunked", without=("Content-Length",)))
    failed(world, world.fetch(URL), "could never hold")


def waited_for_room(world: World, job: str, seconds: float) -> None:
    with world.database.engine.begin() as connection:
        connection.execute(sa.update(artifact_jobs).values(room_since=after(-seconds), due_at=now()))


def test_a_job_that_has_waited_a_day_for_room_has_failed(world: World, volume: Volume) -> None:
    volume.free = 0
    job = world.fetch(URL)
    waited_for_room(world, job, DAY - 600.0)
    world.drive()
    refused(world, job)
    assert world.source.gets(URL) == []
    waited_for_room(world, job, DAY + 1.0)
    world.drive()
    failed(world, job, "it has waited for room for 24.0 hours")
    assert len(world.source.gets(URL)) == 1  # not by the word of HEAD alone


def test_a_job_that_has_waited_a_day_by_a_length_of_head_that_is_wrong_gets_its_file(
    world: World, volume: Volume
) -> None:
    world.source.put(URL, BODY, head_length=150 * MIB)
    job = world.fetch(URL)
    refused(world, job)
    waited_for_room(world, job, DAY + 1.0)
    world.drive()
    assert world.state(job) is State.DEDUPED


def test_the_day_begins_anew_when_room_that_was_there_is_taken_by_others(world: World, volume: Volume) -> None:
    volume.free = 0
    job = world.fetch(URL)
    waited_for_room(world, job, 2 * DAY)

    def others_fill_it() -> None:
        volume.free = 0
        world.now += 11.0

    volume.free = 100 * MIB
    world.source.script(URL, Says(body=[BODY[:MIB], others_fill_it, BODY[MIB : 2 * MIB], BODY[2 * MIB :]]))
    world.drive()
    refused(world, job)


@pytest.mark.parametrize("lost", [Retryable("cut", code="body_cut"), WorkerEnding("the process is ending")])
def test_a_run_that_had_room_ends_the_wait_for_it_however_it_goes_on(
    world: World, volume: Volume, lost: Exception
) -> None:
    """Else the time for which it streamed would count as one without room."""
    volume.free = 0
    job = world.fetch(URL)
    waited_for_room(world, job, DAY - 600.0)
    before = world.row(job).room_since

    def others_fill_it() -> None:
        volume.free = 0

    volume.free = 100 * MIB
    world.source.script(URL, Says(body=[BODY[:MIB], others_fill_it, lost]))
    world.drive()
    at_once(world, job)
    assert world.view(job).error_code == "quota_exceeded"
    assert world.row(job).room_since - before > 23 * 3_600_000


@pytest.mark.parametrize("declared", [str(150 * MIB), None], ids=["another length", "none"])
def test_the_day_goes_on_where_head_alone_declared_what_there_was_room_for(
    world: World, volume: Volume, declared: str | None
) -> None:
    """Else HEAD would say at each run what fits, and the job would wait for room for a week."""
    volume.free = 2 * MIB
    world.source.put(URL, BODY, head_length=MIB)
    for _ in range(3):
        length = {"Content-Length": declared} if declared else {}
        without = () if declared else ("Content-Length",)
        world.source.script(URL, Says(headers=length, without=without))
    job = world.fetch(URL)
    refused(world, job)
    waited_for_room(world, job, DAY - 600.0)
    before = world.row(job).room_since
    world.drive()
    refused(world, job)
    assert world.row(job).room_since - before < 600_000
    waited_for_room(world, job, DAY + 1.0)
    world.drive()
    failed(world, job, "it has waited for room for 24.0 hours")
