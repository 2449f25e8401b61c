"""Pieces go on from a mirror, under the rules of one connection: no file ever holds bytes of two others. PLAN-5."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlpipe.core.errors import Retryable
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State
from dlpipe.pipeline.stages.segments import HOSTS
from tests.fakes.source import Says
from tests.world import World, sha256

URL = "http://files.example/a.bin"
MIRROR = "http://mirror.example/b.bin"
THIRD = "http://third.example/c.bin"
BODY = os.urandom(50_000)
PIECE, OVERLAP, SERVED = 3_000, 1_000, 6
"""The first server answers so many pieces, and then fails."""
POLICY = SegmentPolicy(connections=4, min_bytes=10_000, per_host=8, piece_bytes=PIECE)
CUT = Retryable("cut", code="body_cut")
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _pages(world: World) -> Iterator[None]:
    for url in (URL, MIRROR):
        world.source.put(url, BODY, chunk=500)
    world.policy(segments=POLICY)
    world.stream_policy(overlap_bytes=OVERLAP, requests_per_mib=1 << 20)
    yield
    assert HOSTS._open == {}


def fails_after(world: World, url: str, pieces: int, act: Callable[[], None] | None = None) -> None:
    """From then on every request to that URL fails, or `act` happens before it is answered."""
    get, lock, seen = world.source.get, threading.Lock(), []

    def limited(asked: str, **more: Any) -> Any:
        if asked == url:
            with lock:
                seen.append(more)
                late = len(seen) > pieces
            if late and act is None:
                raise CUT
            if late and act is not None:
                act()
        return get(asked, **more)

    world.source.get = limited  # type: ignore[method-assign, assignment]


def asked(world: World, url: str) -> list[tuple[int, int | None, str | None]]:
    return [(get.start, get.end, get.if_range) for get in world.source.gets(url)]


def assert_is(world: World, job: str, body: bytes, host: str = "mirror.example") -> None:
    assert (world.state(job), list(world.blobs().values()), world.staged()) == (State.DEDUPED, [body], [])
    assert (world.streamed(job)["host"], world.row(job).run) == (host, 1)


def assert_in_pieces(world: World, if_range: str | None) -> None:
    """The mirror was asked for the missing pieces: first, and by itself, for the one that is compared."""
    gets = asked(world, MIRROR)
    assert [one[2] for one in gets] == [if_range] * len(gets)
    (start, end, _), *others = gets
    assert end is not None
    assert start % PIECE == PIECE - OVERLAP  # behind the front
    assert all(at % PIECE == 0 and at >= end for at, _, _ in others)
    assert 2 <= len(gets) <= -(-len(BODY) // PIECE) - (SERVED - POLICY.connections)


def test_the_same_strong_validator_and_length_go_on_in_pieces(world: World) -> None:
    fails_after(world, URL, SERVED)
    job = world.fetch(URL, mirrors=[MIRROR])
    assert_is(world, job, BODY)
    assert_in_pieces(world, '"v1"')
    assert world.streamed(job)["resumed_from_bytes"] > 0


def test_a_known_digest_goes_on_in_pieces_whatever_the_validator(world: World) -> None:
    world.source.put(MIRROR, BODY, etag='"its own"', chunk=500)
    fails_after(world, URL, SERVED)
    job = world.fetch(URL, mirrors=[MIRROR], sha256=sha256(BODY))
    assert_is(world, job, BODY)
    assert_in_pieces(world, None)


def test_a_server_that_crawls_is_left_for_the_mirror(world: World) -> None:
    def an_hour() -> None:
        world.now += 3_600.0

    fails_after(world, URL, SERVED, an_hour)
    job = world.fetch(URL, mirrors=[MIRROR])
    assert_is(world, job, BODY)
    assert asked(world, MIRROR)[0][1] is not None


@pytest.mark.parametrize("etag", ['"another"', 'W/"v1"', None])
@pytest.mark.parametrize("size", [len(BODY), len(BODY) + 1])
def test_without_proof_the_mirror_s_file_is_brought_whole(world: World, etag: str | None, size: int) -> None:
    """Of the same length, and other bytes: nothing that came from the first server is kept."""
    other = os.urandom(size)
    world.source.put(MIRROR, other, etag=etag, chunk=500)
    fails_after(world, URL, SERVED)
    job = world.fetch(URL, mirrors=[MIRROR])
    assert_is(world, job, other)
    assert world.streamed(job)["resumed_from_bytes"] == 0


def test_the_same_validator_and_length_but_other_bytes_are_found_out_by_the_first_piece(world: World) -> None:
    other = os.urandom(len(BODY))
    world.source.put(MIRROR, other, chunk=500)
    fails_after(world, URL, SERVED)
    another = threading.Event()
    fails_after(world, MIRROR, 1, another.set)

    def while_others_could_ask() -> None:
        another.wait(0.3)

    world.source.script(MIRROR, Says(body=[while_others_could_ask, other[:PIECE]]))
    job = world.fetch(URL, mirrors=[MIRROR])
    assert_is(world, job, other)
    assert len([one for one in asked(world, MIRROR) if one[1] is not None]) == 1


@pytest.mark.parametrize("at", [SERVED * PIECE + PIECE, len(BODY) - 1])
def test_other_bytes_under_the_promise_of_a_digest_are_found_out_at_the_end(world: World, at: int) -> None:
    """All of it is then brought from that one server, whose file it is not; and so from the next."""
    wrong = bytearray(BODY)
    wrong[at] ^= 1
    world.source.put(MIRROR, bytes(wrong), etag='"its own"', chunk=500)
    world.source.put(THIRD, BODY, etag='"and its"', chunk=500)
    fails_after(world, URL, SERVED)
    job = world.fetch(URL, mirrors=[MIRROR, THIRD], sha256=sha256(BODY))
    assert_is(world, job, BODY, "third.example")


def test_pieces_joined_on_the_promise_of_a_digest_are_nothing_to_a_job_without_it(world: World) -> None:
    wrong = bytearray(BODY)
    wrong[SERVED * PIECE + PIECE] ^= 1
    world.source.put(MIRROR, bytes(wrong), etag='"its own"', chunk=500)
    get = world.source.get
    fails_after(world, URL, SERVED)
    fails_after(world, MIRROR, 8)
    first = world.fetch(URL, mirrors=[MIRROR], sha256=sha256(BODY))
    assert world.view(first).error_code == "body_cut"
    world.source.get = get  # type: ignore[method-assign]
    second = world.fetch(URL, work_id="another")
    assert (world.state(second), list(world.blobs().values())) == (State.DEDUPED, [BODY])


def test_what_came_of_both_counts_for_the_job_that_knows_the_digest(world: World) -> None:
    world.source.put(MIRROR, BODY, etag='"its own"', chunk=500)
    get = world.source.get
    fails_after(world, URL, SERVED)
    fails_after(world, MIRROR, 4)
    job = world.fetch(URL, mirrors=[MIRROR], sha256=sha256(BODY))
    world.source.get = get  # type: ignore[method-assign]
    world.source.asked.clear()
    world.make_due(job)
    world.drive()
    assert list(world.blobs().values()) == [BODY]
    assert world.streamed(job)["resumed_from_bytes"] > SERVED * PIECE


def test_when_nothing_came_of_the_first_the_mirror_begins_anew(world: World) -> None:
    fails_after(world, URL, 0)
    job = world.fetch(URL, mirrors=[MIRROR])
    assert_is(world, job, BODY)
    assert asked(world, MIRROR) == [(0, None, None)]


# ── digests of pieces ─────────────────────────────────────────────────────────────────────────────


def field(algorithm: str, data: bytes) -> dict[str, str]:
    digest = hashlib.new(algorithm.replace("-", ""), data).digest()
    return {"Content-Digest": f"{algorithm}=:{base64.b64encode(digest).decode()}:"}


def declare(world: World, algorithm: str, damage: Callable[[int], bool] = lambda _start: False) -> None:
    """Each answer to a range declares what it should hold; some are damaged on the way."""
    get = world.source.get

    def declaring(url: str, *, start: int = 0, end: int | None = None, **more: Any) -> Any:
        if end is not None:
            piece = BODY[start:end]
            sent = piece[:-1] + bytes([piece[-1] ^ 1]) if damage(start) else piece
            world.source.script(url, Says(headers=field(algorithm, piece), body=[sent]))
        return get(url, start=start, end=end, **more)

    world.source.get = declaring  # type: ignore[method-assign]
    world.policy(segments=replace(POLICY, per_host=1))  # one after another: each answer has a script of its own


@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_pieces_that_are_what_they_declare_are_taken(world: World, algorithm: str) -> None:
    declare(world, algorithm)
    job = world.fetch(URL)
    assert_is(world, job, BODY, "files.example")
    assert all(end is not None for _, end, _ in asked(world, URL))


@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
@pytest.mark.parametrize("number", [0, 3, 16])
def test_a_piece_that_is_not_what_it_declares_is_thrown_away(world: World, algorithm: str, number: int) -> None:
    """No digest of the whole is known: only the piece's own tells."""
    declare(world, algorithm, lambda start: start == number * PIECE)
    job = world.fetch(URL)
    assert_is(world, job, BODY, "files.example")
    assert asked(world, URL)[-1][:2] == (max(0, number * PIECE - OVERLAP), None), "one connection takes over"


# ── anything at all ───────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    etags=st.tuples(*[st.sampled_from(['"a"', '"b"', 'W/"a"', None])] * 3),
    same=st.tuples(*[st.booleans()] * 3),
    scripts=st.tuples(*[st.lists(st.booleans(), max_size=20)] * 3),
    digest=st.booleans(),
)
def test_the_file_is_one_server_s_whatever_the_others_have(
    world: World,
    etags: tuple[str | None, ...],
    same: tuple[bool, ...],
    scripts: tuple[list[bool], ...],
    digest: bool,
) -> None:
    """Files of one length, under any validators; those of equal strong validators differ from the first byte on."""
    number = next(NUMBERS)  # each example has URLs of its own
    urls = [f"{url}?{number}" for url in (URL, MIRROR, THIRD)]
    bodies = [BODY if alike else hashlib.shake_256(f"{n}{number}".encode()).digest(len(BODY))
              for n, alike in enumerate(same)]  # fmt: skip
    for url, body, etag, script in zip(urls, bodies, etags, scripts, strict=True):
        world.source.put(url, body, etag=etag, chunk=500)
        world.source.script(url, *(Says() if good else CUT for good in script))
    world.policy(retry=replace(world.deps.policy.retry, max_attempts=1000))
    right = sha256(bodies[0]) if digest else None
    job = world.plan(urls[0], mirrors=urls[1:], sha256=right)
    for _ in range(80):
        world.drive()
        if world.state(job) is State.DEDUPED:
            break
        world.make_due(job)
    assert world.state(job) is State.DEDUPED
    (artifact,) = world.artifacts(job)
    assert artifact.sha256 in ({right} if digest else set(map(sha256, bodies)))
    assert world.staged() == []


def test_pieces_after_the_wrong_type_of_another_server_are_looked_at_too(world: World) -> None:
    """The mirror's few bytes go on into a web page; then the first server sends a page as well, in pieces."""
    page = b"<!doctype html>" + BODY
    world.source.put(MIRROR, page, chunk=500)
    world.source.script(URL, Retryable("away", code="connect_failed"))
    world.source.script(MIRROR, Says(body=[page[:100], CUT]))
    world.policy(segments=SegmentPolicy())
    job = world.fetch(URL, mirrors=[MIRROR], media_type="application/pdf")
    world.source.put(URL, page, chunk=500)
    world.policy(segments=POLICY)
    world.make_due(job)
    world.drive()
    assert (world.state(job), world.blobs()) == (State.FAILED, {})
    assert world.view(job).error_code == "media_type_mismatch"
