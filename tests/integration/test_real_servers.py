"""Real web servers, each in its usual ways: whatever happens on the way, the right bytes arrive (issue 3)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from tests.conftest import absent
from tests.front import Front, Passed
from tests.pipeline import POLICY, Pipeline, assert_holds
from tests.shelf import Shelf
from tests.webservers import KINDS, RETRY_AFTER_S, Kind, WebServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines("broker"),
]

NAME = "file.txt"
FIRST = random.Random(5).randbytes(1_000_000).hex().encode()  # text, so that there is something to compress
SECOND = random.Random(6).randbytes(900_000).hex().encode()
CUT = 700_000
LONG_AGO, LATER = 1_600_000_000.0, 1_700_000_000.0


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, id=kind.name, marks=pytest.mark.xdist_group(kind.name)) for kind in KINDS],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    if reason := found.missing():
        absent(reason)
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "gzip"])
def server(request: pytest.FixtureRequest, kind: Kind) -> Iterator[WebServer]:
    with WebServer(kind, gzip=request.param) as running:
        yield running


@pytest.fixture
def front(server: WebServer) -> Iterator[Front]:
    server.put(NAME, FIRST, LONG_AGO)
    with Front(server.site.port) as between:
        yield between
    server.site.busy.unlink(missing_ok=True)


@pytest.fixture
def pipeline(ledger_url: str, shelf: Shelf, tmp_path: Path) -> Iterator[Pipeline]:
    database = SqlDatabase(ledger_url)
    made = Pipeline(database, tmp_path / "store", shelf=shelf)
    yield made
    made.close()
    database.close()


def assert_done(pipeline: Pipeline, job: str, body: bytes) -> None:
    assert (pipeline.state(job), pipeline.error(job)) == (State.DEDUPED, None)
    assert_holds(pipeline, body)


def assert_asked_for_it_as_it_is(front: Front) -> None:
    assert all(one.headers["accept-encoding"] == "identity" for one in front.passed)
    assert all(one.header("content-encoding") is None for one in front.passed)


def cut_off(pipeline: Pipeline, front: Front, path: str = f"/{NAME}") -> str:
    front.cut_after = CUT
    job = pipeline.fetch(front.url + path)
    assert pipeline.error(job) == "body_cut"
    assert_holds(pipeline, part=FIRST)
    return job


def test_fresh(pipeline: Pipeline, front: Front) -> None:
    job = pipeline.fetch(f"{front.url}/{NAME}")
    assert_done(pipeline, job, FIRST)
    assert_asked_for_it_as_it_is(front)
    assert [one.method for one in front.passed] == ["HEAD", "GET"]


@pytest.mark.no_engines
def test_the_server_does_compress_for_others(server: WebServer, front: Front) -> None:
    """Else `gzip on` would prove nothing."""
    import urllib.request

    request = urllib.request.Request(f"{front.url}/{NAME}", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read()
    able = server.kind.name != "python"
    # busybox looks for a compressed file beside the document, whether it is told to or not.
    wanted = "gzip" if able and (server.site.gzip or server.kind.name == "busybox") else None
    assert answer.headers.get("Content-Encoding") == wanted


def test_resumed_after_a_cut(pipeline: Pipeline, front: Front, server: WebServer) -> None:
    job = cut_off(pipeline, front)
    pipeline.again(job)
    assert_done(pipeline, job, FIRST)
    assert_asked_for_it_as_it_is(front)
    last = front.gets()[-1]
    assert ("range" in last.headers, last.status) == ((True, 206) if server.kind.resumes else (True, 200))


def test_cut_again_and_again(pipeline: Pipeline, front: Front) -> None:
    job = cut_off(pipeline, front)
    for _ in range(2):
        front.cut_after = CUT // 2
        pipeline.again(job)
        assert pipeline.error(job) == "body_cut"
        assert_holds(pipeline, part=FIRST)
    pipeline.again(job)
    assert_done(pipeline, job, FIRST)


def test_resumed_after_the_file_changed(pipeline: Pipeline, front: Front, server: WebServer) -> None:
    job = cut_off(pipeline, front)
    server.put(NAME, SECOND, LATER)
    pipeline.again(job)
    assert_done(pipeline, job, SECOND)


@pytest.mark.parametrize("size", [len(FIRST), len(SECOND)], ids=["same size", "another size"])
def test_resumed_while_the_file_changes(pipeline: Pipeline, front: Front, server: WebServer, size: int) -> None:
    """After HEAD, before GET: only the answer to the range can tell, here by its validators alone."""
    pipeline.surroundings(stream=replace(POLICY.stream, overlap_bytes=0))
    body = (SECOND + FIRST)[:size]
    job = cut_off(pipeline, front)
    front.before_get = lambda: server.put(NAME, body, LATER)
    pipeline.again(job)
    assert_done(pipeline, job, body)
    assert "range" in front.gets()[1].headers


def test_ranges_ignored(pipeline: Pipeline, front: Front, server: WebServer) -> None:
    path = f"/plain/{NAME}" if "plain" in server.kind.can and server.kind.name != "python" else f"/{NAME}"
    if "plain" not in server.kind.can:
        front.strip = frozenset({"range", "if-range"})
    job = cut_off(pipeline, front, path)
    pipeline.again(job)
    assert_done(pipeline, job, FIRST)
    assert front.gets()[-1].status == 200


def test_busy_for_a_while(pipeline: Pipeline, front: Front, server: WebServer) -> None:
    if "busy" in server.kind.can:
        server.site.busy.touch()
    else:
        front.instead = busy
    job = pipeline.fetch(f"{front.url}/{NAME}")
    assert front.passed[-1].status == 429
    assert front.passed[-1].header("retry-after") == str(RETRY_AFTER_S)
    row = pipeline.row(job)
    assert (pipeline.error(job), row.attempts) == ("retry_after", 0)
    server.site.busy.unlink(missing_ok=True)
    front.instead = lambda _passed: None
    pipeline.surroundings()  # as if the time had passed: the host is no longer left alone
    pipeline.again(job)
    assert_done(pipeline, job, FIRST)


def busy(_passed: Passed) -> bytes:
    return b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %d\r\nContent-Length: 0\r\n\r\n" % RETRY_AFTER_S


def test_moved_and_cut(pipeline: Pipeline, front: Front, server: WebServer) -> None:
    if "moved" not in server.kind.can:
        front.instead = moved
    front.cut_after = None
    job = pipeline.fetch(f"{front.url}/moved/{NAME}")
    assert_done(pipeline, job, FIRST)
    assert {front.passed[0].status, front.passed[1].status} == {302, 200}


def moved(passed: Passed) -> bytes | None:
    if not passed.target.startswith("/moved/"):
        return None
    return f"HTTP/1.1 302 Found\r\nLocation: /{NAME}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.no_engines
def test_nothing_of_a_server_is_left_behind(kind: Kind) -> None:
    with WebServer(kind, gzip=False) as running:
        folder, pid = running.site.folder, running._process.pid
    assert not folder.exists()
    assert not os.path.exists(f"/proc/{pid}")
