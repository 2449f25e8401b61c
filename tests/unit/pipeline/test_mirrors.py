"""When one server fails or crawls, the next goes on; bytes of two servers are joined only under proof. PLAN-5."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.states import State
from tests.fakes.source import Says
from tests.world import World, sha256

URL = "http://files.example/a.bin?token=secret"
MIRROR = "http://mirror.example/b.bin"
THIRD = "http://third.example/c.bin"
BODY = os.urandom(50_000)
HALF, OVERLAP = 20_000, 5_000
CUT = Retryable("cut", code="body_cut")


@pytest.fixture(autouse=True)
def _pages(world: World) -> None:
    for url in (URL, MIRROR, THIRD):
        world.source.put(url, BODY, chunk=1_000)
    world.stream_policy(overlap_bytes=OVERLAP)


def fetch(world: World, **fields: Any) -> str:
    return world.fetch(URL, mirrors=[MIRROR, THIRD], **fields)


def asked(world: World) -> list[tuple[str, int]]:
    return [(get.url, get.start) for get in world.source.asked if get.method == "GET"]


def assert_right(world: World, job: str, host: str) -> None:
    assert (world.state(job), list(world.blobs().values())) == (State.DEDUPED, [BODY])
    assert world.streamed(job)["host"] == host
    assert "secret" not in str(world.streamed(job))
    assert world.row(job).run == 1  # within one run


def test_the_first_url_is_the_one_that_is_asked(world: World) -> None:
    assert_right(world, fetch(world), "files.example")
    assert asked(world) == [(URL, 0)]


@pytest.mark.parametrize(
    "failure",
    [
        Retryable("", code="connect_failed"),
        Permanent("", code="http_404"),
        Postponed("", code="circuit_open", after_s=30.0),
        Permanent("", code="protocol_error"),
    ],
)
def test_a_server_that_fails_is_followed_by_the_next(world: World, failure: StageFailure) -> None:
    world.source.fail_head(URL, failure)
    world.source.script(URL, failure)
    world.source.script(MIRROR, Says(status=503))
    assert_right(world, fetch(world), "third.example")
    assert asked(world) == [(URL, 0), (MIRROR, 0), (THIRD, 0)]


def test_with_a_known_digest_the_next_goes_on_from_the_held_bytes(world: World) -> None:
    world.source.put(MIRROR, BODY, etag='"its own"')
    world.source.script(URL, Says(body=[BODY[:HALF], CUT]))
    job = fetch(world, sha256=sha256(BODY))
    assert_right(world, job, "mirror.example")
    assert asked(world) == [(URL, 0), (MIRROR, HALF - OVERLAP)]
    found = world.streamed(job)
    assert (found["resumed_from_bytes"], found["bytes_written"]) == (HALF, len(BODY))


def test_with_the_same_strong_validator_and_length_too(world: World) -> None:
    world.source.script(URL, Says(body=[BODY[:HALF], CUT]))
    assert_right(world, fetch(world), "mirror.example")
    assert asked(world) == [(URL, 0), (MIRROR, HALF - OVERLAP)]


@pytest.mark.parametrize("etag", ['"another"', 'W/"v1"', None])
def test_without_proof_the_next_begins_anew(world: World, etag: str | None) -> None:
    world.source.put(MIRROR, BODY, etag=etag)
    world.source.script(URL, Says(body=[os.urandom(HALF), CUT]))  # not even the same bytes
    job = fetch(world)
    assert_right(world, job, "mirror.example")
    assert world.streamed(job)["resumed_from_bytes"] == 0


def test_an_equal_overlap_is_no_proof_where_the_validators_differ(world: World) -> None:
    world.source.put(MIRROR, BODY, etag='"another"')
    world.source.script(URL, Says(body=[b"?" + BODY[1:HALF], CUT]))
    assert_right(world, fetch(world), "mirror.example")


def test_the_same_validator_is_no_proof_where_the_length_was_never_told(world: World) -> None:
    says = Says(body=[b"?" + BODY[1:HALF], CUT], without=("Content-Length",), framing="chunked")
    world.source.script(URL, says)
    assert_right(world, fetch(world), "mirror.example")


@pytest.mark.parametrize("digest", [True, False])
def test_another_length_is_another_file(world: World, digest: bool) -> None:
    world.source.script(URL, Says(headers={"Content-Length": "50001"}, body=[os.urandom(HALF), CUT]))
    job = fetch(world, sha256=sha256(BODY) if digest else None)
    assert_right(world, job, "mirror.example")


@pytest.mark.parametrize("at", [0, HALF - 1])
def test_other_bytes_under_the_same_digest_promise_are_found_out(world: World, at: int) -> None:
    """In the overlap at once; before it by the digest at the end: then it is brought whole from one server."""
    wrong = bytearray(BODY[:HALF])
    wrong[at] ^= 1
    world.source.script(URL, Says(body=[bytes(wrong), CUT]))
    job = fetch(world, sha256=sha256(BODY))
    assert_right(world, job, "mirror.example")
    assert asked(world) == [(URL, 0), (MIRROR, HALF - OVERLAP), (MIRROR, 0)]


def test_a_server_with_other_bytes_than_the_digest_is_passed_over(world: World) -> None:
    world.source.put(URL, os.urandom(50_000))
    assert_right(world, fetch(world, sha256=sha256(BODY)), "mirror.example")


def test_a_slow_server_is_left_for_the_next(world: World) -> None:
    def an_hour() -> None:
        world.now += 3600.0

    world.source.script(URL, Says(body=[BODY[:HALF], an_hour, BODY[HALF : HALF + 10], BODY[HALF + 10 :]]))
    assert_right(world, fetch(world), "mirror.example")
    assert asked(world)[1] == (MIRROR, HALF + 10 - OVERLAP)


@pytest.mark.parametrize("head", [True, False])
def test_when_all_fail_the_bytes_are_kept_and_the_next_run_asks_where_they_came_from(world: World, head: bool) -> None:
    down = Retryable("", code="connect_failed")
    world.source.script(URL, down)
    world.source.script(MIRROR, Says(body=[BODY[:HALF], CUT]))
    world.source.script(THIRD, Permanent("", code="http_404"))
    if not head:
        world.source.fail_head(URL, down)
    job = fetch(world)
    assert (world.view(job).error_code, world.row(job).attempts) == ("connect_failed", 1)
    world.make_due(job)
    world.drive()
    assert world.state(job) is State.DEDUPED
    assert asked(world)[-1] == (MIRROR, HALF - OVERLAP)


def test_our_own_trouble_is_not_tried_on_everybody(world: World) -> None:
    job = fetch(world, max_bytes=1000)
    assert (world.view(job).error_code, asked(world)) == ("too_large", [(URL, 0)])


def test_bytes_joined_on_the_promise_of_a_digest_are_nothing_to_a_job_without_it(world: World) -> None:
    """The mirror has another file: only the digest would have told, and the second job of that URL has none."""
    other = bytearray(BODY)
    other[HALF + 1] ^= 1
    world.source.put(MIRROR, bytes(other), etag='"its own"')
    world.source.script(URL, Says(body=[BODY[:HALF], CUT]))
    world.source.script(MIRROR, Says(body=[bytes(other[HALF - OVERLAP : HALF + 2 * OVERLAP]), CUT]))
    world.source.script(THIRD, Permanent("", code="http_404"))
    first = fetch(world, sha256=sha256(BODY))
    assert world.view(first).error_code == "body_cut"
    second = world.fetch(URL, work_id="another")
    assert (world.state(second), list(world.blobs().values())) == (State.DEDUPED, [BODY])
