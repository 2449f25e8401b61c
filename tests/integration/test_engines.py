"""The same pipeline on the engines of production: PostgreSQL, with Redis or RabbitMQ as broker (OPS-3).

Doubled messages, files that fail for good, files that fail at first, a worker that is killed in the middle, and broker
and database restarted under load: all jobs end as they should, and the checker finds nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core import flow
from dlpipe.core.errors import LedgerUnavailable
from tests.fleet import QUICK, REPOSITORY, Fleet
from tests.origin import Asked, Origin, Say, answer
from tests.postgres import Postgres
from tests.rabbitmq import RabbitMQ
from tests.servers import Valkey
from tests.shelf import Shelf
from tests.webserver import WebServer
from tests.world import sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.own_engines("servers of its own, which are restarted", "ledger", "broker"),
]

GOOD, GONE, SHAKY = 16, 2, 2


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path_factory.mktemp("rabbit")) as server:
        yield server


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Postgres]:
    """One of its own, as it is restarted."""
    with Postgres(tmp_path / "postgres") as own:
        yield own


def broker(kind: str, request: pytest.FixtureRequest) -> tuple[dict[str, str], Any]:
    """What says where it is, and how to restart it."""
    if kind == "redis":
        return {}, request.getfixturevalue("valkey").restart
    rabbit: RabbitMQ = request.getfixturevalue("rabbit")
    return {"DLPIPE_BROKER_URL": rabbit.url}, rabbit.restart


def dlpipe(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlpipe", *words],
        env=fleet.env, cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_postgres_and_a_broker_bear_duplicates_failures_kills_and_restarts(
    kind: str, request: pytest.FixtureRequest, server: Postgres, valkey: Valkey, tmp_path: Path, shelf: Shelf
) -> None:
    settings, restart_broker = broker(kind, request)
    settings |= {"DLPIPE_DATABASE_URL": server.create_database(), **shelf.settings}
    times: dict[str, int] = {}
    body = os.urandom(3_000)

    def shaky(asked: Asked) -> Say:
        times[asked.target] = times.get(asked.target, 0) + 1
        return Say(answer(503) if times[asked.target] <= 6 else answer(200, body, 'ETag: "1"'))

    with (
        WebServer() as web,
        Origin() as origin,
        Fleet(tmp_path / "home", valkey, shelf, **QUICK, **settings) as fleet,
    ):
        migrated = dlpipe(fleet, "migrate")
        assert migrated.returncode == 0, migrated.stderr
        good = {web.put(f"/{n}", data): data for n in range(GOOD) if (data := os.urandom(4_000 + n))}
        held = web.put("/held", held_body := os.urandom(200_000), hold_at=100_000)
        gone = [f"{web.url}/gone-{n}" for n in range(GONE)]
        again = [origin.on(f"/shaky-{n}", shaky) for n in range(SHAKY)]

        victim = fleet.worker("victim")
        fleet.plan([held])
        fleet.until(lambda: web.sent("/held") >= 100_000, "the victim to be half-way", victim)
        victim.kill()
        web.release("/held")
        workers = [fleet.worker("w1"), fleet.worker("w2", pool="prefork", size=2)]
        fleet.beat()
        fleet.plan([*good, *gone, *again])
        double_messages(fleet)
        fleet.until(lambda: fleet.done() >= 3, "some jobs to end")
        restart_broker()
        server.restart()
        wanted = {"DEDUPED": GOOD + 1 + SHAKY, "FAILED": GONE}
        fleet.until(lambda: settled_states(fleet) == wanted, "all jobs to end", within_s=120)
        double_messages(fleet)
        assert all(worker.lives for worker in workers)
        registered = fleet.sql("SELECT count(*) AS n, count(DISTINCT created_by_job_id) AS jobs FROM artifacts")[0]
        assert (registered.n, registered.jobs) == (GOOD + 1 + SHAKY,) * 2
        for row in fleet.sql(
            "SELECT request_url, sha256 FROM artifact_jobs j JOIN artifacts a ON a.created_by_job_id = j.job_id"
        ):
            expected = {**good, held: held_body}.get(row.request_url, body)
            assert row.sha256 == sha256(expected)
        for process in fleet.processes:
            process.stop()
        checked = dlpipe(fleet, "verify", "--json")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert checked.stdout == "", "a finding"
        if kind == "rabbitmq":
            queues = request.getfixturevalue("rabbit").ctl("list_queues", "name", "type", "--no-table-headers")
            found = dict(line.split("\t") for line in queues.splitlines() if line.strip())
            assert {name: found[f"dlpipe.{name}.quorum"] for name in ("net", "disk", "beat")} == dict.fromkeys(
                ("net", "disk", "beat"), "quorum"
            )
            assert "net" not in found


def settled_states(fleet: Fleet) -> dict[str, int]:
    """Of jobs that are at an end; while the database restarts nobody can say."""
    at_an_end = "due_at IS NULL AND lease_owner IS NULL"
    try:
        rows = fleet.sql(f"SELECT state, count(*) AS n FROM artifact_jobs WHERE {at_an_end} GROUP BY state")
    except LedgerUnavailable:
        return {}
    return {row.state: row.n for row in rows}


def double_messages(fleet: Fleet) -> None:
    """Messages of every stage for every job, as a broker may send them twice, in no order."""
    jobs = [row.job_id for row in fleet.sql("SELECT job_id FROM artifact_jobs")]
    names = [f"dlpipe.{row.name}" for row in reversed(flow.STAGES)]
    fleet.python(
        "from dlpipe import app\n"
        f"for job in {[str(job) for job in jobs]!r}:\n"
        f"  for name in {names!r}:\n"
        "    app.send_task(name, args=[job, 1])\n"
    )
