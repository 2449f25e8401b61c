"""Several rounds and several workers on the same downloads at the same moment, on both engines (TORRENT-4, 7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlpipe.db import SqlDatabase
from dlpipe.db.torrents import SqlTorrents
from dlpipe.pipeline import torrent_files, torrent_sync, torrents
from dlpipe.pipeline.torrents import TorrentDeps
from tests.fakes.leases import FakeLeases
from tests.torrent_world import TorrentWorld, content, info_hash
from tests.world import DEFAULT

pytestmark = pytest.mark.slow


def at_once(count: int, do: Callable[[int], Any]) -> list[Any]:
    gate, results, failures = threading.Barrier(count), [], []

    def work(number: int) -> None:
        try:
            gate.wait(30)
            results.append(do(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(results) == count
    return results


def lone(deps: TorrentDeps) -> TorrentDeps:
    """A worker on another machine whose lease nobody sees: as if Redis had lost everything."""
    return replace(deps, base=replace(deps.base, leases=FakeLeases()))


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path) -> TorrentWorld:
    return TorrentWorld(database, tmp_path)


def test_rounds_at_once_write_every_step_once(world: TorrentWorld) -> None:
    ids = [world.added(number) for number in range(30)]
    for number in range(30):
        world.client.say(info_hash(number), "downloading")
    reports = at_once(4, lambda _: torrent_sync.sync(world.deps, world.now))
    assert sum(report.begun for report in reports) == 30
    assert {world.row(job_id).row_version for job_id in ids} == {2}  # handed over, and begun
    for number in range(30):
        world.finish(number)
    world.now = world.now.replace(minute=1)
    at_once(4, lambda _: torrent_sync.sync(world.deps, world.now))
    assert sorted(world.messages.sent[-30:]) == sorted(("register", job_id) for job_id in ids)


def test_workers_at_once_without_a_common_lease_write_the_completion_once(world: TorrentWorld) -> None:
    job_id = world.downloading()
    world.finish(files={"x/a.mp3": content(1), "x/b.mp3": content(2)})
    world.sync(15)
    first, *others = sorted(at_once(4, lambda _: torrent_files.register(lone(world.deps), job_id)))
    assert first == "completed: 2 files"
    assert all(one.startswith("dropped") for one in others)
    completed_once(world, job_id, files=2)


def test_of_two_that_read_the_same_row_one_completes_it(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite the second one would not even begin to read."""
    database = SqlDatabase(postgres_url)
    world = TorrentWorld(database, tmp_path)
    job_id = world.downloading()
    world.finish()
    world.sync(15)
    both_have_read, complete = threading.Barrier(2), SqlTorrents.complete

    def after_both(self: SqlTorrents, *arguments: Any) -> bool:
        both_have_read.wait(30)
        return complete(self, *arguments)

    monkeypatch.setattr(SqlTorrents, "complete", after_both)
    said = at_once(2, lambda _: torrent_files.register(lone(world.deps), job_id))
    assert sorted(said) == ["completed: 1 files", "dropped: the job moved on meanwhile"]
    completed_once(world, job_id, files=1)
    database.close()


def test_handing_over_and_canceling_at_once_leaves_no_torrent_behind(world: TorrentWorld) -> None:
    for number in range(10):
        job_id = world.start(number).job_id
        work: list[Callable[[], Any]] = [
            lambda job_id=job_id: torrents.enqueue(world.deps, job_id),  # type: ignore[misc]
            lambda job_id=job_id: torrents.cancel(world.deps, DEFAULT, job_id),  # type: ignore[misc]
        ]
        at_once(2, lambda which, work=work: work[which]())  # type: ignore[misc]
        assert world.state(job_id) == "canceled"
        world.sync(1)
    assert world.client.held == {}


def completed_once(world: TorrentWorld, job_id: str, files: int) -> None:
    assert world.state(job_id) == "completed"
    tables = "artifacts job_artifacts download_files manifest hash_index".split()
    assert {world.sql(f"SELECT count(*) FROM {table}")[0][0] for table in tables} == {files}
    assert world.sql("SELECT count(*) FROM media_assets") == world.sql("SELECT count(*) FROM books") == [(1,)]
