"""Several nodes, each with a staging folder of its own, as processes of their own (OPS-4)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core.errors import LedgerUnavailable
from tests.conftest import absent
from tests.fleet import QUICK, REPOSITORY, Fleet, Process
from tests.machines import Machine, Separate, Together, separate
from tests.objectserver import ObjectServer
from tests.postgres import Postgres
from tests.rabbitmq import RabbitMQ
from tests.servers import Valkey, wait_until
from tests.shelf import Folder, InBucket, Shelf
from tests.webserver import WebServer
from tests.world import sha256, some_bytes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.own_engines("machines meet over a network of their own; each broker has its turn"),
]

JOBS, SLOW_EVERY = 500, 10
NODES = {
    **QUICK,
    "DLPIPE_LEASE_TTL_S": "4",
    "DLPIPE_LEASE_RENEW_S": "1",
    "DLPIPE_STORE_STAGING": "node",
    "DLPIPE_NODES_BEAT_S": "0.5",
    "DLPIPE_NODES_GONE_AFTER_S": "5",
    "DLPIPE_DISPATCH_WINDOW": "120",
    "DLPIPE_NET_RATE_PER_S": "0",
    "DLPIPE_NET_SLOTS_PER_HOST": "0",
    "DLPIPE_NET_CONNECT_S": "2",
    "DLPIPE_NET_READ_S": "5",
    "DLPIPE_RETRY_MAX_ATTEMPTS": "50",
    "DLPIPE_RETRY_CAP_S": "1",
    "DLPIPE_HEAL_PART_AGE_S": "3",
    # Whoever is cut off in the middle of a round keeps others from theirs for twice this time.
    "DLPIPE_HEAL_DEADLINE_S": "5",
    "DLPIPE_HEAL_REHASH_BYTES_PER_ROUND": "0",
    "DLPIPE_DATABASE_STATEMENT_S": "6",
    "DLPIPE_DATABASE_LOCK_S": "3",
    "DLPIPE_DATABASE_CONNECT_S": "2",
}


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path_factory.mktemp("rabbit")) as server:
        yield server


class Nodes:
    """Workers on machines of their own around one ledger, one broker and one folder for finished files."""

    def __init__(
        self,
        fleet: Fleet,
        database_url: str,
        sockets: dict[str, str],
        broker_url: str | None = None,
        *,
        own_disks: bool = False,
    ) -> None:
        """`own_disks`: each machine has its root on one, as finished files are in a bucket."""
        self.fleet, self.sockets, self.broker_url, self.own_disks = fleet, sockets, broker_url, own_disks
        self.database = database_url.partition("?")[0].rpartition("/")[2]
        self.root = fleet.home / "store"
        self.workers: dict[str, Process] = {}
        self.apart: set[str] = set()

    def start(self, machine: Machine, pool: str = "threads") -> Process:
        home = self.fleet.home / machine.name
        home.mkdir(exist_ok=True)
        redis_url = f"redis://{machine.reach(self.sockets['redis'])}/0"
        env: dict[str, Any] = {
            "DLPIPE_HOME": str(home),
            "DLPIPE_NODE": machine.name,
            "DLPIPE_STORE_ROOT": str(self.root_of(machine.name)),
            "DLPIPE_REDIS_URL": redis_url,
            "DLPIPE_BROKER_URL": self.broker_url or redis_url,
            "DLPIPE_DATABASE_URL": (
                f"postgresql+psycopg://postgres@{machine.reach(self.sockets['postgres'])}/{self.database}"
            ),
        }
        if machine.within:
            self.apart.add(machine.name)
        self.workers[machine.name] = self.fleet.worker(machine.name, pool=pool, within=machine.within, **env)
        return self.workers[machine.name]

    def root_of(self, name: str) -> Path:
        return self.fleet.home / name / "disk" if self.own_disks else self.root

    def on(self, name: str) -> tuple[int, list[str]]:
        with self.fleet.database.read() as unit:
            return unit.nodes.jobs_on(name)

    def staging(self, name: str) -> list[str]:
        folder = self.root_of(name) / ".staging" / f"@{name}"
        return sorted(path.name for path in folder.rglob("*.part"))

    def dlpipe(self, *words: str, within_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dlpipe", *words],
            env=self.fleet.env, cwd=REPOSITORY, capture_output=True, text=True, timeout=within_s, check=False,
        )  # fmt: skip

    def done(self) -> int:
        with suppress(LedgerUnavailable):
            return self.fleet.done()
        return 0

    def stop(self) -> None:
        """All of them warmly; who is within a process namespace is told himself."""
        for name, worker in self.workers.items():
            for pid in _children(worker.pid) if name in self.apart else [worker.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        for worker in self.workers.values():
            wait_until(lambda one=worker: not one.lives, f"{worker.name} to end", 30)  # type: ignore[misc]

    def assert_whole(self, bodies: dict[str, bytes]) -> None:
        """Every file is right, registered once, and the checker finds nothing."""
        assert self.fleet.states() == {"DEDUPED": len(bodies)}
        rows = self.fleet.sql(
            "SELECT j.request_url AS url, a.sha256 FROM artifact_jobs j"
            " JOIN artifacts a ON a.created_by_job_id = j.job_id"
        )
        assert sorted((row.url, row.sha256) for row in rows) == sorted(
            (url, sha256(body)) for url, body in bodies.items()
        )
        assert sorted(map(sha256, self.fleet.blobs().values())) == sorted(sha256(body) for body in bodies.values())
        checked = self.dlpipe("verify", "--strict", "--json")
        assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def fleet_of(
    tmp_path: Path, valkey: Valkey, postgres: Postgres, broker_url: str | None = None, shelf: Shelf | None = None
) -> tuple[Fleet, Nodes]:
    url, shelf = postgres.create_database(), shelf or Folder()
    settings = {**NODES, **shelf.settings, "DLPIPE_DATABASE_URL": url, "DLPIPE_NODE": "office"}
    if broker_url:
        settings["DLPIPE_BROKER_URL"] = broker_url
    fleet = Fleet(tmp_path / "home", valkey, shelf, **settings)
    sockets = {"redis": valkey.socket, "postgres": f"{postgres.socket_dir}/.s.PGSQL.5432"}
    nodes = Nodes(fleet, url, sockets, broker_url, own_disks=not isinstance(shelf, Folder))
    migrated = nodes.dlpipe("migrate")
    assert migrated.returncode == 0, migrated.stderr
    return fleet, nodes


@pytest.mark.parametrize("network", ["separate", "together"])
def test_one_node_is_lost_for_good_and_one_is_cut_off_and_comes_back(
    network: str, valkey: Valkey, postgres: Postgres, tmp_path: Path
) -> None:
    if network == "separate" and (reason := separate()):
        absent(reason)
    lan: Any = Separate("a", "b", "c") if network == "separate" else Together("a", "b", "c")
    with lan, WebServer(lan.host) as web:
        fleet, nodes = fleet_of(tmp_path, valkey, postgres)
        with fleet:
            bodies = {}
            for number in range(JOBS):
                slow = number % SLOW_EVERY == 0
                body = some_bytes(200_000 + number if slow else 1_000 + number)
                bodies[web.put(f"/{number}", body, bytes_per_s=100_000 if slow else None)] = body
            for machine in lan.machines:
                nodes.start(machine)
            cut_off = next(machine for machine in lan.machines if machine.name == "b")
            fleet.beat()
            fleet.plan(list(bodies))

            # One is lost in the middle of streams, and its disk with it.
            fleet.until(lambda: nodes.done() >= 20 and nodes.on("c")[1] and nodes.staging("c"), "c to be at work")
            nodes.workers.pop("c").kill()
            shutil.rmtree(nodes.root / ".staging" / "@c")
            # One is out of the others' sight, at work as well.
            fleet.until(lambda: nodes.done() >= 60 and nodes.on("b")[1] and nodes.staging("b"), "b to be at work")
            cut_off.cut()
            fleet.until(lambda: not nodes.on("b")[0] and not nodes.on("c")[0], "their jobs to be elsewhere", None, 60)
            assert nodes.done() < JOBS
            assert nodes.workers["b"].lives
            cut_off.mend()

            fleet.until(lambda: nodes.done() == JOBS, "all jobs to be done", nodes.workers["a"], 120)
            # The one that came back works again, and looks after what it had.
            listed = [json.loads(line) for line in nodes.dlpipe("nodes", "--json").stdout.splitlines()]
            assert {one["node"]: one["stand"] for one in listed} == {"a": "working", "b": "working", "c": "gone"}
            assert fleet.sql("SELECT 1 FROM artifact_jobs WHERE run > 1"), "jobs that began again elsewhere"
            fleet.until(lambda: nodes.staging("a") == nodes.staging("b") == [], "parts that are not wanted to go")
            assert not fleet.sql("SELECT 1 FROM artifact_jobs WHERE node IS NOT NULL")
            nodes.stop()
            nodes.assert_whole(bodies)


def test_with_a_bucket_each_machine_has_a_disk_of_its_own_and_one_is_lost_with_it(
    valkey: Valkey, postgres: Postgres, tmp_path: Path, object_server: ObjectServer
) -> None:
    """The one that is cut off from broker and ledger still reaches the bucket: what it uploads then does no harm."""
    with Together("a", "b", "c") as lan, WebServer() as web:
        fleet, nodes = fleet_of(tmp_path, valkey, postgres, shelf=InBucket(object_server))
        with fleet:
            bodies = {
                web.put(f"/{n}", body, bytes_per_s=60_000): body for n in range(60) if (body := some_bytes(90_000 + n))
            }
            for machine in lan.machines:
                nodes.start(machine)
            fleet.beat()
            fleet.plan(list(bodies))
            fleet.until(lambda: nodes.on("c")[1] and nodes.staging("c"), "c to be at work")
            nodes.workers.pop("c").kill()
            shutil.rmtree(nodes.root_of("c"))
            fleet.until(lambda: nodes.on("b")[1] and nodes.staging("b"), "b to be at work")
            cut_off = next(machine for machine in lan.machines if machine.name == "b")
            cut_off.cut()
            fleet.until(lambda: not nodes.on("b")[0] and not nodes.on("c")[0], "their jobs to be elsewhere", None, 60)
            cut_off.mend()
            fleet.until(lambda: nodes.done() == len(bodies), "all jobs to be done", nodes.workers["a"], 120)
            assert fleet.sql("SELECT 1 FROM artifact_jobs WHERE run > 1"), "jobs that began again elsewhere"
            assert {row.storage_backend for row in fleet.sql("SELECT storage_backend FROM artifacts")} == {"s3"}
            fleet.until(lambda: nodes.staging("a") == nodes.staging("b") == [], "parts that are not wanted to go")
            nodes.stop()
            nodes.assert_whole(bodies)


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_nodes_are_drained_and_taken_back(
    kind: str, request: pytest.FixtureRequest, valkey: Valkey, postgres: Postgres, tmp_path: Path
) -> None:
    broker_url = request.getfixturevalue("rabbit").url if kind == "rabbitmq" else None
    with Together("a", "b") as lan, WebServer() as web:
        fleet, nodes = fleet_of(tmp_path, valkey, postgres, broker_url)
        with fleet:
            bodies: dict[str, bytes] = {}

            def plan(name: str, count: int) -> None:
                made = {
                    web.put(f"/{name}-{n}", body, bytes_per_s=100_000): body
                    for n in range(count)
                    if (body := some_bytes(100_000 + 1_000 * len(bodies) + n))
                }
                bodies.update(made)
                fleet.plan(list(made))

            for machine in lan.machines:
                nodes.start(machine, pool="prefork" if machine.name == "a" else "threads")
            fleet.beat()
            plan("first", 24)
            fleet.until(lambda: nodes.on("a")[1] and nodes.on("b")[1], "both to be at work")

            # Letting it finish: what is there ends there, and nothing new comes.
            drained = nodes.dlpipe("drain", "b", "--wait", "--timeout", "60s", "--json")
            assert drained.returncode == 0, drained.stderr
            assert json.loads(drained.stdout) | {"handed_on": 0} == {
                "node": "b", "stand": "draining", "running": 0, "held": 0, "handed_on": 0, "elsewhere": True,
            }  # fmt: skip
            assert not fleet.sql("SELECT 1 FROM artifact_jobs WHERE attempts > 0")
            fleet.until(lambda: nodes.workers["b"].says("it takes no new jobs"), "it to hear of that")
            plan("second", 8)
            fleet.until(lambda: nodes.done() == len(bodies), "the other one to do them")
            assert nodes.staging("b") == []

            # Taken back, it takes jobs; and handed back at once, they go on elsewhere.
            assert nodes.dlpipe("drain", "b", "--undo").returncode == 0
            fleet.until(lambda: nodes.workers["b"].says("takes new jobs again"), "it to work again")
            plan("third", 24)
            fleet.until(lambda: nodes.on("b")[1], "it to be at work")
            drained = nodes.dlpipe("drain", "b", "--now", "--wait", "--timeout", "60s")
            assert drained.returncode == 0, drained.stderr
            assert "were handed back" in drained.stderr
            assert nodes.on("b") == (0, [])
            nodes.workers["b"].stop()  # it can be taken out
            fleet.until(lambda: nodes.done() == len(bodies), "all jobs to be done", nodes.workers["a"], 60)
            assert not fleet.sql("SELECT 1 FROM artifact_jobs WHERE attempts > 0")
            if kind == "rabbitmq":
                listed = request.getfixturevalue("rabbit").ctl("list_queues", "name", "type", "--no-table-headers")
                found = dict(line.split("\t") for line in listed.splitlines() if line.strip())
                assert {name: of for name, of in found.items() if name.startswith("dlpipe.node.")} == {
                    f"dlpipe.node.{queue}.{node}.quorum": "quorum" for queue in ("net", "disk") for node in ("a", "b")
                }
            del nodes.workers["b"]
            shutil.rmtree(nodes.root / ".staging" / "@b", ignore_errors=True)
            nodes.stop()
            nodes.assert_whole(bodies)
