"""Held bytes are compared with the server's before anything is added to them. HTTP.md rows 19, 21, 37, 38 and 54."""

from __future__ import annotations

import os

import pytest

from dlpipe.core.errors import Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.resume import ResumePolicy
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State
from dlpipe.pipeline.runner import Done, Failed
from tests.fakes.source import Says
from tests.world import World

URL = "http://files.example/a.bin"
BODY = os.urandom(50_000)
HALF = 20_000
OVERLAP = 5_000
CUT = Retryable("cut", code="body_cut")


@pytest.fixture(autouse=True)
def _page(world: World) -> None:
    world.source.put(URL, BODY, chunk=1_000)
    world.stream_policy(overlap_bytes=OVERLAP)


def half(world: World, held: bytes = BODY[:HALF]) -> str:
    """A job whose first run was cut off in the middle; its second is due."""
    world.source.script(URL, Says(body=[held, CUT]))
    job = world.fetch(URL)
    world.make_due(job)
    return job


def decided(world: World, job: str) -> tuple[str, str]:
    found = world.op(job, OpType.RESUME).result
    assert found is not None
    return found["decision"], found["reason"]


def starts(world: World) -> list[int]:
    return [get.start for get in world.source.gets(URL)]


# ── the overlap ───────────────────────────────────────────────────────────────────────────────────


def test_the_last_held_bytes_are_asked_for_again_compared_and_not_counted(world: World) -> None:
    job = half(world)
    world.drive()
    assert starts(world) == [0, HALF - OVERLAP]
    assert list(world.blobs().values()) == [BODY]
    found = world.streamed(job)
    assert (found["resumed_from_bytes"], found["bytes_written"]) == (HALF, len(BODY) - HALF)


@pytest.mark.parametrize("at", [HALF - OVERLAP, HALF - 2_500, HALF - 1])
def test_the_same_validator_over_other_bytes_is_noticed_in_the_overlap(world: World, at: int) -> None:
    wrong = bytearray(BODY[:HALF])
    wrong[at] ^= 1
    job = half(world, bytes(wrong))
    world.drive()
    assert starts(world) == [0, HALF - OVERLAP, 0]
    assert (list(world.blobs().values()), world.state(job)) == ([BODY], State.DEDUPED)
    assert world.streamed(job)["resumed_from_bytes"] == 0


def test_the_overlap_never_reaches_past_the_start(world: World) -> None:
    half(world, BODY[:OVERLAP])
    world.drive()
    assert starts(world) == [0, 1]  # still a range, so that a server without ranges is told from one with
    assert list(world.blobs().values()) == [BODY]


def test_a_range_that_starts_earlier_is_compared_from_there(world: World) -> None:
    job = half(world)
    early = 3_000
    world.source.script(
        URL,
        Says(
            206,
            {"Content-Range": f"bytes {early}-{len(BODY) - 1}/{len(BODY)}", "Content-Length": str(len(BODY) - early)},
            [BODY[early:]],
        ),
    )
    world.drive()
    assert (list(world.blobs().values()), world.streamed(job)["resumed_from_bytes"]) == ([BODY], HALF)


def ranged(start: int, end: int) -> Says:
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(BODY)}", "Content-Length": str(end - start)}
    return Says(206, headers, [BODY[start:end]])


def test_ranges_in_small_steps_are_put_together(world: World) -> None:
    half(world)
    step = HALF - OVERLAP + 9_000
    world.source.script(URL, ranged(HALF - OVERLAP, step))
    world.drive()
    assert starts(world) == [0, HALF - OVERLAP, step]  # compared once, then only appended
    assert list(world.blobs().values()) == [BODY]


def test_a_range_that_ends_within_what_is_held_is_not_asked_for_for_ever(world: World) -> None:
    half(world)
    world.source.script(URL, *[ranged(HALF - OVERLAP, HALF - 1)] * 9)
    world.drive()
    assert starts(world)[:4] == [0, HALF - OVERLAP, HALF, 0]


# ── the prefix ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def weak(world: World) -> None:
    world.source.put(URL, BODY, etag='W/"v1"', chunk=1_000)


@pytest.mark.usefixtures("weak")
def test_without_a_strong_validator_nothing_is_joined_unless_allowed(world: World) -> None:
    job = half(world)
    world.drive()
    assert (starts(world), decided(world, job)) == ([0, 0], ("discard", "no_strong_validator"))


@pytest.mark.parametrize("etag", ['W/"v1"', None])
def test_where_allowed_a_matching_prefix_and_overlap_are_enough(world: World, etag: str | None) -> None:
    world.source.put(URL, BODY, etag=etag, chunk=1_000)
    world.policy(resume=ResumePolicy(prefix_bytes=4_096))
    job = half(world)
    world.drive()
    assert [(get.start, get.end, get.if_range) for get in world.source.gets(URL)] == [
        (0, None, None),
        (0, 4_096, None),
        (HALF - OVERLAP, None, None),
    ]
    assert decided(world, job) == ("resume", "same_prefix")
    assert (list(world.blobs().values()), world.streamed(job)["resumed_from_bytes"]) == ([BODY], HALF)


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize(
    ("at", "reason"), [(0, "prefix_differs"), (4_095, "prefix_differs"), (HALF - 1, "same_prefix")]
)
def test_other_bytes_in_prefix_or_overlap_throw_the_part_away(world: World, at: int, reason: str) -> None:
    world.policy(resume=ResumePolicy(prefix_bytes=4_096))
    wrong = bytearray(BODY[:HALF])
    wrong[at] ^= 1
    job = half(world, bytes(wrong))
    world.drive()
    assert decided(world, job)[1] == reason
    assert (list(world.blobs().values()), starts(world)[-1]) == ([BODY], 0)


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize(
    "says", [Says(200), Says(404), Says(206, body=[BODY[:100]])], ids=["no ranges", "gone", "too little"]
)
def test_a_prefix_that_cannot_be_had_proves_nothing(world: World, says: Says) -> None:
    world.policy(resume=ResumePolicy(prefix_bytes=4_096))
    job = half(world)
    world.source.script(URL, says)
    world.drive()
    assert decided(world, job)[0] == "discard"
    assert list(world.blobs().values()) == [BODY]


@pytest.mark.usefixtures("weak")
def test_a_prefix_that_drips_is_as_bounded_as_a_body(world: World) -> None:
    def a_minute() -> None:
        world.now += 61.0

    world.policy(resume=ResumePolicy(prefix_bytes=4_096))
    job = half(world)
    world.source.script(URL, Says(body=[BODY[:1], a_minute, BODY[1:2], a_minute, BODY[2:4_096]]))
    world.drive()
    assert world.view(job).error_code == "too_slow"


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize(
    "says",
    [
        Says(headers={"ETag": 'W/"v2"'}),
        Says(headers={"Content-Range": f"bytes {HALF - OVERLAP}-{len(BODY) - 1}/{len(BODY) + 1}"}),
        Says(headers={"Content-Range": f"bytes {HALF - OVERLAP}-{len(BODY) - 1}/*"}),
    ],
    ids=["another validator", "another total", "no total"],
)
def test_the_answer_must_still_be_of_a_file_that_looks_the_same(world: World, says: Says) -> None:
    world.policy(resume=ResumePolicy(prefix_bytes=4_096))
    job = half(world)
    assert world.run("head", job, 2) == Done(State.HEAD_DONE)
    assert world.run("resume_decide", job, 2) == Done(State.RESUME_OK)
    world.source.script(URL, says)
    assert world.run("stream", job, 2) == Done(State.STREAMING)
    assert starts(world)[-2:] == [HALF - OVERLAP, 0]
    assert world.streamed(job)["resumed_from_bytes"] == 0


# ── 200 with the Content-Range of the whole file (row 54) ─────────────────────────────────────────

FULL = Says(
    200, {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}", "Content-Length": str(len(BODY))}, body=[BODY]
)


def test_a_full_range_on_200_is_the_whole_file(world: World) -> None:
    world.source.script(URL, FULL)
    job = world.fetch(URL)
    assert (world.state(job), starts(world), list(world.blobs().values())) == (State.DEDUPED, [0], [BODY])
    assert decided(world, job) == ("fresh", "no_part")


def test_a_full_range_on_200_replaces_what_is_held(world: World) -> None:
    """As row 29: the body is taken from the start, and nothing is joined to anything."""
    job = half(world)
    world.source.script(URL, FULL)
    world.drive()
    assert (world.state(job), list(world.blobs().values())) == (State.DEDUPED, [BODY])
    assert starts(world) == [0, HALF - OVERLAP]
    assert decided(world, job) == ("resume", "same_validator")
    found = world.streamed(job)
    assert (found["resumed_from_bytes"], found["bytes_written"]) == (0, len(BODY))


def test_a_full_range_on_200_to_a_piece_leaves_it_to_one_connection(world: World) -> None:
    world.policy(segments=SegmentPolicy(connections=2, min_bytes=10_000, piece_bytes=10_000))
    world.source.script(URL, *[FULL] * 3)
    job = world.fetch(URL)
    assert (world.state(job), list(world.blobs().values()), world.staged()) == (State.DEDUPED, [BODY], [])
    assert world.source.gets(URL)[-1].end is None
    assert world.row(job).run == 1


@pytest.mark.parametrize(
    "body", [BODY[:-1], BODY + b"!"], ids=["shorter than its Content-Range", "longer than its Content-Range"]
)
def test_a_full_range_on_200_that_its_body_belies_is_not_believed(world: World, body: bytes) -> None:
    without = ("Content-Length",)
    world.source.script(URL, *[Says(200, FULL.headers, body=[body], framing="chunked", without=without)] * 3)
    job = world.plan(URL)
    assert isinstance(world.try_stream(job), Failed)
    assert world.blobs() == {}
