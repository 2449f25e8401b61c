"""Real workers and a real broker: planned from anywhere, carried out by `celery -A dlpipe worker`. OPS-1, PLAN-5."""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core import flow
from tests.fleet import Fleet, is_gone
from tests.servers import free_port, wait_until
from tests.webserver import WebServer
from tests.wheel import installed
from tests.world import sha256

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def some_files(web: WebServer, count: int, size: int = 20_000) -> dict[str, bytes]:
    bodies = {f"/file-{n}.bin": os.urandom(size) for n in range(count)}
    return {web.put(path, body): body for path, body in bodies.items()}


@pytest.mark.everywhere
def test_plan_delay_from_a_plain_python_is_carried_out(fleet: Fleet, web: WebServer) -> None:
    ((url, body),) = some_files(web, 1).items()
    said = json.loads(
        fleet.python(
            "import json\nfrom dlpipe import plan\n"
            f"answer = plan.delay(url={url!r}, work_id='w1', artifact_id='a1')\n"
            "print(json.dumps([answer.id, answer.get()['outcome'], answer.successful()]))"
        )
    )
    job = fleet.job(url)
    assert said == [fleet.job_id(url), "created", True]
    assert (job.state, job.work_id, job.artifact_id) == ("PLANNED", "w1", "a1")  # no worker is there yet
    fleet.worker("w1")
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: body})


def test_a_worker_runs_from_an_installed_wheel_in_another_directory(
    fleet: Fleet, web: WebServer, tmp_path: Path
) -> None:
    site = installed(tmp_path)
    fleet.cwd = tmp_path / "elsewhere"
    fleet.cwd.mkdir()
    fleet.env["PYTHONPATH"] = str(site)
    assert fleet.python("import dlpipe; print(dlpipe.__file__)").startswith(str(site))
    bodies = some_files(web, 3)
    fleet.worker("w1")
    fleet.beat()
    fleet.plan(list(bodies))
    fleet.until(lambda: fleet.done() == 3, "three jobs to end")
    fleet.assert_each_once(bodies)


def test_flower_shows_the_tasks_and_listens_on_this_machine_only(fleet: Fleet, web: WebServer) -> None:
    port = free_port()
    # Not threads: there Celery now and then loses an event, so Flower shows a task as still running.
    worker = fleet.worker("w1", "-E", pool="prefork", size=2)
    flower = fleet.celery("flower", "flower", f"--port={port}", FLOWER_UNAUTHENTICATED_API="true")
    fleet.until(lambda: ask(port, "/api/workers") is not None, "Flower to answer", flower)
    fleet.until(lambda: "w1@test" in (ask(port, "/api/workers?refresh=1") or {}), "Flower to see the worker", worker)
    bodies = some_files(web, 2)
    fleet.plan(list(bodies))
    fleet.until(lambda: fleet.done() == 2, "two jobs to end")
    wanted = {f"dlpipe.{row.name}" for row in flow.STAGES}

    def shown() -> bool:
        tasks = (ask(port, "/api/tasks?limit=100") or {}).values()
        ended = [task["name"] for task in tasks if task["state"] == "SUCCESS"]
        return all(ended.count(name) == 2 for name in wanted)

    fleet.until(shown, "Flower to show every stage of both jobs as done", flower)
    tasks = json.dumps(ask(port, "/api/tasks?limit=100"))
    assert not any(url in tasks for url in bodies)  # messages carry ids, never URLs (SAFE-1)
    assert listening(flower.pid, port) == {"127.0.0.1"}


@pytest.mark.everywhere
def test_the_same_messages_five_times_and_out_of_order_have_no_effect(fleet: Fleet, web: WebServer) -> None:
    path = "/held.bin"
    url = web.put(path, body := os.urandom(300_000), hold_at=100_000)
    fleet.worker("w1")
    fleet.worker("w2")
    fleet.plan([url])
    fleet.until(lambda: web.sent(path) >= 100_000, "the stream to be half-way")
    flood(fleet, fleet.job_id(url))
    fleet.until(lambda: fleet.waiting() == 0, "the messages to be taken")
    assert fleet.job(url).state == "STREAMING"
    web.release(path)
    fleet.until(fleet.done, "the job to end")
    before = fleet.ledger()
    flood(fleet, fleet.job_id(url))
    fleet.until(lambda: fleet.waiting() == 0, "the messages to be taken")
    for process in fleet.processes:
        process.stop()
    assert fleet.ledger() == before
    fleet.assert_each_once({url: body})
    assert [get.sent for get in web.gets(path)] == [len(body)]


def test_two_schedulers_do_no_more_than_one(fleet: Fleet, web: WebServer) -> None:
    """Everything is sent twice; one of each pair finds another one at it, or that it has just been done."""
    bodies = some_files(web, 40)
    workers = [fleet.worker("w1"), fleet.worker("w2", pool="prefork", size=2)]
    beats = [fleet.celery(name, "beat", "-s", str(fleet.home / name), "-l", "INFO") for name in ("beat1", "beat2")]
    for n in range(4):
        fleet.plan(list(bodies)[10 * n : 10 * n + 10])
    fleet.until(lambda: fleet.done() == len(bodies), "all jobs to end", workers[0], within_s=60)
    said = "another one is at it"
    fleet.until(lambda: any(worker.says(said) for worker in workers), "two rounds to have met", workers[0])
    assert all(beat.says("Sending due task dispatch") for beat in beats)
    fleet.assert_each_once(bodies)
    assert {len(web.gets(url.removeprefix(web.url))) for url in bodies} == {1}
    assert fleet.sql("SELECT max(attempts) AS n FROM artifact_jobs")[0].n == 0
    assert fleet.sql("SELECT max(run) AS n FROM artifact_jobs")[0].n == 1


@pytest.mark.everywhere
def test_a_prefork_worker_works_and_its_children_die_with_it(fleet: Fleet, web: WebServer) -> None:
    bodies = some_files(web, 4)
    worker = fleet.worker("w1", pool="prefork", size=2)
    fleet.plan(list(bodies))
    fleet.until(lambda: fleet.done() == 4, "four jobs to end", worker)
    fleet.assert_each_once(bodies)
    held = web.put("/held.bin", os.urandom(300_000), hold_at=100_000)
    fleet.plan([held])
    fleet.until(lambda: web.sent("/held.bin") >= 100_000, "a child to be in the middle of a stream", worker)
    children = children_of(worker.pid)
    assert len(children) == 2
    worker.kill()
    wait_until(lambda: all(map(is_gone, children)), "the children to be gone")
    assert sha256(web.file("/held.bin").body) not in {  # type: ignore[union-attr]
        row.sha256 for row in fleet.sql("SELECT sha256 FROM artifacts")
    }


# ── pieces ────────────────────────────────────────────────────────────────────────────────────────


def flood(fleet: Fleet, job_id: str) -> None:
    """Every stage's message five times, the last stage first, and those of other runs between them."""
    names = [f"dlpipe.{row.name}" for row in reversed(flow.STAGES)]
    fleet.python(
        "from dlpipe import app\n"
        "for n in range(5):\n"
        f"  for name in {names!r}:\n"
        "    for run in (1, 0, 2):\n"
        f"      app.send_task(name, args=[{job_id!r}, run])\n"
    )


def ask(port: int, path: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return None


def listening(pid: int, port: int) -> set[str]:
    """The addresses on which that port is open, as the kernel tells (proc_net_tcp(5))."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                packed = bytes.fromhex(address)
                found.add(socket.inet_ntoa(packed[::-1]) if table == "tcp" else address)
    return found


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
