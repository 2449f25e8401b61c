"""What came on a connection that had carried another answer fails no job for good (HTTP.md, row 50)."""

from __future__ import annotations

from typing import Any

import pytest

from dlpipe.core.errors import Permanent
from dlpipe.core.states import State
from dlpipe.pipeline.runner import Failed
from tests.fakes.source import Says
from tests.world import World, sha256, some_bytes

URL = "http://files.example/a.bin"
BODY = some_bytes(50_000)
PAGE = b"<!doctype html>" + some_bytes(500)
MALFORMED = Permanent("the body is malformed", code="protocol_error")

ANOTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a refusal": ({}, {"status": 404, "headers": {"Content-Length": "0"}, "body": []}),
    "other bytes": ({"sha256": sha256(BODY)}, {"headers": {"Content-Length": "5"}, "body": [b"other"]}),
    "too much": ({"max_bytes": len(BODY)}, {"headers": {"Content-Length": "60000"}, "body": [bytes(60_000)]}),
    "a web page": ({"media_type": "application/x-any"}, {"headers": {"Content-Length": "515"}, "body": [PAGE]}),
    "a malformed body": ({}, {"body": [BODY[:1000], MALFORMED]}),
    "a coding": ({}, {"headers": {"Content-Encoding": "gzip"}}),
}


@pytest.fixture(autouse=True)
def _page(world: World) -> None:
    world.source.put(URL, BODY)


@pytest.mark.parametrize(("fields", "said"), ANOTHERS.values(), ids=ANOTHERS.keys())
def test_answer_on_a_reused_connection_that_would_fail_the_job_is_asked_for_again_on_a_fresh_one(
    world: World, fields: dict[str, Any], said: dict[str, Any]
) -> None:
    world.source.script(URL, Says(**said, is_reused=True))
    job = world.fetch(URL, **fields)
    assert world.state(job) is State.DEDUPED
    assert world.artifacts(job)[0].sha256 == sha256(BODY)
    assert [one.afresh for one in world.source.gets(URL)] == [False, True]
    assert world.row(job).run == 1
    assert len(world.source.disowned) == 1


@pytest.mark.parametrize(("fields", "said"), ANOTHERS.values(), ids=ANOTHERS.keys())
def test_answer_on_a_fresh_connection_is_judged_at_once(
    world: World, fields: dict[str, Any], said: dict[str, Any]
) -> None:
    world.source.script(URL, Says(**said))
    job = world.plan(URL, **fields)
    assert isinstance(world.try_stream(job), Failed)
    assert len(world.source.gets(URL)) == 1


def test_answer_on_the_fresh_connection_is_judged_for_good(world: World) -> None:
    said = ANOTHERS["a refusal"][1]
    world.source.script(URL, Says(**said, is_reused=True), Says(**said))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("http_404", None)
    assert len(world.source.gets(URL)) == 2
    assert world.source.disowned == [], "the fresh connection said the same"
