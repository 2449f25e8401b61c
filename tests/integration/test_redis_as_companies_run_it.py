"""Redis behind TLS, with users who may little, found by Sentinels, or as a cluster: leases, limits and broker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from dlpipe.core.errors import LeaseLost, Misconfigured
from dlpipe.embedded.tether import tethered
from dlpipe.lease import stops
from dlpipe.lease.connect import connect
from dlpipe.lease.lock import RedisLeases
from dlpipe.lease.progress import RedisProgress
from dlpipe.lease.reservations import RedisReservations
from dlpipe.net.gate import Go, Pause, SharedGate, Target, Why
from dlpipe.net.limits import Bounds
from dlpipe.net.line import RedisLine
from dlpipe.settings import load
from tests import servers
from tests.certificates import Authority
from tests.fleet import QUICK, Fleet
from tests.servers import Valkey, free_port, wait_until
from tests.shelf import Shelf
from tests.tlsfront import TlsFront
from tests.webserver import WebServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("it is about Redis", "broker"),
]

LEASES_MAY = "~dlpipe:* &* +@read +@write +@scripting +@connection +@transaction +time"
BROKER_MAY = "~* &* +@all -@admin -@dangerous +info"


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


def some_files(web: WebServer, count: int) -> dict[str, bytes]:
    return {web.put(f"/{n}", body): body for n in range(count) if (body := os.urandom(5_000 + n))}


# ── TLS and users ─────────────────────────────────────────────────────────────────────────────────


def test_workers_use_redis_behind_tls_as_users_who_may_little(
    valkey: Valkey, tmp_path: Path, ledger_settings: Mapping[str, str], shelf: Shelf
) -> None:
    authority = Authority(tmp_path / "authority")
    with valkey.client() as admin:
        admin.execute_command("ACL", "SETUSER", "leases", "on", ">l3ases", *LEASES_MAY.split())
        admin.execute_command("ACL", "SETUSER", "broker", "on", ">br0ker", *BROKER_MAY.split())
        admin.execute_command("ACL", "SETUSER", "default", "off")
    with TlsFront(valkey.socket, authority.sign("localhost"), tmp_path) as front, WebServer() as web:
        there, trust = f"localhost:{front.port}", f"ssl_ca_certs={authority.file}"
        settings = {
            "DLPIPE_REDIS_URL": f"rediss://leases:l3ases@{there}/0?{trust}",
            "DLPIPE_BROKER_URL": f"rediss://broker:br0ker@{there}/0?{trust}",
            **ledger_settings,
            **shelf.settings,
        }
        bodies = some_files(web, 3)
        with Fleet(tmp_path / "home", valkey, shelf, **{**QUICK, **settings}) as fleet:
            worker = fleet.worker("w1")
            fleet.beat()
            fleet.plan(list(bodies))
            fleet.until(lambda: fleet.done() == 3, "three jobs to end", worker)
            fleet.assert_each_once(bodies)
            said = "".join(process.log.read_text() for process in fleet.processes)
        assert "l3ases" not in said
        assert "br0ker" not in said
        assert "insecure" not in said
        with (
            connect(settings["DLPIPE_REDIS_URL"]) as leases,
            pytest.raises(NoPermissionError),
        ):
            leases.set("net", "x")  # who holds leases cannot touch the queues


@pytest.mark.no_engines("ledger", "store")
@pytest.mark.parametrize("scheme", ["redis_url", "broker_url"])
def test_a_certificate_of_an_unknown_authority_is_refused(scheme: str, valkey: Valkey, tmp_path: Path) -> None:
    """kombu by itself would take any."""
    foreign = Authority(tmp_path / "foreign").sign("localhost")
    with TlsFront(valkey.socket, foreign, tmp_path) as front:
        env = {"DLPIPE_BROKER_URL": f"rediss://localhost:{front.port}/0", "DLPIPE_HOME": str(tmp_path)}
        chosen = load(env).settings
        if scheme == "redis_url":
            with connect(chosen.redis_uri) as client, pytest.raises(RedisError):
                client.ping()
        else:
            done = subprocess.run(
                [sys.executable, "-c", BROKER_ANSWERS, chosen.broker_uri], capture_output=True, text=True, check=False,
                timeout=60,
            )  # fmt: skip
            assert "CERTIFICATE_VERIFY_FAILED" in done.stderr
        wait_until(lambda: front.refused, "the handshake to be broken off")


BROKER_ANSWERS = """
import sys
from kombu import Connection
with Connection(sys.argv[1]) as connection:
    connection.ensure_connection(max_retries=1, timeout=5)
    connection.default_channel
"""


# ── Sentinel ──────────────────────────────────────────────────────────────────────────────────────


class Server:
    """A Redis or a Sentinel on a loopback port."""

    def __init__(self, folder: Path, *words: str, sentinel: str = "") -> None:
        folder.mkdir()
        self.port = free_port()
        config = folder / "own.conf"
        config.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n{sentinel}")
        command = [servers.server_binary(), str(config), *words]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(tethered(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with redis.Redis(port=self.port) as client:
            wait_until(lambda: self._answers(client), "an answer")

    def _answers(self, client: redis.Redis) -> bool:
        try:
            return bool(client.ping())
        except RedisError as error:
            return isinstance(error, AuthenticationError)  # it is up, and wants a password

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


SENTINEL = """
sentinel monitor mymaster 127.0.0.1 {port} 1
sentinel auth-pass mymaster s3same
sentinel down-after-milliseconds mymaster 500
sentinel failover-timeout mymaster 2000
"""


def test_a_failover_by_sentinels_is_followed_by_leases_and_by_the_broker(
    tmp_path: Path, ledger_settings: Mapping[str, str], shelf: Shelf
) -> None:
    auth = ("--requirepass", "s3same", "--masterauth", "s3same", "--save", "")
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="dl") as directory:
        broker = Valkey(directory)  # only where a fleet wants one; never started
        web = stack.enter_context(WebServer())
        first = Server(tmp_path / "first", *auth)
        stack.callback(first.kill)
        second = Server(tmp_path / "second", *auth, "--replicaof", "127.0.0.1", str(first.port))
        stack.callback(second.kill)
        sentinel = Server(tmp_path / "sentinel", "--sentinel", sentinel=SENTINEL.format(port=first.port))
        stack.callback(sentinel.kill)
        with redis.Redis(port=sentinel.port) as asked:
            wait_until(lambda: asked.execute_command("SENTINEL", "REPLICAS", "mymaster"), "the replica to be known", 30)
        url = f"sentinel://:s3same@127.0.0.1:{sentinel.port}/0"
        settings = {
            "DLPIPE_REDIS_URL": url, "DLPIPE_BROKER_URL": url, "DLPIPE_REDIS_SENTINEL_MASTER": "mymaster",
            "DLPIPE_LEASE_TTL_S": "20", **ledger_settings, **shelf.settings,
        }  # fmt: skip
        bodies = some_files(web, 3)
        held = web.put("/held", body := os.urandom(200_000), hold_at=100_000)
        with Fleet(tmp_path / "home", broker, shelf, **{**QUICK, **settings}) as fleet:
            worker = fleet.worker("w1")
            fleet.beat()
            fleet.plan([held])
            fleet.until(lambda: web.sent("/held") >= 100_000, "the worker to be busy", worker)
            first.kill()
            with redis.Redis(port=second.port, password="s3same") as client:
                wait_until(lambda: client.info("replication")["role"] == "master", "the replica to take over", 30)
            fleet.plan(list(bodies))
            web.release("/held")
            fleet.until(lambda: fleet.done() == 4, "four jobs to end", worker, within_s=60)
            fleet.assert_each_once({**bodies, held: body})


@pytest.mark.no_engines("ledger", "store")
def test_sentinels_without_a_masters_name_are_refused(tmp_path: Path) -> None:
    for env in ({"DLPIPE_REDIS_URL": "sentinel://h:1/0"}, {"DLPIPE_BROKER_URL": "sentinel://h:1/0"}):
        with pytest.raises(Misconfigured, match="Sentinels"):
            load({**env, "DLPIPE_HOME": str(tmp_path)})


# ── cluster ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.no_engines("ledger", "store")
def test_no_script_and_no_command_touches_keys_of_two_nodes(tmp_path: Path) -> None:
    """A cluster refuses that even where one node has all slots."""
    with ExitStack() as stack:
        bus = free_port()
        server = Server(tmp_path / "one", "--cluster-enabled", "yes", "--cluster-port", str(bus), "--save", "")
        stack.callback(server.kill)
        client = stack.enter_context(redis.Redis(port=server.port))
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        wait_until(lambda: "ok" in str(client.execute_command("CLUSTER INFO")).partition("slots")[0], "the cluster")
        with pytest.raises(RedisError, match="same slot"):
            client.mget(["a", "b"])
        leases = RedisLeases(client, owner="o")
        with leases.hold("one") as lease, leases.hold("two") as other:
            assert leases.live(["one", "two", "three"]) == {"one", "two"}
            assert leases.heartbeat.beat()
            assert leases.stop("one")
            assert stops.marks(client, ["dlpipe:lease:one", "dlpipe:lease:two"]) == [lease.token, None]
            assert leases.stops.look()
            with pytest.raises(LeaseLost):
                lease.check()
            other.check()
        leases.close()
        progress = RedisProgress(client)
        progress.report("one", 1, 2)
        progress.report("two", 3, None)
        assert progress.get(["one", "two"]) == {"one": (1, 2), "two": (3, None)}
        assert RedisReservations(client).reserve("volume", "one", 5, 10) == 0
        gate = SharedGate(RedisLine(client, away_s=0))
        target = Target("GET", "url")
        assert gate.enter("host", Bounds(5, 2), "token", 1_000, target) == Go()
        gate.arrived("host", "token")
        gate.renew([("host", "token"), ("other", "token")], 1_000)
        gate.leave("host", "token")
        assert [gate.busy("host", Target("GET", url), Pause(1_000, 1, 1_000)).why for url in "abc"][-1] is Why.COOLING
        gate.answered("host", target)
        assert gate.later("host", 10, 10, 100) > 0
