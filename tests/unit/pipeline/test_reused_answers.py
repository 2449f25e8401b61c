"""What came on a connection that had carried another answer fails no job for good (HTTP.md, row 50)."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.states import State
from dlpipe.pipeline.runner import Failed
from tests.fakes.source import Says
from tests.world import World, sha256, some_bytes

URL = "http://files.example/a.bin"
BODY = some_bytes(50_000)
LARGE = some_bytes(3_000_000)
"""Of several checkpoints."""
PAGE = b"<!doctype html>" + some_bytes(500)
MALFORMED = Permanent("the body is malformed", code="protocol_error")

ANOTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no answer with a file": ({}, {"status": 204, "headers": {"Content-Length": "0"}, "body": []}),
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
    said = ANOTHERS["no answer with a file"][1]
    world.source.script(URL, Says(**said, is_reused=True), Says(**said))
    job = world.plan(URL)
    assert world.try_stream(job) == Failed("unexpected_status", None)
    assert len(world.source.gets(URL)) == 2
    assert world.source.disowned == [], "the fresh connection said the same"


def test_refusal_of_a_fresh_connection_is_not_asked_for_again_as_an_earlier_answer_was_reused(world: World) -> None:
    """Row 34: the part is kept. The hub believes no refusal of a reused connection, so this one was made afresh."""
    world.source.script(
        URL,
        Says(body=[BODY[:30_000], Retryable("cut", code="body_cut")]),
        Says(206, ranged(10_000, 40_000), [BODY[10_000:40_000]], is_reused=True),
        Says(403, {"Content-Length": "0"}, []),
    )
    job = world.plan(URL)
    world.try_stream(job)
    world.make_due(job)
    world.drive()
    assert world.view(job).error_code == "http_403"
    assert not any(one.afresh for one in world.source.gets(URL))
    assert world.staged() != []


@pytest.mark.parametrize(
    "end", [b"F" * 1_000_000, LARGE[1_000_000:2_000_000]], ids=["all of it wrong", "its end right"]
)
def test_bytes_that_were_judged_wrong_are_not_gone_on_with_by_the_next_run(world: World, end: bytes) -> None:
    """The request that was to bring them anew fails, and so ends the run."""
    world.source.put(URL, LARGE)
    world.policy(stream=replace(world.deps.policy.stream, overlap_bytes=65_536))
    forged = Says(body=[b"F" * 1_000_000 + end, MALFORMED], is_reused=True)
    world.source.script(URL, forged, Retryable("busy", code="http_5xx"))
    job = world.plan(URL)
    world.try_stream(job)
    world.make_due(job)
    world.drive()
    assert world.artifacts(job)[0].sha256 == sha256(LARGE)


def test_range_with_a_wrong_digest_is_not_gone_on_with_by_the_next_run(world: World) -> None:
    """Row 44: a byte is wrong on its way, and the request that was to bring the file anew fails."""
    world.source.put(URL, LARGE)
    world.policy(stream=replace(world.deps.policy.stream, overlap_bytes=65_536))
    world.source.script(URL, Says(body=[LARGE[:100_000], Retryable("cut", code="body_cut")]))
    job = world.plan(URL)
    world.try_stream(job)
    start = 100_000 - 65_536
    right = LARGE[start:2_000_000]
    wrong = right[:700_000] + bytes([right[700_000] ^ 1]) + right[700_001:]
    digest = base64.b64encode(hashlib.sha256(right).digest()).decode()
    headers = ranged(start, 2_000_000, len(LARGE)) | {"Content-Digest": f"sha-256=:{digest}:"}
    world.source.script(URL, Says(206, headers, [wrong]), Retryable("busy", code="http_5xx"))
    for _ in range(2):
        world.make_due(job)
        world.drive()
    assert [one.start for one in world.source.gets(URL)][:3] == [0, start, 0]
    assert world.artifacts(job)[0].sha256 == sha256(LARGE)


def ranged(start: int, end: int, total: int = len(BODY)) -> dict[str, str]:
    return {"Content-Range": f"bytes {start}-{end - 1}/{total}", "Content-Length": str(end - start)}
