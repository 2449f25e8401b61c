"""The body: bounded, checked, gone on with, and never a wrong byte in the store. STREAM-1…6."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dlpipe.core import crash
from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.model import Scope
from dlpipe.core.states import State, Status
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done, Failed
from dlpipe.pipeline.stages.fetch import WHOLE_OVERLAP_BYTES
from tests.fakes.source import Says
from tests.world import RETRY_S, World, sha256, some_bytes

URL = "http://files.example/a.pdf"
BODY = b"%PDF-1.7\n" + some_bytes(50_000)
HALF = 20_000


@pytest.fixture(autouse=True)
def _page(world: World) -> None:
    world.source.put(URL, BODY)


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
    assert world.try_stream(job) == Failed(code, None)
    assert (world.staged(), world.blobs(), world.artifacts(job)) == ([], {}, [])
    assert world.view(job).status is Status.FAILED


def test_too_large_is_noticed_before_much_of_it_has_come(world: World) -> None:
    world.source.put(URL, BODY, chunk=1000)
    world.source.script(URL, Says(without=("Content-Length",)))
    job = world.plan(URL, max_bytes=HALF)
    world.try_stream(job)
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
    world.try_stream(other)
    job = world.plan(URL, max_bytes=HALF)
    assert world.try_stream(job) == Failed("too_large", None)


def test_a_digest_that_the_server_declares_is_checked(world: World) -> None:
    world.source.script(URL, Says(headers={"Repr-Digest": "sha-256=:" + "A" * 43 + "=:"}))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("digest_mismatch", RETRY_S)
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
    assert (world.streamed(job)["etag"], world.staged()) == ('"v1"', [])


# ── a message that comes again ────────────────────────────────────────────────────────────────────


def again(world: World, job: str) -> None:
    """The same message once more, when the lease of its first holder has run out."""
    world.leases.held.clear()
    world.expire(job)
    for stage in ("stream", "finalize", "index", "dedupe"):
        assert isinstance(world.run(stage, job), Done)


LARGE = b"%PDF-1.7\n" + some_bytes(4 << 20)


def killed_in_the_middle(world: World) -> str:
    """A job whose worker died in the middle of the body; its first pieces are vouched for."""

    def die() -> None:
        raise Died

    world.source.put(URL, LARGE)
    pieces = [LARGE[at : at + 65_536] for at in range(0, 3 << 20, 65_536)]
    world.source.script(URL, Says(body=[*pieces, die]))
    job = world.plan(URL)
    world.run_to("stream", job)
    with pytest.raises(Died):
        world.run("stream", job)
    return job


def test_a_stream_whose_message_comes_again_goes_on_from_what_its_first_holder_left(world: World) -> None:
    job = killed_in_the_middle(world)
    again(world, job)
    first, second = (get.start for get in world.source.gets(URL))
    assert (first, second > 2 << 20) == (0, True)
    assert (world.streamed(job)["resumed_from_bytes"], list(world.blobs().values())) == (second, [LARGE])


def test_a_whole_file_whose_message_comes_again_is_compared_and_not_brought_again(world: World) -> None:
    world.source.put(URL, LARGE)
    job = world.plan(URL)
    world.run_to("stream", job)
    with dying_at("stream.finished"):
        world.run("stream", job)
    again(world, job)
    assert [get.start for get in world.source.gets(URL)] == [0, len(LARGE) - WHOLE_OVERLAP_BYTES]
    assert (world.streamed(job)["resumed_from_bytes"], list(world.blobs().values())) == (len(LARGE), [LARGE])


def test_a_file_that_changed_before_its_message_came_again_is_brought_anew(world: World) -> None:
    job = killed_in_the_middle(world)
    world.source.put(URL, BODY, etag='"v2"')
    again(world, job)
    assert list(world.blobs().values()) == [BODY]


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
    assert world.try_stream(job) == Failed(code, RETRY_S)
    assert len(world.staged()) == 2  # part and sidecar
    world.make_due(job)
    world.drive()
    assert (world.streamed(job)["resumed_from_bytes"], list(world.blobs().values())) == (HALF, [BODY])


def test_bytes_past_the_declared_end_are_never_stored(world: World) -> None:
    world.source.script(URL, Says(body=[BODY, b"and more"]))
    job = world.fetch(URL)
    assert list(world.blobs().values()) == [BODY]
    assert len(world.source.gets(URL)) == 2  # brought once more: the first answer is not trusted
    assert world.state(job) is State.DEDUPED


def test_nor_are_they_staged(world: World) -> None:
    world.source.script(URL, *[Says(body=[BODY[:HALF], BODY[HALF:] + b"and more"])] * 3)
    assert world.try_stream(world.plan(URL)) == Failed("restarts_exhausted", RETRY_S)
    (part,) = (world.root / ".staging").rglob("*.part")
    assert part.read_bytes() == BODY


def test_a_body_without_a_length_needs_a_proof(world: World) -> None:
    world.source.put(URL, BODY, head=False)
    world.source.script(URL, Says(without=("Content-Length",)))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("length_unproven", None)
    world.stream_policy(accept_unproven_length=True)
    other = world.source.put(URL + "2", BODY, head=False)
    world.source.script(other, Says(without=("Content-Length",)))
    assert world.streamed(world.fetch(other))["length_unproven"] is True
    # With a digest, or a length that HEAD told, it is proven.
    world.stream_policy(accept_unproven_length=False)
    for number, known in enumerate([{"head": False}, {}], 3):
        url = world.source.put(f"{URL}{number}", BODY, **known)
        world.source.script(url, Says(without=("Content-Length",)))
        job = world.fetch(url, sha256=None if number == 4 else sha256(BODY))
        assert world.streamed(job)["length_unproven"] is False


class Died(BaseException):
    """The process ended here."""


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    def die(name: str) -> None:
        if name == point:
            raise Died

    crash.arm(die)
    try:
        with pytest.raises(Died):
            yield
    finally:
        crash.arm(None)


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_that_nothing_proves_the_length_is_known_after_a_crash(world: World, accepted: bool, known: bool) -> None:
    world.source.put(URL, BODY, head=False)
    world.source.script(URL, *[Says(without=("Content-Length",))] * 4)
    world.stream_policy(accept_unproven_length=True)
    job = world.plan(URL, sha256=sha256(BODY) if known else None)
    world.run_to("stream", job)
    with dying_at("stream.finished"):
        world.run("stream", job)
    world.leases.held.clear()
    world.expire(job)
    world.stream_policy(accept_unproven_length=accepted)
    reconcile(world.deps)
    world.drive()
    if accepted or known:
        # Without a digest a file that small comes again.
        assert len(world.source.gets(URL)) == (1 if known else 2)
        assert world.streamed(job)["length_unproven"] is not known
    else:  # what was accepted under another setting is asked for again
        assert world.view(job).error_code == "length_unproven"


def test_answers_that_do_not_fit_together_are_given_up_after_a_few(world: World) -> None:
    odd = Says(headers={"Content-Range": "bytes 0-9/10"})  # on a 200
    world.source.script(URL, odd, odd, odd)
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("restarts_exhausted", RETRY_S)
    assert len(world.source.gets(URL)) == 3


def test_an_answer_that_does_not_fit_is_asked_for_again_from_the_start(world: World) -> None:
    world.source.script(URL, Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]), Says(status=416))
    job = world.plan(URL)
    world.try_stream(job)
    world.make_due(job)
    world.drive()
    assert [get.start for get in world.source.gets(URL)] == [0, HALF, 0]
    assert list(world.blobs().values()) == [BODY]


def test_joined_bytes_that_hash_to_something_else_are_brought_anew(world: World) -> None:
    """The same validator over other bytes (HTTP.md row 37): only the expected digest can tell."""
    world.source.script(URL, Says(body=[os.urandom(HALF), Retryable("cut", code="body_cut")]))
    job = world.plan(URL, sha256=sha256(BODY))
    world.try_stream(job)
    world.make_due(job)
    world.drive()
    assert [get.start for get in world.source.gets(URL)] == [0, HALF, 0]
    assert list(world.blobs().values()) == [BODY]


def test_bytes_that_were_joined_for_another_job_meanwhile_are_not_gone_on_with(world: World) -> None:
    """Between the two stages a job with a digest put bytes of two servers together, and failed."""
    world.source.script(URL, Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("body_cut", RETRY_S)
    world.make_due(job)
    world.run_to("stream", job, 2)
    scope = Scope()
    with world.deps.staging.claim(scope.tenant_id, URL, "another", 1) as part:
        assert part.verify(HALF) == HALF
        part.rewind(100)
        part.promise("0" * 64)
        part.write(b"x" * (HALF - 100))
        part.flush()
    world.run("stream", job, 2)
    assert world.source.gets(URL)[-1].start == 0
    assert (world.streamed(job)["sha256"], world.streamed(job)["resumed_from_bytes"]) == (sha256(BODY), 0)


# ── what is told of it ────────────────────────────────────────────────────────────────────────────


def test_the_time_it_took_is_measured(world: World) -> None:
    def two_seconds() -> None:
        world.now += 2.0

    world.source.script(URL, Says(body=[BODY[:HALF], two_seconds, BODY[HALF:]]))
    job = world.fetch(URL)
    (noted,) = world.sql("SELECT * FROM manifest")
    assert (noted.bytes_written, noted.elapsed_ms, noted.avg_write_mibps) == (len(BODY), 2000, 0.024)
    assert world.streamed(job)["bytes_written"] == len(BODY)


def test_what_the_server_refuses_for_good_ends_the_job_with_its_code(world: World) -> None:
    world.source.script(URL, Permanent("the server answered 403", code="http_403", hint="check the link"))
    job = world.fetch(URL)
    view = world.view(job, Scope())
    assert (view.status, view.error_code, view.error_debug_id) == (Status.FAILED, "http_403", "debug")
