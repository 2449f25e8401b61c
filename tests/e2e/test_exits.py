"""Each exit status that a command's help tells of, by the command itself in that situation (OPS-5).

A row per command and number. A new command is found in the command table, and has to bring its rows.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from ops import docs_commands
from tests import qbittorrent
from tests.conftest import absent
from tests.e2e.conftest import Command, Ran
from tests.qbittorrent import PASSWORD, QBittorrentServer
from tests.servers import Valkey, wait_until
from tests.webserver import WebServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("exits")]

UNKNOWN = "00000000-0000-5000-8000-000000000000"
MAGNET = f"magnet:?xt=urn:btih:{'a' * 40}"
ASKED = f"{MAGNET} --user ann --book 1 --media ebook"
DEAD_DATABASE = {"DLPIPE_DATABASE_URL": "postgresql+psycopg://u:hunter2@127.0.0.1:1/dlpipe"}
DEAD_REDIS = {"DLPIPE_REDIS_URL": "redis://:hunter2@127.0.0.1:1/0", "DLPIPE_BROKER_URL": "redis://127.0.0.1:1/0"}
NODES = {"DLPIPE_STORE_STAGING": "node"}
TORRENTS = {"DLPIPE_TORRENTS_URL": "http://127.0.0.1:1", "DLPIPE_TORRENTS_SAVE_PATH": "/nowhere"}


@dataclass
class Place:
    """A data directory where one file was fetched, one failed and one waits, and what a row may ask of it."""

    command: Command
    web: WebServer
    redis: Valkey
    words: dict[str, str] = field(default_factory=dict)

    def run(self, words: str, **env: str) -> Ran:
        filled = [word.format(**self.words) for word in words.split()]
        return self.command.run(*filled, **env)

    def copy(self, name: str) -> Command:
        """The same data in another directory, to be damaged."""
        home = self.command.home.with_name(name)
        shutil.copytree(self.command.home, home, ignore=shutil.ignore_patterns("run", "*.sock"))
        made = Command(home)
        self.command.started += made.started
        return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("exits")
    (folder / "redis").mkdir()
    with WebServer() as web, Valkey(folder / "redis") as redis:
        good, gone = web.put("/good.bin", b"good" * 999), f"{web.url}/gone.bin"
        made = Place(Command(folder / "data"), web, redis, {"good": good, "gone": gone, "folder": str(folder)})
        ran = made.run("fetch {good} {gone} --json")
        assert ran.code == 1, ran.err
        by_status = {record["status"]: record for record in ran.records}
        waiting = made.run("plan https://files.example/waits.bin --not-before 2999-01-01T00:00:00Z --json").record
        made.words |= {
            "done": by_status["completed"]["job_id"],
            "failed": by_status["failed"]["job_id"],
            "waiting": waiting["job_id"],
            "artifact": by_status["completed"]["artifact_uuid"],
            "unknown": UNKNOWN,
        }
        (folder / "none.csv").write_text("url,path\n")
        (folder / "lost.csv").write_text("url,path\nhttps://files.example/old.bin,lost.bin\n")
        (folder / "bad.txt").write_text("ftp://files.example/x\n")
        yield made
        for child in made.command.started:
            if child.poll() is None:
                child.kill()
            child.communicate()
        wait_until(made.command.all_gone, "the processes of the data directory end with their owner")


Situation = str | tuple[str, dict[str, str]] | Callable[[Place], int]


def _until_told(place: Place) -> int:
    """`up`, ended by `down`."""
    child = place.command.start("up")
    wait_until(lambda: '"running": true' in place.run("status --json").out, "the stack runs", within_s=60)
    assert place.run("down --timeout 60").code == 0
    child.communicate(timeout=60)
    return child.returncode


def _twice(place: Place) -> int:
    return _while_up(place, lambda: place.run("up").code)


def _not_in_time(place: Place) -> int:
    def asked() -> int:
        owner = place.command.services()["owner"]
        subprocess.run(["kill", "-STOP", str(owner)], check=True)
        try:
            return place.run("down --timeout 0.2").code
        finally:
            subprocess.run(["kill", "-CONT", str(owner)], check=True)

    return _while_up(place, asked)


def _while_up(place: Place, ask: Callable[[], int]) -> int:
    child = place.command.start("up")
    wait_until(lambda: '"running": true' in place.run("status --json").out, "the stack runs", within_s=60)
    try:
        return ask()
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)


def _with_redis(words: str) -> Callable[[Place], int]:
    def run(place: Place) -> int:
        return place.run(words, DLPIPE_REDIS_URL=place.redis.url, DLPIPE_BROKER_URL=place.redis.url).code

    return run


def _damaged(place: Place) -> int:
    copy = place.copy("damaged")
    for file in (copy.home / "store" / "default").rglob("*.bin"):
        file.chmod(0o644)
        file.write_bytes(b"other bytes")
    return copy.run("verify").code


def _newer(words: str) -> Callable[[Place], int]:
    def run(place: Place) -> int:
        copy = place.copy("newer" + words.split(maxsplit=1)[0])
        with sqlite3.connect(copy.home / "ledger.db") as ledger:
            ledger.execute("UPDATE alembic_version SET version_num = '9999'")
        ledger.close()
        return copy.run(*words.split()).code

    return run


def _heard(words: str) -> Callable[[Place], int]:
    """Of a node whose workers have given a sign of life."""

    def run(place: Place) -> int:
        with sqlite3.connect(place.command.home / "ledger.db") as ledger:
            ledger.execute("INSERT OR REPLACE INTO nodes (name, net_at, disk_at, steady_since) VALUES ('n1', 1, 1, 1)")
        ledger.close()
        return place.run(words, **NODES).code

    return run


def _interrupted(words: str, **more: str) -> Callable[[Place], int]:
    """Ctrl-C while the command waits for a database that never answers."""

    def run(place: Place) -> int:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(60)
            port = silent.getsockname()[1]
            url = f"postgresql+psycopg://u:p@127.0.0.1:{port}/dlpipe"
            child = place.command.start(*words.format(**place.words).split(), DLPIPE_DATABASE_URL=url, **more)
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)  # it has connected, and waits for an answer
                child.send_signal(signal.SIGINT)
                _, err = child.communicate(timeout=60)
        assert "Traceback" not in err
        return child.returncode

    return run


def _while_it_looks(place: Place) -> int:
    child = place.command.start("top", "--every", "0.2", "--json")
    assert child.stdout is not None
    assert child.stdout.readline().startswith("{")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    return child.returncode


def _mostly_unknown(place: Place) -> int:
    """A ledger that knows none of the files: a dry run says that --delete would be refused."""
    copy = place.copy("unknown")
    folder = copy.home / "store" / "default" / "default" / "ff"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(200):
        file = folder / f"{'f' * 61}{number:03}.bin"
        file.write_bytes(b"x")
        os.utime(file, (0, 0))
    return copy.run("gc", "--unknown", "--grace", "0s").code


def _while_fetching(place: Place) -> int:
    url = place.web.put("/slow.bin", bytes(1 << 22), hold_at=1 << 20)
    child = place.command.start("fetch", url)
    wait_until(place.command.staged_bytes, "bytes arrive", within_s=60)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    place.web.release("/slow.bin")
    return child.returncode


def _of_a_torrent(words: str) -> Callable[[Place], int]:
    """Of a download that waits for a qBittorrent which is not there."""

    def run(place: Place) -> int:
        added = place.run(f"torrents add {ASKED} --json", **TORRENTS)
        place.words["torrent"] = added.record["job_id"]
        return place.run(words, **TORRENTS).code

    return run


def _with_qbittorrent(words: str) -> Callable[[Place], int]:
    def run(place: Place) -> int:
        if reason := qbittorrent.missing():
            absent(reason)
        folder = place.command.home.with_name(words.replace(" ", "-"))
        with QBittorrentServer(folder) as server:
            named = {"URL": server.url, "USER": "admin", "PASSWORD": PASSWORD, "SAVE_PATH": str(server.downloads)}
            return place.run(words, **{f"DLPIPE_TORRENTS_{name}": value for name, value in named.items()}).code

    return run


SITUATIONS: dict[str, dict[int, Situation]] = {
    "fetch": {0: "fetch {good}", 1: "fetch {gone}", 2: "fetch", 130: _while_fetching},
    "plan": {
        0: "plan https://files.example/new.bin",
        1: "plan https://files.example/new.bin ftp://files.example/x",
        2: "plan -i {folder}/bad.txt --strict",
        130: _interrupted("plan https://files.example/new.bin"),
    },
    "up": {0: _until_told, 1: _twice, 2: ("up", {"DLPIPE_REDIS_URL": "redis://127.0.0.1:1/0"})},
    "down": {0: "down", 1: _not_in_time, 2: "down --timeout soon"},
    "status": {0: "status", 1: ("status", DEAD_DATABASE), 2: ("status", {"DLPIPE_BOGUS": "1"})},
    "jobs": {0: "jobs", 1: ("jobs", DEAD_DATABASE), 2: "jobs --status lost", 130: _interrupted("jobs")},
    "show": {0: "show {done}", 1: "show {unknown}", 2: "show"},
    "why": {0: "why {waiting}", 1: "why {unknown}", 2: "why"},
    "ops": {0: "ops {done}", 1: "ops {unknown}", 2: "ops"},
    "artifacts": {0: "artifacts {done}", 1: "artifacts {unknown}", 2: "artifacts --limit none"},
    "open": {0: "open {artifact}", 1: "open {unknown}", 2: "open"},
    "export": {0: "export", 1: ("export", DEAD_DATABASE), 2: "export --parquet"},
    "cancel": {0: "cancel {waiting}", 1: "cancel {done}", 2: "cancel"},
    "pause": {0: "pause --host nowhere.example", 1: "pause {unknown}", 2: "pause {done} --all"},
    "resume": {0: "resume --all", 1: "resume {done}", 2: "resume {done} --dry-run"},
    "retry": {0: "retry --code http_500", 1: "retry {done}", 2: "retry"},
    "refresh": {0: "refresh --host nowhere.example", 1: "refresh {unknown}", 2: "refresh"},
    "torrents add": {
        0: (f"torrents add {ASKED}", TORRENTS),
        1: (f"torrents add {ASKED}", TORRENTS | DEAD_DATABASE),
        2: f"torrents add {ASKED}",
    },
    "torrents cancel": {
        0: _of_a_torrent("torrents cancel {torrent}"),
        1: ("torrents cancel {unknown}", TORRENTS),
        2: "torrents cancel",
    },
    "torrents doctor": {
        0: _with_qbittorrent("torrents doctor"),
        1: ("torrents doctor", TORRENTS),
        2: "torrents doctor",
    },
    "torrents list": {0: "torrents list", 1: ("torrents list", DEAD_DATABASE), 2: "torrents list --state lost"},
    "torrents show": {
        0: _of_a_torrent("torrents show {torrent}"),
        1: "torrents show {unknown}",
        2: "torrents show",
    },
    "torrents sync": {
        0: _with_qbittorrent("torrents sync"),
        1: _of_a_torrent("torrents sync"),
        2: "torrents sync",
    },
    "reconcile": {0: _with_redis("reconcile"), 1: ("reconcile", DEAD_DATABASE), 2: "reconcile --wet-run"},
    "nodes": {0: ("nodes", NODES), 1: ("nodes", NODES | DEAD_DATABASE), 2: "nodes"},
    "drain": {
        0: _heard("drain n1 --wait"),
        1: ("drain n1", NODES | DEAD_DATABASE),
        2: ("drain nobody", NODES),
        130: _interrupted("drain n1", **NODES),
    },
    "verify": {
        0: "verify",
        1: _damaged,
        2: ("verify", {"DLPIPE_STORE_ROOT": "/no/such/store"}),
        130: _interrupted("verify"),
    },
    "migrate": {0: "migrate", 1: ("migrate", DEAD_DATABASE), 2: _newer("migrate")},
    "doctor": {0: "doctor", 1: ("doctor", DEAD_REDIS), 2: ("doctor", {"DLPIPE_BOGUS": "1"})},
    "replay": {0: "replay --host nowhere.example", 1: "replay {unknown}", 2: "replay {done} --from head"},
    "top": {0: "top --once", 2: "top --every 0", 130: _while_it_looks},
    "metrics": {0: "metrics", 1: ("metrics", DEAD_DATABASE), 2: "metrics all"},
    "purge": {
        0: "purge --older-than 3650d",
        1: ("purge --older-than 3650d", DEAD_DATABASE),
        2: "purge",
        130: _interrupted("purge --older-than 3650d"),
    },
    "gc": {0: "gc", 1: _mostly_unknown, 2: "gc --delete --dry-run", 130: _interrupted("gc")},
    "backfill": {
        0: "backfill {folder}/none.csv",
        1: "backfill {folder}/lost.csv",
        2: "backfill",
        130: _interrupted("backfill {folder}/lost.csv"),
    },
    "completion": {0: "completion bash", 2: "completion tcsh"},
}


LEAVES = {name: docs_commands.exits(command.get_help(context)) for name, command, context in docs_commands.leaves()}
ROWS = [(name, code) for name in LEAVES for code in SITUATIONS.get(name, {})]


def test_every_exit_status_that_is_told_has_its_situation() -> None:
    told = {name: sorted(codes) for name, codes in LEAVES.items()}
    assert {name: sorted(SITUATIONS.get(name, {})) for name in told} == told, "add its rows to SITUATIONS"


@pytest.mark.parametrize(("name", "code"), ROWS)
def test_the_command_ends_so(name: str, code: int, place: Place) -> None:
    match SITUATIONS[name][code]:
        case str(words):
            ran = place.run(words)
        case (words, env):
            ran = place.run(words, **env)
        case situation:
            assert situation(place) == code
            return
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert "hunter2" not in ran.err + ran.out


def test_a_reader_who_goes_away_is_no_fault_to_tell(place: Place) -> None:
    env = place.command.environment()
    shell = f"{sys.executable} -m dlpipe show {place.words['done']} --json | true"
    done = subprocess.run(["sh", "-c", shell], env=env, cwd=place.command.home, capture_output=True, text=True)
    assert done.stderr == ""
