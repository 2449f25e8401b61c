"""What a real qBittorrent does that no fake tells: its logins, its words, what somebody does behind our back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dlpipe.core import metainfo
from dlpipe.core.errors import TorrentOutage
from dlpipe.core.seen import SEEN, Seen, seen
from dlpipe.core.torrents import (
    Begin,
    Change,
    Complete,
    DownloadStatus,
    Fail,
    FoundAgain,
    NotFoundSince,
    Nothing,
    TorrentPolicy,
    decide,
)
from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent import QBittorrent
from tests import qbittorrent, torrents_made
from tests.conftest import absent
from tests.origin import Origin
from tests.qbittorrent import PASSWORD, QBittorrentServer
from tests.servers import wait_until
from tests.torrent_jobs import job
from tests.torrents_made import Made, WebSeed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines(),
]

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
POLICY = TorrentPolicy()
Q, D, C, F, X = DownloadStatus


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QBittorrentServer]:
    if reason := qbittorrent.missing():
        absent(reason)
    with QBittorrentServer(tmp_path / "qbittorrent") as server:
        yield server


@pytest.fixture
def seed() -> Iterator[WebSeed]:
    with Origin() as origin:
        seed = WebSeed(origin)
        yield seed
        seed.open_all()


def connected(server: QBittorrentServer, password: str = PASSWORD, **more: object) -> QBittorrent:
    return QBittorrent(qbittorrent_api.make(server.url, "admin", password, **more), lambda url: b"")  # type: ignore[arg-type]


@pytest.fixture
def client(server: QBittorrentServer) -> QBittorrent:
    return connected(server)


@pytest.fixture
def book(tmp_path: Path, seed: WebSeed) -> Made:
    """One that does not come in before its gate is opened."""
    content = random.randbytes(200_000)
    url, _ = seed.put("book.bin", content, hold_at=0)
    (tmp_path / "made").mkdir()
    return torrents_made.make(tmp_path / "made", "book.bin", content, url)


def add(client: QBittorrent, server: QBittorrentServer, made: Made) -> str:
    return client.add(made.file, save_path=str(server.downloads), tag="dlpipe")


def look(client: QBittorrent, info_hash: str, status: DownloadStatus = D) -> tuple[Change, ...]:
    one = job(status, external=info_hash)
    return decide(one, client.torrents([info_hash]).get(info_hash), False, NOON, POLICY)


def until(client: QBittorrent, info_hash: str, wanted: Callable[[tuple[Change, ...]], bool]) -> None:
    wait_until(lambda: wanted(look(client, info_hash)), "the change")


def completed(client: QBittorrent, server: QBittorrentServer, seed: WebSeed, made: Made) -> str:
    info_hash = add(client, server, made)
    seed.open_all()
    until(client, info_hash, lambda changes: changes == (Complete(),))
    return info_hash


def failed_with(code: str) -> Callable[[tuple[Change, ...]], bool]:
    return lambda changes: [one.code for one in changes if isinstance(one, Fail)] == [code]


def test_a_job_goes_from_queued_to_completed(
    client: QBittorrent, server: QBittorrentServer, seed: WebSeed, book: Made
) -> None:
    info_hash = add(client, server, book)
    wait_until(lambda: look(client, info_hash, Q) == (Begin(),), "the beginning")
    assert look(client, info_hash) == (Nothing(),)
    seed.open_all()
    until(client, info_hash, lambda changes: changes == (Complete(),))
    assert (server.downloads / book.name).read_bytes() == book.content
    assert look(client, info_hash, Q) == (Begin(), Complete())


def test_what_lies_there_already_is_complete_at_the_first_look(
    client: QBittorrent, server: QBittorrentServer, book: Made
) -> None:
    (server.downloads / book.name).write_bytes(book.content)
    info_hash = add(client, server, book)
    wait_until(lambda: look(client, info_hash, Q) == (Begin(), Complete()), "the end")


def test_removed_from_outside_it_is_not_found_and_put_back_it_goes_on(
    client: QBittorrent, server: QBittorrentServer, book: Made
) -> None:
    info_hash = add(client, server, book)
    until(client, info_hash, lambda changes: changes == (Nothing(),))
    server.api.torrents_delete(torrent_hashes=info_hash, delete_files=True)
    until(client, info_hash, lambda changes: changes == (NotFoundSince(NOON),))
    missing = job(D, NOON, info_hash)
    assert failed_with("missing_external_job")(decide(missing, None, False, NOON + timedelta(seconds=60), POLICY))
    add(client, server, book)
    wait_until(
        lambda: decide(missing, client.torrents([info_hash]).get(info_hash), False, NOON, POLICY) == (FoundAgain(),),
        "the torrent again",
    )


def test_files_that_vanish_behind_its_back_fail_the_job(
    client: QBittorrent, server: QBittorrentServer, seed: WebSeed, book: Made
) -> None:
    info_hash = completed(client, server, seed, book)
    server.stop()
    (server.downloads / book.name).unlink()
    server.start()
    until(client, info_hash, failed_with("missing_files"))
    assert look(client, info_hash, C) == (Nothing(),)


def test_a_save_path_that_cannot_be_written_fails_the_job(
    client: QBittorrent, server: QBittorrentServer, seed: WebSeed, book: Made
) -> None:
    in_the_way = server.directory / "file"
    in_the_way.write_bytes(b"")
    info_hash = client.add(book.file, save_path=str(in_the_way / "below"), tag="dlpipe")
    seed.open_all()
    until(client, info_hash, failed_with("torrent_error"))


def test_a_completed_one_that_is_checked_again_changes_nothing(
    client: QBittorrent, server: QBittorrentServer, seed: WebSeed, book: Made
) -> None:
    info_hash = completed(client, server, seed, book)
    words = set()

    def checked() -> bool:
        state = server.state(info_hash)
        words.add(state)
        assert look(client, info_hash, C) == (Nothing(),)
        assert look(client, info_hash) in {(Nothing(),), (Complete(),)}
        return len(words) > 1 and seen(state) is Seen.COMPLETE

    server.api.torrents_recheck(torrent_hashes=info_hash)
    wait_until(checked, "the end of the check")
    assert words <= set(SEEN)


def test_stopped_by_somebody_it_stays_ours_and_waits(
    client: QBittorrent, server: QBittorrentServer, seed: WebSeed, book: Made
) -> None:
    info_hash = add(client, server, book)
    server.api.torrents_stop(torrent_hashes=info_hash)
    wait_until(lambda: seen(server.state(info_hash)) is Seen.STOPPED, "the stop")
    assert look(client, info_hash, Q) == look(client, info_hash) == (Nothing(),)
    assert add(client, server, book) == info_hash


def test_its_own_settings_do_not_decide_where_and_whether_it_downloads(
    client: QBittorrent, server: QBittorrentServer, seed: WebSeed, book: Made
) -> None:
    elsewhere = str(server.directory / "elsewhere")
    server.api.app_set_preferences(
        {
            "start_paused_enabled": True,
            "add_stopped_enabled": True,
            "auto_tmm_enabled": True,
            "save_path": elsewhere,
            "temp_path_enabled": True,
            "temp_path": elsewhere,
            "torrent_content_layout": "Subfolder",
            "torrent_stop_condition": "FilesChecked",
        }
    )
    info_hash = completed(client, server, seed, book)
    assert client.torrents([info_hash])[info_hash].save_path == str(server.downloads)
    assert (server.downloads / book.name).read_bytes() == book.content


def test_a_pause_longer_than_the_grace_is_an_outage_and_everything_is_there_afterwards(
    server: QBittorrentServer, book: Made
) -> None:
    client = connected(server, read_s=0.5)
    info_hash = add(client, server, book)
    until(client, info_hash, lambda changes: changes == (Nothing(),))
    server.pause()
    with pytest.raises(TorrentOutage):
        client.torrents([info_hash])
    server.go_on()
    until(client, info_hash, lambda changes: changes == (Nothing(),))


def test_killed_and_started_again_it_is_found_within_the_grace(
    client: QBittorrent, server: QBittorrentServer, book: Made
) -> None:
    info_hash = add(client, server, book)
    until(client, info_hash, lambda changes: changes == (Nothing(),))
    # What it knows is on disk a moment later.
    wait_until(lambda: list(server.directory.glob(f"profile/**/{info_hash}.fastresume")), "the resume data")
    server.kill()
    with pytest.raises(TorrentOutage):
        client.torrents([info_hash])
    server.start()
    until(client, info_hash, lambda changes: changes == (Nothing(),))


@pytest.mark.parametrize("hybrid", [True, False])
def test_modern_torrents_are_found_under_the_name_that_add_gave_them(
    client: QBittorrent, server: QBittorrentServer, hybrid: bool
) -> None:
    content = random.randbytes(9000)
    (server.downloads / "small").write_bytes(content)
    file = torrents_made.modern("small", content, hybrid=hybrid)
    info_hash = client.add(file, save_path=str(server.downloads), tag="dlpipe")
    assert info_hash in metainfo.of_file(file).names
    wait_until(lambda: look(client, info_hash, Q) == (Begin(), Complete()), "the end")
    assert client.add(file, save_path=str(server.downloads), tag="dlpipe") == info_hash
    client.delete(info_hash, with_files=True)
    wait_until(lambda: not (server.downloads / "small").exists(), "the end of the file")


def test_a_hybrid_that_is_renamed_when_its_metadata_come_keeps_the_name_that_we_know(
    client: QBittorrent, server: QBittorrentServer
) -> None:
    if str(server.api.app_build_info().libtorrent).startswith("1."):
        pytest.skip("libtorrent 1 knows no hybrids")
    content = random.randbytes(9000)
    (server.downloads / "small").write_bytes(content)
    file = torrents_made.modern("small", content, hybrid=True)
    new, old = metainfo.of_file(file).names
    assert client.add(f"magnet:?xt=urn:btih:{old}", save_path=str(server.downloads), tag="dlpipe") == old
    assert look(client, old) == (Nothing(),)
    # Somebody brings the metadata, as a peer would.
    client.add(file, save_path=str(server.downloads), tag="dlpipe")
    wait_until(lambda: server.state(new) != "", "the new name")
    assert server.state(old) == ""
    assert look(client, old) != (NotFoundSince(NOON),)
    client.delete(old, with_files=False)
    wait_until(lambda: server.state(new) == "", "its end")
