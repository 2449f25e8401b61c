"""The stack finds what its caller's settings say, wherever its processes run, and says so to programs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.servers import wait_until
from tests.webserver import WebServer

pytestmark = pytest.mark.e2e

BODY = os.urandom(100_000)


def test_workers_find_what_is_relative_to_the_callers_folder(command: Command, web: WebServer) -> None:
    here = command.home.parent
    (here / "dlpipe.toml").write_text('[store]\nroot = "files"\n[stream]\nmax_bytes = 150_000\n')
    good, large = web.put("/a.bin", BODY), web.put("/b.bin", BODY * 2)
    env = {"DLPIPE_DATABASE_URL": "sqlite:///own.db"}
    assert command.run("migrate", **env).code == 0
    ran = command.run("fetch", good, large, "--json", **env)
    by_url = {record["url"]: record for record in ran.records}
    assert by_url[good]["status"] == "completed", ran.err
    assert Path(by_url[good]["path"]).is_relative_to(here / "files")
    assert by_url[large]["error_code"] == "too_large", "workers read the caller's dlpipe.toml"
    assert not list(command.home.rglob("own.db"))
    assert not (command.home / "files").exists()


def test_slow_servers_do_not_hold_up_finished_files(command: Command, web: WebServer) -> None:
    env = {"DLPIPE_WORKER_PROCESSES": "1", "DLPIPE_WORKER_THREADS": "2"}
    slow = web.put("/slow.bin", os.urandom(2 << 20), hold_at=1 << 20)
    child = command.start("fetch", slow, web.put("/quick.bin", BODY), "--json", **env)
    assert child.stdout is not None
    first = json.loads(child.stdout.readline())
    assert (first["status"], first["byte_size"]) == ("completed", len(BODY))
    web.release("/slow.bin")
    out, err = child.communicate(timeout=60)
    assert json.loads(out)["status"] == "completed", err


def test_up_and_down_speak_json(command: Command) -> None:
    child = command.start("up", "--json")
    assert child.stdout is not None
    told = json.loads(child.stdout.readline())
    assert (told["home"], told["pid"]) == (str(command.home), child.pid)
    assert list(told["services"]) == ["worker1", "worker2", "helper", "beat"]
    assert command.run("down", "--json").record == {"stopped": True}
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "")
    assert err.count("made a new ledger at") == 1
    again = command.run("down", "--json")
    assert (again.code, again.record) == (0, {"stopped": True}), "nothing runs any more"
    child = command.start("up")
    wait_until((command.home / "run" / "stack.json").exists, "the stack", within_s=60)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert "made a new ledger" not in err


def test_a_home_that_cannot_be_made_is_a_sentence(command: Command) -> None:
    (command.home.parent / "file").touch()
    for words in (["up"], ["fetch", "http://127.0.0.1:1/x"]):
        ran = command.run(*words, DLPIPE_HOME=str(command.home.parent / "file" / "data"))
        assert (ran.code, "[home_unusable]" in ran.err, "Traceback" in ran.err) == (2, True, False), ran.err
