"""docker-compose.yml with what is optional: RabbitMQ as the broker and files in a bucket, as plain processes. OPS-3."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.compose import Compose
from tests.compose_says import ask, everything_said, login, passwords
from tests.conftest import absent
from tests.postgres import require
from tests.webserver import WebServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("compose"),
    pytest.mark.own_engines("as the Compose file says"),
]

BUCKET = {"STORE_URL": "s3://dlpipe/files", "STORE_ENDPOINT": "http://s3:8333", "STORE_ALLOW_HTTP": "1"}


def test_a_job_ends_completed_over_rabbitmq_into_a_bucket() -> None:
    require()
    if not Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists():
        absent("no rabbitmq-server: install the Debian package of that name")
    if not Path(sys.executable).with_name("weed").is_file() or shutil.which("wget") is None:
        absent("no object server: run make setup, and install the Debian package wget")
    with WebServer() as web, Compose(broker="rabbitmq", dotenv=BUCKET) as up:
        url = web.put("/paper.bin", b"worth fetching " * 1_000)
        up.start_redis()
        up.start_postgres()
        up.start_s3()
        up.start_rabbitmq()
        for name in ("s3-bucket", "s3-bucket", "migrate"):  # a bucket that is there is left alone
            done = up.run(name, *up.argv(name))
            assert done.returncode == 0, done.stdout + done.stderr
        for name in ("worker-net", "worker-disk", "worker-beat", "beat", "flower"):
            up.start(name)
        planned = up.run("worker-net", "dlpipe", "plan", "--json", url)
        assert planned.returncode == 0, planned.stderr
        job = json.loads(planned.stdout.splitlines()[-1])["job_id"]

        def shown() -> dict[str, str]:
            return dict(json.loads(up.run("worker-net", "dlpipe", "show", "--json", job).stdout))

        up.until(lambda: shown()["status"] in ("completed", "failed"), "the job to end")
        end = shown()
        assert end["status"] == "completed", (end["error_code"], end["error_message_safe"])
        checked = up.run("worker-disk", "dlpipe", "verify")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert not list((up.place / "data").rglob("*.bin"))
        up.until(lambda: "net@" in str(ask(up, "/api/workers?refresh=1", login=login(up))), "Flower to see a worker")
        said, secrets = everything_said(up, job, "worker-net"), passwords(up)
        assert [where for where, text in said.items() if any(secret in text for secret in secrets)] == []
        assert "amqp" in said["Flower /broker"]
        assert "s3://dlpipe/files" in said["doctor"]
