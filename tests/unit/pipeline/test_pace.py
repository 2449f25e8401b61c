"""How slowly, for how long and in how many answers a server may bring a file. STREAM-5, HTTP.md row 47.

The clock is passed in. `dlpipe/pipeline/stages/pace.py` is played through the whole stream stage here.
"""

from __future__ import annotations

from typing import Any

import pytest

from dlpipe.core.errors import Retryable
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State, Status
from dlpipe.pipeline.runner import Done, Failed
from dlpipe.pipeline.stages.digested import file_agrees
from dlpipe.pipeline.stages.pace import FREE_REQUESTS
from tests.fakes.source import Says
from tests.world import RETRY_S, World, some_bytes

URL = "http://files.example/a.bin"
MIRROR = "http://mirror.example/a.bin"
BODY = some_bytes(50_000)
HALF = 20_000
CUT = Retryable("cut", code="body_cut")


@pytest.fixture(autouse=True)
def _page(world: World) -> None:
    world.source.put(URL, BODY)


def wait(world: World, seconds: float) -> Any:
    def pass_time() -> None:
        world.now += seconds

    return pass_time


def test_a_download_past_its_deadline_is_handed_back_with_its_bytes(world: World) -> None:
    world.stream_policy(deadline_s=100.0, min_rate_bytes_s=0.0)
    world.source.script(URL, Says(body=[BODY[:HALF], wait(world, 101.0), BODY[HALF : HALF + 1], BODY[HALF + 1 :]]))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("deadline", RETRY_S)
    world.make_due(job)
    world.drive()
    assert world.streamed(job)["resumed_from_bytes"] == HALF + 1


def test_the_deadline_is_of_all_answers_together(world: World) -> None:
    """Row 21, by a server that ends each answer early: every one of them for itself is quick enough."""
    world.stream_policy(deadline_s=100.0, min_rate_bytes_s=0.0)
    world.source.script(URL, Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("body_cut", RETRY_S)
    for at in range(HALF, HALF + 300, 100):
        line = f"bytes {at}-{at + 99}/{len(BODY)}"
        body = [wait(world, 60.0), BODY[at : at + 100]]
        world.source.script(URL, Says(headers={"Content-Range": line, "Content-Length": "100"}, body=body))
    world.make_due(job)
    world.drive()
    assert world.view(job).error_code == "deadline"


@pytest.mark.parametrize(("seconds", "code"), [(59.0, None), (61.0, "too_slow")])
def test_a_rate_below_the_least_over_a_window_is_too_slow(world: World, seconds: float, code: str | None) -> None:
    world.stream_policy(min_rate_bytes_s=1000.0, min_rate_window_s=60.0)
    world.source.script(URL, Says(body=[BODY[:10], wait(world, seconds), BODY[10:20], BODY[20:]]))
    job = world.plan(URL)
    outcome = world.try_stream(job)
    assert outcome == (Failed(code, RETRY_S) if code else Done(State.STREAMING))


def test_the_window_is_of_all_answers_together(world: World) -> None:
    """Each answer is at its end long before a window is; all of them together are too slow."""
    world.stream_policy(min_rate_bytes_s=1000.0, min_rate_window_s=60.0)
    answers = pieces(HALF, 100, during=wait(world, 5.0))
    job = cut_at_half(world)
    world.source.script(URL, *answers)
    world.drive()
    assert world.view(job).error_code == "too_slow"
    assert len(world.source.gets(URL)) == 12


def test_the_window_goes_on_when_one_connection_follows_several(world: World) -> None:
    world.stream_policy(min_rate_bytes_s=1000.0, min_rate_window_s=60.0)
    world.policy(segments=SegmentPolicy(connections=2, min_bytes=10_000, per_host=1, piece_bytes=10_000))
    not_the_piece = Says(headers={"ETag": '"v2"'}, body=[])
    slow = Says(200, {"Content-Length": str(len(BODY))}, [wait(world, 30.0), BODY[:10], wait(world, 20.0), BODY[10:]])
    world.source.script(URL, not_the_piece, slow)
    world.source.before_get = wait(world, 20.0)
    assert world.try_stream(world.plan(URL)) == Failed("too_slow", RETRY_S)


def test_time_that_was_ours_between_two_answers_is_not_held_against_the_server(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was hashed again, and is brought anew as its digest was another."""

    def slowly(*args: Any) -> bool | None:
        world.now += 600.0
        return file_agrees(*args)

    monkeypatch.setattr("dlpipe.pipeline.stages.fetch.file_agrees", slowly)
    world.source.put(URL, BODY, chunk=1_000)
    job = cut_at_half(world)
    wrong = "sha-256=:" + "A" * 43 + "=:"
    world.source.script(URL, Says(headers={"Repr-Digest": wrong}))
    world.drive()
    assert (world.state(job), world.row(job).attempts) == (State.DEDUPED, 1)


# ── in how many answers ───────────────────────────────────────────────────────────────────────────


def pieces(start: int, size: int, *, body: bytes = BODY, during: Any = None) -> list[Says]:
    """The rest of the file, from `start` on, in answers of so many bytes."""
    found = []
    for at in range(start, len(body), size):
        piece = body[at : at + size]
        line = f"bytes {at}-{at + len(piece) - 1}/{len(body)}"
        parts = [during, piece] if during else [piece]
        found.append(Says(headers={"Content-Range": line, "Content-Length": str(len(piece))}, body=parts))
    return found


def cut_at_half(world: World, url: str = URL, body: bytes = BODY, **fields: Any) -> str:
    """A job whose first run was cut off; its second is due."""
    world.source.script(url, Says(body=[body[:HALF], CUT]))
    world.source.script(MIRROR, CUT)
    job = world.fetch(url, **fields)
    assert world.view(job).error_code == "body_cut"
    world.make_due(job)
    world.source.asked.clear()
    return job


def test_answers_of_a_byte_each_are_given_up_with_what_they_brought(world: World) -> None:
    job = cut_at_half(world)
    world.source.script(URL, *pieces(HALF, 1))
    world.drive()
    assert world.view(job).error_code == "answers_too_small"
    asked = world.source.gets(URL)
    assert [get.start for get in asked] == list(range(HALF, HALF + FREE_REQUESTS))
    assert len(world.staged()) == 2  # part and sidecar
    world.source._scripts.clear()
    world.make_due(job)
    world.drive()
    assert world.streamed(job)["resumed_from_bytes"] == HALF + FREE_REQUESTS
    assert list(world.blobs().values()) == [BODY]


def test_answers_of_a_byte_each_end_the_job_when_its_attempts_are_used_up(world: World) -> None:
    world.policy(retry=RetryPolicy(max_attempts=4))
    job = cut_at_half(world)
    world.source.script(URL, *pieces(HALF, 1))
    while world.row(job).due_at is not None:
        world.make_due(job)
        world.drive()
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, "answers_too_small")
    assert len(world.source.gets(URL)) == 3 * FREE_REQUESTS


def test_bytes_that_were_held_already_do_not_make_an_answer_larger(world: World) -> None:
    """Row 19 with row 47: each answer begins at the start of the file, and goes one byte further."""
    job = cut_at_half(world)
    for end in range(HALF, HALF + 100):
        line = f"bytes 0-{end}/{len(BODY)}"
        said = {"Content-Range": line, "Content-Length": str(end + 1)}
        world.source.script(URL, Says(headers=said, body=[BODY[: end + 1]]))
    world.drive()
    assert world.view(job).error_code == "answers_too_small"
    assert len(world.source.gets(URL)) == FREE_REQUESTS


LARGE = some_bytes((3 << 20) + 5_000)


@pytest.mark.parametrize(
    ("size", "most", "code"),
    [
        (1 << 20, 1, None),
        (64 << 10, 64, None),
        (16 << 10, 64, None),
        (8 << 10, 64, "answers_too_small"),
        (8 << 10, 128, None),
        (64 << 10, 4, "answers_too_small"),
    ],
)
def test_the_least_mean_size_of_answers_is_a_setting(world: World, size: int, most: int, code: str | None) -> None:
    world.source.put(URL, LARGE)
    world.stream_policy(requests_per_mib=most)
    job = cut_at_half(world, body=LARGE)
    world.source.script(URL, *pieces(HALF, size, body=LARGE))
    world.drive()
    assert world.view(job).error_code == code
    assert list(world.blobs().values()) == ([] if code else [LARGE])


def test_several_connections_share_one_bound(world: World) -> None:
    """Pieces that the host is too busy for are asked for again, and each time that counts."""
    world.stream_policy(requests_per_mib=1)
    world.policy(segments=SegmentPolicy(connections=4, min_bytes=10_000, piece_bytes=100))
    assert world.try_stream(world.plan(URL)) == Failed("answers_too_small", RETRY_S)
    assert FREE_REQUESTS - 4 <= len(world.source.gets(URL)) <= FREE_REQUESTS + 4


# ── each server for itself ────────────────────────────────────────────────────────────────────────


def test_a_mirror_does_not_pay_for_the_server_before_it(world: World) -> None:
    """Neither for its answers nor for its time: it goes on from what the other one brought."""
    world.stream_policy(deadline_s=100.0, min_rate_bytes_s=0.0)
    world.source.put(MIRROR, BODY)
    job = cut_at_half(world, mirrors=[MIRROR])
    world.source.script(URL, *pieces(HALF, 1, during=wait(world, 3.0)))
    world.source.script(MIRROR, Says(body=[wait(world, 30.0), BODY[HALF + FREE_REQUESTS :]]))
    world.drive()
    assert (world.state(job), list(world.blobs().values())) == (State.DEDUPED, [BODY])
    assert [get.start for get in world.source.gets(MIRROR)] == [HALF + FREE_REQUESTS]


def test_each_mirror_that_drips_is_bounded_like_the_first_server(world: World) -> None:
    world.source.put(MIRROR, BODY)
    job = cut_at_half(world, mirrors=[MIRROR])
    world.source.script(URL, *pieces(HALF, 1))
    world.source.script(MIRROR, *pieces(HALF + FREE_REQUESTS, 1))
    world.drive()
    assert world.view(job).error_code == "answers_too_small"
    assert len(world.source.gets(MIRROR)) == FREE_REQUESTS
