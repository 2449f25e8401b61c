"""RabbitMQ behind TLS: its certificate has to be right, and so has the password. Queues are quorum queues. OPS-3."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.fleet import QUICK, REPOSITORY, Fleet
from tests.rabbitmq import RabbitMQ
from tests.servers import Valkey
from tests.webserver import WebServer

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.xdist_group("rabbitmq-tls"),
    pytest.mark.own_engines("RabbitMQ behind TLS"),
]  # fmt: skip

NAME = "localhost"
JOBS = 12


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def rabbit(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path_factory.mktemp("rabbit"), authority.sign(NAME)) as server:
        yield server


def address(rabbit: RabbitMQ, *, host: str = NAME, password: str = "sesame") -> str:
    return f"amqps://dlpipe:{password}@{host}:{rabbit.port}//"


def told(fleet: Fleet) -> str:
    """What `dlpipe doctor` says of a broker that is not the right one."""
    done = subprocess.run(
        [sys.executable, "-m", "dlpipe", "doctor"],
        env=fleet.env, cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def test_workers_and_planners_use_it_where_the_certificate_is_right(
    rabbit: RabbitMQ, authority: Authority, broker: Valkey, web: WebServer, tmp_path: Path
) -> None:
    settings = {"DLPIPE_BROKER_URL": address(rabbit), "DLPIPE_BROKER_CA_FILE": str(authority.file)}
    bodies = {web.put(f"/{n}", body): body for n in range(JOBS) if (body := os.urandom(5_000 + n))}
    with Fleet(tmp_path / "home", broker, **{**QUICK, **settings}) as fleet:
        workers = [fleet.worker("w1"), fleet.worker("w2", pool="prefork", size=2)]
        fleet.beat()
        fleet.plan(list(bodies))
        fleet.until(lambda: fleet.done() == JOBS, "all jobs to end", workers[0], within_s=60)
        rabbit.restart()
        again = {web.put("/after", body): body for body in [os.urandom(9_000)]}
        fleet.plan(list(again))
        fleet.until(lambda: fleet.done() == JOBS + 1, "the job after the restart to end", workers[0], within_s=90)
        fleet.assert_each_once({**bodies, **again})
        listed = rabbit.ctl("list_queues", "name", "type", "durable", "--no-table-headers").splitlines()
        found = {name: (kind, durable) for name, kind, durable in (line.split("\t") for line in listed if line.strip())}
        assert {found[f"dlpipe.{name}.quorum"] for name in ("net", "disk", "beat", "plan")} == {("quorum", "true")}
        said = "".join(process.log.read_text() for process in fleet.processes)
    assert "sesame" not in said


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("another name", "IP address mismatch"),
        ("an unknown authority", "unable to get local issuer certificate"),
        ("no authority named", "unable to get local issuer certificate"),
        ("a wrong password", "AccessRefused"),
    ],
)
def test_who_it_is_not_gets_no_message_and_no_password(
    how: str, reason: str, rabbit: RabbitMQ, authority: Authority, broker: Valkey, tmp_path: Path
) -> None:
    settings = {"DLPIPE_BROKER_URL": address(rabbit), "DLPIPE_BROKER_CA_FILE": str(authority.file)}
    match how:
        case "another name":
            settings["DLPIPE_BROKER_URL"] = address(rabbit, host="127.0.0.1")
        case "an unknown authority":
            settings["DLPIPE_BROKER_CA_FILE"] = str(Authority(tmp_path / "foreign").file)
        case "no authority named":
            del settings["DLPIPE_BROKER_CA_FILE"]
        case _:
            settings["DLPIPE_BROKER_URL"] = address(rabbit, password="sesame0")
    with Fleet(tmp_path / "home", broker, **{**QUICK, **settings}) as fleet:
        said = told(fleet)
        assert "broker_unavailable" in said
        assert reason in said
        worker = fleet.celery("w1", "worker", "-P", "threads", "-n", "w1@test")
        fleet.until(lambda: worker.says("Cannot connect to amqps://dlpipe:**@") or not worker.lives, "it to be refused")
        assert not worker.says("ready.")
        assert "sesame" not in said + worker.log.read_text()
