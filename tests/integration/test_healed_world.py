"""A whole world, damaged in every way that HEAL names, is healed within two rounds; what must not happen does not."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import Retryable
from dlpipe.core.layout import part_slug
from dlpipe.core.model import Fault, Scope
from dlpipe.core.states import State, Status
from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from dlpipe.pipeline.reconcile import Report, reconcile
from dlpipe.store import LocalBlobStore, LocalStaging
from tests.fakes.leases import FakeLease
from tests.ledgers import UNKNOWN, everything
from tests.parts import facts
from tests.world import World, altered, sha256, some_bytes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("files in a folder are damaged by hand", "store"),
    pytest.mark.no_engines("broker"),
]

HOST = "http://files.example"


class Damaged(World):
    """A world as it is two hours later, so that nothing in it is young."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.passed_s = 7_200.0
        self.deps = replace(
            self.deps,
            store=LocalBlobStore(self.root, clock=self.later),
            staging=LocalStaging(self.root, clock=self.later),
        )

    def later(self) -> float:
        return time.time() + self.passed_s

    def heal_policy(self, **changes: Any) -> None:
        self.policy(heal=replace(self.deps.policy.heal, **changes))

    def done(self, name: str, size: int = 5_000, **fields: Any) -> tuple[str, Path]:
        """A finished job and its file."""
        data = some_bytes(size)
        url = f"{HOST}/{name}"
        self.source.put(url, data)
        job_id = self.fetch(url, **fields)
        assert self.state(job_id) in (State.DEDUPED, State.SKIPPED_DUPLICATE)
        tenant = str(fields.get("tenant_id", "default"))
        (record,) = self.artifacts(job_id, Scope(tenant, "default"))
        return job_id, Path(self.deps.store.path(record.storage_pointer))

    def part(self, url: str, job_id: str, tenant: str = "default") -> None:
        """What a holder of that job left of a URL."""
        with LocalStaging(self.root).claim(tenant, url, job_id, 1) as part:
            part.begin(facts(100))
            part.write(b"abc")
            part.flush()

    def tree(self) -> dict[str, tuple[bytes, float]]:
        found = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                found[str(path.relative_to(self.root))] = (path.read_bytes(), path.stat().st_mtime)
            else:
                found[f"{path.relative_to(self.root)}/"] = (b"", 0.0)
        return found

    def bodies(self) -> set[str]:
        return {sha256(data) for data, _ in self.tree().values()}

    def round(self) -> Report:
        """One round, and what the workers make of it."""
        report = reconcile(self.deps)
        self.drive()
        return report


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path) -> Damaged:
    return Damaged(database, tmp_path / "store")


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


# ── rows without files ────────────────────────────────────────────────────────────────────────────


def test_a_missing_file_is_brought_again_and_its_mark_goes(world: Damaged) -> None:
    job_id, path = world.done("a.bin")
    right = path.read_bytes()
    path.unlink()
    report = world.round()
    assert (report.files_missing, report.jobs_reopened) == (1, 1)
    assert path.read_bytes() == right
    view = world.view(job_id)
    assert (view.status, view.state, view.run) == (Status.COMPLETED, State.DEDUPED, 2)
    world.round()
    assert [one.fault for one in world.artifacts(job_id)] == [None]
    assert reconcile(world.deps) == Report()


@pytest.mark.parametrize("harm", ["cut", "altered"])
def test_a_damaged_file_is_marked_kept_aside_and_brought_again(world: Damaged, harm: str) -> None:
    job_id, path = world.done("a.bin")
    right = path.read_bytes()
    wrong = right[:-1] if harm == "cut" else altered(right)
    overwrite(path, wrong)
    report = world.round()
    assert (report.files_damaged, report.jobs_reopened) == (1, 1)
    world.round()
    assert path.read_bytes() == right
    assert [one.fault for one in world.artifacts(job_id)] == [None]
    assert sha256(wrong) in world.bodies(), "nothing is thrown away, wrong bytes neither"


def test_altered_bytes_of_the_right_size_wait_for_the_slow_walk_which_can_be_off(world: Damaged) -> None:
    _, path = world.done("a.bin")
    overwrite(path, altered(path.read_bytes()))
    world.heal_policy(rehash_bytes=0)
    assert reconcile(world.deps) == Report()
    world.heal_policy(rehash_bytes=1)
    assert reconcile(world.deps).files_damaged == 1


def test_the_slow_walk_reads_so_many_bytes_in_a_round_and_comes_around(world: Damaged) -> None:
    paths = [world.done(f"{number}.bin", 1_000 + number)[1] for number in range(6)]
    world.heal_policy(rehash_bytes=2_100)
    for path in paths:
        overwrite(path, altered(path.read_bytes()))
    found = [reconcile(world.deps).files_damaged for _ in range(3)]
    assert sum(found) == 6
    assert max(found) <= 2


def test_a_file_that_the_server_no_longer_has_stays_marked_and_is_asked_for_once(world: Damaged) -> None:
    job_id, path = world.done("a.bin")
    path.unlink()
    world.source.pages.clear()
    for _ in range(4):
        world.round()
    assert [one.fault for one in world.artifacts(job_id)] == [Fault.MISSING]
    assert world.view(job_id).run == 2
    report = reconcile(world.deps)
    assert (report.files_missing, report.jobs_reopened) == (0, 0)


def test_a_file_that_was_put_back_is_no_longer_marked(world: Damaged) -> None:
    job_id, path = world.done("a.bin")
    right = path.read_bytes()
    path.unlink()
    world.source.pages.clear()
    world.round()
    path.write_bytes(altered(right))
    assert reconcile(world.deps).files_mended == 0
    path.write_bytes(right)
    assert reconcile(world.deps).files_mended == 1
    assert [one.fault for one in world.artifacts(job_id)] == [None]


class Unreadable(LocalBlobStore):
    """A disk with one bad sector."""

    bad = ""

    def is_right(self, pointer: str, sha256: str, size: int) -> bool:
        if pointer == self.bad:
            raise Retryable("the disk reported an error (EIO)", code="store_io_error")
        return super().is_right(pointer, sha256, size)


def test_a_file_that_cannot_be_read_keeps_no_walk_from_those_behind_it(world: Damaged) -> None:
    found = [world.done(f"{number}.bin", 1_000 + number) for number in range(4)]
    (first, *_, last) = sorted((world.artifacts(job_id)[0].artifact_uuid, job_id, path) for job_id, path in found)
    overwrite(last[2], altered(last[2].read_bytes()))
    store = Unreadable(world.root, clock=world.later)
    store.bad = world.artifacts(first[1])[0].storage_pointer
    world.deps = replace(world.deps, store=store)
    report = world.round()
    assert (report.files_damaged, report.jobs_reopened, report.unfinished) == (1, 1, 1)


def test_a_row_whose_pointer_leads_nowhere_keeps_no_round_from_the_rest(world: Damaged) -> None:
    found = [world.done(f"{number}.bin", 1_000 + number) for number in range(3)]
    (first, *_, last) = sorted((world.artifacts(job_id)[0].artifact_uuid, job_id, path) for job_id, path in found)
    with world.database.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE artifacts SET storage_pointer = 'local:no place' WHERE artifact_uuid = :id"),
            {"id": first[0]},
        )
    last[2].unlink()
    report = world.round()
    assert (report.files_missing, report.jobs_reopened) == (1, 1)


def test_an_earlier_version_is_marked_and_nobody_asks_for_it(world: Damaged) -> None:
    """A further run brings what the server has now, so it would be asked for again in every round."""
    job_id, old = world.done("a.bin")
    newer = b"newer" * 100
    path = lay(world, newer)
    (record,) = world.artifacts(job_id)
    pointer = f"local:{path.relative_to(world.root)}"
    later = replace(record, artifact_uuid=UNKNOWN, sha256=sha256(newer), byte_size=len(newer), storage_pointer=pointer)
    with world.database.write() as unit:
        unit.registry.add_artifact(later)
        measured = {"sha256": later.sha256, "pointer": pointer, "byte_size": later.byte_size}
        unit.registry.note(UNKNOWN, job_id, {"run": 2, **measured})
    old.unlink()
    report = reconcile(world.deps)
    assert (report.files_missing, report.jobs_reopened) == (1, 0)
    path.unlink()
    assert reconcile(world.deps).jobs_reopened == 1


def test_a_store_that_looks_empty_is_not_believed(world: Damaged) -> None:
    """The disk is not mounted: no row is marked, no job sent to the network, whatever the database knows."""
    world.heal_policy(max_missing=3)
    for number in range(5):
        world.done(f"{number}.bin", 100 + number)
    store = world.root.rename(world.root.with_name("elsewhere"))
    before = everything(world.database)
    report = reconcile(world.deps)
    assert (report.files_missing, report.jobs_reopened, report.unfinished) == (0, 0, 1)
    assert everything(world.database) == before
    store.rename(world.root)
    assert reconcile(world.deps) == Report()


def test_when_the_operator_says_that_the_files_are_gone_they_are_brought_again(world: Damaged) -> None:
    world.heal_policy(max_missing=3)
    paths = [world.done(f"{number}.bin", 100 + number)[1] for number in range(5)]
    for path in paths:
        path.unlink()
    assert reconcile(world.deps).unfinished == 1
    world.heal_policy(max_missing=1_000)
    assert world.round().jobs_reopened == 5
    assert all(path.exists() for path in paths)


def test_a_file_that_a_run_brings_between_the_look_and_the_write_is_not_asked_for_again(world: Damaged) -> None:
    job_id, path = world.done("a.bin")
    path.unlink()
    looks = 0

    class Store(LocalBlobStore):
        def size(self, pointer: str) -> int | None:
            nonlocal looks
            looks += 1
            found = super().size(pointer)
            if looks == 2:  # the last look before the write
                with world.database.write() as unit:
                    unit.owned(Scope()).refresh(job_id)
                world.drive()
                assert path.exists()
            return found

    world.deps = replace(world.deps, store=Store(world.root, clock=world.later))
    assert reconcile(world.deps) == Report()
    assert looks > 2
    assert (world.view(job_id).run, world.view(job_id).status) == (2, Status.COMPLETED)
    assert {one.fault for one in world.artifacts(job_id)} == {None}


def test_a_damaged_file_that_was_put_right_before_the_fence_was_read_is_not_asked_for_again(world: Damaged) -> None:
    job_id, path = world.done("a.bin")
    right = path.read_bytes()
    overwrite(path, altered(right))

    class Store(LocalBlobStore):
        def is_right(self, pointer: str, sha256: str, size: int) -> bool:
            found = super().is_right(pointer, sha256, size)
            overwrite(path, right)  # somebody did, right after we looked
            return found

    world.deps = replace(world.deps, store=Store(world.root, clock=world.later))
    assert reconcile(world.deps) == Report()
    assert (world.view(job_id).run, world.view(job_id).status) == (1, Status.COMPLETED)


def test_two_rounds_at_once_reopen_a_job_once(world: Damaged) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    job_id, path = world.done("a.bin")
    path.unlink()
    together = Barrier(4)

    def heal(_: int) -> int:
        together.wait(20)
        return reconcile(world.deps).jobs_reopened

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(heal, range(4))) == 1
    world.drive()
    assert (world.view(job_id).run, path.exists()) == (2, True)


# ── files without rows ────────────────────────────────────────────────────────────────────────────


def lay(world: Damaged, data: bytes, name: str | None = None, tenant: str = "default") -> Path:
    digest = name or sha256(data)
    path = world.root / tenant / "default" / digest[:2] / f"{digest}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o444)
    return path


def test_a_file_that_no_row_knows_is_adopted_when_its_name_is_its_hash(world: Damaged) -> None:
    data = some_bytes(3_000)
    path = lay(world, data)
    assert reconcile(world.deps).files_adopted == 1
    with world.database.read() as unit:
        first = unit.registry.first_copy("default", sha256(data))
    assert first is not None
    assert world.deps.store.path(first.pointer) == str(path)
    assert reconcile(world.deps) == Report()


def test_what_was_adopted_is_shared_by_who_fetches_the_same_bytes_later(world: Damaged) -> None:
    data = some_bytes(3_000)
    path = lay(world, data)
    reconcile(world.deps)
    world.source.put(f"{HOST}/x.bin", data)
    job_id = world.fetch(f"{HOST}/x.bin", project_id="another")
    (record,) = world.artifacts(job_id, Scope("default", "another"))
    assert os.path.samefile(world.deps.store.path(record.storage_pointer), path)


def test_a_file_whose_name_is_not_its_hash_is_set_apart_and_kept(world: Damaged) -> None:
    data = some_bytes(3_000)
    path = lay(world, data, name="ab" * 32)
    junk = world.root / "default" / "default" / "ab" / "junk"
    junk.write_bytes(b"junk")
    assert reconcile(world.deps).files_quarantined == 2
    assert not path.exists()
    quarantine = world.root / ".quarantine"
    assert {file.read_bytes() for file in quarantine.rglob("*") if file.is_file()} == {data, b"junk"}
    assert reconcile(world.deps) == Report()


def test_young_files_and_those_that_are_not_the_stores_are_left_alone(world: Damaged) -> None:
    world.done("a.bin")
    (world.root / "README").write_bytes(b"ours")
    world.passed_s = 0.0
    lay(world, b"young")
    lay(world, b"young", name="cd" * 32)
    before = world.tree()
    report = reconcile(world.deps)
    assert report == Report(files_foreign=1)
    assert world.tree() == before


def test_a_file_whose_job_has_yet_to_register_it_stays_that_jobs(world: Damaged) -> None:
    """However long the job waits: seen before by reconcile, it ends as if it had not been."""
    data = some_bytes(3_000)
    world.source.put(f"{HOST}/a.bin", data)
    job_id = world.plan(f"{HOST}/a.bin")
    world.run_to("index", job_id)
    assert world.state(job_id) is State.FINALIZED
    assert reconcile(world.deps).files_quarantined == 0
    world.age(job_id)
    world.round()
    assert world.view(job_id).status is Status.COMPLETED
    with world.database.read() as unit:
        measures = unit.owned(Scope()).measures_of(job_id)
    assert measures is not None
    assert measures["dedupe_action"] == "download"


def test_an_unknown_twin_of_known_bytes_is_known_as_long_as_those_are_there(world: Damaged) -> None:
    _, path = world.done("a.bin")
    twin = world.root / "default" / "other" / path.parent.name / path.name
    twin.parent.mkdir(parents=True)
    twin.write_bytes(path.read_bytes())
    assert reconcile(world.deps) == Report()
    path.unlink()
    world.source.pages.clear()
    assert reconcile(world.deps).files_adopted == 1
    with world.database.read() as unit:
        first = unit.registry.first_copy("default", path.name[:64])
    assert first is not None
    assert world.deps.store.path(first.pointer) == str(twin)


# ── a lost or a wrong database ────────────────────────────────────────────────────────────────────


def full(world: Damaged) -> dict[str, tuple[bytes, float]]:
    """A store with files, parts and leftovers of every kind."""
    for number in range(4):
        world.done(f"{number}.bin", 1_000 + number)
    world.source.put(f"{HOST}/waiting.bin", some_bytes(2_000))
    waiting = world.plan(f"{HOST}/waiting.bin")
    world.part(f"{HOST}/waiting.bin", waiting)
    world.part(f"{HOST}/unfinished.bin", "5d0f7b2e-0000-5000-8000-000000000000")
    return world.tree()


def test_an_empty_database_removes_nothing_and_makes_every_file_known(
    world: Damaged, empty_url: str, tmp_path: Path
) -> None:
    before = full(world)
    fresh = SqlDatabase(empty_url)
    migrate(fresh)
    lost = Damaged(fresh, world.root)
    for _ in range(3):
        reconcile(lost.deps)
    assert lost.tree() == before, "not a byte, not a name, not a part"
    with fresh.read() as unit:
        for name, (data, _) in before.items():
            if name.endswith(".bin"):
                assert unit.registry.first_copy("default", sha256(data)) is not None
    fresh.close()


def test_the_wrong_database_removes_nothing_either(world: Damaged, empty_url: str, tmp_path: Path) -> None:
    """One with jobs, files and tenants of its own, that has never seen this store."""
    before = full(world)
    other_database = SqlDatabase(empty_url)
    migrate(other_database)
    other = Damaged(other_database, tmp_path / "other store")
    other.heal_policy(max_missing=2)
    for number in range(4):
        other.done(f"other-{number}.bin", 2_000 + number)
    wrong = Damaged(other_database, world.root)
    wrong.heal_policy(max_missing=2)
    for _ in range(3):
        report = reconcile(wrong.deps)
        assert report.jobs_reopened == 0
    assert wrong.tree() == before
    other_database.close()


# ── staging ───────────────────────────────────────────────────────────────────────────────────────


def test_parts_of_jobs_that_wait_are_kept_and_those_of_ended_ones_removed(world: Damaged) -> None:
    urls = {name: f"{HOST}/{name}" for name in ("waiting", "canceled", "shared", "unknown", "none")}
    waiting = world.plan(urls["waiting"])
    canceled, shared = world.plan(urls["canceled"]), world.plan(urls["shared"])
    world.plan(urls["shared"], artifact_id="second", not_before="2999-01-01T00:00:00Z")
    world.part(urls["waiting"], waiting)
    world.part(urls["canceled"], canceled)
    world.part(urls["shared"], shared)
    world.part(urls["unknown"], "5d0f7b2e-0000-5000-8000-000000000000")
    world.part(urls["none"], canceled)
    (world.root / ".staging" / "default" / f"{part_slug('default', urls['none'])}.json").write_bytes(b"torn")
    temporary = world.root / ".staging" / "default" / "adopted.0123abcd.tmp"
    temporary.write_bytes(b"half")
    with world.database.write() as unit:
        for job_id in (canceled, shared):
            unit.owned(Scope()).cancel(job_id)
    world.passed_s = 0.0
    assert reconcile(world.deps).parts_removed == 0, "they are young"
    world.passed_s = 7_200.0
    with LocalStaging(world.root).claim("default", urls["canceled"], canceled, 9):
        report = reconcile(world.deps)  # somebody still holds that one
    assert (report.parts_removed, report.parts_unknown) == (2, 1)
    report = reconcile(world.deps)
    assert (report.parts_removed, report.parts_unknown) == (1, 1)
    kept = {name for name, url in urls.items() if f"{part_slug('default', url)}.part" in str(world.staged())}
    assert kept == {"waiting", "shared", "unknown"}
    assert not temporary.exists()


# ── the rounds ────────────────────────────────────────────────────────────────────────────────────


def hurt(world: Damaged) -> None:
    """One of everything."""
    jobs = {name: world.done(f"{name}.bin", 1_000 + number) for number, name in enumerate(("gone", "cut", "altered"))}
    jobs["gone"][1].unlink()
    overwrite(jobs["cut"][1], b"short")
    overwrite(jobs["altered"][1], altered(jobs["altered"][1].read_bytes()))
    lay(world, some_bytes(4_000))
    lay(world, some_bytes(4_001), name="ef" * 32)
    for number, name in enumerate(("orphan", "dead", "stale", "unsent", "lost", "midway")):
        world.source.put(f"{HOST}/{name}", some_bytes(6_000 + number))
    orphan, dead = world.plan(f"{HOST}/orphan"), world.plan(f"{HOST}/dead")
    world.leave_claimed("head", orphan)
    world.expire(orphan)
    token = world.leave_claimed("head", dead)
    world.leases.held[dead] = FakeLease(token)
    world.leases.dead.add(token)
    stale, _ = world.done("stale", 6_002)
    world.sql(
        f"UPDATE artifact_jobs SET lease_owner = 'gone', lease_until = created.at FROM "
        f"(SELECT min(created_at) AS at FROM jobs) AS created WHERE job_id = '{stale}'"
    )
    world.expire(stale)
    midway = world.plan(f"{HOST}/midway")
    world.run_to("stream", midway)
    world.age(midway)
    world.plan(f"{HOST}/unsent")
    canceled = world.plan(f"{HOST}/canceled")
    world.part(f"{HOST}/canceled", canceled)
    with world.database.write() as unit:
        unit.owned(Scope()).cancel(canceled)


def test_a_world_hurt_in_every_way_is_healed_within_two_rounds(world: Damaged) -> None:
    hurt(world)
    first = world.round()
    assert (first.files_missing, first.files_damaged, first.jobs_reopened) == (1, 2, 3)
    assert (first.files_adopted, first.files_quarantined, first.parts_removed) == (1, 1, 1)
    assert (first.orphans_requeued, first.dead_owners, first.mirrors_cleared) == (2, 1, 1)
    assert first.ops_abandoned == 2
    world.round()
    rows = world.sql("SELECT state, due_at, lease_owner FROM artifact_jobs")
    assert {row.state for row in rows} <= {"DEDUPED", "SKIPPED_DUPLICATE", "CANCELED"}
    assert {(row.due_at, row.lease_owner) for row in rows} == {(None, None)}
    assert world.sql("SELECT 1 FROM artifact_faults WHERE mended_at IS NULL") == []
    for name in (path for path in world.tree() if path.endswith(".bin") and not path.startswith(".")):
        assert Path(name).name[:64] == hashlib.sha256((world.root / name).read_bytes()).hexdigest()
    assert world.staged() == []
    # What the repairs set aside is moved out of the way, and then there is nothing left to say.
    world.round()
    assert reconcile(world.deps) == Report()


def test_a_dry_run_tells_the_same_and_changes_nothing_at_all(world: Damaged) -> None:
    hurt(world)
    rows, tree, sent = everything(world.database), world.tree(), list(world.publisher.sent)
    held = dict(world.leases.held)
    told = reconcile(world.deps, dry_run=True)
    assert everything(world.database) == rows
    assert world.tree() == tree
    assert (world.publisher.sent, world.leases.held) == (sent, held)
    assert all(finding.did.startswith("would be: ") for finding in told.findings)
    did = reconcile(world.deps)
    # What follows from another change cannot be foretold: an orphan's messages, and the ops that it overtakes.
    assert replace(told, dispatched=0, ops_abandoned=0) == replace(did, dispatched=0, ops_abandoned=0)
    assert told.dispatched > 0


def test_a_round_stops_when_its_time_is_over_and_the_next_goes_on(world: Damaged) -> None:
    for number in range(9):
        lay(world, some_bytes(500 + number))
    world.heal_policy(deadline_s=4.0)

    def slow() -> float:
        world.now += 1.0
        return world.now

    world.deps = replace(world.deps, clock=slow)
    adopted = []
    for _ in range(30):
        report = reconcile(world.deps)
        adopted.append(report.files_adopted)
        if report.files_adopted == 0 and report.unfinished == 0:
            break
    assert sum(adopted) == 9
    assert max(adopted) < 9


def test_a_round_looks_at_so_many_items_and_the_next_goes_on_behind_them(
    world: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlpipe.pipeline.blobs.PAGE", 2)
    monkeypatch.setattr("dlpipe.pipeline.parts.PAGE", 2)
    world.heal_policy(items=2, rehash_bytes=0)
    paths = [world.done(f"{number}.bin", 100 + number)[1] for number in range(7)]
    for path in paths:
        path.unlink()
    for number in range(5):
        lay(world, some_bytes(500 + number))
        world.part(f"{HOST}/torn-{number}", "no job")
    for side in (world.root / ".staging").rglob("*.json"):
        side.write_bytes(b"torn")
    reports = [reconcile(world.deps) for _ in range(5)]
    assert [report.files_missing for report in reports] == [2, 2, 2, 1, 0]
    assert sum(report.files_adopted for report in reports) == 5
    assert sum(report.parts_removed for report in reports) == 5
    assert max(report.files_adopted for report in reports) <= 2


def test_without_redis_files_are_healed_all_the_same(world: Damaged) -> None:
    _, path = world.done("a.bin")
    path.unlink()
    world.leave_claimed("head", world.plan(f"{HOST}/b"))
    world.sql(
        "UPDATE artifact_jobs SET lease_until = published_at WHERE lease_owner IS NOT NULL AND published_at > due_at"
    )
    for row in world.sql("SELECT job_id FROM artifact_jobs WHERE lease_owner IS NOT NULL"):
        world.expire(row.job_id)
    world.leases.down = True
    report = reconcile(world.deps)
    assert (report.jobs_reopened, report.unfinished, report.orphans_requeued) == (1, 1, 0)
    world.leases.down = False
    assert reconcile(world.deps).orphans_requeued == 1


def test_leases_that_redis_keeps_alive_do_not_starve_the_orphan_behind_them(world: Damaged) -> None:
    world.policy(batch=2)
    for number in range(6):
        world.source.put(f"{HOST}/{number}", b"x")
        job_id = world.plan(f"{HOST}/{number}")
        world.leave_claimed("head", job_id)
        world.expire(job_id)
        if number < 5:
            world.leases.take(job_id)
        with world.database.engine.begin():
            pass
        time.sleep(0.002)  # so that they ran out one after the other
    assert reconcile(world.deps).orphans_requeued == 1
