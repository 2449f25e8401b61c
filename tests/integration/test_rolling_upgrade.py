"""A release after the other: workers of both side by side across a migration, and messages from one to the other.

The later release is a copy of the package with a migration planted in it, so this holds whatever the last one is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core import flow
from dlpipe.core.messages import Fault
from dlpipe.db import SqlDatabase
from dlpipe.db.schema import SCHEMA_VERSION
from tests.fleet import QUICK, Fleet, Process
from tests.postgres import Postgres
from tests.releases import NEXT, next_release
from tests.servers import Valkey
from tests.webserver import WebServer

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240),
    pytest.mark.own_engines("migrated in the middle, and messages changed by hand: PostgreSQL and Redis"),
]  # fmt: skip

JOBS, MORE, SIZE = 130, 5, 64 << 10
THREADS = 3
OTHERS = ("-Q", "disk,beat,plan")


@pytest.fixture
def town(broker: Valkey, postgres: Postgres, tmp_path: Path) -> Iterator[Fleet]:
    """Migrated by this release."""
    with broker.client() as client:
        client.flushall()
    url = postgres.create_database()
    settings = {**QUICK, "DLPIPE_DATABASE_URL": url, "DLPIPE_LEASE_TTL_S": "20", "DLPIPE_LEASE_RENEW_S": "2"}
    with Fleet(tmp_path / "home", broker, **settings) as fleet:
        fleet.database.close()
        fleet.database = SqlDatabase(url)
        assert dlpipe(fleet, "migrate").returncode == 0
        yield fleet


@contextmanager
def release(fleet: Fleet, folder: Path) -> Iterator[None]:
    """What is started within is of that release."""
    before, fleet.cwd = fleet.cwd, folder
    try:
        assert fleet.python("import dlpipe; print(dlpipe.__file__)").startswith(str(folder))
        yield
    finally:
        fleet.cwd = before


def dlpipe(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlpipe", *words],
        env=fleet.env, cwd=fleet.cwd, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def answer(fleet: Fleet, *words: str) -> Any:
    done = dlpipe(fleet, *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def files(web: WebServer, count: int, at: str, **how: Any) -> dict[str, bytes]:
    return {web.put(f"/{at}{n}", body, **how): body for n in range(count) if (body := os.urandom(SIZE + n))}


def go_on(fleet: Fleet, web: WebServer, arrive: int, condition: Any, what: str) -> None:
    """Let so many files arrive in all, in the order in which they are asked for, until that holds."""

    def look() -> bool:
        asked = dict.fromkeys(one.path for one in list(web.log) if one.method == "GET")
        for path in list(asked)[:arrive]:
            web.release(path)
        return bool(condition())

    fleet.until(look, what, within_s=90)


def makers(fleet: Fleet) -> dict[str | None, int]:
    """How many ops each release has made; of this one there is no word."""
    rows = fleet.sql("SELECT made_by, count(*) AS n FROM artifact_ops GROUP BY made_by")
    return {row.made_by: row.n for row in rows}


def end(fleet: Fleet, *processes: Process) -> None:
    """SIGTERM to all of them at once, as who upgrades does it."""
    for process in processes:
        process.send(signal.SIGTERM)
    fleet.until(lambda: not any(process.lives for process in processes), "them to end")
    assert not any(process.says("ends by force") for process in processes)


def test_workers_of_both_releases_work_side_by_side_across_a_migration(
    town: Fleet, web: WebServer, tmp_path: Path
) -> None:
    later = next_release(tmp_path / "next")
    bodies = files(web, JOBS, "first-", hold_at=SIZE // 2)
    old = [town.worker("old1", "-Q", "net", size=THREADS), town.worker("old2", *OTHERS, pool="prefork", size=2)]
    beat = town.beat()
    town.plan(list(bodies))
    go_on(town, web, 20, lambda: town.done() == 20, "some jobs to end")

    with release(town, later):
        before = dlpipe(town, "jobs")
        assert (before.returncode, "schema_behind" in before.stderr) == (2, True)
        wanted = {"before": SCHEMA_VERSION, "after": NEXT, "older_workers_go_on": True}
        assert answer(town, "migrate", "--dry-run") == {**wanted, "dry_run": True}
        assert answer(town, "migrate") == wanted
    assert town.sql("SELECT count(*) AS n FROM artifact_jobs WHERE published_at IS NOT NULL")[0].n == JOBS - 20

    # The release before goes on, is started anew, and plans.
    old.append(town.worker("old3", "-Q", "net", size=THREADS))
    assert answer(town, "migrate") == {"before": NEXT, "after": NEXT, "older_workers_go_on": True}
    checks = {check["check"]: check for check in answer(town, "doctor")["checks"]}
    assert NEXT in checks["ledger"]["what"]
    of_old = files(web, MORE, "old-")
    town.plan(list(of_old))
    go_on(town, web, 40, lambda: town.done() >= 40, "the old ones to go on")
    assert set(makers(town)) == {None}
    with release(town, later):
        new = [town.worker("new1", "-Q", "net", size=THREADS), town.worker("new2", *OTHERS, pool="prefork", size=2)]
        of_new = files(web, MORE, "new-")
        town.plan(list(of_new))
    go_on(town, web, 80, lambda: town.done() >= 80, "both to go on side by side")
    assert set(makers(town)) == {None, "next"}

    end(town, *old)
    beat.stop()
    with release(town, later):
        town.celery("beat2", "beat", "-s", str(town.home / "schedule2"))
    every = {**bodies, **of_old, **of_new}
    go_on(town, web, len(every), lambda: town.done() == len(every), "all jobs to end")
    assert all(worker.lives for worker in new)

    town.assert_each_once(every)
    assert town.sql("SELECT max(attempts) AS n FROM artifact_jobs")[0].n == 0
    assert set(makers(town)) == {None, "next"}
    again = [path for path in (url.removeprefix(web.url) for url in every) if len(web.gets(path)) > 1]
    assert len(again) <= 2 * THREADS  # those that were handed back in the middle
    for process in town.processes:
        process.stop()
    assert_whole(town)
    with release(town, later):
        assert_whole(town)


def assert_whole(fleet: Fleet) -> None:
    checked = dlpipe(fleet, "verify", "--json")
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


def test_each_release_understands_the_messages_of_the_other(town: Fleet, web: WebServer, tmp_path: Path) -> None:
    later = next_release(tmp_path / "next")
    with release(town, later):
        answer(town, "migrate")
        of_new = files(web, MORE, "new-")
        town.plan(list(of_new))
    worker = town.worker("old")
    town.until(lambda: town.done() == MORE, "the old one to have done what the new one planned", worker)
    assert set(makers(town)) == {None}
    end(town, worker)
    of_old = files(web, MORE, "old-")
    town.plan(list(of_old))
    with release(town, later):
        worker = town.worker("new")
    town.until(lambda: town.done() == 2 * MORE, "the new one to have done what the old one planned", worker)
    assert makers(town) == {None: MORE * len(flow.STAGES), "next": MORE * len(flow.STAGES)}
    town.assert_each_once({**of_old, **of_new})


SEND = """
from celery import chain
from dlpipe import app

def sign(name, **more):
    return app.signature("dlpipe." + name, args=({job!r}, 1), kwargs=more, immutable=True)

{what}.apply_async()
"""
STRANGE = {
    "a stage that it does not know": (
        'chain(sign("head"), sign("weigh"), sign("resume_decide"))',
        Fault.TASK,
    ),
    "a first stage that it does not know": (
        'chain(sign("weigh").set(queue="net"), sign("head"))',
        Fault.TASK,
    ),
    "an argument that it does not know": (
        'chain(sign("head"), sign("resume_decide", weight=3), sign("stream"))',
        "unexpected keyword argument",  # Celery checks what it is to send on
    ),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_message_that_is_not_understood_loses_nothing(what: str, town: Fleet, web: WebServer) -> None:
    """A later release may send what this one cannot read: it is dropped, counts as lost, and the ledger knows on."""
    bodies = files(web, 1, "one-")
    (url,) = bodies
    town.plan([url])
    with town.broker.client() as client:
        assert client.delete("dlpipe.net") == 1  # in the place of its message comes another one
    town.python(SEND.format(job=str(town.job(url).job_id), what=STRANGE[what][0]))
    worker = town.worker("w1")
    town.until(lambda: worker.says(STRANGE[what][1]), "the worker to drop it", worker)
    town.beat()
    town.until(town.done, "the job to end", worker)
    town.assert_each_once(bodies)
    assert town.job(url).attempts == 0


# ── a migration with which the release before cannot go on ────────────────────────────────────────


def test_the_release_before_is_refused_where_it_cannot_go_on_and_no_job_pays_for_it(
    town: Fleet, web: WebServer, tmp_path: Path
) -> None:
    later = next_release(tmp_path / "next", breaks=True)
    careless = town.worker("old")  # it should have been ended
    with release(town, later):
        said = dlpipe(town, "migrate", "--dry-run")
        assert f"have to end before it ({NEXT})" in said.stdout
        assert answer(town, "migrate") == {"before": SCHEMA_VERSION, "after": NEXT, "older_workers_go_on": False}
        bodies = files(web, MORE, "new-")
        town.plan(list(bodies))
    for words in (["jobs"], ["migrate"], ["verify"], ["plan", f"{web.url}/x"]):
        refused = dlpipe(town, *words)
        assert (refused.returncode, "schema_newer" in refused.stderr) == (2, True), words
        assert "Upgrade dlpipe on this machine" in refused.stderr
    late = town.celery("late", "worker", "-P", "threads", "-n", "late@test")
    town.until(lambda: not late.lives, "it to end")
    assert late.says("schema_newer")
    assert late.ended_with(signal.SIGTERM, 1) == 2

    town.until(lambda: careless.says("schema_changed"), "the careless one to notice", careless)
    assert town.done() == 0
    end(town, careless)
    with release(town, later):
        worker = town.worker("new")
        town.celery("beat2", "beat", "-s", str(town.home / "schedule2"))
    town.until(lambda: town.done() == MORE, "the new one to do it all", worker)
    assert town.sql("SELECT max(attempts) AS n FROM artifact_jobs")[0].n == 0
    town.assert_each_once(bodies)
