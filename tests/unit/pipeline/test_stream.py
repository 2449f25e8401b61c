"""The body: bounded, checked, gone on with, and never a wrong byte in the store. STREAM-1…6."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.states import State, Status
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done, Dropped, Failed
from tests.fakes.source import Says
from tests.world import World, sha256

URL = "http://files.example/a.pdf"
BODY = b"%PDF-1.7\n" + os.urandom(50_000)
HALF = 20_000


@pytest.fixture(autouse=True)
def _page(world: World) -> None:
    world.source.put(URL, BODY)


def streamed(world: World, job: str) -> dict[str, Any]:
    found = world.op(job, OpType.STREAM).result
    assert found is not None
    return dict(found)


def try_stream(world: World, job: str, run: int = 1) -> Any:
    world.run_to("stream", job, run)
    return world.run("stream", job, run)


# ── what makes bytes worthless ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "says", "code"),
    [
        ({"max_bytes": HALF}, Says(), "too_large"),
        ({"max_bytes": HALF}, Says(without=("Content-Length",)), "too_large"),
        ({"sha256": "0" * 64}, Says(), "sha256_mismatch"),
        ({"media_type": "application/pdf"}, Says(body=[b"<!doctype html>" + BODY[15:]]), "media_type_mismatch"),
        ({"media_type": "image/png"}, Says(), "media_type_mismatch"),
    ],
    ids=["declared too large", "too large as it comes", "other bytes", "a web page", "another type"],
)
def test_worthless_bytes_fail_for_good_and_leave_nothing(
    world: World, fields: dict[str, Any], says: Says, code: str
) -> None:
    world.source.script(URL, says)
    job = world.plan(URL, **fields)
    assert try_stream(world, job) == Failed(code, None)
    assert (world.staged(), world.blobs(), world.artifacts(job)) == ([], {}, [])
    assert world.view(job).status is Status.FAILED


def test_too_large_is_noticed_before_much_of_it_has_come(world: World) -> None:
    world.source.put(URL, BODY, chunk=1000)
    world.source.script(URL, Says(without=("Content-Length",)))
    job = world.plan(URL, max_bytes=HALF)
    try_stream(world, job)
    assert world.progress.shown == {}  # and nobody is told that it goes on


@pytest.mark.parametrize(("limit", "ok"), [(len(BODY), True), (len(BODY) - 1, False)])
def test_the_limit_itself_is_allowed(world: World, limit: int, ok: bool) -> None:
    job = world.fetch(URL, max_bytes=limit)
    assert (world.state(job) is State.DEDUPED) == ok


def test_a_limit_in_the_settings_counts_too(world: World) -> None:
    world.stream_policy(max_bytes=HALF)
    assert world.view(world.fetch(URL, max_bytes=10 * len(BODY))).error_code == "too_large"


def test_whole_bytes_that_another_job_brought_are_too_large_as_well(world: World) -> None:
    other = world.plan(URL, artifact_id="other")
    try_stream(world, other)
    job = world.plan(URL, max_bytes=HALF)
    assert try_stream(world, job) == Failed("too_large", None)


def test_a_digest_that_the_server_declares_is_checked(world: World) -> None:
    world.source.script(URL, Says(headers={"Repr-Digest": "sha-256=:" + "A" * 43 + "=:"}))
    job = world.plan(URL)
    assert try_stream(world, job) == Failed("digest_mismatch", pytest.approx(1.0))
    assert world.staged() == []
    world.make_due(job)
    world.drive()
    assert list(world.blobs().values()) == [BODY]


def test_the_right_expectations_pass(world: World) -> None:
    job = world.fetch(URL, sha256=sha256(BODY), media_type="application/pdf", max_bytes=len(BODY))
    assert world.state(job) is State.DEDUPED


def test_sniffing_can_be_switched_off(world: World) -> None:
    world.stream_policy(sniff=False)
    assert world.state(world.fetch(URL, media_type="image/png")) is State.DEDUPED


def test_an_empty_file_is_a_file(world: World) -> None:
    world.source.put(URL, b"")
    job = world.fetch(URL)
    assert (world.state(job), list(world.blobs().values())) == (State.DEDUPED, [b""])
    assert (streamed(world, job)["etag"], world.staged()) == ('"v1"', [])


# ── how bytes end ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("says", "code"),
    [
        (Says(body=[BODY[:HALF]]), "body_short"),
        (Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]), "body_cut"),
    ],
)
def test_a_short_body_is_kept_and_gone_on_with(world: World, says: Says, code: str) -> None:
    world.source.script(URL, says)
    job = world.plan(URL)
    assert try_stream(world, job) == Failed(code, pytest.approx(1.0))
    assert len(world.staged()) == 2  # part and sidecar
    world.make_due(job)
    world.drive()
    assert (streamed(world, job)["resumed_from_bytes"], list(world.blobs().values())) == (HALF, [BODY])


def test_bytes_past_the_declared_end_are_never_stored(world: World) -> None:
    world.source.script(URL, Says(body=[BODY, b"and more"]))
    job = world.fetch(URL)
    assert list(world.blobs().values()) == [BODY]
    assert len(world.source.gets(URL)) == 2  # brought once more: the first answer is not trusted
    assert world.state(job) is State.DEDUPED


def test_a_body_without_a_length_needs_a_proof(world: World) -> None:
    world.source.put(URL, BODY, head=False)
    world.source.script(URL, Says(without=("Content-Length",)))
    job = world.plan(URL)
    assert try_stream(world, job) == Failed("length_unproven", None)
    world.stream_policy(accept_unproven_length=True)
    other = world.source.put(URL + "2", BODY, head=False)
    world.source.script(other, Says(without=("Content-Length",)))
    assert streamed(world, world.fetch(other))["length_unproven"] is True
    # With a digest, or a length that HEAD told, it is proven.
    world.stream_policy(accept_unproven_length=False)
    for number, known in enumerate([{"head": False}, {}], 3):
        url = world.source.put(f"{URL}{number}", BODY, **known)
        world.source.script(url, Says(without=("Content-Length",)))
        job = world.fetch(url, sha256=None if number == 4 else sha256(BODY))
        assert streamed(world, job)["length_unproven"] is False


def test_answers_that_do_not_fit_together_are_given_up_after_a_few(world: World) -> None:
    odd = Says(headers={"Content-Range": "bytes 0-9/10"})  # on a 200
    world.source.script(URL, odd, odd, odd)
    job = world.plan(URL)
    assert try_stream(world, job) == Failed("restarts_exhausted", pytest.approx(1.0))
    assert len(world.source.gets(URL)) == 3


def test_an_answer_that_does_not_fit_is_asked_for_again_from_the_start(world: World) -> None:
    world.source.script(URL, Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]), Says(status=416))
    job = world.plan(URL)
    try_stream(world, job)
    world.make_due(job)
    world.drive()
    assert [get.start for get in world.source.gets(URL)] == [0, HALF, 0]
    assert list(world.blobs().values()) == [BODY]


def test_joined_bytes_that_hash_to_something_else_are_brought_anew(world: World) -> None:
    """The same validator over other bytes (HTTP.md row 37): only the expected digest can tell."""
    world.source.script(URL, Says(body=[os.urandom(HALF), Retryable("cut", code="body_cut")]))
    job = world.plan(URL, sha256=sha256(BODY))
    try_stream(world, job)
    world.make_due(job)
    world.drive()
    assert [get.start for get in world.source.gets(URL)] == [0, HALF, 0]
    assert list(world.blobs().values()) == [BODY]


# ── how long it may take: the clock is passed in ──────────────────────────────────────────────────


def wait(world: World, seconds: float) -> Any:
    def pass_time() -> None:
        world.now += seconds

    return pass_time


def test_a_download_past_its_deadline_is_handed_back_with_its_bytes(world: World) -> None:
    world.stream_policy(deadline_s=100.0, min_rate_bytes_s=0.0)
    world.source.script(URL, Says(body=[BODY[:HALF], wait(world, 101.0), BODY[HALF : HALF + 1], BODY[HALF + 1 :]]))
    job = world.plan(URL)
    assert try_stream(world, job) == Failed("deadline", pytest.approx(1.0))
    world.make_due(job)
    world.drive()
    assert streamed(world, job)["resumed_from_bytes"] == HALF + 1


@pytest.mark.parametrize(("seconds", "code"), [(59.0, None), (61.0, "too_slow")])
def test_a_rate_below_the_least_over_a_window_is_too_slow(
    world: World, seconds: float, code: str | None
) -> None:
    world.stream_policy(min_rate_bytes_s=1000.0, min_rate_window_s=60.0)
    world.source.script(URL, Says(body=[BODY[:10], wait(world, seconds), BODY[10:20], BODY[20:]]))
    job = world.plan(URL)
    outcome = try_stream(world, job)
    assert outcome == (Failed(code, pytest.approx(1.0)) if code else Done(State.STREAMING))


def test_the_time_it_took_is_measured(world: World) -> None:
    world.source.script(URL, Says(body=[BODY[:HALF], wait(world, 2.0), BODY[HALF:]]))
    job = world.fetch(URL)
    (noted,) = world.sql("SELECT * FROM manifest")
    assert (noted.bytes_written, noted.elapsed_ms, noted.avg_write_mibps) == (len(BODY), 2000, 0.024)
    assert streamed(world, job)["bytes_written"] == len(BODY)


# ── two at once ───────────────────────────────────────────────────────────────────────────────────


def test_two_jobs_with_the_same_url_take_turns_and_no_attempt_is_used(world: World) -> None:
    first, second = world.plan(URL), world.plan(URL, artifact_id="second")
    world.run_to("stream", first)
    world.run("head", second)
    outcomes: list[Any] = []
    meanwhile = lambda: outcomes.append(world.run("resume_decide", second))  # noqa: E731
    world.source.script(URL, Says(body=[BODY[:HALF], meanwhile, BODY[HALF:]]))
    assert world.run("stream", first) == Done(State.STREAMING)
    assert outcomes == [Failed("part_busy", 5.0)]
    assert (world.row(second).attempts, world.view(second).status) == (0, Status.PENDING)
    for stage in ("finalize", "index", "dedupe"):
        world.run(stage, first)
    world.make_due(second)
    world.drive()
    assert world.state(second) is State.SKIPPED_DUPLICATE
    assert len(world.source.gets(URL)) == 1


@pytest.mark.parametrize("moment", ["waiting for the first byte", "with half of it"])
def test_a_waiting_job_never_takes_the_part_from_one_that_works(world: World, moment: str) -> None:
    """What the sidecar said before the claim is the other job's; it must not pass for the holder."""
    first, second = world.plan(URL), world.plan(URL, artifact_id="second")
    world.source.script(URL, Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]))
    try_stream(world, second)
    world.make_due(second)
    world.source.put(URL, other := os.urandom(len(BODY)), etag='"v2"')  # so the first job begins anew
    world.run_to("stream", first)
    outcomes: list[Any] = []
    world.run("head", second, 2)
    meanwhile = lambda: outcomes.append(world.run("resume_decide", second, 2))  # noqa: E731
    get = world.source.get
    if moment == "with half of it":
        world.source.script(URL, Says(body=[other[:HALF], meanwhile, other[HALF:]]))
    else:
        world.source.get = lambda *a, **k: (meanwhile(), get(*a, **k))[1]  # type: ignore[method-assign]
    assert world.run("stream", first) == Done(State.STREAMING)
    assert outcomes == [Failed("part_busy", 5.0)]


def test_when_another_jobs_finalize_takes_the_part_the_file_is_still_right(world: World) -> None:
    first, second = world.plan(URL), world.plan(URL, artifact_id="second")
    for job in (first, second):
        assert try_stream(world, job) == Done(State.STREAMING)
    assert len(world.source.gets(URL)) == 1  # the second found all of it there
    assert streamed(world, second)["resumed_from_bytes"] == len(BODY)
    world.run("finalize", first)
    assert world.run("finalize", second) == Failed("part_damaged", pytest.approx(1.0))
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


def test_what_the_server_refuses_for_good_ends_the_job_with_its_code(world: World) -> None:
    world.source.script(URL, Permanent("the server answered 403", code="http_403", hint="check the link"))
    job = world.fetch(URL)
    view = world.view(job, Scope())
    assert (view.status, view.error_code, view.error_debug_id) == (Status.FAILED, "http_403", "debug")
