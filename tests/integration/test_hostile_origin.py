"""Every row of HTTP.md, played against the whole pipeline: real ledger, real store, real client (issue 3)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from tests.hostile import (
    CUT,
    ETAG,
    FILE,
    OTHER,
    RANGES,
    Done,
    Refused,
    Row,
    Waits,
    asked_from,
    head,
    honest,
    play,
    whole,
)
from tests.hostile import part as a_part
from tests.hostile_rows import BLIND, CUT_OFF, ROWS
from tests.origin import Asked, Origin, Say, Then, answer
from tests.pipeline import NET, POLICY, Pipeline, assert_holds
from tests.shelf import Shelf
from tests.world import epoch, sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines("broker"),
]


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


@pytest.fixture
def make(ledger_url: str, shelf: Shelf, tmp_path: Path) -> Iterator[Callable[[], Pipeline]]:
    database, made = SqlDatabase(ledger_url), []

    def build() -> Pipeline:
        made.append(Pipeline(database, tmp_path / "store", shelf=shelf))
        return made[-1]

    yield build
    for pipeline in made:
        pipeline.close()
    database.close()


@pytest.fixture
def pipeline(make: Callable[[], Pipeline]) -> Pipeline:
    return make()


# ── the rows ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row(row: Row, origin: Origin, pipeline: Pipeline) -> None:
    url, job = held(row, origin, pipeline)
    pipeline.surroundings(replace(NET, **row.net), replace(POLICY.stream, **row.stream))
    origin.on("/f", play(row, row.get))
    before = len(origin.asked)
    if job is None:
        job = pipeline.fetch(url, **row.plan)
    else:
        pipeline.again(job)
    asked = [one for one in origin.asked[before:] if one.method == "GET"]
    check(row, pipeline, job, asked)
    if not isinstance(row.ends, Done):
        same = (ETAG, RANGES) if row.now == FILE else ()
        origin.on("/f", honest(row.now, *same))
        pipeline.surroundings()
        pipeline.again(job)
        assert (pipeline.state(job), pipeline.error(job)) == (State.DEDUPED, None), (
            "it goes on when the server is right"
        )
        assert_holds(pipeline, row.now)
        if row.number in (4, 6):
            (measured,) = pipeline.sql("SELECT resumed_from_bytes FROM manifest")
            assert measured.resumed_from_bytes > 0, "what came before the break is not fetched again"


def held(row: Row, origin: Origin, pipeline: Pipeline) -> tuple[str, str | None]:
    """A first run that was cut off, for the rows that are about the second."""
    if row.held is None:
        return origin.url + "/f", None
    blind = replace(row, head=BLIND)
    url = origin.on("/f", play(blind, (row.held,)))
    job = pipeline.fetch(url, **row.plan)
    assert pipeline.error(job) == "body_cut"
    assert_holds(pipeline, part=FILE)
    return url, job


def check(row: Row, pipeline: Pipeline, job: str, asked: list[Asked]) -> None:
    end, found, attempts = row.ends, pipeline.row(job), 1 if row.held else 0
    if row.ranges is not None:
        assert tuple(asked_from(one) is not None for one in asked) == row.ranges
    assert all(one.headers.get("accept-encoding") == "identity" for one in asked)
    match end:
        case Done():
            assert (State(found.state), pipeline.error(job)) == (State.DEDUPED, None)
            assert_holds(pipeline, end.body)
            (artifact,) = pipeline.artifacts(job)
            assert (artifact.sha256, artifact.byte_size) == (sha256(end.body), len(end.body))
            (measured,) = pipeline.sql("SELECT bytes_written, resumed_from_bytes FROM manifest")
            if end.resumed is not None:
                assert (measured.resumed_from_bytes > 0) is end.resumed
            if row.held and end.resumed is False and row.ranges is None:
                assert [asked_from(one) is not None for one in asked] == [True, False], "one restart"
            (streamed,) = pipeline.sql(
                "SELECT result_json FROM artifact_ops WHERE op_type = 'STREAM' AND state = 'finished'"
            )
            assert json.loads(streamed.result_json)["length_unproven"] is end.unproven
        case Refused():
            assert (State(found.state), pipeline.error(job), found.due_at) == (State.FAILED, end.code, None)
            assert_holds(pipeline, part=FILE if end.part else None)
        case Waits():
            assert (State(found.state), pipeline.error(job)) == (State.FAILED, end.code)
            assert found.attempts == attempts + end.attempt
            wait_s = epoch(found.due_at) - time.time()
            assert end.not_before_s - 10 <= wait_s <= end.within_s
            assert_holds(pipeline, part=row.now if end.part else None)
    assert pipeline.view(job).error_debug_id == (None if isinstance(end, Done) else "debug")


# ── rows that need more than one place, or more than one job ──────────────────────────────────────


def test_row_41_another_origin_is_told_nothing(origin: Origin, pipeline: Pipeline) -> None:
    with Origin() as other:
        there = other.on("/g", honest())
        url = origin.on("/f", Say(answer(302, b"", f"Location: {there}", "Set-Cookie: id=s3cret")))
        job = pipeline.fetch(url)
        assert pipeline.state(job) is State.DEDUPED
        known = {"host", "accept", "accept-encoding", "connection", "user-agent"}
        assert all(asked.headers.keys() == known for asked in other.asked)
    assert_holds(pipeline, FILE)


def test_row_41_every_hop_is_guarded(origin: Origin, pipeline: Pipeline) -> None:
    pipeline.surroundings(replace(NET, allow_private=False), resolve=lambda _host, _port: ["10.0.0.1"])
    job = pipeline.fetch("http://inside.example/f")
    assert (pipeline.error(job), origin.connections) == ("egress_forbidden", 0)
    assert_holds(pipeline)


def test_row_42_a_part_is_not_joined_with_bytes_of_another_place(origin: Origin, pipeline: Pipeline) -> None:
    origin.on("/one", head_or(CUT_OFF))
    url = origin.on("/f", Say(answer(302, b"", "Location: /one")))
    job = pipeline.fetch(url)
    assert pipeline.error(job) == "body_cut"
    mixed = a_part(ETAG, RANGES, body=OTHER)
    origin.on("/two", head_or(mixed, length=len(OTHER)))
    origin.on("/f", Say(answer(302, b"", "Location: /two")))
    pipeline.again(job)
    assert pipeline.state(job) is State.DEDUPED
    assert_holds(pipeline, OTHER)


@pytest.mark.parametrize("listed", [True, False])
def test_row_42_a_fresh_signature_leads_to_the_same_file_if_the_policy_says_so(
    origin: Origin, pipeline: Pipeline, listed: bool
) -> None:
    pipeline.surroundings(replace(NET, volatile_params=frozenset({"signature"} if listed else ())))
    origin.on("/one", head_or(CUT_OFF))
    job = pipeline.fetch(origin.on("/f", Say(answer(302, b"", "Location: /one?Signature=1"))))
    assert pipeline.error(job) == "body_cut"
    origin.on("/one", head_or(a_part(ETAG, RANGES)))
    origin.on("/f", Say(answer(302, b"", "Location: /one?Signature=2")))
    pipeline.again(job)
    assert_holds(pipeline, FILE)
    gets = [asked for asked in origin.asked if asked.method == "GET" and asked.target == "/one?Signature=2"]
    assert [asked_from(asked) is not None for asked in gets] == [listed]


def test_row_42_nor_when_only_the_get_is_sent_there(origin: Origin, pipeline: Pipeline) -> None:
    origin.on("/one", head_or(CUT_OFF))
    # The bytes that are held would fit.
    origin.on("/two", head_or(a_part(ETAG, RANGES, body=FILE[:CUT] + OTHER[CUT:])))
    to_one, to_two = (Say(answer(302, b"", f"Location: {path}")) for path in ("/one", "/two"))
    url = origin.on("/f", to_one)
    job = pipeline.fetch(url)
    assert pipeline.error(job) == "body_cut"
    origin.on("/f", lambda asked: to_one if asked.method == "HEAD" else to_two)
    pipeline.again(job)
    assert pipeline.state(job) is State.DEDUPED
    assert [asked_from(asked) is not None for asked in origin.of("/two")] == [True, False]
    assert_holds(pipeline, FILE[:CUT] + OTHER[CUT:])


LOGIN = b"<!DOCTYPE html><html><title>Log in</title><p>Please log in first</html>"
DECLARED = (
    "text/html", "text/html; charset=utf-8", "TEXT/HTML", "application/xhtml+xml", "text/plain", "text/xml", "text/csv",
    "application/xml", "application/json", "application/pdf", "application/zip", "application/x-gzip", "image/png",
    "image/svg+xml", "audio/mpeg", "video/mp4", "application/octet-stream", "binary/octet-stream",
    "application/force-download", "multipart/form-data", "nonsense", "", None,
)  # fmt: skip


@pytest.mark.parametrize("name", ["papers/a.pdf", "a.tar.gz", "a.jpeg", "a.mp4"])
def test_row_43_a_log_in_page_is_refused_under_every_declared_type(
    name: str, origin: Origin, pipeline: Pipeline
) -> None:
    for number, declared in enumerate(DECLARED):
        lines = [RANGES, *([] if declared is None else [f"Content-Type: {declared}"])]
        login = origin.on(f"/{number}/login", honest(LOGIN, *lines))
        # As servers do it: some answer with the page, others lead to it.
        to_login = Say(answer(302, b"", f"Location: {login}"))
        for url in (origin.on(f"/{number}/{name}", honest(LOGIN, *lines)), origin.on(f"/{number}/to/{name}", to_login)):
            job = pipeline.fetch(url)
            assert (pipeline.state(job), pipeline.error(job)) == (State.FAILED, "media_type_mismatch"), declared
    assert_holds(pipeline)


def test_row_36_resume_is_turned_off_for_a_host_whose_etags_flip(origin: Origin, pipeline: Pipeline) -> None:
    """Each node has its own ETag, and each answer is cut: asking for ranges can only fail, so it stops."""
    nodes = [whole(f'ETag: "node-{n % 2}"', RANGES, sends=CUT, then=Then.CLOSE) for n in range(20)]
    row = Row(36, "", tuple(nodes), Done(), head=BLIND)
    url = origin.on("/f", play(row, row.get))
    job = pipeline.fetch(url)
    for _ in range(3):
        assert pipeline.error(job) == "body_cut"
        pipeline.again(job)
    before = len(origin.asked)
    pipeline.again(job)
    gets = [one for one in origin.asked[before:] if one.method == "GET"]
    assert [asked_from(one) for one in gets] == [None]
    origin.on("/f", honest())
    pipeline.again(job)
    assert_holds(pipeline, FILE)


def test_row_48_an_idle_connection_that_closes_costs_no_attempt(origin: Origin, pipeline: Pipeline) -> None:
    """The server takes the GET on the connection that another GET had, and closes it without a word."""
    told = 0

    def script(asked: Asked) -> Say:
        nonlocal told
        told += asked.method == "GET"
        if asked.method == "GET" and told == 1:
            return Say(b"", Then.CLOSE)
        return honest()(asked)

    pipeline.fetch(origin.on("/g", honest()), artifact_id="before")
    job = pipeline.fetch(origin.on("/f", script))
    assert pipeline.state(job) is State.DEDUPED
    assert (pipeline.row(job).attempts, pipeline.row(job).run, pipeline.slept) == (0, 1, [])
    assert [asked.connection for asked in origin.asked] == [1, 2, 1, 2, 3]
    assert_holds(pipeline, FILE)


def head_or(get: Callable[[Asked], Say], length: int = len(FILE)) -> Callable[[Asked], Say]:
    told = head(ETAG, RANGES, f"Content-Length: {length}")
    return lambda asked: told(asked) if asked.method == "HEAD" else get(asked)


@pytest.mark.no_engines
def test_every_row_of_the_table_is_played() -> None:
    elsewhere = {42, 48}
    of_several_requests = {
        49,
        50,
        52,
    }  # tests/integration/test_late_bytes.py, test_reused_connections.py, test_busy_urls.py
    assert {row.number for row in ROWS} | elsewhere | of_several_requests == set(range(1, 55))
    assert len({row.id for row in ROWS}) == len(ROWS)
