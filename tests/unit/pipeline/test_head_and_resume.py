"""HEAD and the decision to resume: our own index first, the server's word as a hint. HEAD-1, HEAD-2, RESUME-1."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.states import State, Status
from dlpipe.pipeline.runner import Done, Failed
from tests.fakes.source import Says
from tests.world import World, sha256

URL = "http://files.example/a.bin"
BODY = os.urandom(50_000)
HALF = 20_000


def result(world: World, job: str, op: OpType, scope: Scope | None = None) -> dict[str, Any]:
    found = world.op(job, op, scope or Scope()).result
    assert found is not None
    return dict(found)


# ── a URL that is known already ───────────────────────────────────────────────────────────────────


@pytest.fixture
def first(world: World) -> str:
    world.source.put(URL, BODY, content_type="text/csv; charset=utf-8")
    job = world.fetch(URL)
    assert world.state(job) is State.DEDUPED
    world.source.asked.clear()
    return job


def test_a_known_url_ends_without_the_network(world: World, first: str) -> None:
    job = world.fetch(URL, artifact_id="again")
    assert (world.state(job), world.view(job).status) == (State.SKIPPED_DUPLICATE, Status.SKIPPED)
    assert world.source.asked == []
    (mine,), (theirs,) = world.artifacts(job), world.artifacts(first)
    assert (mine.sha256, mine.storage_pointer) == (theirs.sha256, theirs.storage_pointer)
    assert mine.artifact_uuid != theirs.artifact_uuid
    (noted,) = world.sql("SELECT * FROM manifest WHERE job_id = :job", job=job)
    assert (noted.dedupe_action, noted.bytes_written) == ("skipped", 0)


def test_a_url_known_for_too_long_is_asked_about(world: World, first: str) -> None:
    world.policy(trust_s=0.0)
    job = world.fetch(URL, artifact_id="again")
    assert [asked.method for asked in world.source.asked] == ["HEAD", "GET"]
    assert result(world, job, OpType.DEDUPE)["action"] == "skipped"  # the same place, the same bytes


def test_another_project_gets_a_link_of_its_own(world: World, first: str) -> None:
    job = world.fetch(URL, project_id="other")
    scope = Scope(project_id="other")
    (mine,), (theirs,) = world.artifacts(job, scope), world.artifacts(first)
    store = world.deps.store
    assert mine.storage_pointer.startswith("local:default/other/")
    assert os.path.samefile(store.path(mine.storage_pointer), store.path(theirs.storage_pointer))
    assert world.source.asked == []
    assert len(world.blobs()) == 2


def test_another_tenant_learns_nothing(world: World, first: str) -> None:
    job = world.fetch(URL, tenant_id="other")
    scope = Scope("other")
    assert world.view(job, scope).status is Status.COMPLETED
    assert [asked.method for asked in world.source.asked] == ["HEAD", "GET"]
    assert result(world, job, OpType.DEDUPE, scope) == {"action": "download", "saved_bytes": 0}
    assert result(world, job, OpType.FINALIZE, scope)["already_there"] is False


@pytest.mark.parametrize("harm", ["gone", "cut", "a symlink"])
def test_a_known_file_that_is_not_there_as_recorded_is_fetched_again(
    world: World, first: str, harm: str
) -> None:
    path = world.deps.store.path(world.artifacts(first)[0].storage_pointer)
    os.unlink(path)
    if harm == "cut":
        with open(path, "wb") as file:
            file.write(BODY[:-1])
    job = world.plan(URL, artifact_id="again")
    if harm == "a symlink":
        os.symlink("x" * len(path), path)
        assert not world.deps.store.holds(world.artifacts(first)[0].storage_pointer, len(path))
        os.unlink(path)
    world.drive()
    assert world.state(job) is State.DEDUPED
    assert BODY in world.blobs().values()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"sha256": "0" * 64}, "sha256_mismatch"),
        ({"max_bytes": 10}, "too_large"),
        ({"media_type": "application/pdf"}, "media_type_mismatch"),
    ],
)
def test_what_this_job_demands_holds_for_known_bytes_too(
    world: World, first: str, fields: dict[str, Any], code: str
) -> None:
    job = world.fetch(URL, artifact_id="again", **fields)
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, code)
    assert world.state(first) is State.DEDUPED
    assert set(world.blobs().values()) == {BODY}


def test_the_right_sha256_lets_the_known_bytes_pass(world: World, first: str) -> None:
    job = world.fetch(URL, artifact_id="again", sha256=sha256(BODY).upper(), media_type="text/csv")
    assert world.state(job) is State.SKIPPED_DUPLICATE


# ── HEAD is a hint ────────────────────────────────────────────────────────────────────────────────


def test_a_head_of_no_use_leaves_it_to_get(world: World) -> None:
    world.source.put(URL, BODY, head=False)
    job = world.fetch(URL)
    assert world.state(job) is State.DEDUPED
    assert result(world, job, OpType.HEAD)["http_status"] is None


def test_a_file_that_is_gone_fails_for_good_at_once(world: World) -> None:
    job = world.plan(URL)
    assert world.run("head", job) == Failed("http_404", None)
    assert world.staged() == []


def test_a_file_that_is_gone_by_get_leaves_nothing_behind(world: World) -> None:
    world.source.put(URL, BODY, head=False)
    world.source.script(URL, Permanent("the server answered 404", code="http_404"))
    job = world.fetch(URL)
    assert (world.view(job).error_code, world.staged()) == ("http_404", [])


# ── what is held of it ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def half(world: World) -> str:
    """A job whose first run broke off after HALF bytes."""
    world.source.put(URL, BODY)
    world.source.script(URL, Says(body=[BODY[:HALF], Retryable("cut", code="body_cut")]))
    job = world.plan(URL)
    world.run_to("stream", job)
    assert world.run("stream", job) == Failed("body_cut", pytest.approx(1.0))
    world.make_due(job)
    return job


def test_with_nothing_held_it_begins_fresh(world: World) -> None:
    world.source.put(URL, BODY)
    job = world.plan(URL)
    world.run_to("stream", job)
    assert result(world, job, OpType.RESUME) == {"decision": "fresh", "reason": "no_part", "range_start": 0}
    assert world.staged() == []  # to look is not to leave something


def test_with_the_same_validator_it_goes_on(world: World, half: str) -> None:
    world.drive()
    assert result(world, half, OpType.RESUME) == {
        "decision": "resume",
        "reason": "same_validator",
        "range_start": HALF,
    }
    streamed = result(world, half, OpType.STREAM)
    assert (streamed["resumed_from_bytes"], streamed["bytes_written"]) == (HALF, len(BODY) - HALF)
    assert [get.start for get in world.source.gets(URL)] == [0, HALF]
    assert list(world.blobs().values()) == [BODY]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"etag": '"v2"'}, "validator_changed"),
        ({"etag": 'W/"v1"'}, "no_strong_validator"),
        ({"etag": None}, "no_strong_validator"),
        ({"body": BODY + b"more"}, "total_changed"),
    ],
)
def test_with_another_file_on_the_server_it_begins_anew(
    world: World, half: str, change: dict[str, Any], reason: str
) -> None:
    body = os.urandom(len(BODY))
    world.source.put(URL, **{"body": body, **change})
    world.drive()
    assert result(world, half, OpType.RESUME)["reason"] == reason
    assert [get.start for get in world.source.gets(URL)] == [0, 0]
    assert list(world.blobs().values()) == [change.get("body", body)]


def test_a_file_changed_between_head_and_get_begins_anew(world: World, half: str) -> None:
    assert world.run("head", half, 2) == Done(State.HEAD_DONE)
    world.run("resume_decide", half, 2)
    world.source.put(URL, body := os.urandom(len(BODY)), etag='"v2"')
    for stage in ("stream", "finalize", "index", "dedupe"):
        assert isinstance(world.run(stage, half, 2), Done)
    assert list(world.blobs().values()) == [body]


@pytest.mark.parametrize("harm", ["torn sidecar", "altered bytes", "cut", "only the part"])
def test_what_nothing_vouches_for_is_not_joined(world: World, half: str, harm: str) -> None:
    (part,) = (world.root / ".staging").rglob("*.part")
    side = part.with_suffix(".json")
    if harm == "torn sidecar":
        side.write_bytes(side.read_bytes()[:-9])
    elif harm == "altered bytes":
        part.write_bytes(b"!" + part.read_bytes()[1:])
    elif harm == "cut":
        part.write_bytes(part.read_bytes()[:100])
    else:
        side.unlink()
    world.drive()
    assert world.state(half) is State.DEDUPED
    assert list(world.blobs().values()) == [BODY]
    assert world.staged() == []
