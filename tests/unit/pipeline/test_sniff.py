"""A web page in place of a file is refused however it comes, and a page that was asked for comes. STREAM-4, row 43."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core import crash
from dlpipe.core.errors import Retryable
from dlpipe.core.model import Fault, Scope
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State, Status
from dlpipe.pipeline import wishes
from dlpipe.pipeline.runner import Failed
from tests.fakes.source import Says
from tests.world import DEFAULT, RETRY_S, World, some_bytes

URL = "http://files.example/papers/a.pdf"
MIRROR = "http://mirror.example/b"
PAGE = b"<!DOCTYPE html><html><title>Log in</title><p>Please log in to go on</html>"
LONG_PAGE = PAGE + b" " * 100_000
PDF = b"%PDF-1.7\n" + some_bytes(50_000)
CUT = Retryable("cut", code="body_cut")


def refused(world: World, job: str) -> None:
    """For good, and nothing is left of it."""
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, "media_type_mismatch")
    assert world.row(job).due_at is None
    assert (world.staged(), world.artifacts(job)) == ([], [])


def came(world: World, job: str, body: bytes, ext: str) -> None:
    (artifact,) = world.artifacts(job)
    assert artifact.storage_pointer.endswith(artifact.sha256 + ext)
    assert body in world.blobs().values()


DECLARED = (
    "text/html", "text/html; charset=utf-8", "application/xhtml+xml", "text/plain", "application/pdf",
    "application/octet-stream", "binary/octet-stream", "application/force-download", "application/zip", "image/png",
    "video/mp4", "text/xml", "application/json", "text/csv", "x", "", None,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ext", ["pdf", "zip", "tar.gz", "png", "mp3", "mp4"])
@pytest.mark.parametrize("declared", DECLARED)
def test_a_page_is_refused_whatever_the_server_declares(world: World, declared: str | None, ext: str) -> None:
    url = world.source.put(f"http://files.example/a.{ext}", PAGE, content_type=declared)
    job = world.fetch(url)
    refused(world, job)
    assert world.blobs() == {}


@pytest.mark.parametrize(
    ("path", "fields", "declared"),
    [
        ("/a", {"ext": ".pdf"}, "text/html"),
        ("/a.html", {"ext": ".zip"}, "text/html"),
        ("/a.php", {}, "application/pdf"),
        ("/a", {}, "image/png"),
        ("/a.html", {"media_type": "video/mp4"}, "text/html"),
    ],
)
def test_a_page_is_refused_where_no_page_is_expected(
    world: World, path: str, fields: dict[str, Any], declared: str
) -> None:
    url = world.source.put("http://files.example" + path, PAGE, content_type=declared)
    refused(world, world.fetch(url, **fields))


@pytest.mark.parametrize(
    ("path", "fields", "declared", "ext"),
    [
        ("/a.html", {}, "text/html", ".html"),
        ("/a.htm", {}, "application/pdf", ".htm"),
        ("/a.pdf", {"ext": ".html"}, "text/html", ".html"),
        ("/a.pdf", {"media_type": "text/html"}, "text/html", ".pdf"),
        ("/a", {}, "text/html", ".html"),
        ("/a", {}, "application/octet-stream", ""),
        ("/a.txt", {}, "text/plain", ".txt"),
    ],
)
def test_a_page_that_was_asked_for_comes(
    world: World, path: str, fields: dict[str, Any], declared: str, ext: str
) -> None:
    url = world.source.put("http://files.example" + path, PAGE, content_type=declared)
    came(world, world.fetch(url, **fields), PAGE, ext)


@pytest.mark.parametrize("body", [PDF, b"junk\r\n" + PDF, b"", b"%PDF", b'{"error": 1}', b"no page"])
def test_what_is_no_page_comes_under_any_name(world: World, body: bytes) -> None:
    world.source.put(URL, body, content_type="text/html")
    came(world, world.fetch(URL), body, ".pdf")


@pytest.mark.parametrize("page", [b"<html", PAGE, LONG_PAGE], ids=["shorter than any tag", "short", "long"])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_page_is_refused_however_it_is_framed(world: World, framing: str, page: bytes) -> None:
    """One that ends with the connection is a page, before it is a file of unproven length."""
    world.source.put(URL, page, head=False)
    without = () if framing == "length" else ("Content-Length",)
    world.source.script(URL, Says(framing=framing, without=without))
    refused(world, world.fetch(URL))


# ── by which way the bytes come ───────────────────────────────────────────────────────────────────


def test_a_page_over_several_connections_is_refused_before_all_of_it_came(world: World) -> None:
    world.policy(segments=SegmentPolicy(connections=2, min_bytes=10_000, piece_bytes=5_000))
    world.source.put(URL, LONG_PAGE)
    refused(world, world.fetch(URL))
    assert len(world.source.gets(URL)) <= 6


def test_a_page_that_was_cut_off_is_refused_when_it_goes_on(world: World) -> None:
    world.source.put(URL, LONG_PAGE)
    world.source.script(URL, Says(body=[PAGE, CUT]))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("body_cut", RETRY_S)
    world.make_due(job)
    world.drive()
    refused(world, job)
    assert world.source.gets(URL)[-1].start == len(PAGE)


class Died(BaseException):
    """The process ended here."""


def test_a_whole_page_that_another_job_left_is_refused_for_this_one(world: World) -> None:
    """Its part is complete, and nothing would be asked for."""

    def die(point: str) -> None:
        if point == "stream.finished":
            raise Died

    world.source.put(URL, PAGE)
    other = world.plan(URL, artifact_id="page", ext=".html")
    world.run_to("stream", other)
    crash.arm(die)
    try:
        with pytest.raises(Died):
            world.run("stream", other)
    finally:
        crash.arm(None)
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("media_type_mismatch", None)
    assert world.source.gets(URL)[-1].start == 0
    assert world.blobs() == {}


def test_a_page_of_one_server_is_passed_by_for_the_file_of_a_mirror(world: World) -> None:
    world.source.put(URL, PAGE, content_type="text/html")
    world.source.put(MIRROR, PDF)
    came(world, world.fetch(URL, mirrors=[MIRROR]), PDF, ".pdf")


# ── bytes that are held already ───────────────────────────────────────────────────────────────────


@pytest.fixture
def page(world: World) -> str:
    """A job that asked for the page which this URL gives."""
    world.source.put(URL, PAGE, content_type="text/html")
    job = world.fetch(URL, artifact_id="page", ext=".html")
    came(world, job, PAGE, ".html")
    return job


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("trust_s", [86_400.0, 0.0], ids=["trusted", "unchanged at the server"])
def test_a_known_page_is_not_linked_where_no_page_is_expected(world: World, trust_s: float) -> None:
    world.policy(trust_s=trust_s)
    refused(world, world.fetch(URL))
    assert all(name.endswith(".html") for name in world.blobs())


def test_a_known_page_is_linked_for_the_next_who_asks_for_it(world: World, page: str) -> None:
    job = world.fetch(URL, artifact_id="again", ext=".html")
    assert world.state(job) is State.SKIPPED_DUPLICATE
    assert len(world.source.gets(URL)) == 1


@pytest.mark.usefixtures("page")
def test_the_file_that_replaced_a_known_page_is_fetched(world: World) -> None:
    world.source.put(URL, PDF)
    came(world, world.fetch(URL), PDF, ".pdf")


def test_a_known_file_is_linked_whatever_its_server_called_it(world: World) -> None:
    world.source.put(URL, PDF, content_type="text/html")
    world.fetch(URL)
    assert world.state(world.fetch(URL, artifact_id="again")) is State.SKIPPED_DUPLICATE


def test_a_page_that_was_stored_before_it_was_looked_for_is_told_by_the_next_job(world: World) -> None:
    world.source.put(URL, PAGE, content_type="application/pdf")
    world.stream_policy(sniff=False)
    came(world, world.fetch(URL), PAGE, ".pdf")
    world.stream_policy(sniff=True)
    refused(world, world.fetch(URL, artifact_id="again"))


# ── further runs of a job whose page was stored before pages were looked for ─────────────────────


@pytest.fixture
def stored(world: World) -> str:
    world.source.put(URL, PAGE, content_type="application/pdf")
    world.stream_policy(sniff=False)
    job = world.fetch(URL)
    came(world, job, PAGE, ".pdf")
    world.stream_policy(sniff=True)
    return job


def failed_and_kept(world: World, job: str) -> None:
    """What was registered stays, and stays readable."""
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, "media_type_mismatch")
    assert (len(world.artifacts(job)), list(world.blobs().values())) == (1, [PAGE])


def test_a_refresh_tells_a_page_although_the_server_has_not_changed_it(world: World, stored: str) -> None:
    with world.database.write() as unit:
        assert unit.owned(DEFAULT).refresh(stored) is Status.PENDING
    world.drive()
    failed_and_kept(world, stored)


def test_a_replay_tells_a_page(world: World, stored: str) -> None:
    wishes.replay(world.deps, DEFAULT, stored, "stream")
    world.drive()
    failed_and_kept(world, stored)


@pytest.mark.usefixtures("stored")
def test_a_repair_brings_the_very_bytes_back_from_another_copy(world: World) -> None:
    world.stream_policy(sniff=False)
    scope = Scope(project_id="other")
    job = world.fetch(URL, project_id="other")
    world.stream_policy(sniff=True)
    (artifact,) = world.artifacts(job, scope)
    path = Path(world.deps.store.path(artifact.storage_pointer))
    path.unlink()
    assert wishes.bring_back(world.deps, world.view(job, scope), artifact, Fault.MISSING)
    world.source.asked.clear()
    world.drive()
    assert (world.state(job), path.read_bytes(), world.source.asked) == (State.SKIPPED_DUPLICATE, PAGE, [])


# ── switched off ──────────────────────────────────────────────────────────────────────────────────


def test_sniffing_is_off_for_the_hosts_that_are_said(world: World) -> None:
    world.deps = replace(world.deps, sniffs=lambda host: host != "files.example")
    world.source.put(URL, PAGE, content_type="text/html")
    came(world, world.fetch(URL), PAGE, ".pdf")
    other = world.source.put("http://other.example/a.pdf", PAGE)
    refused(world, world.fetch(other))


@pytest.mark.parametrize(("looked_at", "comes"), [("files.example", True), ("mirror.example", False)])
def test_sniffing_goes_by_the_host_that_is_asked(world: World, looked_at: str, comes: bool) -> None:
    world.deps = replace(world.deps, sniffs=lambda host: host == looked_at)
    world.source.put(URL, PAGE)
    world.source.script(URL, CUT)
    world.source.put(MIRROR, PAGE)
    job = world.fetch(URL, mirrors=[MIRROR])
    assert (world.state(job) is State.DEDUPED, list(world.blobs().values())) == (comes, [PAGE] if comes else [])


def test_sniffing_costs_nothing_where_it_is_off(world: World) -> None:
    world.stream_policy(sniff=False)
    world.source.put(URL, PAGE)
    came(world, world.fetch(URL), PAGE, ".pdf")
    assert world.state(world.fetch(URL, artifact_id="again")) is State.SKIPPED_DUPLICATE
