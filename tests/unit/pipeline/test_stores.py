"""What is not the ledger's store gets no bytes, and nothing counts as lost because it is not there (HEAL-3, ADR 29)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from dlpipe.core import crash
from dlpipe.core.errors import Postponed
from dlpipe.core.model import Fault, Scope
from dlpipe.core.states import State, Status
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import repair, runner, stores, wishes
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.store import LocalBlobStore
from dlpipe.verify.check import Silent, StoreNotOurs, check
from tests.world import World

URL, OTHER = "http://files.example/a.bin", "http://files.example/b.bin"
BODY = b"abc" * 1000
MARK = ".dlpipe-store"


class Died(BaseException):
    """The process ended here."""


@pytest.fixture
def job(world: World) -> str:
    world.source.put(URL, BODY)
    world.source.put(OTHER, BODY[::-1])
    return world.fetch(URL)


@contextmanager
def unmounted(world: World) -> Iterator[Path]:
    """The store's folder is there and empty, as a mount point is."""
    away = world.root.with_name("away")
    world.root.rename(away)
    world.root.mkdir()
    try:
        yield world.root
    finally:
        shutil.rmtree(world.root)
        away.rename(world.root)


def as_new_process(world: World) -> None:
    world.deps = replace(world.deps, known_stores={})


def unfinished(world: World) -> list[tuple[str, str]]:
    report = reconcile(world.deps)
    assert report.counts() | {"unfinished": 0} == dict.fromkeys(report.counts(), 0)
    return [(one.what, one.did.partition(":")[0]) for one in report.findings]


def recorded(world: World) -> str | None:
    with world.database.read() as unit:
        return unit.stores.get("local")


def forget(world: World) -> None:
    """As before there were marks."""
    (world.root / MARK).unlink()
    world.sql("DELETE FROM stores")
    as_new_process(world)


def test_the_first_use_of_a_store_marks_it_before_any_byte_is_staged(world: World) -> None:
    world.source.put(URL, BODY)
    assert recorded(world) is None
    job = world.plan(URL)
    did: list[str] = []
    crash.arm(did.append)
    try:
        world.run_to("finalize", job)
    finally:
        crash.arm(None)
    assert (world.root / MARK).read_text() == f"{recorded(world)}\n"
    assert did.index("store.marked") < did.index("part.locked")


@pytest.mark.parametrize("fresh", [False, True])
def test_one_file_that_is_not_there_in_an_unmounted_store_is_not_lost(world: World, job: str, fresh: bool) -> None:
    if fresh:
        as_new_process(world)
    before = world.everything()
    with unmounted(world) as empty:
        assert unfinished(world) == [("store", "store_not_mounted")]
        assert os.listdir(empty) == []
        with pytest.raises(Postponed, match="mark") as refusal:
            repair.bring_again(world.deps, [repair.Accused(job, world.artifacts(job)[0].storage_pointer)], 1)
        assert refusal.value.code == "store_not_mounted"
        with pytest.raises(Postponed):
            wishes.fault_of(world.deps, world.artifacts(job)[0], thorough=False)
        with pytest.raises(Postponed):
            wishes.bring_back(world.deps, world.view(job), world.artifacts(job)[0], Fault.MISSING)
    assert world.everything() == before
    assert reconcile(world.deps).counts()["unfinished"] == 0


@pytest.mark.parametrize("stage", ["head", "resume_decide", "stream", "finalize", "index", "dedupe"])
def test_no_stage_writes_into_an_unmounted_store(world: World, job: str, stage: str) -> None:
    other = world.plan(OTHER)
    world.run_to(stage, other)
    with unmounted(world) as empty:
        outcome = world.run(stage, other)
        assert isinstance(outcome, runner.Failed)
        assert (outcome.code, outcome.due_after_s) == ("store_not_mounted", 60.0)
        assert os.listdir(empty) == []
    row = world.row(other)
    assert (row.attempts, row.due_at is not None) == (0, True)
    world.make_due(other)
    world.drive()
    assert world.state(other) is State.DEDUPED


def test_another_ledgers_store_is_refused(world: World, job: str) -> None:
    as_new_process(world)
    (world.root / MARK).unlink()
    (world.root / MARK).write_text("somebody-elses\n")
    assert unfinished(world) == [("store", "store_foreign")]
    outcome = world.run("head", world.plan(OTHER))
    assert isinstance(outcome, runner.Failed)
    assert outcome.code == "store_foreign"


def test_a_store_from_before_there_were_marks_is_adopted_when_its_files_are_there(world: World, job: str) -> None:
    forget(world)
    assert reconcile(world.deps).counts()["unfinished"] == 0
    assert (world.root / MARK).read_text() == f"{recorded(world)}\n"


def test_a_store_from_before_there_were_marks_is_refused_when_its_files_are_not_there(world: World, job: str) -> None:
    forget(world)
    with unmounted(world) as empty:
        assert unfinished(world) == [("store", "store_doubtful")]
        assert os.listdir(empty) == []
    assert recorded(world) is None


def test_a_dry_run_marks_nothing(world: World, job: str) -> None:
    forget(world)
    reconcile(world.deps, dry_run=True)
    assert recorded(world) is None
    assert not (world.root / MARK).exists()


def test_what_somebody_accepts_is_the_store_and_what_is_missing_in_it_is_brought_again(world: World, job: str) -> None:
    shutil.rmtree(world.root)
    world.root.mkdir()
    assert unfinished(world) == [("store", "store_not_mounted")]
    assert stores.accept(world.deps) == recorded(world)
    assert reconcile(world.deps).counts()["files_missing"] == 1
    world.drive()
    assert world.view(job).status is Status.COMPLETED
    assert list(world.blobs().values()) == [BODY]


def test_a_strange_store_can_be_accepted(world: World, job: str) -> None:
    (world.root / MARK).unlink()
    (world.root / MARK).write_text("restored\n")
    assert stores.accept(world.deps) == recorded(world) == "restored"
    assert reconcile(world.deps).counts()["unfinished"] == 0


@pytest.mark.parametrize("point", ["marker.written", "marker.named", "store.marked"])
def test_whoever_dies_while_he_marks_a_store_leaves_one_that_the_next_can_mark(world: World, point: str) -> None:
    def die(name: str) -> None:
        if name == point:
            raise Died

    crash.arm(die)
    with pytest.raises(Died):
        stores.recognise(world.deps)
    crash.arm(None)
    assert recorded(world) is None
    as_new_process(world)
    world.policy(heal=replace(world.deps.policy.heal, part_age_s=0.0))
    reconcile(world.deps)
    assert world.staged() == []
    assert (world.root / MARK).read_text() == f"{recorded(world)}\n"


def test_the_mark_lasts_before_it_is_on_record_and_before_it_has_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    sync = os.fsync

    def fsync(fd: int) -> None:
        did.append("fsync file" if os.path.isfile(f"/proc/self/fd/{fd}") else "fsync folder")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    crash.arm(did.append)
    try:
        world.root.mkdir(exist_ok=True)
        stores.recognise(world.deps)
    finally:
        crash.arm(None)
    assert did[did.index("fsync file") :] == [
        "fsync file", "marker.written", "marker.named", "fsync folder", "store.marked",
    ]  # fmt: skip


def test_of_many_who_mark_a_store_at_once_all_go_by_one_mark(database: SqlDatabase, tmp_path: Path) -> None:
    worlds = [World(database, tmp_path / "store") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda world: stores.recognise(world.deps), worlds))
    assert {world.deps.known_stores["local"] for world in worlds} == {recorded(worlds[0])}
    assert sorted(os.listdir(tmp_path / "store")) == [MARK, ".staging"]
    assert worlds[0].staged() == []


def test_who_sees_another_folder_at_the_first_use_is_refused(database: SqlDatabase, tmp_path: Path) -> None:
    here, there = World(database, tmp_path / "mounted"), World(database, tmp_path / "not")
    stores.recognise(here.deps)
    with pytest.raises(Postponed) as refusal:
        stores.recognise(there.deps)
    assert refusal.value.code == "store_not_mounted"


class GoesAway(LocalBlobStore):
    """Unmounted after it was recognised, and before its first file is looked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._at = root

    def go_away(self) -> None:
        away = self._at.with_name("away")
        if not away.exists():
            self._at.rename(away)
            self._at.mkdir()

    def size(self, pointer: str) -> int | None:
        self.go_away()
        return super().size(pointer)

    def open(self, pointer: str, size: int) -> BinaryIO:
        self.go_away()
        return super().open(pointer, size)


def test_a_store_that_goes_away_in_the_middle_of_a_round_has_lost_nothing(world: World, job: str) -> None:
    before = world.everything()
    world.deps = replace(world.deps, store=GoesAway(world.root))
    report = reconcile(world.deps)
    assert (report.files_missing, report.jobs_reopened) == (0, 0)
    assert any(one.did.startswith("store_not_mounted") for one in report.findings)
    assert world.everything() == before


def test_a_store_that_goes_away_in_the_middle_of_a_replay_is_waited_for(world: World, job: str) -> None:
    wishes.replay(world.deps, Scope(), job, "stream")
    world.run_to("stream", job, 2)
    world.deps = replace(world.deps, store=GoesAway(world.root))
    outcome = world.run("stream", job, 2)
    assert isinstance(outcome, runner.Failed)
    assert (outcome.code, outcome.due_after_s) == ("store_not_mounted", 60.0)
    assert world.artifacts(job)[0].fault is None


def test_a_store_that_goes_away_in_the_middle_of_a_check_is_no_finding(world: World, job: str) -> None:
    class Watcher(Silent):
        def begins(self, what: str, total: int) -> None:
            GoesAway(world.root).go_away()

    url = world.database.url.render_as_string(hide_password=False)
    with pytest.raises(StoreNotOurs):
        list(check(url, world.root, watcher=Watcher()))
