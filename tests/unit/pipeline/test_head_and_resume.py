"""HEAD and the decision to resume: our own index first, the server's word as a hint. HEAD-1, HEAD-2, RESUME-1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import Permanent, Postponed, Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.ports import KnownBlob
from dlpipe.core.states import State, Status
from dlpipe.db.clock import after
from dlpipe.db.registry import SqlRegistry
from dlpipe.db.schema import url_index
from dlpipe.pipeline.runner import Done, Failed
from tests.fakes.source import FakeAnswer, Says
from tests.world import RETRY_S, World, altered, sha256, some_bytes

URL = "http://files.example/a.bin"
BODY = some_bytes(50_000)
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


def seen_long_ago(world: World) -> None:
    with world.database.engine.begin() as connection:
        connection.execute(sa.update(url_index).values(seen_at=after(-1e6)))


def is_trusted(world: World) -> bool:
    with world.database.read() as unit:
        return unit.registry.known_url("default", URL, world.deps.policy.trust_s) is not None


def test_a_url_known_for_too_long_costs_one_conditional_request(world: World, first: str) -> None:
    seen_long_ago(world)
    job = world.fetch(URL, artifact_id="again")
    assert [(asked.method, asked.if_range) for asked in world.source.asked] == [("CHECK", '"v1"')]
    assert world.state(job) is State.SKIPPED_DUPLICATE
    assert result(world, job, OpType.HEAD)["revalidated"] is True
    assert is_trusted(world)
    world.fetch(URL, artifact_id="once more")
    assert len(world.source.asked) == 1


def test_it_is_trusted_again_only_with_the_record_that_says_so(world: World, first: str) -> None:
    seen_long_ago(world)
    job = world.plan(URL, artifact_id="again")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlRegistry, "note", lambda *_: 1 / 0)
        assert isinstance(world.run("head", job), Failed)
    assert not is_trusted(world)


def test_a_file_that_changed_is_fetched_anew(world: World, first: str) -> None:
    seen_long_ago(world)
    world.source.put(URL, body := os.urandom(1000), etag='"v2"')
    job = world.fetch(URL, artifact_id="again")
    assert [asked.method for asked in world.source.asked] == ["CHECK", "HEAD", "GET"]
    assert world.artifacts(job)[0].sha256 == sha256(body)


def test_what_another_job_brought_meanwhile_is_not_overwritten(world: World, first: str) -> None:
    seen_long_ago(world)
    job = world.plan(URL, artifact_id="again")
    ask = world.source.unchanged

    def slow(*args: Any, tenant: str) -> bool | None:
        said = ask(*args, tenant=tenant)
        with world.database.write() as unit:
            unit.registry.see_url("default", URL, KnownBlob("c" * 64, "local:other", 3))
        seen_long_ago(world)
        return said

    world.source.unchanged = slow  # type: ignore[method-assign, assignment]
    assert world.run("head", job) == Done(State.SKIPPED_DUPLICATE)
    with world.database.read() as unit:
        now_known = unit.registry.known_url("default", URL, None)
    assert now_known is not None
    assert now_known.sha256 == "c" * 64
    assert not is_trusted(world)


@pytest.mark.parametrize("etag", [None, 'W/"v1"'])
def test_without_a_validator_to_go_by_it_is_fetched_anew(world: World, etag: str | None) -> None:
    world.source.put(URL, BODY, etag=etag)
    world.fetch(URL)
    world.source.asked.clear()
    seen_long_ago(world)
    job = world.fetch(URL, artifact_id="again")
    assert [asked.method for asked in world.source.asked] == ["HEAD", "GET"]
    assert result(world, job, OpType.DEDUPE)["action"] == "skipped"  # the same place, the same bytes


def test_validators_from_behind_a_redirect_are_not_taken_for_the_url_s_own(world: World) -> None:
    world.source.put(URL, BODY)
    job = world.plan(URL)
    get = world.source.get

    @contextmanager
    def elsewhere(*args: Any, **more: Any) -> Iterator[FakeAnswer]:
        with get(*args, **more) as answer:
            answer.final_url_sha256 = sha256(b"http://elsewhere.example/")
            yield answer

    world.source.get = elsewhere  # type: ignore[method-assign]
    world.drive()
    assert world.state(job) is State.DEDUPED
    world.source.asked.clear()
    seen_long_ago(world)
    world.fetch(URL, artifact_id="again")
    assert [asked.method for asked in world.source.asked] == ["HEAD", "GET"]


def test_what_does_not_fit_the_job_is_not_asked_about(world: World, first: str) -> None:
    seen_long_ago(world)
    world.fetch(URL, artifact_id="again", sha256="0" * 64)
    assert "CHECK" not in [asked.method for asked in world.source.asked]


def test_offline_what_is_held_still_resolves_and_stays_as_old_as_it_is(world: World, first: str) -> None:
    seen_long_ago(world)
    world.source.fail_head(URL, Permanent("offline", code="blocked_offline"))
    job = world.fetch(URL, artifact_id="again")
    assert world.state(job) is State.SKIPPED_DUPLICATE
    assert result(world, job, OpType.HEAD)["revalidated"] is False
    assert not is_trusted(world)


def test_a_host_that_is_not_to_be_asked_now_hands_the_job_back(world: World, first: str) -> None:
    seen_long_ago(world)
    world.source.fail_head(URL, Postponed("not now", code="host_cooling_down", after_s=9.0))
    job = world.plan(URL, artifact_id="again")
    assert world.run("head", job) == Failed("host_cooling_down", 9.0)
    assert world.row(job).attempts == 0


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
def test_a_known_file_that_is_not_there_as_recorded_is_fetched_again(world: World, first: str, harm: str) -> None:
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
    assert world.run("stream", job) == Failed("body_cut", RETRY_S)
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
        part.write_bytes(altered(part.read_bytes()))
    elif harm == "cut":
        part.write_bytes(part.read_bytes()[:100])
    else:
        side.unlink()
    world.drive()
    assert world.state(half) is State.DEDUPED
    assert list(world.blobs().values()) == [BODY]
    assert world.staged() == []
