"""What docker-compose.yml says is what works: its services as plain processes, with its commands, environment, secrets
and health checks. OPS-1, OPS-3, OPS-9, SAFE-2."""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import make_url

from tests.checker import assert_clean
from tests.compose import OURS, WORKERS, Compose
from tests.compose_says import ask, everything_said, pages, passwords
from tests.conftest import absent
from tests.fleet import REPOSITORY, Process
from tests.postgres import require
from tests.servers import wait_until
from tests.webserver import WebServer
from tests.world import sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("compose"),
    pytest.mark.own_engines("as the Compose file says"),
]

SIGNATURE = "5ec2e7f00dcafe0123456789abcdef"
STILL_OPEN = {"/healthcheck": "OK", "/logout": "You have been logged out"}
"""Of Flower: what a health check may ask, and a page that says the same to everybody."""


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


@pytest.fixture(scope="module")
def up() -> Iterator[Compose]:
    """`docker compose up`"""
    require()
    with Compose() as compose:
        compose.start_redis()
        compose.start_postgres()
        done = compose.run("migrate", *compose.argv("migrate"))
        assert done.returncode == 0, done.stderr
        for name in OURS:
            if name != "migrate":
                compose.start(name)
        for name in WORKERS:
            compose.until(lambda n=name: compose.processes[n].says("ready."), f"{name} to be ready")
        compose.until(lambda: ask(compose, "/healthcheck") is not None, "Flower to answer")
        yield compose


@pytest.fixture(scope="module")
def job(up: Compose, web: WebServer) -> str:
    """The id of a job that was planned in one of the containers and has come to its end."""
    url = web.put(f"/paper.bin?X-Amz-Signature={SIGNATURE}", b"worth fetching " * 1_000)
    planned = up.run("worker-plan", "dlpipe", "plan", "--json", url)
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout.splitlines()[-1])
    engine = sa.create_engine(up.secret("database_url"))
    try:

        def ended() -> bool:
            with engine.connect() as connection:
                return connection.scalar(sa.text("SELECT status FROM jobs")) in ("completed", "failed")

        up.until(ended, "the job to end")
    finally:
        engine.dispose()
    return str(found["job_id"])


# ── that it works ─────────────────────────────────────────────────────────────────────────────────


def test_a_job_planned_in_it_ends_completed(up: Compose, job: str) -> None:
    shown = up.run("worker-plan", "dlpipe", "show", "--json", job)
    assert json.loads(shown.stdout)["status"] == "completed", shown.stdout + shown.stderr
    files = [path for path in (up.place / "data").rglob("*") if path.is_file() and path.name[0] != "."]
    assert [path.name.partition(".")[0] for path in files] == [sha256(b"worth fetching " * 1_000)]


def test_each_stage_ran_on_the_worker_of_its_queue(up: Compose, job: str) -> None:
    def stages(worker: str) -> set[str]:
        lines = [line for line in up.processes[worker].log.read_text().splitlines() if line.startswith("{")]
        said = [json.loads(line) for line in lines]
        return {one["stage"] for one in said if one.get("job_id") == job and one["message"].startswith("done: ")}

    assert stages("worker-net") == {"head", "resume_decide", "stream"}
    assert stages("worker-disk") == {"finalize", "index", "dedupe"}


@pytest.mark.parametrize("name", [*WORKERS, "beat", "flower", "redis", "postgres"])
def test_every_service_is_healthy_by_its_own_check(up: Compose, job: str, name: str) -> None:
    up.until(lambda: up.healthy(name), f"{name} to be healthy")


def test_the_checker_finds_nothing(up: Compose, job: str) -> None:
    done = up.run("worker-disk", "dlpipe", "verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_clean(up.secret("database_url"), up.place / "data", strict=False)


def test_prometheus_sees_every_worker_and_the_alerts(up: Compose, job: str) -> None:
    if shutil.which("prometheus") is None:
        absent("no prometheus to look at the workers with: install the Debian package prometheus")
    up.start_prometheus()

    def query(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{up.port('prometheus', 9090)}{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    up.until(lambda: query("/api/v1/targets") is not None, "Prometheus to answer")

    def seen() -> bool:
        targets = query("/api/v1/targets")["activeTargets"]
        return len(targets) == len(WORKERS) + 1 and all(one["health"] == "up" for one in targets)

    up.until(seen, "Prometheus to have seen every worker")

    def counted() -> bool:
        found = query("/api/v1/query?" + urllib.parse.urlencode({"query": 'max(dlpipe_jobs{status="completed"})'}))
        return bool(found["result"]) and found["result"][0]["value"][1] == "1"

    up.until(counted, "the job in Prometheus")
    rules = [rule for group in query("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert rules
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


# ── that it is closed ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("login", [None, "dlpipe:wrong", "dlpipe:", ":"])
def test_flower_shows_nothing_to_who_is_not_known(up: Compose, job: str, login: str | None) -> None:
    for method, path in pages():
        answer = ask(up, path, login=login, method=method)
        assert answer is not None
        status, text = answer
        if method == "GET" and path in STILL_OPEN:
            assert STILL_OPEN[path] in text
        else:
            assert status in (401, 403, 404, 405), (method, path, status)
        assert not any(word in text for word in ("@", "dlpipe", "celery", job)), (method, path, text[:300])


def test_flower_shows_workers_to_who_is_known_and_takes_no_orders(up: Compose, job: str) -> None:
    login = up.secret("flower_users").strip()

    def workers() -> dict[str, Any]:
        answer = ask(up, "/api/workers?refresh=1", login=login)
        assert answer is not None
        assert answer[0] == 200, answer
        return dict(json.loads(answer[1]))

    up.until(lambda: len(workers()) == len(WORKERS), "Flower to see every worker")
    victim = next(iter(workers()))
    answer = ask(up, f"/api/worker/shutdown/{victim}", login=login, method="POST")
    assert answer is not None
    assert answer[0] == 403, answer
    metrics = ask(up, "/metrics", login=login)
    assert metrics is not None
    assert metrics[0] == 200


def test_flower_without_users_does_not_start(up: Compose) -> None:
    env = {**up.env("flower"), "FLOWER_USERS_FILE": ""}
    for users in (None, "", "dlpipe:\n", "nobody\n"):
        if users is not None:
            (up.place / "users").write_text(users)
            env["FLOWER_USERS_FILE"] = str(up.place / "users")
        done = up.run_with(env, *up.argv("flower"))
        assert done.returncode == 1, users
        assert "error: " in done.stderr


# ── that nothing secret gets out ──────────────────────────────────────────────────────────────────


def test_no_password_and_no_signature_is_found_anywhere(up: Compose, job: str) -> None:
    said = everything_said(up, job, "worker-plan")
    secret = {*passwords(up), SIGNATURE}
    assert [where for where, text in said.items() if any(one in text for one in secret)] == []
    # The search would find something: who is asked does say what is no secret.
    assert f"file {up.secrets}/database_url (environment DLPIPE_DATABASE_URL_FILE)" in said["doctor"]
    assert "(set, not shown)" in said["doctor"]
    assert "redis" in said["Flower /broker"]
    assert any(job in text for where, text in said.items() if where.startswith("log "))
    assert any("--conf=" in text for where, text in said.items() if where.startswith("arguments"))
    assert any("DLPIPE_DATABASE_URL_FILE" in text for where, text in said.items() if where.startswith("environment"))


def test_the_database_writes_down_statements_without_what_was_in_them(up: Compose, job: str) -> None:
    """Slow and refused ones come into its log; here all are slow, and one is refused with a row that holds the URL."""
    server = up.database()
    with server.connect("dlpipe") as admin:
        (url,) = admin.execute("SELECT request_url FROM artifact_jobs").fetchone() or ("",)
        assert SIGNATURE in url
        admin.execute("ALTER ROLE dlpipe SET log_min_duration_statement = 0")
        try:
            with psycopg.connect(up.secret("database_url").replace("+psycopg", "")) as slow:
                slow.execute("SELECT 1 FROM artifact_jobs WHERE request_url = %s", [url])
            refuse = psycopg.sql.SQL("UPDATE artifact_jobs SET state = NULL WHERE job_id = {}").format(job)
            with pytest.raises(psycopg.errors.NotNullViolation, match=SIGNATURE[:12]):
                admin.execute(refuse)
        finally:
            admin.execute("ALTER ROLE dlpipe RESET log_min_duration_statement")
    said = server.log_file.read_text(errors="replace")
    assert "SELECT 1 FROM artifact_jobs WHERE request_url = $1" in said
    assert "violates not-null constraint" in said
    assert SIGNATURE[:12] not in said


WRONG = "n0tTheR1ghtOne"
REFUSED: dict[str, dict[str, int | None]] = {
    "database_url": {
        "doctor": 1, "doctor --json": 1, "migrate": 1, "status": 1, "top --once": 1, "reconcile": 1, "verify": 1,
        "plan http://127.0.0.1/x": 1, "jobs --json": 1,
    },
    "redis_url": {"doctor": 1, "doctor --json": 1, "top --once": None, "reconcile": None},
    "broker_url": {"doctor": 1, "doctor --json": 1, "plan http://127.0.0.1/x": None, "top --once": None},
}  # fmt: skip
"""What is asked with a wrong password, and how it ends; None: it does what it can without."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_password_that_is_refused_is_told_of_and_not_shown(up: Compose, job: str, name: str) -> None:
    right = up.secret(name)
    file = up.place / f"wrong_{name}"
    file.write_text(right.replace(make_url(right).password or "", WRONG))
    env = {**up.env("worker-plan"), f"DLPIPE_{name.upper()}_FILE": str(file)}
    for words, code in REFUSED[name].items():
        done = up.run_with(env, "dlpipe", *words.split())
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, (words, said)
        assert WRONG not in said, words
        assert not any(secret in said for secret in passwords(up)), words
        if "doctor" in words:
            assert re.search(r"\[(ledger|lease|broker)_unavailable\]", said), said
    process = Process(f"refused-{name}", up.argv("worker-plan"), env, REPOSITORY, up.log / f"refused-{name}.log")
    try:
        tells = {"database_url": "ledger_unavailable", "broker_url": "Cannot connect to redis://dlpipe:**@"}
        if word := tells.get(name):
            wait_until(lambda: process.says(word), f"a worker to say {word}", 60)
        else:
            wait_until(lambda: process.says("ready."), "a worker to wait for Redis", 60)
    finally:
        process.stop()
    said = process.log.read_text()
    assert not any(secret in said for secret in (WRONG, *passwords(up)))


# ── that it ends ──────────────────────────────────────────────────────────────────────────────────


def test_it_ends_within_the_time_it_is_given(up: Compose, job: str) -> None:
    """The last test: afterwards nothing runs."""
    ended = up.stop()
    assert None not in ended.values(), ended
