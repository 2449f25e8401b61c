"""`dlpipe fetch`, as a user runs it (OPS-2)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from dlpipe.db import SqlDatabase
from dlpipe.db.schema import SCHEMA_VERSION
from dlpipe.embedded.stack import is_run
from tests.e2e.conftest import Command
from tests.e2e.test_top import showing
from tests.servers import wait_until
from tests.webserver import WebServer

pytestmark = pytest.mark.e2e

BODY = os.urandom(300_000)
OVERLAP = 65_536
PROMISED = {
    "job_id", "url", "status", "state", "sha256", "byte_size", "artifact_uuid", "path", "dedupe_action",
    "resumed_from_bytes", "bytes_written", "error_code", "error_message_safe",
}  # fmt: skip


def test_a_file_is_fetched_verified_and_named_by_its_hash(command: Command, web: WebServer) -> None:
    url = web.put("/paper.pdf", BODY)
    ran = command.run("fetch", url, "--json")
    record = ran.record
    assert ran.code == 0, ran.err
    assert set(record) >= PROMISED
    digest = hashlib.sha256(BODY).hexdigest()
    assert (record["status"], record["state"], record["sha256"]) == ("completed", "DEDUPED", digest)
    assert (record["url"], record["byte_size"], record["bytes_written"]) == (url, len(BODY), len(BODY))
    assert (record["dedupe_action"], record["resumed_from_bytes"], record["error_code"]) == ("download", 0, None)
    path = Path(record["path"])
    assert path.name == f"{digest}.pdf"
    assert path.read_bytes() == BODY
    assert path.stat().st_mode & 0o777 == 0o444
    assert command.all_gone(), "fetch leaves nothing running"


def test_a_second_fetch_answers_at_once_as_skipped(command: Command, web: WebServer) -> None:
    url = web.put("/a.bin", BODY)
    first = command.run("fetch", url, "--json").record
    asked = len(web.log)
    again = command.run("fetch", url, "--json")
    assert again.code == 0
    assert (again.record["status"], again.record["dedupe_action"]) == ("skipped", "skipped")
    assert again.record["bytes_written"] == 0
    assert again.record["artifact_uuid"] == first["artifact_uuid"]
    assert again.record["path"] == first["path"]
    assert len(web.log) == asked, "the server is not asked again"
    assert not (command.home / "run" / "stack.json").exists()


def test_one_bad_file_fails_alone_and_the_exit_status_says_so(command: Command, web: WebServer) -> None:
    good, missing = web.put("/good.bin", BODY), f"{web.url}/missing.bin"
    ran = command.run("fetch", good, missing, "ftp://example.org/x", "--json")
    by_url = {record["url"]: record for record in ran.records}
    assert ran.code == 1
    assert by_url[good]["status"] == "completed"
    assert (by_url[missing]["status"], by_url[missing]["error_code"]) == ("failed", "http_404")
    assert by_url["ftp://example.org/x"]["error_code"] == "url_scheme"
    assert all(json.loads(line) for line in ran.out.splitlines()), "standard output holds JSON only"
    again = command.run("fetch", missing, "--json")
    assert again.record["error_code"] == "http_404"
    assert "--retry" in again.record["error_message_safe"]


def test_a_failed_file_is_tried_again_when_asked(command: Command, web: WebServer) -> None:
    url = f"{web.url}/late.bin"
    assert command.run("fetch", url).code == 1
    web.put("/late.bin", BODY)
    ran = command.run("fetch", url, "--retry", "--json")
    assert (ran.code, ran.record["status"]) == (0, "completed"), ran.err


def test_a_loopback_url_is_refused_unless_private_networks_are_allowed(command: Command, web: WebServer) -> None:
    url = web.put("/a.bin", BODY)
    ran = command.run("fetch", url, "--json", DLPIPE_ALLOW_PRIVATE="0")
    assert ran.code == 1
    assert ran.record["error_code"] == "egress_forbidden"
    assert "DLPIPE_ALLOW_PRIVATE=1" in ran.err
    assert web.log == []


def test_equal_files_are_kept_once(command: Command, web: WebServer) -> None:
    urls = [web.put("/a.bin", BODY), web.put("/b.bin", BODY), web.put("/c.pdf", BODY)]
    records = command.run("fetch", *urls, "--json").records
    actions = [record["dedupe_action"] for record in records]
    # Which of them comes first is open; the others share its name (skipped) or its bytes (hardlink).
    assert actions.count("download") == 1
    assert set(actions) <= {"download", "hardlink", "skipped"}
    assert len({Path(record["path"]).stat().st_ino for record in records}) == 1


def test_out_puts_files_under_readable_names(command: Command, web: WebServer, tmp_path: Path) -> None:
    other = os.urandom(1000)
    urls = [web.put("/x/paper.pdf", BODY), web.put("/y/paper.pdf", other), web.put("/..%2Fevil", BODY)]
    out = tmp_path / "papers"
    ran = command.run("fetch", *urls, "--out", str(out), "--json")
    assert ran.code == 0, ran.err
    names = {Path(record["out_path"]).name: record for record in ran.records}
    assert all(Path(record["out_path"]).parent == out for record in ran.records)
    assert "paper.pdf" in names
    assert any(name.startswith("paper-") for name in names), "a second file of that name gets its hash"
    assert sorted(path.read_bytes() for path in out.iterdir()) == sorted([BODY, other, BODY])
    assert command.run("fetch", *urls, "--out", str(out)).code == 0
    assert len(list(out.iterdir())) == 3, "the same files again are the same files"


def test_requests_come_from_text_csv_jsonl_and_standard_input(command: Command, web: WebServer, tmp_path: Path) -> None:
    urls = [web.put(f"/{n}.bin", os.urandom(100)) for n in range(5)]
    digest = hashlib.sha256(web.file("/1.bin").body).hexdigest()  # type: ignore[union-attr]
    (tmp_path / "a.txt").write_text(f"# a comment\n\n{urls[0]}\n")
    (tmp_path / "b.csv").write_text(f"work_id,url,sha256,priority\nW1,{urls[1]},{digest},5\n")
    (tmp_path / "c.jsonl").write_text(json.dumps({"url": urls[2], "work_id": "W2", "artifact_id": "x"}) + "\n")
    files = [word for name in ("a.txt", "b.csv", "c.jsonl") for word in ("-i", str(tmp_path / name))]
    ran = command.run("fetch", *files, "-i", "-", urls[4], "--json", stdin=f"{urls[3]}\n")
    assert ran.code == 0, ran.err
    by_url = {record["url"]: record for record in ran.records}
    assert set(by_url) == set(urls)
    assert (by_url[urls[1]]["work_id"], by_url[urls[2]]["work_id"]) == ("W1", "W2")


def test_wrong_use_is_refused_before_anything_is_made(command: Command) -> None:
    for words in (["fetch"], ["fetch", "--no-such"], ["fetch", "-i", "/no/such/file"], ["nonsense"]):
        ran = command.run(*words)
        assert ran.code == 2, words
        assert "[usage_wrong]" in ran.err
    assert not command.home.exists()


def test_ctrl_c_ends_cleanly_and_the_bytes_are_kept(command: Command, web: WebServer) -> None:
    body = os.urandom(8 << 20)
    url = web.put("/large.bin", body, hold_at=6 << 20)
    child = command.start("fetch", url, "--json")
    wait_until(lambda: command.staged_bytes() == 6 << 20, "most of the file is there", 60)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "0 of 1 had come to their end; the same command goes on with the others" in err
    wait_until(command.all_gone, "nothing is left running")
    (job,) = command.run("jobs", "--ids").out.split()
    assert "Nothing runs here now" in command.run("why", job).out
    web.release("/large.bin")
    ran = command.run("fetch", url, "--json")
    assert (ran.code, ran.record["status"]) == (0, "completed"), ran.err
    assert ran.record["resumed_from_bytes"] >= 5 << 20
    assert ran.record["sha256"] == hashlib.sha256(body).hexdigest()


def test_progress_is_live_on_a_terminal_and_lines_in_a_pipe(command: Command, web: WebServer) -> None:
    small, large = web.put("/a.bin", BODY), web.put("/large.bin", bytes(8 << 20), bytes_per_s=1_500_000)
    gone = f"{web.url}/gone.bin"
    with showing(command, "fetch", small, large, gone) as screen:
        wait_until(lambda: "2 of 3 files, 1 failed" in screen.text(), "the bar of all files", 60)
        wait_until(lambda: "large.bin STREAMING" in screen.text(), "a bar of the one under way", 60)
        wait_until(lambda: re.search(r"[1-7]\.\d/8\.0 MiB", screen.text()), "its bytes", 60)
        wait_until(lambda: screen.text() and screen.child.poll() is not None, "the end", 60)
        shown = screen.text()
        assert screen.child.returncode == 1
    table = shown[shown.rindex("status ") :]
    assert [line.split()[0] for line in table.splitlines() if line.strip()][1:4].count("completed") == 2
    assert "[http_404]" in table
    piped = command.run("fetch", small, large, gone, "--retry")
    assert (piped.code, "\x1b" in piped.out + piped.err) == (1, False)
    assert "[3/3] failed - " in piped.err
    assert piped.out.startswith("status\tsize\thow\tfile\n")


def test_killed_with_minus_nine_nothing_is_left_and_the_next_fetch_goes_on(command: Command, web: WebServer) -> None:
    body = os.urandom(8 << 20)
    url = web.put("/large.bin", body, hold_at=6 << 20)
    child = command.start("fetch", url)
    wait_until(lambda: command.staged_bytes() == 6 << 20, "most of the file is there", 60)
    wait_until(lambda: len(command.services()) == 5, "owner, two workers, their helper and the scheduler")
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    wait_until(command.all_gone, "no server, worker or scheduler outlives its owner")
    web.release("/large.bin")
    ran = command.run("fetch", url, "--json")
    assert (ran.code, ran.record["status"]) == (0, "completed"), ran.err
    assert ran.record["resumed_from_bytes"] >= 5 << 20, "it goes on from the bytes that are there"
    # What is held is compared with the server's over the last 64 KiB before it is gone on with.
    assert web.gets("/large.bin")[-1].sent == len(body) - ran.record["resumed_from_bytes"] + OVERLAP
    assert Path(ran.record["path"]).read_bytes() == body


def test_a_killed_worker_is_replaced_and_its_job_goes_on(command: Command, web: WebServer) -> None:
    body = os.urandom(8 << 20)
    url = web.put("/large.bin", body, hold_at=6 << 20)
    child = command.start("fetch", url, "--json")
    wait_until(lambda: command.staged_bytes() == 6 << 20, "most of the file is there", 60)
    database = SqlDatabase(f"sqlite:///{command.home / 'ledger.db'}")
    with database.read() as unit:
        (held,) = unit.backlog.held(10)
    database.close()
    worker = int(held.token.split(".")[1])
    assert worker in command.services().values()
    os.kill(worker, signal.SIGKILL)
    web.release("/large.bin")
    out, err = child.communicate(timeout=90)
    record = json.loads(out)
    assert (child.returncode, record["status"], record["runs"]) == (0, "completed", 2), err
    assert record["resumed_from_bytes"] >= 5 << 20


def test_two_fetches_at_once_share_one_stack(command: Command, web: WebServer) -> None:
    urls = [web.put(f"/{n}.bin", os.urandom(200_000), bytes_per_s=400_000) for n in range(6)]
    one = command.start("fetch", *urls[:4], "--json")
    other = command.start("fetch", *urls[2:], "--json")
    results = [child.communicate(timeout=90) for child in (one, other)]
    assert [child.returncode for child in (one, other)] == [0, 0], results
    ids = {json.loads(line)["job_id"] for out, _ in results for line in out.splitlines()}
    assert len(ids) == 6
    assert all(len(web.gets(f"/{n}.bin")) == 1 for n in range(6)), "no file is fetched twice"
    # Whoever was done first ended the stack under the other one's jobs.
    assert "lost_messages" not in (command.home / "log" / "helper.log").read_text()


def test_what_was_planned_before_is_done_by_up_and_down_ends_it(command: Command, web: WebServer) -> None:
    url = web.put("/a.bin", BODY)
    planned = command.run("plan", url, "--work", "W", "--artifact", "A", "--json")
    assert (planned.code, planned.record["outcome"]) == (0, "created")
    assert "dlpipe up" in command.run("plan", url, "--work", "W", "--artifact", "A").err
    up = command.start("up")
    job = planned.record["job_id"]
    late = command.run("plan", url, "--work", "later", "--not-before", "2999-01-01", "--json").record["job_id"]
    wait_until(lambda: command.run("show", job, "--json").record["status"] == "completed", "the job is done", 60)
    told = command.run("status", "--json").record
    assert told["running"] is True
    assert told["jobs"]["completed"] == 1
    assert "It is sent then by itself." in command.run("why", late).out
    ops = command.run("ops", job, "--json").records
    assert [(op["op_type"], op["state"]) for op in ops] == [
        (op_type, "finished") for op_type in ("HEAD", "RESUME", "STREAM", "FINALIZE", "INDEX", "DEDUPE")
    ]
    assert [view["job_id"] for view in command.run("jobs", "--json", "--status", "completed").records] == [job]
    assert command.run("down").code == 0
    _, err = up.communicate(timeout=30)
    assert up.returncode == 0, err
    assert command.run("status", "--json").record["running"] is False
    assert "Nothing runs here now" in command.run("why", late).out
    assert "nothing runs" in command.run("down").err


def test_up_that_is_told_to_end_before_all_of_it_runs_ends_as_ever(command: Command) -> None:
    up = command.start("up")
    wait_until(lambda: is_run(command.home), "the stack is begun", 60)
    up.send_signal(signal.SIGTERM)
    _, err = up.communicate(timeout=60)
    assert up.returncode == 0, err
    wait_until(command.all_gone, "nothing is left of it")


def test_a_job_of_another_tenant_or_project_looks_unknown(command: Command, web: WebServer) -> None:
    url = web.put("/a.bin", BODY)
    job = command.run("plan", url, "--tenant", "t1", "--project", "p1", "--json").record["job_id"]
    unknown = command.run("show", "00000000-0000-5000-8000-000000000000")
    for scope in ([], ["--tenant", "t1"], ["--project", "p1"], ["--tenant", "t2", "--project", "p1"]):
        for word in ("show", "ops", "cancel", "retry"):
            ran = command.run(word, job, *scope)
            assert ran.code == 1
            assert ran.err.replace(job, "ID") == unknown.err.replace("00000000-0000-5000-8000-000000000000", "ID")
    assert command.run("show", job, "--tenant", "t1", "--project", "p1").code == 0
    assert command.run("cancel", job, "--tenant", "t1", "--project", "p1").code == 0


def test_doctor_lists_settings_with_their_source_and_hides_secrets(command: Command, tmp_path: Path) -> None:
    (tmp_path / "dlpipe.toml").write_text("[lease]\nttl_s = 90\n")
    secret = "redis://:hunter2@127.0.0.1:1/0"
    ran = command.run("doctor", "--json", DLPIPE_LEASE_RENEW_S="20", DLPIPE_REDIS_URL=secret)
    knobs = {knob["name"]: knob for knob in ran.record["settings"]}
    assert knobs["lease.ttl_s"]["value"] == "90.0"
    assert knobs["lease.ttl_s"]["source"].startswith("file ")
    assert knobs["lease.renew_s"]["source"] == "environment DLPIPE_LEASE_RENEW_S"
    assert knobs["dedupe.scope"]["source"] == "default"
    assert "hunter2" not in ran.out + ran.err
    assert ran.code == 1, "the Redis that it names does not answer"
    refused = command.run("doctor", DLPIPE_LEASE_RENEW_S="60")
    assert refused.code == 2
    assert "renew_s" in refused.err


def test_migrate_is_explicit_and_a_newer_schema_is_refused(command: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    refused = command.run("jobs", DLPIPE_DATABASE_URL=url)
    assert (refused.code, "schema_missing" in refused.err) == (2, True)
    made = {"before": None, "after": SCHEMA_VERSION, "older_workers_go_on": True}
    assert command.run("migrate", "--dry-run", "--json", DLPIPE_DATABASE_URL=url).record == {**made, "dry_run": True}
    assert command.run("migrate", "--json", DLPIPE_DATABASE_URL=url).record == made
    assert command.run("migrate", "--json", DLPIPE_DATABASE_URL=url).record["before"] == SCHEMA_VERSION
    assert command.run("jobs", DLPIPE_DATABASE_URL=url).code == 0
    database = SqlDatabase(url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    for word in ("jobs", "migrate"):
        newer = command.run(word, DLPIPE_DATABASE_URL=url)
        assert (newer.code, "schema_newer" in newer.err) == (2, True)
