"""What every torrent client keeps, on the fake and on a real qBittorrent."""

from __future__ import annotations

import os
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.core.errors import InvalidInput, Permanent, TorrentOutage, TorrentRefused
from dlpipe.core.ports import TorrentClient
from dlpipe.core.seen import Seen, seen
from dlpipe.core.torrents import TorrentFile
from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent import QBittorrent
from tests import qbittorrent, torrents_made
from tests.conftest import absent
from tests.fakes.torrents import FakeTorrentClient
from tests.origin import Origin
from tests.qbittorrent import QBittorrentServer
from tests.servers import wait_until
from tests.torrents_made import Made, WebSeed

UNKNOWN = "0123456789" * 4
TAG = "dlpipe"


class Subject(ABC):
    """A client, and what a test needs around it."""

    def __init__(self, directory: Path) -> None:
        self.made_in = directory / "made"
        self.made_in.mkdir(parents=True)
        self.save_path = str(directory / "saved")
        self.pages: dict[str, bytes] = {}

    @abstractmethod
    def client(self) -> TorrentClient:
        """Another connection to the same server at each call."""

    @abstractmethod
    def torrent(self, name: str = "book.bin", size: int = 100_000) -> Made: ...

    @abstractmethod
    def transfer(self, made: Made) -> None:
        """Let the bytes of a torrent that was added come in."""

    @abstractmethod
    def go_away(self) -> None: ...

    @abstractmethod
    def come_back(self) -> None: ...

    def fetch(self, url: str) -> bytes:
        if url not in self.pages:
            raise Permanent("the .torrent was answered with status 404", code="torrent_fetch_failed")
        return self.pages[url]


class Fake(Subject):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._client = FakeTorrentClient()

    def client(self) -> TorrentClient:
        self._client.pages = self.pages
        return self._client

    def torrent(self, name: str = "book.bin", size: int = 100_000) -> Made:
        return torrents_made.make(self.made_in, name, random.randbytes(size))

    def transfer(self, made: Made) -> None:
        self._client.complete(made.info_hash, {made.name: made.content})

    def go_away(self) -> None:
        self._client.outage = TorrentOutage("gone")

    def come_back(self) -> None:
        self._client.outage = None


class Real(Subject):
    def __init__(self, directory: Path, server: QBittorrentServer, seed: WebSeed) -> None:
        super().__init__(directory)
        self._server, self._seed = server, seed
        self._gates: dict[str, threading.Event] = {}

    def client(self) -> TorrentClient:
        api = qbittorrent_api.make(self._server.url, "admin", qbittorrent.PASSWORD)
        return QBittorrent(api, self.fetch)

    def torrent(self, name: str = "book.bin", size: int = 100_000) -> Made:
        content = random.randbytes(size)
        url, gate = self._seed.put(name, content, hold_at=0)
        made = torrents_made.make(self.made_in, name, content, url)
        self._gates[made.info_hash] = gate
        return made

    def transfer(self, made: Made) -> None:
        self._gates[made.info_hash].set()

    def go_away(self) -> None:
        self._server.stop()

    def come_back(self) -> None:
        self._server.start()


@pytest.fixture(params=["fake", pytest.param("qbittorrent", marks=pytest.mark.slow)])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "fake":
        yield Fake(tmp_path)
        return
    if reason := qbittorrent.missing():
        absent(reason)
    with Origin() as origin, QBittorrentServer(tmp_path / "qbittorrent") as server:
        seed = WebSeed(origin)
        try:
            yield Real(tmp_path, server, seed)
        finally:
            seed.open_all()


@pytest.fixture
def client(subject: Subject) -> TorrentClient:
    return subject.client()


def word(client: TorrentClient, info_hash: str) -> Seen | None:
    torrent = client.torrents([info_hash]).get(info_hash)
    return None if torrent is None else seen(torrent.state)


def added(subject: Subject, client: TorrentClient, made: Made) -> str:
    """Add it and wait until it is listed."""
    info_hash = client.add(made.file, save_path=subject.save_path, tag=TAG)
    wait_until(lambda: word(client, info_hash) is not None, "the torrent in the list")
    return info_hash


def completed(subject: Subject, client: TorrentClient, made: Made) -> str:
    info_hash = added(subject, client, made)
    subject.transfer(made)
    wait_until(lambda: word(client, info_hash) is Seen.COMPLETE, "the end of the download")
    return info_hash


def test_a_file_a_magnet_and_a_url_of_one_torrent_get_the_same_name(subject: Subject, client: TorrentClient) -> None:
    made = subject.torrent()
    subject.pages["https://books.example/1.torrent"] = made.file
    for source in (made.magnet, made.file, "https://books.example/1.torrent"):
        assert client.add(source, save_path=subject.save_path, tag=TAG) == made.info_hash


def test_two_that_add_the_same_at_once_get_the_same_answer(subject: Subject) -> None:
    made = subject.torrent()
    clients = [subject.client() for _ in range(4)]
    together = threading.Barrier(len(clients))
    answers: list[object] = []

    def add(client: TorrentClient) -> None:
        together.wait()
        try:
            answers.append(client.add(made.file, save_path=subject.save_path, tag=TAG))
        except Exception as error:
            answers.append(error)

    threads = [threading.Thread(target=add, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [made.info_hash] * len(clients)


def test_a_download_ends_complete_with_its_bytes_in_the_save_path(subject: Subject, client: TorrentClient) -> None:
    made = subject.torrent()
    info_hash = completed(subject, client, made)
    torrent = client.torrents([info_hash])[info_hash]
    assert (torrent.progress, torrent.size, torrent.done_bytes) == (1, len(made.content), len(made.content))
    assert Path(torrent.save_path) == Path(subject.save_path)
    assert client.files(info_hash) == [TorrentFile(made.name, len(made.content), True)]
    assert (Path(torrent.save_path) / made.name).read_bytes() == made.content


def test_adding_what_is_complete_leaves_it_complete(subject: Subject, client: TorrentClient) -> None:
    made = subject.torrent()
    info_hash = completed(subject, client, made)
    assert client.add(made.file, save_path="/elsewhere", tag="other") == info_hash
    assert word(client, info_hash) is Seen.COMPLETE
    assert client.torrents([info_hash])[info_hash].save_path == subject.save_path


def test_many_are_asked_for_at_once_and_the_unknown_are_absent(subject: Subject, client: TorrentClient) -> None:
    names = {added(subject, client, subject.torrent(f"{number}.bin", 1000)) for number in range(5)}
    assert set(client.torrents([*names, UNKNOWN])) == names
    assert client.torrents([]) == {}


def test_a_stopped_one_stops_and_a_started_one_goes_on(subject: Subject, client: TorrentClient) -> None:
    made = subject.torrent()
    info_hash = added(subject, client, made)
    client.stop(info_hash)
    wait_until(lambda: word(client, info_hash) is Seen.STOPPED, "the stop")
    client.start(info_hash)
    wait_until(lambda: word(client, info_hash) is Seen.DOWNLOADING, "the start")
    subject.transfer(made)


@pytest.mark.parametrize("with_files", [False, True])
def test_deleting_forgets_the_torrent_and_its_files_only_when_asked(
    subject: Subject, client: TorrentClient, with_files: bool
) -> None:
    made = subject.torrent()
    info_hash = completed(subject, client, made)
    client.delete(info_hash, with_files=with_files)
    wait_until(lambda: word(client, info_hash) is None, "its end")
    file = Path(subject.save_path) / made.name
    if with_files:
        wait_until(lambda: not file.exists(), "the end of the file")
    else:
        assert file.read_bytes() == made.content


def test_what_is_not_there_can_be_stopped_started_and_deleted_and_has_no_files(
    subject: Subject, client: TorrentClient
) -> None:
    other = added(subject, client, subject.torrent())
    client.stop(UNKNOWN)
    client.start(UNKNOWN)
    client.delete(UNKNOWN, with_files=True)
    with pytest.raises(TorrentRefused) as refused:
        client.files(UNKNOWN)
    assert refused.value.code == "torrent_not_found"
    assert word(client, other) is not None


@pytest.mark.parametrize("name", ["all", "", "A" * 40, f"{UNKNOWN}|{UNKNOWN}", UNKNOWN + "\n"])
def test_a_name_that_is_no_info_hash_reaches_nobody(subject: Subject, client: TorrentClient, name: str) -> None:
    other = added(subject, client, subject.torrent())
    for call in (client.stop, client.start, client.files, lambda one: client.torrents([one])):
        with pytest.raises(InvalidInput):
            call(name)
    with pytest.raises(InvalidInput):
        client.delete(name, with_files=True)
    assert word(client, other) is not None


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("magnet:?dn=nothing", "magnet_malformed"),
        ("magnet:?xt=urn:btih:" + "a" * 40 + "\nmagnet:?xt=urn:btih:" + "b" * 40, "magnet_malformed"),
        ("ftp://books.example/1.torrent", "magnet_malformed"),
        (b"<html>please log in</html>", "torrent_malformed"),
        (b"", "torrent_malformed"),
    ],
)
def test_a_malformed_source_is_refused(subject: Subject, client: TorrentClient, source: str | bytes, code: str) -> None:
    with pytest.raises(TorrentRefused) as refused:
        client.add(source, save_path=subject.save_path, tag=TAG)
    assert refused.value.code == code


def test_a_url_without_a_torrent_fails_as_the_fetch_does(subject: Subject, client: TorrentClient) -> None:
    with pytest.raises(Permanent) as failed:
        client.add("https://books.example/none.torrent", save_path=subject.save_path, tag=TAG)
    assert failed.value.code == "torrent_fetch_failed"


def test_one_that_went_away_is_an_outage_and_has_everything_when_it_is_back(
    subject: Subject, client: TorrentClient
) -> None:
    made = subject.torrent()
    info_hash = completed(subject, client, made)
    subject.go_away()
    for call in (client.stop, client.start, client.files, lambda one: client.torrents([one])):
        with pytest.raises(TorrentOutage):
            call(info_hash)
    for ask in (client.free_space, client.version):
        with pytest.raises(TorrentOutage):
            ask()
    with pytest.raises(TorrentOutage):
        client.delete(info_hash, with_files=True)
    with pytest.raises(TorrentOutage):
        client.add(made.file, save_path=subject.save_path, tag=TAG)
    subject.come_back()
    wait_until(lambda: word(client, info_hash) is Seen.COMPLETE, "the torrent in the list")
    assert (Path(subject.save_path) / made.name).read_bytes() == made.content


def test_it_tells_its_version_and_the_space_that_is_left(client: TorrentClient) -> None:
    assert client.version()
    free = client.free_space()
    assert free is None or free > 0 or os.statvfs("/").f_bavail == 0
