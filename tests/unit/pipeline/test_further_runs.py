"""A further run of a finished job through the real stages: refresh (PLAN-6) and repair (HEAL-3)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core import flow
from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactRecord, Fault, Scope
from dlpipe.core.ports import Claimed
from dlpipe.core.states import State, Status
from dlpipe.core.why import Surroundings, explain
from dlpipe.db.clock import after
from dlpipe.db.schema import url_index
from dlpipe.pipeline import planner, wishes
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Dropped
from tests.checker import findings
from tests.fakes.source import Says
from tests.world import World, sha256, some_bytes

URL = "http://files.example/a.bin"
OLD, NEW = some_bytes(50_000), some_bytes(60_000)
OFFLINE = Permanent("offline", code="blocked_offline")


@pytest.fixture
def job(world: World) -> str:
    """A job that is done."""
    world.source.put(URL, OLD, etag='"old"')
    made = world.fetch(URL)
    assert world.state(made) is State.DEDUPED
    world.source.asked.clear()
    return made


def refresh(world: World, job: str) -> None:
    with world.database.write() as unit:
        assert unit.owned(Scope()).refresh(job) is Status.PENDING
    world.drive()


def asked(world: World) -> list[str]:
    return [one.method for one in world.source.asked]


def registered(world: World, job: str) -> list[tuple[str, str]]:
    return [(one.artifact_uuid, one.sha256) for one in world.artifacts(job)]


def rows(world: World) -> list[Any]:
    return world.sql("SELECT * FROM artifacts ORDER BY artifact_uuid")


def path_of(world: World, artifact: ArtifactRecord) -> Path:
    return Path(world.deps.store.path(artifact.storage_pointer))


def damage(path: Path) -> None:
    """As many bytes, but other ones: only reading them all tells."""
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"!" * size)
    path.chmod(0o444)


def lose(world: World, job: str, fault: Fault = Fault.MISSING, at: int = -1) -> ArtifactRecord:
    """The file of a result is lost, and somebody notices."""
    artifact = world.artifacts(job)[at]
    path = path_of(world, artifact)
    path.unlink() if fault is Fault.MISSING else damage(path)
    assert wishes.fault_of(world.deps, artifact, thorough=True) is fault
    assert wishes.bring_back(world.deps, world.view(job), artifact, fault)
    return artifact


def reopen(world: World, job: str) -> None:
    fence = world.row(job).fence
    with world.database.write() as unit:
        assert unit.backlog.reopen(job, fence, Fault.MISSING)


def faults(world: World, job: str) -> list[Fault | None]:
    return [one.fault for one in world.artifacts(job)]


def no_longer_trusted(world: World) -> None:
    with world.database.engine.begin() as connection:
        connection.execute(sa.update(url_index).values(seen_at=after(-1e6)))


# ── refresh ───────────────────────────────────────────────────────────────────────────────────────


def test_unchanged_content_is_asked_for_and_changes_nothing(world: World, job: str) -> None:
    before, results = rows(world), registered(world, job)
    refresh(world, job)
    assert asked(world) == ["CHECK"]  # however lately the URL was seen: that is what a refresh is for
    assert (world.state(job), world.view(job).run) == (State.SKIPPED_DUPLICATE, 2)
    assert (rows(world), registered(world, job)) == (before, results)
    assert world.op(job, OpType.HEAD).result["revalidated"] is True  # type: ignore[index]
    refresh(world, job)
    assert (asked(world), rows(world), world.view(job).run) == (["CHECK"] * 2, before, 3)


def test_changed_content_is_a_further_artifact_and_the_earlier_one_stays(world: World, job: str) -> None:
    (old,) = world.artifacts(job)
    world.source.put(URL, NEW, etag='"new"')
    refresh(world, job)
    assert world.state(job) is State.DEDUPED
    first, second = world.artifacts(job)
    assert first == old
    assert (second.sha256, second.byte_size) == (sha256(NEW), len(NEW))
    assert second.artifact_uuid != first.artifact_uuid
    assert [path_of(world, one).read_bytes() for one in (first, second)] == [OLD, NEW]
    assert world.view(job).artifacts == (first.artifact_uuid, second.artifact_uuid)


def test_a_server_without_validators_is_asked_for_all_of_it_and_equal_bytes_replay(world: World) -> None:
    world.source.put(URL, OLD, etag=None)
    job = world.fetch(URL)
    before, ops = rows(world), len(world.ops(job))
    refresh(world, job)
    assert len(world.source.gets(URL)) == 2
    assert (world.state(job), rows(world)) == (State.DEDUPED, before)
    # What depends on the network is of this run; what depends on the content was done once for good.
    assert len(world.ops(job)) == ops + 3
    assert world.staged() == []


def test_content_that_changes_back_is_the_first_artifact_again(world: World, job: str) -> None:
    (old,) = world.artifacts(job)
    for body, etag in ((NEW, '"new"'), (OLD, '"old again"')):
        world.source.put(URL, body, etag=etag)
        refresh(world, job)
    assert [one.sha256 for one in world.artifacts(job)] == [sha256(OLD), sha256(NEW)]
    with world.database.read() as unit:
        measures = unit.owned(Scope()).measures_of(job)
    assert measures is not None
    assert (measures["artifact_uuid"], measures["run"]) == (old.artifact_uuid, 3)  # that is the newest


@pytest.mark.parametrize("etag", ['"old"', None])
def test_a_refresh_also_heals_a_file_that_is_gone(world: World, etag: str | None) -> None:
    world.source.put(URL, OLD, etag=etag)
    job = world.fetch(URL)
    before = rows(world)
    path_of(world, world.artifacts(job)[0]).unlink()
    refresh(world, job)
    assert (world.state(job), rows(world)) == (State.DEDUPED, before)
    assert list(world.blobs().values()) == [OLD]


def test_what_another_job_of_the_tenant_fetched_meanwhile_is_new_to_this_one(world: World, job: str) -> None:
    world.source.put(URL, NEW, etag='"new"')
    no_longer_trusted(world)
    world.fetch(URL, artifact_id="other")
    world.source.asked.clear()
    refresh(world, job)
    assert asked(world) == ["CHECK"]
    assert world.state(job) is State.SKIPPED_DUPLICATE
    assert [one.sha256 for one in world.artifacts(job)] == [sha256(OLD), sha256(NEW)]


def test_nobody_to_ask_is_a_failed_refresh_and_not_an_unchanged_file(world: World, job: str) -> None:
    before = rows(world)
    world.source.fail_head(URL, OFFLINE)
    refresh(world, job)
    assert (world.state(job), world.view(job).error_code) == (State.FAILED, "blocked_offline")
    assert rows(world) == before
    assert world.view(job).artifacts != ()
    assert list(world.blobs().values()) == [OLD]


def test_a_file_that_is_gone_from_the_server_fails_and_keeps_what_was_fetched(world: World, job: str) -> None:
    (old,) = world.artifacts(job)
    del world.source.pages[URL]
    refresh(world, job)
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, "http_404")
    assert world.artifacts(job) == [old]
    assert path_of(world, old).read_bytes() == OLD
    world.source.put(URL, NEW)
    with world.database.write() as unit:
        unit.owned(Scope()).retry(job)
    world.drive()
    assert [one.sha256 for one in world.artifacts(job)] == [sha256(OLD), sha256(NEW)]


def test_a_refresh_that_fails_once_still_asks_when_it_is_tried_again(world: World, job: str) -> None:
    world.source.fail_head(URL, Retryable("later", code="http_5xx"))
    refresh(world, job)
    assert world.view(job).status is Status.PENDING
    world.source.fail_head(URL, OFFLINE)  # an ordinary run would now take the index's word
    world.make_due(job)
    world.drive()
    assert (world.state(job), world.view(job).error_code) == (State.FAILED, "blocked_offline")


def test_new_content_that_is_not_what_was_expected_is_refused(world: World) -> None:
    world.source.put(URL, OLD, etag='"old"')
    job = world.fetch(URL, sha256=sha256(OLD))
    world.source.put(URL, NEW, etag='"new"')
    refresh(world, job)
    assert (world.view(job).status, world.view(job).error_code) == (Status.FAILED, "sha256_mismatch")
    assert [one.sha256 for one in world.artifacts(job)] == [sha256(OLD)]


# ── planned again with refresh ────────────────────────────────────────────────────────────────────


def test_planning_with_refresh_makes_what_is_done_due_again(world: World, job: str) -> None:
    answer = planner.plan(world.deps, {"url": URL, "refresh": True})
    assert (answer.job_id, answer.outcome, answer.status) == (job, "refreshed", Status.PENDING)
    assert len(answer.artifacts) == 1
    assert planner.plan(world.deps, {"url": URL, "refresh": True}).outcome == "known"
    world.drive()
    assert planner.plan(world.deps, {"url": URL, "refresh": False}).outcome == "skipped"


def test_bulk_planning_refreshes_those_that_ask_for_it(world: World, job: str) -> None:
    requests: list[dict[str, object]] = [
        {"url": URL, "refresh": True},
        {"url": URL, "artifact_id": "new", "refresh": True},
        {"url": URL, "refresh": "yes"},
        {"url": URL},
    ]
    summary = planner.plan_many(world.deps, requests)
    assert (summary.refreshed, summary.created, summary.refused_count) == (1, 1, 1)
    assert [one.code for one in summary.refused] == ["refresh_invalid"]


def test_planning_with_refresh_leaves_a_canceled_job_canceled(world: World) -> None:
    job = world.plan(URL)
    wishes.cancel(world.deps, Scope(), job)
    assert planner.plan(world.deps, {"url": URL, "refresh": True}).outcome == "canceled"
    assert world.state(job) is State.CANCELED


# ── repair ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", list(Fault))
def test_a_lost_file_is_back_under_its_name_and_its_record_stands(world: World, job: str, fault: Fault) -> None:
    before = rows(world)
    artifact = lose(world, job, fault)
    assert faults(world, job) == [fault]
    world.drive()
    assert world.state(job) is State.DEDUPED
    assert path_of(world, artifact).read_bytes() == OLD
    assert (rows(world), faults(world, job)) == (before, [None])
    assert world.staged() == []
    aside = [name for name in world.blobs() if ".damaged-" in name]
    assert len(aside) == (fault is Fault.DAMAGED)  # moved away, and not written over


def test_a_damaged_file_is_never_linked_for_another_job(world: World, job: str) -> None:
    lose(world, job, Fault.DAMAGED)
    other = world.plan(URL, project_id="other")
    for stage in ("head", "resume_decide", "stream", "finalize", "index", "dedupe"):
        world.run(stage, other)
    (copy,) = world.artifacts(other, Scope(project_id="other"))
    assert path_of(world, copy).read_bytes() == OLD
    assert len(world.source.gets(URL)) == 1  # it did not come from here


def test_a_repair_hashes_what_the_index_offers(world: World, job: str) -> None:
    """Damage that nobody has marked yet, of just the right size: the repair of one copy must not spread the other."""
    other = world.fetch(URL, project_id="other")
    assert world.state(other) is State.SKIPPED_DUPLICATE
    (ours,), (theirs,) = world.artifacts(job), world.artifacts(other, Scope(project_id="other"))
    path_of(world, theirs).unlink()
    damage(path_of(world, ours))
    reopen(world, other)
    world.drive()
    assert path_of(world, theirs).read_bytes() == OLD
    assert len(rows(world)) == 2


def test_a_right_copy_elsewhere_spares_the_network(world: World, job: str) -> None:
    other = world.fetch(URL, project_id="other")
    before = rows(world)
    world.source.fail_head(URL, OFFLINE)
    no_longer_trusted(world)
    (theirs,) = world.artifacts(other, Scope(project_id="other"))
    path_of(world, theirs).unlink()
    view = world.view(other, Scope(project_id="other"))
    assert wishes.bring_back(world.deps, view, theirs, Fault.MISSING)
    world.drive()
    assert world.state(other) is State.SKIPPED_DUPLICATE
    assert path_of(world, theirs).read_bytes() == OLD
    assert [one.fault for one in world.artifacts(other, Scope(project_id="other"))] == [None]
    assert (rows(world), asked(world)) == (before, [])


def test_a_job_that_never_fetched_registers_no_second_record_when_it_must(world: World, job: str) -> None:
    """Its record was made by head; the bytes now come by index."""
    other = world.fetch(URL, artifact_id="other")
    assert world.state(other) is State.SKIPPED_DUPLICATE
    before = rows(world)
    artifact = lose(world, other)  # the same file as the first job's
    world.drive()
    assert (world.state(other), rows(world)) == (State.DEDUPED, before)
    assert path_of(world, artifact).read_bytes() == OLD
    assert registered(world, other) == [(artifact.artifact_uuid, sha256(OLD))]


def test_one_repair_mends_all_records_of_the_file(world: World, job: str) -> None:
    other = world.fetch(URL, artifact_id="other")
    uuids = [world.artifacts(one)[0].artifact_uuid for one in (job, other)]
    with world.database.write() as unit:
        for uuid in uuids:
            unit.registry.add_fault(uuid, Fault.MISSING)
    path_of(world, world.artifacts(job)[0]).unlink()
    reopen(world, job)
    world.drive()
    assert faults(world, job) == faults(world, other) == [None]


def test_other_bytes_than_were_lost_are_a_further_artifact_and_the_mark_stays(world: World, job: str) -> None:
    lose(world, job)
    world.source.put(URL, NEW, etag='"new"')
    world.drive()
    assert world.state(job) is State.DEDUPED
    assert [one.sha256 for one in world.artifacts(job)] == [sha256(OLD), sha256(NEW)]
    assert faults(world, job) == [Fault.MISSING, None]


def test_a_type_by_another_name_does_not_move_the_file(world: World) -> None:
    url = "http://files.example/download"
    world.source.put(url, OLD, content_type="application/pdf")
    job = world.fetch(url)
    before = rows(world)
    artifact = lose(world, job)
    world.source.put(url, OLD, content_type="application/zip")
    world.drive()
    assert rows(world) == before
    assert path_of(world, artifact).read_bytes() == OLD
    assert len(world.blobs()) == 1


def test_a_file_that_was_never_registered_comes_back_where_the_ledger_says_it_is(world: World) -> None:
    """FINALIZE of these bytes is recorded once for good, with its pointer; the file must stand there."""
    url = "http://files.example/download"
    world.source.put(url, OLD, content_type="application/pdf")
    job = world.plan(url)
    world.run_to("index", job)
    (blob,) = world.blobs()
    (world.root / blob).unlink()
    reopen(world, job)
    world.source.put(url, OLD, content_type="application/zip")
    world.drive()
    (artifact,) = world.artifacts(job)
    assert (world.state(job), list(world.blobs())) == (State.DEDUPED, [blob])
    assert path_of(world, artifact).read_bytes() == OLD


@pytest.mark.parametrize("stage", ["index", "dedupe"])
def test_a_file_that_is_lost_before_the_end_is_brought_again(world: World, stage: str) -> None:
    world.source.put(URL, OLD)
    job = world.plan(URL)
    world.run_to(stage, job)
    (blob,) = world.blobs()
    (world.root / blob).unlink()
    reopen(world, job)
    world.drive()
    assert (world.state(job), world.view(job).run) == (State.DEDUPED, 2)
    assert list(world.blobs()) == [blob]
    assert len(rows(world)) == 1


def test_a_repair_that_is_interrupted_after_the_file_is_back_does_not_fetch_it_again(world: World, job: str) -> None:
    lose(world, job)
    world.run_to("index", job, run=2)
    with world.database.write() as unit:
        claim = unit.jobs.claim(flow.stage("index"), job, 2, "t", 60.0)
        assert isinstance(claim, Claimed)
        unit.jobs.hand_back(claim.job)
    world.drive()
    assert (world.state(job), world.view(job).run) == (State.DEDUPED, 3)
    assert len(world.source.gets(URL)) == 1
    assert faults(world, job) == [None]


def test_a_first_copy_that_is_gone_is_no_twin_for_what_comes_later(world: World, job: str) -> None:
    """The index of hashes still points to the lost file while another job brings the same bytes from elsewhere."""
    lose(world, job)
    with world.database.write() as unit:
        unit.owned(Scope()).cancel(job)  # it is not brought back
    twin = world.source.put("http://two.example/b.bin", OLD)
    other = world.fetch(twin, project_id="other")
    scope = Scope(project_id="other")
    assert world.op(other, OpType.DEDUPE, scope).result["action"] == "download"  # type: ignore[index]
    with world.database.read() as unit:
        first = unit.registry.first_copy("default", sha256(OLD))
    assert first is not None
    assert first.job_id == other
    assert len(world.blobs()) == 1


def test_a_file_that_is_back_shares_its_bytes_again(world: World, job: str) -> None:
    twin = world.source.put("http://two.example/b.bin", OLD)
    other = world.fetch(twin, project_id="other")
    scope = Scope(project_id="other")
    (theirs,), (ours,) = world.artifacts(other, scope), world.artifacts(job)
    assert path_of(world, theirs).stat().st_ino == path_of(world, ours).stat().st_ino
    path_of(world, theirs).unlink()
    assert wishes.bring_back(world.deps, world.view(other, scope), theirs, Fault.MISSING)
    with world.database.engine.begin() as connection:
        connection.execute(sa.delete(url_index))  # as if it had to be fetched
    world.drive()
    assert world.state(other) is State.DEDUPED
    assert path_of(world, theirs).stat().st_ino == path_of(world, ours).stat().st_ino


# ── taken back after it has begun (JOB-9) ─────────────────────────────────────────────────────────


def wrong(world: World) -> list[str]:
    return [str(one) for one in findings(str(world.database.url), world.root)]


@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize("upto", ["head", "resume_decide", "stream", "finalize"])
def test_a_canceled_refresh_leaves_a_finished_job_with_what_it_had(
    world: World, job: str, upto: str, skipped: bool
) -> None:
    if skipped:
        job = world.fetch(URL, artifact_id="again")
        assert world.state(job) is State.SKIPPED_DUPLICATE
    was, had = world.view(job), world.artifacts(job)
    world.source.put(URL, NEW, etag='"newer"')
    wishes.refresh(world.deps, Scope(), job)
    if upto == "head":
        world.leave_claimed("head", job, run=2)
    else:
        world.run_to(upto, job, run=2)
    assert wishes.cancel(world.deps, Scope(), job) is was.status
    world.publisher.queue.clear()
    world.drive()
    now = world.view(job)
    assert (now.state, now.status, now.progress, now.error_code) == (was.state, was.status, 100, None)
    assert (world.artifacts(job), now.completed_at) == (had, was.completed_at)
    with world.database.read() as unit:
        standing = unit.owned(Scope()).standing(job)
    assert standing is not None
    assert "(run 2) was canceled" in explain(standing, Surroundings()).text
    world.policy(heal=replace(world.deps.policy.heal, part_age_s=0.0))
    reconcile(world.deps)  # it marks what the worker had begun, and removes the part that nobody wants any more
    assert wrong(world) == []
    refresh(world, job)
    assert [one.sha256 for one in world.artifacts(job)] == [sha256(OLD), sha256(NEW)]
    assert wrong(world) == []


def test_the_worker_of_a_canceled_refresh_stops_and_records_nothing(world: World, job: str) -> None:
    had = world.artifacts(job)
    world.source.put(URL, NEW, etag='"newer"')
    wishes.refresh(world.deps, Scope(), job)
    world.run_to("stream", job, run=2)
    canceled: list[Status | None] = []

    def cancel() -> None:
        canceled.append(wishes.cancel(world.deps, Scope(), job))

    world.source.script(URL, Says(body=[NEW[:500], cancel, NEW[500:]]))
    assert world.run("stream", job, run=2) == Dropped("lease_lost")
    assert canceled == [Status.COMPLETED]
    assert (world.state(job), world.artifacts(job)) == (State.DEDUPED, had)
