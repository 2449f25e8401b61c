"""A finished job runs again from its stored file, and asks nobody, on both engines (JOB-7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlpipe import verify
from dlpipe.core.errors import InvalidInput, Retryable
from dlpipe.core.flow import REPLAYABLE, OpType
from dlpipe.core.model import Fault
from dlpipe.core.states import Purpose, State, Status
from dlpipe.core.wishes import JobFilter, Wish
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import wishes
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.why import why
from tests.ledgers import FOREIGN, OWN, UNKNOWN
from tests.world import World, sha256, some_bytes

URL = "http://files.example/a.pdf"
BODY, NEWER = b"%PDF-" + some_bytes(2_500_000), b"%PDF-" + some_bytes(60_000)
IDENTITY = "run sha256 pointer shard_prefix byte_size dedupe_action resume_decision bytes_written elapsed_ms".split()


class NetworkTouched(Exception):
    """A replay asked somebody."""


class Silent:
    """A way to the network that nobody may take."""

    def __getattr__(self, name: str) -> Any:
        raise NetworkTouched(name)


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path) -> World:
    made = World(database, tmp_path / "store")
    made.source.put(URL, BODY, content_type="application/pdf")
    return made


@pytest.fixture
def job(world: World) -> Iterator[str]:
    """A job that is done; from then on the network is gone, and staging stays empty."""
    made = world.fetch(URL, media_type="application/pdf")
    assert world.state(made) is State.DEDUPED
    yield silence(world, made)
    assert world.staged() == []


def silence(world: World, job: str) -> str:
    object.__setattr__(world.deps, "source", Silent())
    return job


def replay(world: World, job: str, from_stage: str = "stream") -> None:
    with world.database.write() as unit:
        assert unit.owned(OWN).replay(job, from_stage) is Status.PENDING
    world.drive()


def rows(world: World) -> list[Any]:
    return [tuple(row) for row in world.sql("SELECT * FROM artifacts ORDER BY artifact_uuid")]


def manifest(world: World, job: str) -> dict[str, Any]:
    with world.database.read() as unit:
        found = unit.owned(OWN).measures_of(job)
    assert found is not None
    return {name: found[name] for name in IDENTITY}


def file_of(world: World, job: str) -> Path:
    return Path(world.deps.store.path(world.artifacts(job)[-1].storage_pointer))


def damage(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"!" * size)
    path.chmod(0o444)


def checked(world: World) -> list[str]:
    url = world.database.url.render_as_string(hide_password=False)
    return [one.code for one in verify.check(url, world.root, verify.Options(strict=True)) if not one.is_note]


# ── the same again ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("from_stage", REPLAYABLE)
def test_the_same_bytes_keep_their_record_and_each_op_is_of_the_new_run_once(
    world: World, job: str, from_stage: str
) -> None:
    before, measured, blobs = rows(world), manifest(world, job), world.blobs()
    replay(world, job, from_stage)
    view = world.view(job)
    assert (view.state, view.status, view.run, view.progress) == (State.DEDUPED, Status.COMPLETED, 2, 100)
    assert (view.purpose, view.error_code, world.row(job).replay_from) == (None, None, None)
    assert (rows(world), world.blobs()) == (before, blobs)
    of_run = [(op.op_type, op.state) for op in world.ops(job) if op.run == 2]
    assert sorted(of_run) == sorted((op.value, "finished") for op in OpType)
    assert manifest(world, job) == {**measured, "run": 2}  # how the bytes came is not forgotten
    assert checked(world) == []


def test_a_replay_reads_every_byte_once_and_says_so_in_its_ops(world: World, job: str) -> None:
    replay(world, job)
    streamed = world.streamed(job)
    assert (streamed["sha256"], streamed["size"], streamed["bytes_written"]) == (sha256(BODY), len(BODY), 0)
    decided = world.op(job, OpType.RESUME).result
    assert decided is not None
    assert (decided["decision"], decided["reason"]) == ("replay", "from_stream")
    assert "pointer" not in repr([op.result for op in world.ops(job)])  # JOB-4


def test_again_and_again_is_a_run_each_time(world: World, job: str) -> None:
    before = rows(world)
    for run in (2, 3, 4):
        replay(world, job)
        assert (world.view(job).run, rows(world)) == (run, before)
    assert checked(world) == []


def test_a_job_that_was_linked_and_never_fetched_can_be_replayed(world: World) -> None:
    world.fetch(URL)
    other = world.fetch(URL, artifact_id="other")
    assert world.state(other) is State.SKIPPED_DUPLICATE
    before = rows(world)
    silence(world, other)
    replay(world, other)
    assert (world.state(other), rows(world)) == (State.DEDUPED, before)
    assert checked(world) == []


def test_the_newest_result_is_the_one_that_is_replayed(world: World) -> None:
    """Also when it is the older artifact, which the server came back to."""
    job = world.fetch(URL)
    for body, etag in ((NEWER, '"2"'), (BODY, '"3"')):
        world.source.put(URL, body, etag=etag)
        with world.database.write() as unit:
            unit.owned(OWN).refresh(job)
        world.drive()
    old, newer = world.artifacts(job)
    assert (old.sha256, newer.sha256) == (sha256(BODY), sha256(NEWER))
    silence(world, job)
    for from_stage in REPLAYABLE:
        replay(world, job, from_stage)
        assert manifest(world, job)["sha256"] == sha256(BODY), from_stage
    assert [one.artifact_uuid for one in world.artifacts(job)] == [old.artifact_uuid, newer.artifact_uuid]
    assert checked(world) == []


def test_a_job_that_failed_after_its_file_was_in_place_is_replayed_to_its_end(world: World) -> None:
    job = world.plan(URL)
    world.run_to("index", job)
    world.leave_claimed("index", job)
    world.sql(
        "UPDATE artifact_jobs SET state = 'FAILED', lease_owner = NULL, lease_until = NULL, published_at = NULL "
        "WHERE job_id = :job",
        job=job,
    )
    silence(world, job)
    with world.database.write() as unit:
        assert unit.owned(OWN).grant(Wish.REPLAY, [job], "dedupe") == []  # it would never be registered
    replay(world, job, "index")
    assert (world.state(job), [one.sha256 for one in world.artifacts(job)]) == (State.DEDUPED, [sha256(BODY)])


def test_rows_of_the_indexes_that_are_lost_come_back_as_old_as_they_were(world: World, job: str) -> None:
    world.sql("DELETE FROM hash_index")
    world.sql("DELETE FROM url_index")
    replay(world, job, "dedupe")
    assert world.sql("SELECT * FROM hash_index") == []
    replay(world, job, "index")
    (first,) = world.sql("SELECT pointer, job_id FROM hash_index")
    (known,) = world.sql("SELECT sha256, etag, seen_at FROM url_index")
    (made,) = world.sql("SELECT created_at, storage_pointer FROM artifacts")
    assert (first.pointer, str(first.job_id)) == (made.storage_pointer, job)
    assert (known.sha256, known.etag, known.seen_at) == (sha256(BODY), '"v1"', made.created_at)


def test_a_replay_vouches_for_nothing_that_a_server_would_have_to_say(world: World, job: str) -> None:
    world.sql("UPDATE url_index SET seen_at = (SELECT min(created_at) FROM artifacts)")
    before = world.sql("SELECT * FROM url_index")
    replay(world, job)
    assert world.sql("SELECT * FROM url_index") == before


# ── the stored file is not what it was ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("from_stage", REPLAYABLE)
def test_a_file_at_fault_fails_the_replay_keeps_the_result_and_is_fetched_by_a_retry(
    world: World, job: str, from_stage: str, fault: Fault
) -> None:
    before, path = rows(world), file_of(world, job)
    path.unlink() if fault is Fault.MISSING else damage(path)
    replay(world, job, from_stage)
    view = world.view(job)
    assert (view.status, view.error_code, view.due_at) == (Status.FAILED, f"file_{fault}", None)
    assert "dlpipe retry" in (view.error_message_safe or "")
    assert (rows(world), [one.fault for one in world.artifacts(job)]) == (before, [fault])
    assert view.artifacts == (world.artifacts(job)[0].artifact_uuid,)
    object.__setattr__(world.deps, "source", world.source)
    with world.database.write() as unit:
        assert unit.owned(OWN).retry(job) is Status.PENDING
    assert world.view(job).purpose is Purpose.REPAIR
    world.drive()
    assert (world.view(job).status, world.view(job).error_code) == (Status.COMPLETED, None)
    assert path.read_bytes() == BODY
    assert (rows(world), [one.fault for one in world.artifacts(job)]) == (before, [None])


def test_damage_is_found_whichever_stage_it_begins_with(world: World, job: str) -> None:
    """By reading: the size is right."""
    for from_stage in REPLAYABLE:
        path = file_of(world, job)
        damage(path)
        replay(world, job, from_stage)
        assert world.view(job).error_code == "file_damaged", from_stage
        path.unlink()
        path.write_bytes(BODY)
        path.chmod(0o444)
        replay(world, job, from_stage)
        assert world.state(job) is State.DEDUPED, from_stage


def test_a_replay_mends_a_mark_on_a_file_that_is_right(world: World, job: str) -> None:
    uuid = world.artifacts(job)[0].artifact_uuid
    with world.database.write() as unit:
        unit.registry.add_fault(uuid, Fault.DAMAGED)
    replay(world, job, "dedupe")
    assert world.artifacts(job)[0].fault is Fault.DAMAGED  # index was not done again
    replay(world, job)
    assert world.artifacts(job)[0].fault is None


def test_a_file_that_is_not_of_the_media_type_that_was_asked_for_is_told(world: World, job: str) -> None:
    world.sql("UPDATE artifact_jobs SET expected_media_type = 'image/png' WHERE job_id = :job", job=job)
    replay(world, job)
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, "media_type_mismatch")
    assert file_of(world, job).read_bytes() == BODY


def test_trouble_with_the_disk_is_tried_again_as_a_replay(
    world: World, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trouble(*_: object) -> bool:
        raise Retryable("for a moment", code="store_io_error")

    with monkeypatch.context() as bad:
        bad.setattr(type(world.deps.store), "is_right", trouble)
        replay(world, job, "finalize")
    waits = world.view(job)
    assert (waits.status, waits.error_code, waits.purpose) == (Status.PENDING, "store_io_error", Purpose.REPLAY)
    world.make_due(job)
    world.drive()
    assert (world.state(job), world.view(job).run) == (State.DEDUPED, 3)


@pytest.mark.parametrize("stage", ["head", "stream", "finalize", "index", "dedupe"])
def test_who_dies_in_a_replay_is_followed_by_one_who_asks_nobody_either(world: World, job: str, stage: str) -> None:
    before = rows(world)
    with world.database.write() as unit:
        unit.owned(OWN).replay(job, "stream")
    world.run_to(stage, job, run=2)
    world.leave_claimed(stage, job, run=2)
    world.expire(job)
    reconcile(world.deps)
    world.drive()
    assert (world.state(job), rows(world)) == (State.DEDUPED, before)
    assert checked(world) == []


# ── the wish ──────────────────────────────────────────────────────────────────────────────────────


def test_a_wish_that_has_not_begun_is_taken_back_and_the_job_is_what_it_was(world: World, job: str) -> None:
    was = world.view(job)
    with world.database.write() as unit:
        unit.owned(OWN).replay(job, "index")
    waits = world.view(job)
    assert (waits.status, waits.progress, waits.purpose) == (Status.PENDING, 0, Purpose.REPLAY)
    told = why(world.deps, OWN, job)
    assert told is not None
    assert "without the network" in told.what
    with world.database.write() as unit:
        assert unit.owned(OWN).cancel(job) is Status.COMPLETED
    now = world.view(job)
    assert (now.state, now.progress, now.purpose, now.completed_at) == (was.state, 100, None, was.completed_at)
    assert world.row(job).replay_from is None
    world.drive()
    assert world.view(job).run == 1


def test_a_replay_can_be_paused_and_goes_on_as_one(world: World, job: str) -> None:
    with world.database.write() as unit:
        unit.owned(OWN).replay(job, "stream")
        assert unit.owned(OWN).pause(job) is not None
    world.drive()
    assert world.view(job).run == 1
    wishes.resume(world.deps, OWN, job)
    world.drive()
    assert (world.state(job), world.view(job).run) == (State.DEDUPED, 2)


def test_what_has_no_file_or_is_on_its_way_is_left_alone(world: World, job: str) -> None:
    waiting = world.plan("http://files.example/later")
    object.__setattr__(world.deps, "source", world.source)
    failed = world.plan("http://files.example/gone")
    world.drive()
    canceled = world.plan("http://files.example/canceled", not_before="2040-01-01")
    wishes.cancel(world.deps, OWN, canceled)
    before = world.everything()
    with world.database.write() as unit:
        assert unit.owned(OWN).grant(Wish.REPLAY, [waiting, failed, canceled, UNKNOWN, "no id"], "stream") == []
        for scope in FOREIGN:
            assert unit.owned(scope).replay(job, "stream") is None
    assert world.everything() == before


def test_it_begins_only_where_no_server_is_needed(world: World, job: str) -> None:
    before = world.everything()
    for stage in ("head", "resume_decide", "index; DROP TABLE jobs", ""):
        with pytest.raises(InvalidInput) as refused:
            wishes.replay(world.deps, OWN, job, stage)
        assert (refused.value.code, "refresh" in refused.value.hint) == ("replay_from_invalid", True)
    assert world.everything() == before


def test_a_refresh_or_a_lost_file_takes_the_place_of_a_failed_replay(world: World, job: str) -> None:
    file_of(world, job).unlink()
    replay(world, job)
    with world.database.write() as unit:
        unit.owned(OWN).refresh(job)
    assert (world.view(job).purpose, world.row(job).replay_from) == (Purpose.REFRESH, None)


def test_many_are_replayed_by_a_filter(world: World, job: str) -> None:
    meant = JobFilter(host="files.example")
    assert [len(batch) for batch in wishes.of_all(world.deps, OWN, Wish.REPLAY, meant, dry_run=True)] == [1]
    assert [len(batch) for batch in wishes.of_all(world.deps, OWN, Wish.REPLAY, meant, from_stage="index")] == [1]
    assert world.row(job).replay_from == "index"


def test_nothing_stored_is_said_in_its_own_words(world: World, job: str) -> None:
    """The rows that a wish saw may be gone by the time that it is carried out."""
    with world.database.write() as unit:
        unit.owned(OWN).replay(job, "stream")
    world.sql("DELETE FROM job_artifacts")
    world.sql("DELETE FROM artifact_ops")
    world.drive()
    view = world.view(job)
    assert (view.status, view.error_code) == (Status.FAILED, "nothing_stored")


def test_the_silence_of_these_tests_is_real(world: World, job: str) -> None:
    with world.database.write() as unit:
        unit.owned(OWN).refresh(job)
    world.drive()
    assert world.view(job).error_code == "internal_error"
