"""`dlpipe torrents` with workers, scheduler and a real qBittorrent, as a user runs it (TORRENT-8, OPS-5)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import qbittorrent, torrents_made
from tests.conftest import absent
from tests.e2e.conftest import Command
from tests.origin import Origin
from tests.qbittorrent import PASSWORD, QBittorrentServer
from tests.servers import wait_until
from tests.torrents_made import WebSeed
from tests.webserver import WebServer
from tests.world import sha256

pytestmark = pytest.mark.e2e

BODY = os.urandom(300_000)
WHOSE = ("--user", "ann", "--book", "42", "--media", "ebook")


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


@pytest.fixture
def torrents(command: Command, server: QBittorrentServer) -> Command:
    command.env |= {
        "DLPIPE_TORRENTS_URL": server.url,
        "DLPIPE_TORRENTS_USER": "admin",
        "DLPIPE_TORRENTS_PASSWORD": PASSWORD,
        "DLPIPE_TORRENTS_SAVE_PATH": str(server.downloads),
        "DLPIPE_TORRENTS_EVERY_S": "0.5",
    }
    return command


def show(command: Command, job_id: str) -> dict[str, object]:
    found: dict[str, object] = command.run("torrents", "show", job_id, "--json").record
    return found


def test_workers_and_scheduler_carry_a_torrent_to_its_end(
    torrents: Command, server: QBittorrentServer, seed: WebSeed, web: WebServer, tmp_path: Path
) -> None:
    address, _ = seed.put("book.epub", BODY, hold_at=0)
    (tmp_path / "made").mkdir()
    made = torrents_made.make(tmp_path / "made", "book.epub", BODY, address)
    url = web.put("/book.torrent", made.file)
    torrents.start("up")
    stack = torrents.home / "run" / "stack.json"
    wait_until(stack.exists, "the stack", within_s=60)

    added = torrents.run("torrents", "add", url, *WHOSE, "--json")
    assert added.code == 0, added.err
    job_id = added.record["job_id"]
    again = torrents.run("torrents", "add", made.magnet, *WHOSE)
    assert again.out.startswith(f"{job_id} ")
    assert "active already" in again.out

    wait_until(lambda: show(torrents, job_id)["state"] == "downloading", "it is followed", within_s=60)
    seed.open_all()
    wait_until(lambda: show(torrents, job_id)["state"] == "completed", "it is completed", within_s=60)
    told = torrents.run("torrents", "show", job_id, "--json").record
    assert (told["status"], told["progress"], told["external_job_id"]) == ("completed", 100, made.info_hash)
    assert [(file["path"], file["sha256"]) for file in told["files"]] == [("book.epub", sha256(BODY))]
    stored = torrents.home / "store" / "default" / "default" / sha256(BODY)[:2] / f"{sha256(BODY)}.epub"
    assert stored.read_bytes() == BODY
    # The same bytes by HTTP are the same blob: one store, one index.
    web.put("/book.epub", BODY)
    fetched = torrents.run("fetch", f"{web.url}/book.epub", "--json").record
    assert (fetched["status"], fetched["sha256"]) == ("completed", sha256(BODY))
    assert Path(fetched["path"]) == stored
    assert PASSWORD not in "".join(file.read_text(errors="replace") for file in torrents.home.glob("run/*.log"))


def test_by_hand_without_a_stack(torrents: Command, server: QBittorrentServer, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    made = torrents_made.make(tmp_path / "made", "book.epub", BODY)
    file = tmp_path / "a.torrent"
    file.write_bytes(made.file)
    doctor = torrents.run("torrents", "doctor", "--json")
    assert doctor.code == 0, doctor.out
    assert "qBittorrent" in doctor.record["checks"][0]["what"]
    job_id = torrents.run("torrents", "add", str(file), *WHOSE, "--json").record["job_id"]
    wait_until(lambda: torrents.run("torrents", "sync", "--json").record["begun"] == 1, "it began", within_s=60)
    listed = torrents.run("torrents", "list", "--state", "downloading", "--json").records
    assert [one["job_id"] for one in listed] == [job_id]
    assert torrents.run("torrents", "cancel", job_id, "--tenant", "other").code == 1
    assert torrents.run("torrents", "cancel", job_id, "--json").record["state"] == "canceled"
    wait_until(lambda: server.state(made.info_hash) == "", "the torrent is gone")
    assert torrents.run("torrents", "cancel", job_id, "--json").code == 0
    server.stop()
    doctor = torrents.run("torrents", "doctor")
    assert doctor.code == 1
    assert "torrent_outage" in doctor.out
    assert PASSWORD not in doctor.out + doctor.err


def test_wrong_use_is_said_with_a_code_and_a_hint(command: Command) -> None:
    unset = command.run("torrents", "doctor")
    assert (unset.code, "[torrents_not_set]" in unset.err) == (2, True)
    assert "DLPIPE_TORRENTS_URL" in unset.err
    half = command.run("torrents", "list", DLPIPE_TORRENTS_URL="http://127.0.0.1:1")
    assert (half.code, "save_path" in half.err) == (2, True)
    wrong = {"DLPIPE_TORRENTS_URL": "http://127.0.0.1:1", "DLPIPE_TORRENTS_SAVE_PATH": "/tmp"}
    for source, code in (("magnet:?dn=x", "magnet_malformed"), ("/no/such.torrent", "torrent_unreadable")):
        ran = command.run("torrents", "add", source, *WHOSE, **wrong)
        assert (ran.code, f"[{code}]" in ran.err) == (2, True), ran.err
    assert "Examples:" in command.run("torrents", "--help").out
    empty = command.run("torrents", "list", "--json", **wrong)
    assert (empty.code, json.dumps(empty.records)) == (0, "[]")
