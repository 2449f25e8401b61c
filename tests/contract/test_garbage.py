"""Blobs that nobody wants are collected, and nothing else is: beside jobs at work, on both engines (HEAL-3, ADR 31)."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.core import crash
from dlpipe.core.errors import Misconfigured, Postponed
from dlpipe.core.garbage import doubt
from dlpipe.core.model import Scope
from dlpipe.core.purging import PurgeFilter
from dlpipe.core.states import State, Status
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import garbage
from dlpipe.pipeline import purge as purging
from dlpipe.pipeline.garbage import Asked, Collected
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.store import LocalBlobStore, marker
from dlpipe.store.archive import FileArchive
from dlpipe.store.trash import TRASH, LocalTrash
from tests.checker import assert_clean, findings
from tests.finished import SITE, A
from tests.servers import wait_until
from tests.world import World, sha256

GRACE = 7 * 86_400.0
OWN = Scope()
URL, TWIN, THIRD = f"{SITE}a.pdf", f"{SITE}same.pdf", f"{SITE}b"
ASKED = Asked(GRACE)


class Site:
    """A world whose files are as old as the test says: what was touched before `mark` is older than the grace."""

    def __init__(self, database: SqlDatabase, directory: Path) -> None:
        self.world = world = World(database, directory / "store")
        self.root = world.root
        self.url = database.url.render_as_string(hide_password=False)
        self.mark = 0.0
        self.archive = FileArchive(directory / "archive")
        self.trash = LocalTrash(self.root, clock=self.clock)
        world.deps = replace(world.deps, store=LocalBlobStore(self.root, clock=self.clock))
        world.source.put(URL, A, content_type="application/pdf")
        world.source.put(TWIN, A, content_type="application/pdf")
        world.source.put(THIRD, b"third")
        self.probe = directory / "probe"

    def clock(self) -> float:
        return self.mark + GRACE

    def grow_old(self) -> None:
        """All that was done until now was done before the grace."""
        self.mark = time.time()

        def later() -> bool:
            self.probe.write_bytes(b"x")
            return os.stat(self.probe).st_ctime > self.mark + 0.001

        wait_until(later, "the clock of the file system")

    def give_up(self, scope: Scope = OWN) -> None:
        for _ in purging.purge(self.world.deps, scope, PurgeFilter(0.0), self.archive, retire=True):
            pass

    def collect(self, asked: Asked = ASKED) -> Collected:
        return garbage.collect(self.world.deps, self.trash, asked, lambda *_: None)

    def survey(self, asked: Asked = ASKED) -> Collected:
        return garbage.survey(self.world.deps, asked, lambda *_: None)

    def in_store(self) -> list[str]:
        return sorted(name for name in self.world.blobs() if not name.startswith(TRASH))

    def in_trash(self) -> list[str]:
        return [file.path for file in self.trash.walk("", 99)]


@pytest.fixture
def site(database: SqlDatabase, tmp_path: Path) -> Site:
    return Site(database, tmp_path)


def test_a_purged_jobs_file_is_wanted_as_long_as_its_artifact_was_not_given_up(site: Site) -> None:
    site.world.fetch(URL)
    list(purging.purge(site.world.deps, OWN, PurgeFilter(0.0), site.archive))
    site.grow_old()
    assert site.collect(Asked(GRACE, unknown=True)).moved == 0
    assert len(site.in_store()) == 1


def test_what_was_given_up_goes_to_the_trash_and_from_there_after_the_grace(site: Site) -> None:
    site.world.fetch(URL)
    site.give_up()
    site.grow_old()
    before = site.world.everything()
    assert (site.survey().unwanted, site.in_store()) == (1, site.in_store())
    assert site.world.everything() == before
    done = site.collect()
    assert (done.moved, done.removed, site.in_store()) == (1, 0, [])
    (name,) = site.in_trash()
    assert (site.root / TRASH / name).read_bytes() == A
    assert site.collect().removed == 0  # the trash has a grace of its own
    assert_clean(site.url, site.root)
    assert not any(reconcile(site.world.deps).counts().values())
    site.grow_old()
    assert site.collect().removed == 1
    assert site.in_trash() == []
    assert_clean(site.url, site.root)


def test_a_file_that_another_artifact_names_stays(site: Site) -> None:
    site.world.fetch(URL)
    list(purging.purge(site.world.deps, OWN, PurgeFilter(0.0), site.archive, retire=True))
    site.world.fetch(URL, artifact_id="other")  # known by its URL: the same file
    site.grow_old()
    assert site.collect().moved == 0
    assert_clean(site.url, site.root)


def test_names_that_share_their_bytes_go_one_by_one(site: Site) -> None:
    site.world.fetch(URL)
    site.world.fetch(TWIN, project_id="other")
    first, second = [site.root / name for name in site.in_store()]
    assert os.path.samefile(first, second)
    site.give_up()
    site.grow_old()
    assert site.collect().moved == 1
    site.grow_old()
    assert site.collect().removed == 1
    (left,) = site.in_store()
    assert left.split("/")[1] == "other"
    assert (site.root / left).read_bytes() == A
    assert_clean(site.url, site.root)
    # The index of hashes goes by the copy that is left.
    (entry,) = site.world.sql("SELECT pointer FROM hash_index")
    assert entry.pointer == f"local:{left}"


def test_what_is_young_is_left_alone(site: Site) -> None:
    site.grow_old()
    site.world.fetch(URL)
    site.give_up()
    found = site.collect()
    assert (found.moved, found.young) == (0, 1)


def test_what_a_job_has_placed_and_not_registered_stays_however_long(site: Site) -> None:
    job = site.world.plan(URL)
    site.world.run_to("index", job)
    assert site.world.state(job) is State.FINALIZED
    site.world.fetch(THIRD)
    site.grow_old()
    assert site.collect(Asked(GRACE, unknown=True)).moved == 0
    site.world.run("index", job)
    site.world.run("dedupe", job)
    assert site.world.state(job) is State.DEDUPED


def test_unknown_files_go_only_when_asked_for(site: Site) -> None:
    site.world.fetch(URL)
    stranger = site.root / f"default/default/{sha256(b'?')[:2]}/{sha256(b'?')}"
    stranger.parent.mkdir(parents=True, exist_ok=True)
    stranger.write_bytes(b"?")
    stranger.chmod(0o444)
    site.grow_old()
    site.world.policy(heal=replace(site.world.deps.policy.heal, grace_s=0.0))
    assert reconcile(site.world.deps).counts()["files_adopted"] == 1
    assert (site.collect().moved, stranger.exists()) == (0, True)
    assert site.collect(Asked(GRACE, unknown=True)).moved == 1
    assert not stranger.exists()
    assert_clean(site.url, site.root)


def test_what_was_touched_since_it_was_looked_at_is_not_taken(site: Site) -> None:
    site.world.fetch(URL)
    (name,) = site.in_store()
    site.grow_old()
    assert site.world.deps.store.keep(f"local:{name}")
    assert not site.trash.put(f"local:{name}", GRACE)
    assert site.in_store() == [name]
    site.grow_old()
    assert site.trash.put(f"local:{name}", GRACE)
    assert not site.world.deps.store.keep(f"local:{name}")


def test_a_trashed_file_that_is_no_more_what_it_was_is_not_put_back(site: Site) -> None:
    site.world.fetch(URL)
    (name,) = site.in_store()
    site.grow_old()
    site.trash.put(f"local:{name}", GRACE)
    (path,) = (site.root / TRASH / one for one in site.in_trash())
    path.unlink()
    path.write_bytes(b"x" * len(A))
    site.grow_old()
    done = site.collect()
    assert (done.restored, done.removed, path.exists()) == (0, 0, True)  # somebody may look at it, as it is wanted
    assert not (site.root / name).exists()


def test_an_empty_database_is_not_believed(site: Site) -> None:
    site.world.fetch(URL)
    site.grow_old()
    for table in ("manifest", "job_artifacts", "artifacts", "hash_index", "url_index", "artifact_ops", "jobs"):
        site.world.sql(f"DELETE FROM {table}")
    assert site.collect().moved == 0
    with pytest.raises(Misconfigured) as refused:
        site.collect(Asked(GRACE, unknown=True))
    assert refused.value.code == "store_doubtful"
    assert len(site.in_store()) == 1
    assert site.collect(Asked(GRACE, unknown=True, expect=1)).moved == 1


@pytest.mark.parametrize(
    ("looked_at", "known", "unknown", "doubtful"),
    [
        (0, 0, 0, False),  # nothing there
        (5, 0, 5, True),  # few, but nothing is known at all
        (5, 1, 4, False),  # few
        (1_000, 400, 600, True),  # most
        (1_000, 600, 400, False),
    ],
)
def test_doubt(looked_at: int, known: int, unknown: int, doubtful: bool) -> None:
    assert (doubt(looked_at, known, unknown, 100) is not None) is doubtful


def test_planned_again_a_given_up_artifact_is_wanted_again(site: Site) -> None:
    job = site.world.fetch(URL)
    (before,) = site.world.artifacts(job)
    site.give_up()
    site.grow_old()
    assert site.world.fetch(URL) == job
    (after,) = site.world.artifacts(job)
    assert (after.artifact_uuid, after.retired_at) == (before.artifact_uuid, None)
    site.grow_old()
    assert site.collect().moved == 0
    assert_clean(site.url, site.root)


def test_collected_and_planned_again_it_is_fetched_again(site: Site) -> None:
    job = site.world.fetch(URL)
    site.give_up()
    site.grow_old()
    site.collect()
    assert site.world.fetch(URL) == job
    assert site.world.state(job) is State.DEDUPED
    assert len(site.in_store()) == 1
    assert_clean(site.url, site.root)


def test_what_is_wanted_comes_back_from_the_trash(site: Site) -> None:
    site.world.fetch(URL)
    (name,) = site.in_store()
    site.grow_old()
    assert site.trash.put(f"local:{name}", GRACE)  # as a collector that died before its second look
    site.grow_old()
    done = site.collect()
    assert (done.restored, done.removed, site.in_store(), site.in_trash()) == (1, 0, [name], [])
    assert_clean(site.url, site.root)


# ── beside those who publish ──────────────────────────────────────────────────────────────────────

Step = Callable[[Site], None]


def publish(site: Site) -> None:
    """Another job brings the same bytes to the same place."""
    site.world.fetch(TWIN, artifact_id="again")


def link_known(site: Site) -> None:
    """Another job finds its URL known, and registers the file that stands there."""
    site.world.fetch(URL, artifact_id="again")


@pytest.mark.parametrize("step", [publish, link_known])
@pytest.mark.parametrize("point", ["gc.forgotten", "gc.moved", "gc.trashed"])
def test_a_job_that_comes_to_want_the_file_at_any_moment_has_it(site: Site, step: Step, point: str) -> None:
    site.world.fetch(URL)
    site.give_up()
    site.grow_old()
    reached: list[str] = []

    def hook(name: str) -> None:
        if name == point and not reached:
            reached.append(name)
            if point == "gc.moved":  # the folder is locked: he comes to it when the lock is free
                thread = threading.Thread(target=step, args=(site,))
                thread.start()
                threads.append(thread)
            else:
                step(site)

    threads: list[threading.Thread] = []
    crash.arm(hook)
    try:
        site.collect()
    finally:
        crash.arm(None)
    for thread in threads:
        thread.join(30)
    assert reached
    site.grow_old()
    site.collect()
    assert_clean(site.url, site.root)
    assert len(site.in_store()) == 1


@pytest.mark.parametrize("stage", ["head", "finalize", "index"])
def test_a_file_that_a_job_has_found_in_its_place_is_not_taken_from_it(site: Site, stage: str) -> None:
    """He looked, and has not recorded it yet, when the collector comes by."""
    site.world.fetch(URL)
    site.give_up()
    site.grow_old()
    job = site.world.plan(URL if stage == "head" else TWIN, artifact_id="again")
    collected: list[Collected] = []

    def hook(name: str) -> None:
        if name == f"{'finalize' if stage == 'index' else stage}.performed" and not collected:
            collected.append(site.collect())

    crash.arm(hook)
    try:
        site.world.drive()
    finally:
        crash.arm(None)
    assert [(one.moved, one.young) for one in collected] == [(0, 1)]
    assert site.world.state(job) in (State.DEDUPED, State.SKIPPED_DUPLICATE)
    assert_clean(site.url, site.root)


class Impatient(LocalTrash):
    """Removes nothing, so that what was taken by mistake would be seen to come back or be missed."""

    def remove(self, file: object, grace_s: float) -> bool:
        return False


@pytest.mark.slow
def test_collectors_beside_many_jobs_lose_nothing(database: SqlDatabase, tmp_path: Path) -> None:
    """Jobs of three projects bring, find and link the same few files while others are given up and collected."""
    site = Site(database, tmp_path)
    site.trash = Impatient(site.root, clock=lambda: time.time() + GRACE - 0.02)
    bodies = {f"{SITE}{n}": bytes([n]) * 1_000 for n in range(3)}
    stop = threading.Event()
    faults: list[BaseException] = []

    def world() -> World:
        made = World(database, site.root)
        made.deps = replace(made.deps, store=LocalBlobStore(site.root, clock=lambda: time.time() + GRACE - 0.02))
        for url, body in bodies.items():
            made.source.put(url, body)
        return made

    def work(number: int) -> None:
        mine, chance = world(), random.Random(number)
        for turn in range(12):
            fields = {"project_id": f"p{chance.randrange(3)}", "artifact_id": f"{number}-{turn}"}
            job = mine.plan(chance.choice(sorted(bodies)), **fields)
            for name in ("head", "resume_decide", "stream", "finalize", "index", "dedupe"):
                if not mine.run(name, job).goes_on:
                    break

    def purge() -> None:
        mine = world()
        while not stop.is_set():
            for project in range(3):
                scope = Scope("default", f"p{project}")
                list(purging.purge(mine.deps, scope, PurgeFilter(0.0), site.archive, retire=True))

    def collect() -> None:
        mine = world()
        while not stop.is_set():
            garbage.collect(mine.deps, site.trash, ASKED, lambda *_: None)

    def guarded(does: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                does()
            except BaseException as error:
                faults.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    others = [guarded(purge), guarded(collect), guarded(collect)]
    workers = [guarded(lambda n=n: work(n)) for n in range(3)]  # type: ignore[misc]
    for thread in workers:
        thread.join(120)
    stop.set()
    for thread in others:
        thread.join(60)
    assert faults == []
    for project in range(3):
        list(purging.purge(site.world.deps, Scope("default", f"p{project}"), PurgeFilter(0.0), site.archive))
    site.collect()
    assert [one for one in findings(site.url, site.root) if one.code in ("file_missing", "file_damaged")] == []
    assert sum(1 for _ in site.archive.directory.iterdir()) > 3


def test_in_a_store_that_is_not_this_ledgers_nothing_is_garbage(site: Site) -> None:
    site.world.fetch(URL)
    site.give_up()
    site.grow_old()
    mark = site.root / marker.NAME
    mark.chmod(0o644)
    mark.write_text(str(uuid.uuid4()))
    site.world.deps = replace(site.world.deps, known_stores={})
    before = sorted(site.root.rglob("*"))
    with pytest.raises(Postponed) as refused:
        site.collect()
    assert refused.value.code == "store_foreign"
    assert sorted(site.root.rglob("*")) == before


def test_a_file_that_was_given_up_and_then_brought_again_in_one_hand_stays(site: Site) -> None:
    """Its first job only knew the URL, and so the index of hashes has no row of it in its own project."""
    world, other = site.world, Scope("default", "other")
    world.in_hand = True
    world.policy(dedupe_scope="project", trust_s=86_400.0)
    world.fetch(URL)
    assert world.view(world.fetch(URL, project_id="other"), other).status is Status.SKIPPED
    site.give_up(other)
    world.policy(trust_s=0.0)
    world.source.put(URL, A, content_type="application/pdf", etag=None)  # nothing tells whether it has changed
    again = world.fetch(URL, project_id="other")
    assert world.view(again, other).status is Status.COMPLETED
    (record,) = world.artifacts(again, other)
    site.grow_old()
    assert site.collect().moved == 0
    assert site.world.deps.store.is_right(record.storage_pointer, record.sha256, record.byte_size)
