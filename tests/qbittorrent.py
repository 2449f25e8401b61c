"""A real qbittorrent-nox for tests: private, on loopback only, and gone with the process that started it."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import qbittorrentapi

from tests.servers import _end_with_the_parent, free_port, wait_until

BINARY_VARIABLE = "DLPIPE_TEST_QBITTORRENT"
"""Names another qbittorrent-nox than the one on the PATH, to try another version."""
PASSWORD = "correct-horse-battery"

# Nothing that reaches out, nothing that waits for peers, and a start that asks nobody.
_SETTINGS = """\
[LegalNotice]
Accepted=true

[BitTorrent]
Session\\DHTEnabled=false
Session\\PeXEnabled=false
Session\\LSDEnabled=false
Session\\Interface=lo
Session\\InterfaceName=lo
Session\\InterfaceAddress=127.0.0.1
Session\\Port={peer_port}
Session\\DefaultSavePath={downloads}
Session\\QueueingSystemEnabled=false
Session\\ReannounceWhenAddressChanged=false
Session\\MultiConnectionsPerIp=true
Session\\RefreshInterval=100

[Network]
PortForwardingEnabled=false

[Preferences]
Advanced\\RecheckOnCompletion=false
General\\Locale=en
WebUI\\Address=127.0.0.1
WebUI\\Port={port}
WebUI\\Username=admin
WebUI\\Password_PBKDF2="@ByteArray({password})"
WebUI\\LocalHostAuth=true
WebUI\\MaxAuthenticationFailCount={failures}
WebUI\\BanDuration=3600
WebUI\\UseUPnP=false
{more}
"""


def missing() -> str | None:
    """Why there is no qBittorrent here, if there is none."""
    if _binary() is None:
        return "no qbittorrent-nox: install the Debian package qbittorrent-nox"
    return None


class QBittorrentServer:
    """One qBittorrent with its profile in a directory. It keeps its torrents when it is stopped and started."""

    def __init__(self, directory: Path, *, failures: int = 5, more: str = "") -> None:
        self.directory = directory
        self.downloads = directory / "downloads"
        self.downloads.mkdir(parents=True)
        self.port, self.peer_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        profile = directory / "profile" / "qBittorrent" / "config"
        profile.mkdir(parents=True)
        (profile / "qBittorrent.conf").write_text(
            _SETTINGS.format(
                peer_port=self.peer_port,
                downloads=self.downloads,
                port=self.port,
                password=_pbkdf2(PASSWORD),
                failures=failures,
                more=more,
            )
        )

    @functools.cached_property
    def api(self) -> qbittorrentapi.Client:
        """For what somebody does behind our back."""
        return qbittorrentapi.Client(
            host=self.url,
            username="admin",
            password=PASSWORD,
            REQUESTS_ARGS={"proxies": {"http": None, "all": None}},
            HTTPADAPTER_ARGS={"max_retries": 0},
            FORCE_SCHEME_FROM_HOST=True,
            RAISE_NOTIMPLEMENTEDERROR_FOR_UNIMPLEMENTED_API_ENDPOINTS=True,
        )

    def start(self) -> QBittorrentServer:
        binary = _binary()
        assert binary is not None, missing()
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [binary, f"--profile={self.directory / 'profile'}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_the_parent(),  # noqa: PLW1509 - one system call, no lock
            )
        wait_until(self._answers, "an answer from qbittorrent-nox")
        return self

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it keep its connections open and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def state(self, info_hash: str) -> str:
        """Its own word for a torrent, or nothing."""
        found = self.api.torrents_info(torrent_hashes=info_hash)
        return str(found[0].state) if found else ""

    def __enter__(self) -> QBittorrentServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.__dict__.pop("api", None)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            log = (self.directory / "log").read_text(errors="replace")
            raise RuntimeError(f"qbittorrent-nox ended at its start:\n{log[-2000:]}")
        try:
            # Only the one that we started knows this password: another could have taken the port.
            self.api.auth_log_in()
        except qbittorrentapi.LoginFailed:
            raise RuntimeError(f"somebody else listens on {self.url}") from None
        except qbittorrentapi.APIConnectionError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # it may be paused
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _binary() -> str | None:
    return os.environ.get(BINARY_VARIABLE) or shutil.which("qbittorrent-nox")


@functools.cache
def _pbkdf2(password: str) -> str:
    salt = secrets.token_bytes(16)
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 100_000)
    return f"{base64.b64encode(salt).decode()}:{base64.b64encode(key).decode()}"
