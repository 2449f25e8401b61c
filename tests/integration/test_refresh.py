"""Refresh, repair and replay against a real web server. PLAN-6, HEAL-3, JOB-7."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.core.model import Fault, Scope
from dlpipe.core.states import State, Status
from dlpipe.db import SqlDatabase
from dlpipe.net.cache import CachePolicy
from dlpipe.pipeline import wishes
from tests.conftest import absent
from tests.front import Front
from tests.pipeline import NET, Pipeline, assert_holds
from tests.shelf import Shelf
from tests.webservers import KINDS, WebServer
from tests.world import some_bytes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines("broker"),
]

NAME = "file.bin"
OLD, NEW = some_bytes(300_000), some_bytes(310_000)
LONG_AGO, LATER = 1_600_000_000.0, 1_700_000_000.0


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    (nginx,) = (kind for kind in KINDS if kind.name == "nginx")
    if reason := nginx.missing():
        absent(reason)
    with WebServer(nginx, gzip=False) as running:
        yield running


@pytest.fixture
def front(server: WebServer) -> Iterator[Front]:
    server.put(NAME, OLD, LONG_AGO)
    with Front(server.site.port) as between:
        yield between


@pytest.fixture
def pipeline(ledger_url: str, shelf: Shelf, tmp_path: Path) -> Iterator[Pipeline]:
    database = SqlDatabase(ledger_url)
    made = Pipeline(database, tmp_path / "store", shelf=shelf)
    made.surroundings(caching=CachePolicy(tmp_path / "http.db"))  # which must not answer in the server's place
    yield made
    made.close()
    database.close()


def refresh(pipeline: Pipeline, job: str) -> None:
    with pipeline.database.write() as unit:
        assert unit.owned(Scope()).refresh(job) is Status.PENDING
    pipeline.drive()


def statuses(front: Front) -> list[tuple[str, int]]:
    return [(one.method, one.status) for one in front.passed]


@pytest.mark.everywhere
def test_a_file_that_changes_between_two_fetches_is_a_second_artifact(
    pipeline: Pipeline, server: WebServer, front: Front
) -> None:
    job = pipeline.fetch(f"{front.url}/{NAME}")
    (old,) = pipeline.artifacts(job)
    etag = front.gets()[0].header("etag")
    server.put(NAME, NEW, LATER)
    front.passed.clear()
    refresh(pipeline, job)
    # Whatever a cache said to HEAD, the server itself was asked, and its GET counts.
    assert [one for one in statuses(front) if one[0] == "GET"] == [("GET", 200)] * 2
    assert front.gets()[0].headers["if-none-match"] == etag
    assert (pipeline.state(job), pipeline.error(job)) == (State.DEDUPED, None)
    first, second = pipeline.artifacts(job)
    assert first == old
    for artifact, body in ((first, OLD), (second, NEW)):
        with pipeline.deps.store.open(artifact.storage_pointer, len(body)) as stream:
            assert stream.read() == body
    assert_holds(pipeline, OLD, NEW)


@pytest.mark.everywhere
def test_a_file_that_stays_as_it_is_costs_one_request_and_makes_nothing(pipeline: Pipeline, front: Front) -> None:
    job = pipeline.fetch(f"{front.url}/{NAME}")
    before = pipeline.artifacts(job)
    front.passed.clear()
    refresh(pipeline, job)
    assert statuses(front) == [("GET", 304)]
    assert (pipeline.state(job), pipeline.artifacts(job)) == (State.SKIPPED_DUPLICATE, before)
    assert_holds(pipeline, OLD)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_file_that_is_lost_from_the_store_comes_back_under_its_name(
    pipeline: Pipeline, shelf: Shelf, front: Front, fault: Fault
) -> None:
    job = pipeline.fetch(f"{front.url}/{NAME}")
    (artifact,) = before = pipeline.artifacts(job)
    (name,) = pipeline.blobs()
    shelf.spoil(pipeline.root, name, b"?" * len(OLD) if fault is Fault.DAMAGED else None)
    assert wishes.bring_back(pipeline.deps, pipeline.view(job), artifact, fault)
    pipeline.drive()
    assert (pipeline.state(job), pipeline.artifacts(job)) == (State.DEDUPED, before)
    assert pipeline.blobs()[name] == OLD


@pytest.mark.everywhere
@pytest.mark.parametrize("from_stage", ["stream", "index"])
def test_a_replay_needs_no_server_and_no_way_to_one(pipeline: Pipeline, server: WebServer, from_stage: str) -> None:
    """The server is gone, the guard lets nobody out, and offline mode would refuse before it."""
    server.put(NAME, OLD, LONG_AGO)
    with Front(server.site.port) as front:
        job = pipeline.fetch(f"{front.url}/{NAME}")
    before, blobs, asked = pipeline.artifacts(job), pipeline.blobs(), len(front.passed)
    pipeline.surroundings(replace(NET, allow_private=False, offline=True))
    with pipeline.database.write() as unit:
        assert unit.owned(Scope()).replay(job, from_stage) is Status.PENDING
    pipeline.drive()
    assert (pipeline.state(job), pipeline.error(job), pipeline.view(job).run) == (State.DEDUPED, None, 2)
    assert (pipeline.artifacts(job), pipeline.blobs(), len(front.passed)) == (before, blobs, asked)
    refresh(pipeline, job)  # the same surroundings do refuse who wants to go out
    assert pipeline.error(job) == "blocked_offline"
