"""`dlpipe refresh`, `plan --refresh` and `fetch --refresh`, as a user has them (PLAN-6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.webserver import WebServer

pytestmark = pytest.mark.e2e

OLD, NEW = b"as it was\n" * 5000, b"as it is now\n" * 5000
UNKNOWN = "00000000-0000-5000-8000-000000000000"


def test_a_file_that_changed_is_a_second_result_and_the_first_stays(command: Command, web: WebServer) -> None:
    url = web.put("/a.bin", OLD)
    first = command.run("fetch", url, "--json").record
    same = command.run("fetch", url, "--refresh", "--json")
    assert (same.code, same.record["status"], same.record["runs"]) == (0, "skipped", 2), same.err
    assert same.record["artifact_uuid"] == first["artifact_uuid"]
    web.put("/a.bin", NEW)
    changed = command.run("fetch", url, "--refresh", "--json")
    assert (changed.code, changed.record["status"], changed.record["runs"]) == (0, "completed", 3), changed.err
    assert Path(changed.record["path"]).read_bytes() == NEW
    assert Path(first["path"]).read_bytes() == OLD
    shown = command.run("show", first["job_id"], "--json").record
    assert [one["artifact_uuid"] for one in shown["results"]] == [
        first["artifact_uuid"],
        changed.record["artifact_uuid"],
    ]
    assert [one["fault"] for one in shown["results"]] == [None, None]


def test_refresh_by_id_makes_jobs_due_and_says_of_each_how_it_stands(command: Command, web: WebServer) -> None:
    job = command.run("fetch", web.put("/a.bin", OLD), "--json").record["job_id"]
    ran = command.run("refresh", job, "--json")
    assert (ran.code, ran.record) == (0, {"job_id": job, "status": "pending", "paused": False})
    shown = command.run("show", job, "--json").record
    assert (shown["status"], shown["purpose"], len(shown["results"])) == ("pending", "refresh", 1)
    back = command.run("cancel", job)
    assert (back.code, back.out) == (0, f"{job} completed (its further run is taken back)\n")
    assert command.run("cancel", job).out == f"{job} completed (nothing to cancel)\n"
    assert command.run("refresh", job).out == f"{job} pending\n"
    unknown = command.run("refresh", UNKNOWN, job)
    assert unknown.code == 1
    assert "[job_unknown]" in unknown.err
    assert f"{job} pending" in unknown.out
    foreign = command.run("refresh", job, "--tenant", "other")
    assert (foreign.code, foreign.out) == (1, "")
    assert "[job_unknown]" in foreign.err
    assert command.run("refresh").code == 2


def test_planning_again_with_refresh_asks_again(command: Command, web: WebServer) -> None:
    url = web.put("/a.bin", OLD)
    job = command.run("fetch", url, "--json").record["job_id"]
    ran = command.run("plan", url, "--refresh", "--json")
    assert (ran.code, ran.record["outcome"], ran.record["status"], ran.record["job_id"]) == (
        0,
        "refreshed",
        "pending",
        job,
    )
    lines = f'{{"url": "{url}"}}\n{{"url": "{url}", "artifact_id": "b", "refresh": "perhaps"}}\n'
    refused = command.run("plan", "-i", "-", "--json", stdin=lines)
    assert (refused.code, sorted(one["outcome"] for one in refused.records)) == (1, ["known", "refused"])
    assert "[refresh_invalid]" in refused.err
    csv = command.run("plan", "-i", "-", stdin=f"url,refresh\n{url},false\n")
    assert (csv.code, csv.out) == (0, "1 on their way\n")
