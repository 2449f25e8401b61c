"""`dlpipe fetch` and `plan` when something is in the way: folders, lost files, waits, secrets, odd input."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.servers import wait_until
from tests.webserver import WebServer

pytestmark = pytest.mark.e2e

BODY = b"what was asked for\n" * 1000
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def busy() -> Iterator[str]:
    """A server that is busy for the next ten minutes."""

    class Busy(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(503)
            self.send_header("Retry-After", "600")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD  # noqa: N815 - the parent's name for it

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name for it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_folder_that_cannot_be_made_is_wrong_use_before_anything_is_planned(
    command: Command, web: WebServer, tmp_path: Path
) -> None:
    url = web.put("/a.bin", BODY)
    (tmp_path / "plain").write_text("a file")
    for out in (tmp_path / "plain", tmp_path / "plain" / "below", Path("/proc/none")):
        ran = command.run("fetch", url, "--out", str(out))
        assert ran.code == 2, ran.err
        assert "--out" in ran.err
        assert "Traceback" not in ran.err
    assert not command.home.exists()
    assert web.log == []


NEVER = 1 << 62


def test_a_length_that_no_volume_could_hold_fails_alone_and_the_fetch_returns(command: Command, web: WebServer) -> None:
    bad = [
        web.put("/never.bin", BODY, declares={"HEAD": NEVER, "GET": NEVER}),
        web.put("/surprise.bin", BODY, declares={"GET": NEVER}),
    ]
    good = [web.put(f"/good{n}.bin", BODY + bytes([n])) for n in range(5)]
    good.append(web.put("/hint.bin", BODY, declares={"HEAD": NEVER}))  # HEAD alone proves nothing
    ran = command.run("fetch", *bad, *good, "--json")
    assert ran.code == 1, ran.err
    assert {record["url"]: (record["status"], record["error_code"]) for record in ran.records} == {
        **dict.fromkeys(bad, ("failed", "quota_exceeded")),
        **dict.fromkeys(good, ("completed", None)),
    }
    assert ran.err.count("could never hold the file") == len(bad)
    # Once, and once more on a fresh connection where the first answer came on a used one (HTTP.md, row 50).
    assert {len(web.gets(f"/{name}.bin")) for name in ("never", "surprise")} <= {1, 2}
    assert list((command.home / "store" / ".staging").rglob("*.part")) == []


def test_one_file_that_cannot_be_placed_keeps_its_status_and_is_told(
    command: Command, web: WebServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for name in ("a.bin", f"a-{DIGEST[:12]}.bin", f"a-{DIGEST}.bin"):
        (out / name).mkdir(parents=True)
    ran = command.run("fetch", web.put("/a.bin", BODY), web.put("/b.bin", BODY), "--out", str(out), "--json")
    assert ran.code == 1
    placed = {Path(record["url"]).name: record["out_path"] for record in ran.records}
    assert placed == {"a.bin": None, "b.bin": str(out / "b.bin")}
    assert {record["status"] for record in ran.records} == {"completed"}
    assert "not put under" in ran.err
    assert "Traceback" not in ran.err


def test_a_finished_file_that_is_gone_or_damaged_is_brought_back_by_the_same_fetch(
    command: Command, web: WebServer
) -> None:
    url = web.put("/a.bin", BODY)
    first = command.run("fetch", url, "--json").record
    path = Path(first["path"])
    path.chmod(0o644)
    path.write_bytes(BODY[::-1])
    assert command.run("fetch", url, "--json").record["status"] == "skipped", "without a hash it is not read"
    other = command.run("fetch", url, "--sha256", "0" * 64, "--json")
    assert (other.code, other.record["error_code"]) == (1, "sha256_mismatch")
    assert f"dlpipe refresh {first['job_id']}" in other.err
    for again in (("--sha256", DIGEST), ()):
        ran = command.run("fetch", url, *again, "--json")
        assert (ran.code, ran.record["status"], ran.record["error_code"]) == (0, "completed", None), ran.err
        assert (ran.record["artifact_uuid"], ran.record["path"]) == (first["artifact_uuid"], first["path"])
        assert path.read_bytes() == BODY
        path.unlink()
    web.drop("/a.bin")
    gone = command.run("fetch", url, "--json")
    assert (gone.code, gone.record["status"], gone.record["error_code"]) == (1, "failed", "http_404")
    shown = command.run("show", first["job_id"], "--json").record
    (result,) = shown["results"]
    assert (result["artifact_uuid"], result["fault"], shown["purpose"]) == (first["artifact_uuid"], "missing", "repair")
    assert "missing since" in command.run("show", first["job_id"]).out


def test_a_wait_is_told_once_and_given_up_after_the_timeout(command: Command, busy: str) -> None:
    began = time.monotonic()
    ran = command.run("fetch", f"{busy}/a.bin?token=hunter2", "--timeout", "6", "--json")
    assert ran.code == 1
    assert time.monotonic() - began < 40
    told = [line for line in ran.err.splitlines() if line.startswith("waiting until ")]
    assert len(told) == len({line.rpartition("[")[2] for line in told}) > 0, ran.err
    assert ran.record["status"] in ("pending", "running", "retrying")
    assert "6 seconds" in ran.record["error_message_safe"]
    assert "; it waits until " in ran.record["error_message_safe"]
    assert ran.record["due_at"] is not None
    assert ran.record["url"].endswith("token=hunter2"), "JSON has the address as it was given"
    assert "hunter2" not in ran.err
    wait_until(command.all_gone, "nothing is left running")


def test_what_people_read_has_no_secrets(command: Command, web: WebServer) -> None:
    url = web.url + "/none.bin?access_token=hunter2"
    ran = command.run("fetch", url, "http://me:hunter2@127.0.0.1/x")
    assert ran.code == 1
    assert "hunter2" not in ran.out + ran.err
    assert "REDACTED" in ran.err
    for word in ("fetch", "plan"):
        told = command.run(word, "http://me:hunter2@127.0.0.1/x", "--json")
        assert told.code == 1
        assert "hunter2" not in told.out + told.err
        assert command.run(word, url, "--json").record["url"] == url


def test_the_same_address_twice_counts_once(command: Command, web: WebServer) -> None:
    url, other = web.put("/a.bin", BODY), web.put("/b.bin", BODY[:-1])
    ran = command.run("fetch", url, url, other, "--json")
    assert ran.code == 0, ran.err
    assert len(ran.records) == 3
    assert sorted(line.split()[0] for line in ran.err.splitlines() if line.startswith("[")) == ["[1/2]", "[2/2]"]


def test_requests_come_from_pipes_too_and_a_closed_input_is_wrong_use(
    command: Command, web: WebServer, tmp_path: Path
) -> None:
    url = web.put("/a.bin", BODY)
    assert command.run("plan", "-i", "/dev/stdin", "--json", stdin=f"{url}\n").record["url"] == url
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = command.start("plan", "-i", str(fifo), "--json")
    fifo.write_text(f"{url}\n")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, url in out) == (0, True), err
    closed = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m dlpipe plan -i - <&-"],
        env=command.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert closed.returncode == 2, closed.stderr
    assert "Traceback" not in closed.stderr


def test_a_line_with_an_impossible_number_is_refused_alone(command: Command, web: WebServer, tmp_path: Path) -> None:
    url = web.put("/a.bin", BODY)
    table = tmp_path / "a.csv"
    table.write_text(f"url,max_bytes\n{url},--5\n{url},ten\n{url},{'9' * 5000}\n{url},100000\n")
    ran = command.run("plan", "-i", str(table), "--json")
    assert ran.code == 1, ran.err
    assert sorted(record["outcome"] for record in ran.records) == ["created", *["refused"] * 3]
    assert {record.get("code") for record in ran.records} == {"max_bytes_invalid", None}
