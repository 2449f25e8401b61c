"""The private Redis is emptied in the middle of the work: messages, leases, limits, all of it (LEASE-5, HEAL-1)."""

from __future__ import annotations

import os
import threading

import pytest
import redis

from dlpipe.db import SqlDatabase
from dlpipe.embedded.redis import socket_path
from tests.e2e.conftest import Command
from tests.servers import wait_until
from tests.webserver import WebServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOBS = 200


@pytest.mark.timeout(300)
def test_a_fetch_of_200_files_survives_the_emptying_of_its_redis_within_two_minutes(
    command: Command, web: WebServer
) -> None:
    bodies = {web.put(f"/{n}.bin", body): body for n in range(JOBS) if (body := os.urandom(5_000))}
    child = command.start("fetch", "-i", "-", "-q", "--json", stdin="\n".join(bodies))
    output: list[str] = []
    # Read all along: a pipe that is full would stop the command.
    reader = threading.Thread(target=lambda: output.extend(child.communicate("\n".join(bodies), timeout=250)))
    reader.start()
    ledger = command.home / "ledger.db"
    wait_until(ledger.exists, "the ledger to be made", 60)
    database = SqlDatabase(f"sqlite:///{ledger}")

    def scalar(text: str) -> int:
        with database.engine.connect() as connection:
            return int(connection.exec_driver_sql(text).scalar_one())

    done = "SELECT count(*) FROM jobs WHERE status IN ('completed', 'skipped')"

    def a_fifth_is_done() -> bool:
        assert reader.is_alive(), output
        return database.schema_version() is not None and scalar(done) >= JOBS // 5

    wait_until(a_fifth_is_done, "a fifth to be done", 90)
    with redis.Redis(unix_socket_path=str(socket_path(command.home))) as line:
        line.flushall()
    assert scalar(done) < JOBS, "it was in the middle"
    reader.join(120)
    assert not reader.is_alive(), "two minutes were not enough"
    assert child.returncode == 0, output
    assert scalar(done) == JOBS
    assert scalar("SELECT count(*) FROM artifacts") == JOBS
    assert scalar("SELECT count(*) FROM artifact_ops WHERE state = 'finished' AND op_type = 'INDEX'") == JOBS
    assert scalar("SELECT count(*) FROM jobs WHERE status NOT IN ('completed', 'skipped')") == 0
    database.close()
