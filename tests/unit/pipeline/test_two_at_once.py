"""Two jobs, or two holders of one job, that want the same bytes at once: they take turns. RESUME-2, LEASE-3."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dlpipe.core.errors import Retryable
from dlpipe.core.states import State, Status
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done, Dropped, Failed
from dlpipe.pipeline.stages.fetch import WHOLE_OVERLAP_BYTES
from tests.fakes.source import Says
from tests.world import RETRY_S, World, some_bytes

URL = "http://files.example/a.pdf"
BODY = b"%PDF-1.7\n" + some_bytes(150_000)
HALF = 20_000


@pytest.fixture(autouse=True)
def _page(world: World) -> None:
    world.source.put(URL, BODY)


def test_two_jobs_with_the_same_url_take_turns_and_no_attempt_is_used(world: World) -> None:
    first, second = world.plan(URL), world.plan(URL, artifact_id="second")
    world.run_to("stream", first)
    world.run("head", second)
    outcomes: list[Any] = []
    meanwhile = lambda: outcomes.append(world.run("resume_decide", second))  # noqa: E731
    world.source.script(URL, Says(body=[BODY[:HALF], meanwhile, BODY[HALF:]]))
    assert world.run("stream", first) == Done(State.STREAMING)
    assert outcomes == [Failed("part_busy", 30.0)]
    assert (world.row(second).attempts, world.view(second).status) == (0, Status.PENDING)
    for stage in ("finalize", "index", "dedupe"):
        world.run(stage, first)
    world.make_due(second)
    world.drive()
    assert world.state(second) is State.SKIPPED_DUPLICATE
    assert len(world.source.gets(URL)) == 1


def test_a_job_that_waits_for_another_asks_the_server_nothing(world: World) -> None:
    first, second = world.plan(URL), world.plan(URL, artifact_id="second")
    world.run_to("stream", first)
    outcomes: list[Any] = []
    world.source.script(URL, Says(body=[BODY[:HALF], lambda: outcomes.append(world.run("head", second)), BODY[HALF:]]))
    asked = len(world.source.asked)
    assert world.run("stream", first) == Done(State.STREAMING)
    assert outcomes == [Failed("part_busy", 30.0)]
    assert len(world.source.asked) == asked + 1  # the first job's own


@pytest.mark.parametrize("moment", ["waiting for the first byte", "with half of it"])
def test_a_waiting_job_never_takes_the_part_from_one_that_works(world: World, moment: str) -> None:
    """What the sidecar said before the claim is the other job's; it must not pass for the holder."""
    first, second = world.plan(URL), world.plan(URL, artifact_id="second")
    world.source.script(URL, Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]))
    world.try_stream(second)
    world.make_due(second)
    world.source.put(URL, other := os.urandom(len(BODY)), etag='"v2"')  # so the first job begins anew
    world.run_to("stream", first)
    outcomes: list[Any] = []
    world.run("head", second, 2)

    def meanwhile() -> None:
        outcomes.append(world.run("resume_decide", second, 2))

    if moment == "with half of it":
        world.source.script(URL, Says(body=[other[:HALF], meanwhile, other[HALF:]]))
    else:
        world.source.before_get = meanwhile
    assert world.run("stream", first) == Done(State.STREAMING)
    assert outcomes == [Failed("part_busy", 30.0)]


def test_when_another_jobs_finalize_takes_the_part_the_file_is_still_right(world: World) -> None:
    first, second = world.plan(URL), world.plan(URL, artifact_id="second")
    for job in (first, second):
        assert world.try_stream(job) == Done(State.STREAMING)
    assert [get.start for get in world.source.gets(URL)] == [0, len(BODY) - WHOLE_OVERLAP_BYTES]  # all of it was there
    assert world.streamed(second)["resumed_from_bytes"] == len(BODY)
    world.run("finalize", first)
    assert world.run("finalize", second) == Failed("part_damaged", RETRY_S)
    for stage in ("index", "dedupe"):
        world.run(stage, first)
    world.make_due(second)
    world.drive()
    assert world.state(second) is State.SKIPPED_DUPLICATE
    assert (list(world.blobs().values()), world.staged()) == ([BODY], [])


def test_a_stopped_stream_is_overtaken_and_its_late_bytes_reach_nobody(world: World) -> None:
    job = world.plan(URL)
    world.run_to("stream", job)

    def meanwhile() -> None:
        lease = world.leases.held.pop(job)  # its time is over, and it does not know
        world.expire(job)
        assert reconcile(world.deps).orphans_requeued == 1
        world.drive()
        assert world.state(job) is State.DEDUPED
        world.leases.held[job] = lease
        before.update(world.everything())

    before: dict[str, Any] = {}
    world.source.script(URL, Says(body=[BODY[:HALF], meanwhile, os.urandom(len(BODY) - HALF)]))
    assert world.run("stream", job) == Dropped("lease_lost")
    assert world.everything() == before
    assert (list(world.blobs().values()), world.staged()) == ([BODY], [])
