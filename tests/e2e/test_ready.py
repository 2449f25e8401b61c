"""With `dlpipe up`, commands are carried out by children of its ready process, and nobody can tell (ADR 40)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
from pathlib import Path

import pytest

from dlpipe.embedded.errand import SOCKET_NAME
from dlpipe.embedded.place import socket_in
from tests.e2e.conftest import Command
from tests.servers import wait_until
from tests.webserver import WebServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is a ready process on Linux only"),
]

BODY = os.urandom(10_240)


@pytest.fixture
def ready(command: Command) -> int:
    """The pid of the ready process of a running stack."""
    command.cold = True  # it is about how a command begins
    command.start("up")
    wait_until(Path(socket_in(str(command.home), SOCKET_NAME)).exists, "the ready process listens", 60)
    return command.services()["ready"]


def carried_out_there(command: Command, ready: int) -> list[int]:
    """Processes that were forked from the ready one: they have its command line, and it does not wait for them."""
    found = []
    for pid in command.processes():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if pid != ready and b"dlpipe.cli.ready" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_fetch_beside_a_running_stack(command: Command, web: WebServer, ready: int, tmp_path: Path) -> None:
    (tmp_path / "list").write_text(web.put("/a.bin", BODY) + "\n")
    ran = command.run("fetch", "-i", "list", "--out", "out", "--json")
    assert (ran.code, ran.record["status"]) == (0, "completed"), ran.err
    assert ran.err.startswith("[1/1] completed 10.0 KiB"), "as ever, on standard error"
    assert Path(ran.record["out_path"]) == Path("out/a.bin"), "in the folder of who asked"
    assert (tmp_path / "out" / "a.bin").read_bytes() == BODY
    assert command.run("fetch", f"{web.url}/none.bin").code == 1
    assert command.run("jobs", "--no-such").code == 2
    told = command.run("jobs", "--json", stdin="")
    assert [record["status"] for record in told.records] == ["failed", "completed"]


def test_settings_are_those_of_who_asks(command: Command, web: WebServer, ready: int, tmp_path: Path) -> None:
    knobs = command.run("doctor", "--json", DLPIPE_LEASE_TTL_S="99").record["settings"]
    found = {knob["name"]: (knob["value"], knob["source"]) for knob in knobs}
    assert found["lease.ttl_s"] == ("99.0", "environment DLPIPE_LEASE_TTL_S")
    (tmp_path / "dlpipe.toml").write_text("[lease]\nttl_s = 98\n")
    knobs = command.run("doctor", "--json").record["settings"]
    assert next(knob["value"] for knob in knobs if knob["name"] == "lease.ttl_s") == "98.0"
    refused = command.run("jobs", DLPIPE_LEASE_TLL_S="1")
    assert (refused.code, "setting_unknown" in refused.err) == (2, True)


def test_ctrl_c_ends_a_fetch_and_not_the_stack(command: Command, web: WebServer, ready: int) -> None:
    body = os.urandom(2 << 20)
    child = command.start("fetch", web.put("/large.bin", body, hold_at=1 << 20), "--json")
    wait_until(lambda: command.staged_bytes() == 1 << 20, "half of the file is there", 60)
    assert len(carried_out_there(command, ready)) == 2, "the command, and who keeps it"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "interrupted" in err
    wait_until(lambda: not carried_out_there(command, ready), "nothing of it is left")
    assert command.run("status", "--json").record["running"] is True
    web.release("/large.bin")
    ran = command.run("fetch", f"{web.url}/large.bin", "--json")
    assert (ran.code, ran.record["sha256"]) == (0, hashlib.sha256(body).hexdigest()), ran.err


def test_a_fetch_takes_the_stack_over_when_its_owner_ends(command: Command, web: WebServer, ready: int) -> None:
    body = os.urandom(2 << 20)
    child = command.start("fetch", web.put("/large.bin", body, hold_at=1 << 20), "--json")
    wait_until(lambda: command.staged_bytes() == 1 << 20, "half of the file is there", 60)
    os.kill(command.services()["owner"], signal.SIGKILL)
    web.release("/large.bin")
    out, err = child.communicate(timeout=90)
    assert child.returncode == 0, err
    assert hashlib.sha256(body).hexdigest() in out
    assert command.all_gone(), "and leaves nothing running"


def test_without_one_when_told_so(command: Command, web: WebServer) -> None:
    command.start("up", DLPIPE_WORKER_READY="0", DLPIPE_WORKER_PROCESSES="1")
    wait_until((command.home / "run" / "stack.json").exists, "the stack", 60)
    assert command.run("fetch", web.put("/a.bin", BODY)).code == 0
    assert "ready" not in command.services()
