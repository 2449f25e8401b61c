"""A worker on a torrent is killed at every named point; whoever comes next ends the job, and all is written once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dlpipe.core.downloads import Sharing
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import torrents
from tests.crash.conftest import Kill
from tests.crash.test_crash_points import points_in_the_source
from tests.crash.torrent_child import TorrentSite, die
from tests.torrent_world import TorrentWorld, content, info_hash, magnet
from tests.world import blobs, sha256, staged

pytestmark = pytest.mark.crash

FILES = {"A Book/one.mp3": content(1), "A Book/two.mp3": content(2), "A Book/again.mp3": content(1)}

POINTS = {
    "torrents.started": "start",
    "torrents.added": "enqueue",
    "torrents.looked": "sync",
    "torrents.changing": "sync",
    "torrents.brought": "register",
    "torrents.hashed": "register",
    "torrents.named": "register",
    "torrents.adopted": "register",
    "torrents.registered": "register",
    "torrents.recording": "register",
    "torrents.recorded": "register",
    "torrents.canceled": "cancel",
    "torrents.removed": "cancel",
}
PER_FILE = ("torrents.brought", "torrents.hashed", "torrents.named", "torrents.adopted")


def test_every_crash_point_of_torrents_has_a_case() -> None:
    assert {name for name in points_in_the_source() if name.startswith("torrents.")} == set(POINTS)


@pytest.fixture
def site(database: SqlDatabase, tmp_path: Path) -> TorrentSite:
    return TorrentSite(database.url.render_as_string(hide_password=False), tmp_path / "torrents", FILES)


@pytest.fixture
def torrent(site: TorrentSite) -> Iterator[TorrentWorld]:
    world = site.world()
    yield world
    world.database.close()


def upto(torrent: TorrentWorld, what: str) -> str:
    """Bring a job to where that work is next; its torrent is complete by then."""
    if what == "start":
        return ""
    job_id = torrent.start().job_id
    if what == "enqueue":
        return job_id
    torrents.enqueue(torrent.deps, job_id)
    if what != "sync":
        torrent.finish(files=FILES)
        torrent.sync(15)
    return job_id


def carry_on(torrent: TorrentWorld) -> None:
    """What beat and workers do from then on: rounds, and what is due sent again."""
    torrent.messages.queue.clear()  # what the dead one was told is lost with him
    torrent.client.add(magnet(), save_path=str(torrent.saved), tag="dlpipe")
    torrent.finish(files=FILES)
    torrent.now += timedelta(hours=1)
    for _ in range(3):
        torrent.sync(120)
        torrent.drive()


def assert_completed_once(torrent: TorrentWorld, job_id: str) -> None:
    row, job = torrent.row(job_id), torrent.job(job_id)
    assert (row.status, row.due_at_utc, job.status, job.progress) == ("completed", None, "completed", 100)
    counts = {
        table: torrent.sql(f"SELECT count(*) FROM {table}")[0][0]
        for table in "media_assets books artifacts job_artifacts download_files manifest hash_index".split()
    }
    files = dict.fromkeys("artifacts job_artifacts download_files manifest".split(), 3)
    assert counts == {**files, "media_assets": 1, "books": 1, "hash_index": 2}
    (asset,) = torrent.sql("SELECT * FROM media_assets")
    assert (bool(asset.available), asset.local_path) == (True, str(torrent.saved / "A Book"))
    assert torrent.sql("SELECT state FROM books") == [("Library",)]
    view = torrent.view(job_id)
    assert view is not None
    assert {file.path: file.sha256 for file in view.files} == {path: sha256(data) for path, data in FILES.items()}
    assert set(blobs(torrent.root / "store").values()) == set(FILES.values())
    for path, data in FILES.items():
        assert (torrent.saved / path).read_bytes() == data


@pytest.mark.parametrize("sharing", [Sharing.LINK, Sharing.COPY])
@pytest.mark.parametrize(
    ("point", "time"),
    [(point, 1) for point, what in POINTS.items() if what == "register"] + [(point, 3) for point in PER_FILE],
)
def test_killed_in_the_middle_of_completion_all_is_written_once(
    point: str, time: int, sharing: Sharing, torrent: TorrentWorld, site: TorrentSite, kill: Kill
) -> None:
    torrent.policy(sharing=sharing)
    job_id = upto(torrent, "register")
    kill(die, replace(site, sharing=sharing), "register", job_id, point, time)
    recorded = point == "torrents.recorded"
    assert torrent.state(job_id) == ("completed" if recorded else "downloading")
    assert torrent.sql("SELECT count(*) FROM media_assets") == [(1 if recorded else 0,)]
    carry_on(torrent)
    assert_completed_once(torrent, job_id)
    litter = point in ("torrents.brought", "torrents.hashed", "torrents.named")
    assert (staged(torrent.root / "store") != []) is litter  # a temporary name, which the healer removes


@pytest.mark.parametrize("point", [point for point, what in POINTS.items() if what in ("start", "enqueue", "sync")])
def test_killed_on_the_way_the_download_still_completes_once(
    point: str, torrent: TorrentWorld, site: TorrentSite, kill: Kill
) -> None:
    job_id = upto(torrent, POINTS[point])
    kill(die, site, POINTS[point], job_id, point, 1)
    carry_on(torrent)
    ((job_id,),) = torrent.sql("SELECT job_id FROM download_jobs")
    assert_completed_once(torrent, str(job_id))


@pytest.mark.parametrize("point", [point for point, what in POINTS.items() if what == "cancel"])
def test_killed_while_canceling_the_torrent_is_removed_later(
    point: str, torrent: TorrentWorld, site: TorrentSite, kill: Kill
) -> None:
    job_id = upto(torrent, "cancel")
    kill(die, site, "cancel", job_id, point, 1)
    assert (torrent.state(job_id), torrent.row(job_id).removal) == ("canceled", "remove")
    assert info_hash() in torrent.client.held  # in ours; the other one's went with it
    assert torrent.sync(15).removed == 1
    assert torrent.client.held == {}
    assert torrent.row(job_id).removal is None
    assert torrent.register(job_id) == "dropped: nothing to register"
    assert torrent.sql("SELECT count(*) FROM media_assets") == [(0,)]
