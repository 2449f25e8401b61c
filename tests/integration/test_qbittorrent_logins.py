"""Logins, bans and keys of a real qBittorrent; and that the one of the tests is private and ends with them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.core.errors import TorrentOutage
from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent import QBittorrent
from tests import qbittorrent
from tests.conftest import absent
from tests.qbittorrent import PASSWORD, QBittorrentServer
from tests.servers import state_of, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines(),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QBittorrentServer]:
    if reason := qbittorrent.missing():
        absent(reason)
    with QBittorrentServer(tmp_path / "qbittorrent") as server:
        yield server


def connected(server: QBittorrentServer, password: str = PASSWORD, **more: object) -> QBittorrent:
    return QBittorrent(qbittorrent_api.make(server.url, "admin", password, **more), lambda url: b"")  # type: ignore[arg-type]


def test_wrong_credentials_do_not_end_in_a_ban(tmp_path: Path) -> None:
    if reason := qbittorrent.missing():
        absent(reason)
    with QBittorrentServer(tmp_path / "qbittorrent", failures=2) as server:
        client = connected(server, "wrong")
        for _ in range(5):
            with pytest.raises(TorrentOutage) as outage:
                client.torrents(["a" * 40])
            assert outage.value.code == TorrentOutage.login_refused
            assert "wrong" not in str(outage.value)
        assert connected(server).torrents(["a" * 40]) == {}


def test_a_ban_is_an_outage_until_it_ends(tmp_path: Path) -> None:
    if reason := qbittorrent.missing():
        absent(reason)
    with QBittorrentServer(tmp_path / "qbittorrent", failures=1) as server:
        with pytest.raises(TorrentOutage):
            connected(server, "wrong").version()
        now_s = [0.0]
        client = connected(server, monotonic_s=lambda: now_s[0])
        for _ in range(3):
            with pytest.raises(TorrentOutage) as outage:
                client.torrents(["a" * 40])
            assert outage.value.code == TorrentOutage.login_refused
        server.stop()
        server.start()  # which forgets bans
        with pytest.raises(TorrentOutage, match="a short time ago"):
            client.torrents(["a" * 40])
        now_s[0] += qbittorrent_api.LOGIN_PAUSE_S
        assert client.torrents(["a" * 40]) == {}


def test_an_api_key_is_enough_where_there_are_any(server: QBittorrentServer) -> None:
    try:
        key = server.api.app_rotate_api_key()
    except NotImplementedError:
        pytest.skip("API keys came with 5.2")
    api = qbittorrent_api.make(server.url, api_key=key["apiKey"])
    assert QBittorrent(api, lambda url: b"").torrents(["a" * 40]) == {}
    server.api.app_delete_api_key()
    with pytest.raises(TorrentOutage) as outage:
        QBittorrent(api, lambda url: b"").torrents(["a" * 40])
    assert outage.value.code == TorrentOutage.login_refused


def test_it_listens_on_loopback_only(server: QBittorrentServer) -> None:
    if shutil.which("ss") is None:
        pytest.skip("no ss to ask")
    lines = subprocess.run(["ss", "-Hlntu"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line.split()[4] for line in lines if line.split()[4].endswith((f":{server.port}", f":{server.peer_port}"))]
    assert len(ours) >= 2
    assert all(address.startswith("127.0.0.1") for address in ours)


OWNER = """\
import sys
from pathlib import Path
from tests.qbittorrent import QBittorrentServer
server = QBittorrentServer(Path(sys.argv[1])).start()
print(server._process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    if reason := qbittorrent.missing():
        absent(reason)
    if sys.platform != "linux":
        pytest.skip("only Linux tells a child of its parent's death")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "q")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    os.kill(pid, 0)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: ended(pid), "the end of qbittorrent-nox")


def ended(pid: int) -> bool:
    """Gone, or at most waiting to be noticed."""
    try:
        return state_of(pid) == "Z"
    except FileNotFoundError:
        return True
