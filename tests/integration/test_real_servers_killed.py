"""Real web servers that are killed, or told to reload, in the middle of a body: the right bytes arrive (issue 3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from tests.conftest import absent
from tests.fakes.progress import FakeProgress
from tests.pipeline import Pipeline, assert_holds
from tests.shelf import Shelf
from tests.webservers import KINDS, Kind, WebServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines("broker"),
]

NAME = "file.bin"
BODY = random.Random(7).randbytes(32 << 20)
"""More than the kernel holds of it between the two, so that the server is in the middle of it."""
IN_THE_MIDDLE = 3 << 20
LONG_AGO = 1_600_000_000.0
NEW_ETAGS = {"lighttpd"}
"""Started again, it gives the same file another ETag: nothing may be joined then, and all of it comes anew."""


def of(kinds: Iterable[Kind]) -> list[ParameterSet]:
    return [pytest.param(kind, id=kind.name, marks=pytest.mark.xdist_group(kind.name)) for kind in kinds]


FORKING = of(kind for kind in KINDS if kind.name in {"nginx", "apache"})
"""Their first process starts those that serve anew."""
RELOADING = of(kind for kind in KINDS if kind.reload is not None)


@pytest.fixture(params=of(KINDS))
def server(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    kind: Kind = request.param
    if reason := kind.missing():
        absent(reason)
    with WebServer(kind) as running:
        running.put(NAME, BODY, LONG_AGO)
        yield running


class Happens(FakeProgress):
    """Something happens, once, when so many bytes are there."""

    def __init__(self, at: int, what: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._what, self.happened = at, what, 0

    def report(self, job_id: str, done: int, total: int | None) -> None:
        super().report(job_id, done, total)
        if done >= self._at and not self.happened:
            self.happened = done
            self._what()


@pytest.fixture
def pipeline(ledger_url: str, shelf: Shelf, tmp_path: Path) -> Iterator[Pipeline]:
    database = SqlDatabase(ledger_url)
    made = Pipeline(database, tmp_path / "store", shelf=shelf)
    yield made
    made.close()
    database.close()


def when(pipeline: Pipeline, at: int, what: Callable[[], None]) -> Happens:
    happens = Happens(at, what)
    pipeline.deps = replace(pipeline.deps, progress=happens)
    return happens


def resumed(pipeline: Pipeline) -> int:
    (found,) = pipeline.sql("SELECT resumed_from_bytes FROM manifest")
    return int(found.resumed_from_bytes)


def assert_done(pipeline: Pipeline, job: str) -> None:
    assert (pipeline.state(job), pipeline.error(job)) == (State.DEDUPED, None)
    assert_holds(pipeline, BODY)


def test_killed_in_the_middle_and_started_again(pipeline: Pipeline, server: WebServer) -> None:
    when(pipeline, IN_THE_MIDDLE, server.kill)
    job = pipeline.fetch(f"http://127.0.0.1:{server.site.port}/{NAME}")
    assert pipeline.error(job) in {"body_cut", "connection_lost"}
    assert_holds(pipeline, part=BODY)
    pipeline.again(job)
    assert pipeline.error(job) == "connect_failed"  # nobody is there yet; what is held stays
    assert_holds(pipeline, part=BODY)
    server.restart()
    pipeline.surroundings()  # as if the time had passed: the host is no longer left alone
    pipeline.again(job)
    assert_done(pipeline, job)
    assert (resumed(pipeline) >= IN_THE_MIDDLE) is (server.kind.resumes and server.kind.name not in NEW_ETAGS)


def test_killed_again_and_again(pipeline: Pipeline, server: WebServer) -> None:
    job = pipeline.plan(f"http://127.0.0.1:{server.site.port}/{NAME}")
    for n in range(1, 4):
        happens = when(pipeline, n * 2 * IN_THE_MIDDLE, server.kill)
        pipeline.make_due(job)
        pipeline.drive()
        assert happens.happened
        assert pipeline.error(job) in {"body_cut", "connection_lost"}
        assert_holds(pipeline, part=BODY)
        server.restart()
        pipeline.surroundings()
    pipeline.again(job)
    assert_done(pipeline, job)


@pytest.mark.parametrize("server", FORKING, indirect=True)
def test_only_those_that_serve_are_killed(pipeline: Pipeline, server: WebServer) -> None:
    """The first process lives, and has others in their place."""
    when(pipeline, IN_THE_MIDDLE, server.kill_workers)
    job = pipeline.fetch(f"http://127.0.0.1:{server.site.port}/{NAME}")
    assert pipeline.error(job) in {"body_cut", "connection_lost"}
    pipeline.again(job)
    assert_done(pipeline, job)
    assert resumed(pipeline) >= IN_THE_MIDDLE


@pytest.mark.parametrize("server", RELOADING, indirect=True)
def test_told_to_reload_in_the_middle(pipeline: Pipeline, server: WebServer) -> None:
    happens = when(pipeline, IN_THE_MIDDLE, server.reload)
    job = pipeline.fetch(f"http://127.0.0.1:{server.site.port}/{NAME}")
    assert happens.happened
    while pipeline.state(job) is State.FAILED:  # a server may also hang up; then it is resumed
        assert pipeline.row(job).due_at is not None
        pipeline.again(job)
    assert_done(pipeline, job)
