"""One file over several connections: right bytes whatever order, failure or crash; any doubt ends the segments."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State
from dlpipe.pipeline import wishes
from dlpipe.pipeline.runner import Dropped, Failed
from dlpipe.pipeline.stages.segments import HOSTS, HostCap
from tests.fakes.source import FakeAnswer, FakeSource, Says
from tests.servers import wait_until
from tests.world import DEFAULT, World, sha256

URL = "http://files.example/a.bin"
BODY = os.urandom(50_000)
PIECE = 3_000
PIECES = -(-len(BODY) // PIECE)
POLICY = SegmentPolicy(connections=4, min_bytes=10_000, per_host=8, piece_bytes=PIECE)
CUT = Retryable("cut", code="body_cut")


@pytest.fixture(autouse=True)
def _page(world: World) -> Iterator[None]:
    world.source.put(URL, BODY, chunk=500)
    world.policy(segments=POLICY, stream=replace(world.deps.policy.stream, requests_per_mib=1 << 20))
    yield
    assert HOSTS._open == {}
    assert ours() == []


def ranges_asked(world: World) -> list[tuple[int, int | None]]:
    return sorted((get.start, get.end) for get in world.source.gets(URL))


def assert_right(world: World, job: str) -> None:
    assert (world.state(job), list(world.blobs().values()), world.staged()) == (State.DEDUPED, [BODY], [])


ALL = [(start, min(start + PIECE, len(BODY))) for start in range(0, len(BODY), PIECE)]


def test_every_piece_is_asked_for_once(world: World) -> None:
    job = world.fetch(URL, sha256=sha256(BODY))
    assert_right(world, job)
    assert ranges_asked(world) == ALL
    assert all(get.if_range == '"v1"' for get in world.source.gets(URL))
    found = world.streamed(job)
    assert (found["bytes_written"], found["resumed_from_bytes"]) == (len(BODY), 0)


@pytest.mark.parametrize(
    "page", [{"etag": 'W/"v1"'}, {"etag": None}, {"head": False}], ids=["weak", "no validator", "no HEAD"]
)
def test_without_what_segments_need_one_connection_does_it(world: World, page: dict[str, Any]) -> None:
    world.source.put(URL, BODY, **page)
    assert_right(world, world.fetch(URL))
    assert ranges_asked(world) == [(0, None)]


def test_a_small_file_and_a_small_rest_need_no_segments(world: World) -> None:
    world.policy(segments=replace(POLICY, min_bytes=len(BODY) + 1))
    assert_right(world, world.fetch(URL))
    assert ranges_asked(world) == [(0, None)]


@pytest.mark.parametrize(
    "says",
    [
        Says(200, body=[BODY]),
        Says(headers={"ETag": '"v2"'}),
        Says(headers={"ETag": 'W/"v1"'}),
        Says(without=("ETag",)),
        Says(headers={"Content-Range": f"bytes 0-2999/{len(BODY) + 1}"}),
        Says(headers={"Content-Range": "bytes 1-3000/50000"}),
        Says(headers={"Content-Range": "bytes 0-1999/50000", "Content-Length": "2000"}),
        Says(body=[b"short"]),
        Says(body=[BODY[:PIECE] + b"and more"]),
        Says(416),
        Says(404),
    ],
    ids="whole other_etag weak_etag no_etag other_total other_place shorter_range cut longer 416 404".split(),
)
def test_a_piece_that_is_not_exactly_as_asked_for_leaves_it_to_one_connection(world: World, says: Says) -> None:
    world.source.script(URL, says)
    job = world.fetch(URL)
    assert_right(world, job)
    assert world.source.gets(URL)[-1].end is None
    assert world.row(job).run == 1


def test_a_server_that_ignores_ranges_is_asked_no_more_than_once_by_each_connection(world: World) -> None:
    world.source.script(URL, *[Says(200, body=[BODY], headers={}, without=("Content-Range",))] * 4)
    assert_right(world, world.fetch(URL))
    assert len(world.source.gets(URL)) <= 5


@pytest.mark.parametrize("failure", [CUT, Retryable("", code="http_5xx"), Permanent("", code="http_403")])
def test_one_failure_ends_all_and_what_is_finished_is_kept(world: World, failure: Exception) -> None:
    job = world.plan(URL)
    world.run_to("stream", job)
    get, lock, seen = world.source.get, threading.Lock(), []

    def fail_at_the_ninth(url: str, **asked: Any) -> Any:
        with lock:
            seen.append(asked["start"])
            if len(seen) == 9:
                raise failure
        return get(url, **asked)

    world.source.get = fail_at_the_ninth  # type: ignore[method-assign]
    outcome = world.run("stream", job)
    assert isinstance(outcome, Failed)
    assert len(seen) <= 12  # the others finish what they have in hand, at most
    if isinstance(failure, Permanent):
        return
    world.source.get = get  # type: ignore[method-assign]
    world.source.asked.clear()
    world.make_due(job)
    world.drive()
    assert_right(world, job)
    again = ranges_asked(world)
    assert len(again) <= PIECES - 8 + 3  # eight were handed out before; three of them may have been unfinished
    assert world.streamed(job)["resumed_from_bytes"] >= 5 * PIECE


def pieces_without_the_first(world: World) -> str:
    """A job whose first run finished pieces 1 to 7, and not the one before them; its second is due."""
    first = threading.Event()
    world.policy(segments=replace(POLICY, connections=2))
    job = world.plan(URL)
    world.run_to("stream", job)
    get = world.source.get

    def hold_the_first(url: str, **asked: Any) -> Any:
        if asked["start"] == 0:
            assert first.wait(20)
            raise CUT
        if asked["start"] >= 8 * PIECE:
            first.set()
        return get(url, **asked)

    world.source.get = hold_the_first  # type: ignore[method-assign]
    assert isinstance(world.run("stream", job), Failed)
    world.source.get = get  # type: ignore[method-assign]
    world.source.asked.clear()
    world.make_due(job)
    return job


def test_a_finished_piece_is_kept_even_if_the_first_never_came(world: World) -> None:
    job = pieces_without_the_first(world)
    world.drive()
    assert_right(world, job)
    asked = [start for start, _ in ranges_asked(world)]
    assert 0 in asked
    assert not {n * PIECE for n in range(1, 8)} & set(asked)


@pytest.mark.parametrize(("etag", "size"), [('"v2"', len(BODY)), ('"v1"', len(BODY) - 1)])
def test_pieces_without_a_front_are_not_taken_for_those_of_another_file(world: World, etag: str, size: int) -> None:
    job = pieces_without_the_first(world)
    other = os.urandom(size)
    world.source.put(URL, other, etag=etag, chunk=500)
    world.drive()
    assert list(world.blobs().values()) == [other]
    assert world.state(job) is State.DEDUPED


def test_a_piece_that_is_finished_while_another_fails_is_kept(world: World) -> None:
    world.policy(segments=replace(POLICY, connections=2))
    job = world.plan(URL)
    world.run_to("stream", job)
    get, written, failed = world.source.get, threading.Event(), threading.Event()

    def alone() -> None:
        """Until the other thread is over; its failure then comes before this piece."""
        wait_until(lambda: failed.is_set() and len(ours()) == 1, "the failed connection is over")

    def first_finishes_second_fails(url: str, **asked: Any) -> Any:
        if asked["start"] == PIECE:
            assert written.wait(20)
            failed.set()
            raise CUT
        world.source.script(url, Says(body=[BODY[:PIECE], written.set, alone]))
        return get(url, **asked)

    world.source.get = first_finishes_second_fails  # type: ignore[method-assign]
    assert isinstance(world.run("stream", job), Failed)
    world.source.get = get  # type: ignore[method-assign]
    world.source.asked.clear()
    world.make_due(job)
    world.drive()
    assert_right(world, job)
    assert ranges_asked(world) == ALL[1:]


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dlpipe-segment")]


@pytest.mark.parametrize("changed", ["etag", "length"])
def test_pieces_of_another_file_are_thrown_away(world: World, changed: str) -> None:
    world.source.put(URL, os.urandom(len(BODY)) + (b"" if changed == "etag" else b"x"), etag='"old"')
    world.source.script(URL, *[Says()] * 6, CUT)
    job = world.plan(URL)
    assert isinstance(world.try_stream(job), Failed)
    world.source.put(URL, BODY, etag='"old"' if changed == "length" else '"v1"')
    world.make_due(job)
    world.drive()
    assert_right(world, job)


def test_the_front_is_compared_before_pieces_are_joined_to_it(world: World) -> None:
    """Row 37 over several connections: the same validator, other bytes."""
    world.stream_policy(overlap_bytes=1_000)
    world.policy(segments=SegmentPolicy())
    world.source.script(URL, Says(body=[b"?" * 20_000, CUT]))
    job = world.plan(URL)
    assert isinstance(world.try_stream(job), Failed)
    world.policy(segments=POLICY)
    world.make_due(job)
    world.drive()
    assert_right(world, job)
    assert world.streamed(job)["resumed_from_bytes"] == 0


def test_a_cancel_stops_every_connection(world: World) -> None:
    job = world.plan(URL)
    world.run_to("stream", job)
    get, lock, seen = world.source.get, threading.Lock(), []

    def cancel_at_the_sixth(url: str, **asked: Any) -> Any:
        with lock:
            seen.append(asked["start"])
            if len(seen) == 6:
                wishes.cancel(world.deps, DEFAULT, job)
        return get(url, **asked)

    world.source.get = cancel_at_the_sixth  # type: ignore[method-assign]
    assert world.run("stream", job) == Dropped("lease_lost")
    assert len(seen) <= 10
    assert (world.state(job), world.blobs()) == (State.CANCELED, {})


def test_a_digest_that_disagrees_brings_it_anew_over_one_connection(world: World) -> None:
    wrong = {"Repr-Digest": "sha-256=:" + "A" * 43 + "=:"}
    world.source.script(URL, *[Says(headers=wrong)] * PIECES)
    job = world.fetch(URL)
    assert_right(world, job)
    assert world.source.gets(URL)[-1].end is None


def test_the_media_type_is_looked_at_as_soon_as_the_front_is_there(world: World) -> None:
    job = world.fetch(URL, media_type="application/pdf")
    assert world.view(job).error_code == "media_type_mismatch"
    assert (world.staged(), world.blobs()) == ([], {})


def test_a_file_over_the_limit_is_not_begun(world: World) -> None:
    job = world.fetch(URL, max_bytes=len(BODY) - 1)
    assert (world.view(job).error_code, ranges_asked(world)) == ("too_large", [])


# ── how many at once ──────────────────────────────────────────────────────────────────────────────


class Counting(FakeSource):
    """Knows how many answers are open at once; each waits until as many are, or nothing more comes."""

    open = most = 0
    lock = threading.Lock()

    @contextmanager
    def get(self, url: str, **asked: Any) -> Iterator[FakeAnswer]:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
        try:
            with super().get(url, **asked) as answer:
                yield answer
        finally:
            with self.lock:
                self.open -= 1


@pytest.mark.parametrize(("connections", "per_host"), [(4, 8), (4, 2), (2, 8), (16, 1)])
def test_never_more_connections_than_wanted_and_allowed(world: World, connections: int, per_host: int) -> None:
    source = Counting(dict(world.source.pages))
    world.deps = replace(world.deps, source=source)
    world.policy(segments=replace(POLICY, connections=connections, per_host=per_host))
    job = world.fetch(URL)
    assert_right(world, job)
    assert 1 <= source.most <= min(connections, per_host)


def test_the_cap_of_a_host_counts_all_downloads_and_always_leaves_one(world: World) -> None:
    cap = HostCap()
    assert [cap.take("a", 4, 6), cap.take("a", 4, 6), cap.take("a", 4, 6), cap.take("b", 4, 6)] == [4, 2, 1, 4]
    cap.give_back("a", 4)
    assert cap.take("a", 4, 6) == 3
    for host, count in (("a", 2), ("a", 1), ("a", 3), ("b", 4)):
        cap.give_back(host, count)
    assert cap._open == {}


def test_when_the_host_is_busy_the_other_connections_do_the_work(world: World) -> None:
    busy = Postponed("", code="host_busy", after_s=3.0)
    world.source.script(URL, Says(), busy, busy)
    assert_right(world, world.fetch(URL))
    assert {(get.start, get.end) for get in world.source.gets(URL)} >= set(ALL) - {ALL[-1]}


def test_when_all_are_told_to_come_back_the_job_does(world: World) -> None:
    world.source.script(URL, *[Postponed("", code="host_busy", after_s=3.0)] * 4)
    assert world.try_stream(world.plan(URL)) == Failed("host_busy", 3.0)


# ── anything at all ───────────────────────────────────────────────────────────────────────────────

ODD: list[Says | StageFailure] = [
    CUT,
    Retryable("", code="http_5xx"),
    Postponed("", code="host_busy", after_s=1.0),
    Says(200, body=[BODY], without=("Content-Range",)),
    Says(headers={"ETag": '"v2"'}),
    Says(body=[b"?" * 100, CUT]),
    Says(body=[b""]),
    Says(),
]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.integers(-len(ODD), len(ODD) - 1), max_size=60),  # half of them honest
    connections=st.integers(1, 8),
    piece=st.integers(500, 9_000),
    number=st.uuids(),
)
def test_whatever_the_server_does_in_whatever_order_the_bytes_are_right(
    world: World, script: list[int], connections: int, piece: int, number: object
) -> None:
    url = world.source.put(f"{URL}?{number}", BODY, chunk=500)
    world.policy(
        segments=SegmentPolicy(connections, 1, 8, piece), retry=replace(world.deps.policy.retry, max_attempts=1000)
    )
    # A body of "?" under the right validator is only found out by the digest.
    job = world.plan(url, sha256=sha256(BODY))
    world.source.script(url, *(ODD[number] if number >= 0 else Says() for number in script))
    for _ in range(len(script) + 2):
        world.drive()
        if world.state(job) is State.DEDUPED:
            break
        world.make_due(job)
    assert world.state(job) is State.DEDUPED
    assert list(world.blobs().values()) == [BODY]
    assert world.staged() == []
