"""The whole way of a download against a real qBittorrent, real ledger and real store (TORRENT-8)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlpipe.core.downloads import Removal, Sharing
from dlpipe.core.seen import Seen, seen
from dlpipe.core.torrents import DownloadStatus
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import torrents
from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent import QBittorrent
from tests import qbittorrent, torrents_made
from tests.conftest import absent
from tests.origin import Origin
from tests.qbittorrent import PASSWORD, QBittorrentServer
from tests.servers import wait_until
from tests.torrent_world import TorrentWorld
from tests.torrents_made import Made, WebSeed
from tests.world import DEFAULT, blobs, sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("files are linked out of the folder of downloads", "store"),
    pytest.mark.no_engines("broker"),
]


@dataclass
class Real:
    server: QBittorrentServer
    seed: WebSeed
    world: TorrentWorld
    made_in: Path

    def book(self, name: str = "book.epub", size: int = 300_000) -> Made:
        """A torrent that does not come in before the gates are opened."""
        content = random.randbytes(size)
        url, _ = self.seed.put(name, content, hold_at=0)
        return torrents_made.make(self.made_in, name, content, url)

    def added(self, made: Made) -> str:
        job_id = self.world.start(source=made.file).job_id
        assert self.world.drive() == [f"enqueued: {made.info_hash}"]
        return job_id

    def downloading(self, made: Made) -> str:
        job_id = self.added(made)
        self.until(job_id, "downloading")
        return job_id

    def completed(self, made: Made) -> str:
        job_id = self.downloading(made)
        self.seed.open_all()
        self.until(job_id, "completed")
        return job_id

    def until(self, job_id: str, state: str, passed_s: float = 0.0) -> None:
        """Rounds and workers until the job is there. Only the time that is said passes for the ledger."""
        self.world.sync(passed_s)

        def there() -> bool:
            self.world.sync()
            self.world.drive()
            return self.world.state(job_id) == state

        self.wait(there, f"{job_id} is {state}")

    def is_complete(self, made: Made) -> bool:
        return seen(self.server.state(made.info_hash)) is Seen.COMPLETE

    @staticmethod
    def wait(condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, within_s=60)


@pytest.fixture
def real(database: SqlDatabase, tmp_path: Path) -> Iterator[Real]:
    if reason := qbittorrent.missing():
        absent(reason)
    (tmp_path / "made").mkdir()
    with Origin() as origin, QBittorrentServer(tmp_path / "qbittorrent") as server:
        seed = WebSeed(origin)
        world = TorrentWorld(database, tmp_path)
        world.real = QBittorrent(qbittorrent_api.make(server.url, "admin", PASSWORD), lambda url: b"")
        yield Real(server, seed, world, tmp_path / "made")
        seed.open_all()


def test_queued_downloading_completed_with_the_right_bytes_and_hashes(real: Real) -> None:
    book, world = real.book(), real.world
    job_id = real.added(book)
    assert world.state(job_id) == "queued"
    real.until(job_id, "downloading")
    assert world.sql("SELECT 1 FROM media_assets") == []
    real.seed.open_all()
    real.until(job_id, "completed")
    (artifact,) = world.artifacts(job_id)
    assert (artifact.sha256, artifact.byte_size) == (sha256(book.content), len(book.content))
    assert set(blobs(world.root / "store").values()) == {book.content}
    (asset,) = world.sql("SELECT * FROM media_assets")
    assert Path(asset.local_path).read_bytes() == book.content
    assert world.sql("SELECT state FROM books") == [("Library",)]
    assert (world.job(job_id).status, world.job(job_id).progress) == ("completed", 100)


def test_several_files_in_folders_are_all_registered(real: Real) -> None:
    import torf

    folder = real.made_in / "A Book"
    files = {name: random.randbytes(40_000) for name in ("one.mp3", "zwei ü.mp3", "extra/cover.jpg")}
    for name, data in files.items():
        for root in (folder, real.world.saved / "A Book"):  # it has them already: how they come is not the point here
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    made = torf.Torrent(path=folder, private=True)
    made.generate()
    job_id = real.world.start(source=made.dump()).job_id
    real.world.drive()
    real.until(job_id, "completed")
    view = real.world.view(job_id)
    assert view is not None
    assert {file.path: file.sha256 for file in view.files} == {
        f"A Book/{name}": sha256(data) for name, data in files.items()
    }
    assert real.world.sql("SELECT local_path FROM media_assets") == [(str(real.world.saved / "A Book"),)]


@pytest.mark.parametrize(("removal", "kept"), [(Removal.REMOVE, True), (Removal.REMOVE_WITH_FILES, False)])
def test_cancel_ends_the_job_and_takes_the_torrent_out(real: Real, removal: Removal, kept: bool) -> None:
    book, world = real.book(), real.world
    world.saved.joinpath("kept.txt").write_text("not of the torrent")
    (world.saved / book.name).write_bytes(book.content[:1000])
    job_id = real.downloading(book)
    assert torrents.cancel(world.deps, DEFAULT, job_id, removal) is DownloadStatus.CANCELED
    real.wait(lambda: real.server.state(book.info_hash) == "", "the torrent is gone")
    real.seed.open_all()
    before = world.row(job_id)
    world.sync(15)
    assert (world.row(job_id), world.row(job_id).status) == (before, "canceled")
    real.wait(lambda: (world.saved / book.name).exists() is kept, "the files follow the policy")
    assert world.saved.joinpath("kept.txt").exists()


def test_removed_from_outside_it_fails_after_the_grace(real: Real) -> None:
    book, world = real.book(), real.world
    job_id = real.downloading(book)
    real.server.api.torrents_delete(torrent_hashes=book.info_hash, delete_files=True)
    real.wait(lambda: world.sync().missing, "it is missed")
    for _ in range(3):
        world.sync(15)
        assert world.state(job_id) == "downloading"
    world.sync(14.999)
    assert world.state(job_id) == "downloading"
    world.sync(0.001)
    assert (world.state(job_id), world.row(job_id).failure_reason) == ("failed", "missing_external_job")


def test_back_within_the_grace_it_goes_on_to_the_end(real: Real) -> None:
    book, world = real.book(), real.world
    job_id = real.downloading(book)
    real.server.api.torrents_delete(torrent_hashes=book.info_hash, delete_files=True)
    real.wait(lambda: world.sync().missing, "it is missed")
    for _ in range(3):
        world.sync(15)
    real.server.api.torrents_add(torrent_files=book.file, save_path=str(world.saved))
    real.wait(lambda: world.sync().found_again, "it is back")
    assert world.row(job_id).first_not_found_at_utc is None
    real.seed.open_all()
    real.until(job_id, "completed", passed_s=60)
    assert set(blobs(world.root / "store").values()) == {book.content}


def test_the_daemon_stopped_for_longer_than_the_grace_fails_nothing(real: Real) -> None:
    book, world = real.book(), real.world
    job_id = real.downloading(book)
    before = world.row(job_id), world.job(job_id)
    real.server.stop()
    for _ in range(20):
        assert world.sync(15).outage
    assert (world.row(job_id), world.job(job_id)) == before
    real.server.start()
    real.wait(lambda: world.sync().outage is None and real.server.state(book.info_hash), "it is back")
    assert world.state(job_id) == "downloading"
    real.seed.open_all()
    real.until(job_id, "completed")


def test_an_absence_that_began_before_an_outage_begins_anew_after_it(real: Real) -> None:
    book, world = real.book(), real.world
    job_id = real.downloading(book)
    real.server.api.torrents_delete(torrent_hashes=book.info_hash, delete_files=True)
    real.wait(lambda: world.sync().missing, "it is missed")
    real.server.stop()
    for _ in range(10):
        world.sync(15)
    real.server.start()
    real.wait(lambda: world.sync().missing, "it is missed anew")
    assert world.state(job_id) == "downloading"


def test_files_that_vanish_are_missing_files(real: Real) -> None:
    book, world = real.book(), real.world
    (world.saved / book.name).write_bytes(book.content)
    job_id = real.added(book)
    real.wait(lambda: real.is_complete(book), "it is complete")
    real.server.stop()
    (world.saved / book.name).unlink()
    real.server.start()
    real.until(job_id, "failed")
    assert (world.row(job_id).failure_reason, world.job(job_id).error_code) == ("missing_files", "missing_files")


def test_a_folder_that_cannot_be_written_is_an_error(real: Real) -> None:
    book, world = real.book(), real.world
    (real.world.saved / "file").write_text("no folder")
    world.policy(save_path=str(world.saved / "file" / "below"), local_path=str(world.saved))
    job_id = real.added(book)
    real.seed.open_all()
    real.until(job_id, "failed")
    assert world.row(job_id).failure_reason == "torrent_error"


def test_complete_at_the_first_look_is_two_recorded_steps(real: Real) -> None:
    book, world = real.book(), real.world
    (world.saved / book.name).write_bytes(book.content)
    job_id = real.added(book)
    version = world.row(job_id).row_version
    real.wait(lambda: real.is_complete(book), "it is complete")
    report = world.sync()
    assert (report.begun, report.complete) == (1, 1)
    assert (world.state(job_id), world.row(job_id).row_version) == ("downloading", version + 1)
    assert world.drive() == ["completed: 1 files"]
    assert (world.state(job_id), world.row(job_id).row_version) == ("completed", version + 2)


@pytest.mark.parametrize("sharing", list(Sharing))
def test_a_completed_one_that_is_checked_again_changes_nothing_and_seeds_on(real: Real, sharing: Sharing) -> None:
    book, world = real.book(), real.world
    world.policy(sharing=sharing)
    job_id = real.completed(book)
    before = world.row(job_id), world.job(job_id), world.sql("SELECT * FROM manifest")
    real.server.api.torrents_recheck(torrent_hashes=book.info_hash)
    for _ in range(3):
        world.sync(15)
        world.drive()
    real.wait(lambda: real.is_complete(book), "it is complete after the check")
    assert (world.row(job_id), world.job(job_id), world.sql("SELECT * FROM manifest")) == before
    assert set(blobs(world.root / "store").values()) == {book.content}


def test_handed_over_twice_there_is_one_torrent(real: Real) -> None:
    book, world = real.book(), real.world
    first = real.downloading(book)
    second = world.start(source=book.file, user_id="v").job_id
    assert world.drive() == [f"enqueued: {book.info_hash}"]
    assert len(real.server.api.torrents_info()) == 1
    real.seed.open_all()
    for job_id in (first, second):
        real.until(job_id, "completed")
    assert len(blobs(world.root / "store")) == 1
    assert world.sql("SELECT count(*) FROM artifacts") == [(2,)]
