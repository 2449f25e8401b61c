"""No secret of a URL gets out: not of one that works, not of one that fails (SAFE-1, SAFE-2).

Real workers, a real scheduler and Flower, all as talkative as they can be; then everything they said is searched.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlpipe.core.messages import Fault
from dlpipe.db import schema
from tests.fleet import QUICK, Fleet
from tests.hostile import honest
from tests.origin import Asked, Origin, Say, Then, answer
from tests.servers import Valkey, free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("secrets"),
    pytest.mark.own_engines("what SQLite, Redis and the folder hold is searched"),
]

SIGNATURE = "5ec2e7f00dcafe0123456789abcdef5ec2e7f00dcafe0123456789abcdef5ec2"
CREDENTIAL = "AKIA5EC2E7CREDENTIAL"
TOKEN = "5ec2e7T0ken"
ONWARD = "0nwardS3cret"
PASSWORD = "Passw0rdS3cret"
SENT = "5ec2e7SentByName"
SECRETS = (SIGNATURE, CREDENTIAL, TOKEN, ONWARD, PASSWORD)
QUERY = f"?X-Amz-Credential={CREDENTIAL}%2F20260101&X-Amz-Security-Token={TOKEN}%3D%3D&X-Amz-Signature={SIGNATURE}"
WRONG = "protocol_error"
BODY = b"worth fetching " * 10_000
_PACKED = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{40,}")
PRIVATE = {
    ("artifact_jobs", "request_url"), ("artifact_jobs", "canonical_url"), ("artifact_jobs", "mirrors"),
    ("url_index", "canonical_url"),
}  # fmt: skip
"""Where the URLs themselves are kept; no interface reads them out."""


def echo(asked: Asked) -> bytes:
    return asked.target.encode()


def closing(text: bytes) -> Say:
    return Say(text, Then.CLOSE)


def to(location: str) -> Say:
    return Say(answer(302, b"", f"Location: {location}"))


def failing(origin: Origin) -> dict[str, str]:
    """URLs that end in trouble of every kind, and the code of each."""
    scripts = {
        "/gone": (lambda asked: Say(answer(404, echo(asked))), "http_404"),
        "/forbidden": (lambda asked: Say(answer(403, echo(asked))), "http_403"),
        "/trouble": (lambda asked: Say(answer(500, echo(asked))), "http_5xx"),
        "/cut": (lambda _: closing(answer(200, BODY)[:-100]), "body_cut"),
        "/malformed": (lambda asked: closing(b"HTTP/1.1 200 OK\r\n" + echo(asked) + b"\r\n\r\n"), WRONG),
        "/length": (lambda asked: closing(answer(200, b"", f"Content-Length: {asked.target}", length=False)), WRONG),
        "/range": (lambda asked: Say(answer(206, BODY, f"Content-Range: {asked.target}")), "range_not_asked"),
        "/circle": (lambda asked: to(asked.target), "too_many_redirects"),
        "/ftp": (lambda _: to(f"ftp://u:{ONWARD}@h.example/{ONWARD}"), "redirect_refused"),
        "/odd": (lambda _: to(f"http://[{ONWARD}"), "redirect_refused"),
        "/onward": (lambda _: to(f"http://127.0.0.1:1/f?token={ONWARD}"), "connect_failed"),
    }  # fmt: skip
    made = {origin.on(path, script) + QUERY: code for path, (script, code) in scripts.items()}
    return {**made, f"http://127.0.0.1:1/nobody{QUERY}": "connect_failed"}


class Monitor:
    """Every command that anybody sends to Redis, as its MONITOR tells."""

    def __init__(self, path: str) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(path)
        self._line.sendall(b"MONITOR\r\n")
        self._said: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while piece := self._line.recv(1 << 16):
            self._said.append(piece)

    def said(self) -> str:
        return opened(b"".join(self._said).decode(errors="replace"))

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._line.close()


@dataclass
class Said:
    """All that came out of a run, by where it was found."""

    texts: dict[str, str]
    job_ids: list[str]
    fleet: Fleet


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Said]:
    home = tmp_path_factory.mktemp("secrets") / "home"
    talkative = {
        **QUICK, "DLPIPE_LOG_LEVEL": "DEBUG", "DLPIPE_RETRY_MAX_ATTEMPTS": "2", "DLPIPE_NET_RETRIES": "1",
        "DLPIPE_NET_MAX_RETRY_SLEEP_S": "0.2", "PYTHONDEVMODE": "1",
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="dl") as directory,
        Valkey(directory) as broker,
        Origin() as origin,
        Fleet(home, broker, **talkative) as fleet,
        Monitor(broker.socket) as monitor,
    ):
        good, bad = origin.on("/good.bin", honest(BODY)) + QUERY, failing(origin)
        texts = {"plan": refused(fleet)}
        fleet.plan([good])
        texts["messages that wait"] = everything_in(broker)
        flower_port = free_port()
        shown = {"w1": str(free_port()), "w2": str(free_port())}
        worker = fleet.worker("w1", "-E", "-l", "DEBUG", pool="prefork", size=2, DLPIPE_METRICS_PORT=shown["w1"])
        as_json = {"DLPIPE_LOG_FORMAT": "json", "DLPIPE_METRICS_PORT": shown["w2"]}
        other = fleet.worker("w2", "-E", "-l", "DEBUG", pool="threads", size=2, **as_json)
        flower = fleet.celery("flower", "flower", f"--port={flower_port}", FLOWER_UNAUTHENTICATED_API="true")
        seen = "/api/workers?refresh=1"
        fleet.until(lambda: "w1@test" in (page(flower_port, seen) or ""), "Flower to see the worker", flower)
        fleet.plan([*bad], priority=1)
        sent = origin.on("/sent.bin", honest(BODY)) + f"?X-Amz-Signature={SENT}"
        send_by_name(fleet, "dlpipe.plan", sent)
        send_by_name(fleet, "dlpipe.plam", sent)
        beat = fleet.celery("beat", "beat", "-s", str(home / "schedule"), "-l", "DEBUG")
        ended = "SELECT count(*) AS n FROM jobs WHERE status IN ('completed', 'failed')"
        fleet.until(lambda: fleet.sql(ended)[0].n == 2 + len(bad), "every job to end", worker, within_s=90)
        found = fleet.sql(
            "SELECT a.request_url AS url, j.status, j.error_code FROM artifact_jobs a JOIN jobs j USING (job_id)"
        )
        assert {row.url: (row.status, row.error_code) for row in found} == {
            good: ("completed", None), sent: ("completed", None),
            **{url: ("failed", code) for url, code in bad.items()},
        }  # fmt: skip
        job_ids = [row.job_id for row in fleet.sql("SELECT job_id FROM jobs")]
        texts |= flower_says(flower_port)
        texts |= commands_say(fleet, job_ids)
        texts |= {f"metrics of {name}": page(int(port), "/metrics") or "" for name, port in shown.items()}
        for process in (flower, beat, worker, other):
            process.stop()
        texts["what Redis was told"] = monitor.said()
        texts["what Redis holds"] = everything_in(broker)
        texts |= files_say(home) | files_say(Path(directory))
        texts |= database_says(fleet)
        yield Said(texts, job_ids, fleet)


def send_by_name(fleet: Fleet, task: str, url: str) -> None:
    """As a process does that has nothing of dlpipe: the address is in the message itself."""
    code = "import json, sys\nfrom celery import Celery\nbroker, task, url = json.load(sys.stdin)\n"
    code += "Celery(broker=broker).send_task(task, kwargs={'url': url}, queue='dlpipe.plan', ignore_result=True)"
    fleet.python(code, json.dumps([fleet.env["DLPIPE_BROKER_URL"], task, url]))


def refused(fleet: Fleet) -> str:
    """A URL with a password in it, offered in every way there is."""
    url = f"http://user:{PASSWORD}@files.example/f.bin{QUERY}"
    offered = f"[{{'url': {url!r}}}, {{'url': {url!r}, 'mirrors': [{url!r}]}}]"
    many = f"from dlpipe import plan, plan_many\nprint(plan_many({offered}))\n"
    one = f"{many}plan.delay(url={url!r})"
    outputs = [
        ran(fleet, *argv)
        for argv in (("-c", many), ("-c", one), ("-m", "dlpipe", "plan", "--json", url), ("-m", "dlpipe", "fetch", url))
    ]
    assert all("url_userinfo" in output for output in outputs)
    return "\n".join(outputs)


def ran(fleet: Fleet, *argv: str) -> str:
    """All that a Python process of the user said."""
    command = [sys.executable, *argv]
    done = subprocess.run(command, env=fleet.env, cwd=fleet.cwd, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def opened(text: str) -> str:
    """With what is packed in it: bodies of messages are sent as base64."""
    unpacked = [base64.b64decode(word[: len(word) // 4 * 4]) for word in _PACKED.findall(text)]
    return "\n".join([text, *(piece.decode(errors="replace") for piece in unpacked)])


def everything_in(broker: Valkey) -> str:
    """Every value as it is; a dump would have them compressed."""
    read = {"string": "GET", "list": "LRANGE {} 0 -1", "set": "SMEMBERS", "hash": "HGETALL", "zset": "ZRANGE {} 0 -1"}
    with broker.client() as client:
        found = []
        for key in client.scan_iter():
            command = read[client.type(key).decode()]
            words = command.split() if "{}" in command else [command, "{}"]
            found.append(f"{key!r} {client.execute_command(*[key if word == '{}' else word for word in words])!r}")
        return opened("\n".join(found))


def page(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as got:
            return str(got.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")
    except OSError:
        return None


def flower_says(port: int) -> dict[str, str]:
    paths = ["/api/tasks?limit=1000", "/api/workers?refresh=1", "/workers", "/tasks", "/broker", "/metrics"]
    found = {f"Flower {path}": page(port, path) or "" for path in paths}
    tasks = json.loads(found["Flower /api/tasks?limit=1000"])
    assert len(tasks) > 10
    return found | {f"Flower {task}": page(port, f"/task/{task}") or "" for task in tasks}


def commands_say(fleet: Fleet, job_ids: list[str]) -> dict[str, str]:
    words = [["jobs", "--json"], ["jobs"], ["status", "--json"], ["status"], ["doctor"], ["metrics"]]
    for job in job_ids[:: len(job_ids) // 4]:
        words += [["show", job, "--json"], ["ops", job, "--json"]]
    words += [["show", job_ids[0]], ["ops", job_ids[0]], ["retry", "nobody"]]
    return {f"dlpipe {' '.join(one)}": ran(fleet, "-m", "dlpipe", *one) for one in words}


def files_say(folder: Path) -> dict[str, str]:
    """Logs, sidecars, what Redis wrote down; not the ledger, which is looked at column by column."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("ledger.db")]
    return {f"file {path.name}": opened(path.name + path.read_bytes().decode(errors="replace")) for path in paths}


def database_says(fleet: Fleet) -> dict[str, str]:
    found = {}
    for table in schema.metadata.tables.values():
        for column in table.columns:
            rows = fleet.sql(f'SELECT "{column.name}" AS it FROM "{table.name}"')
            found[f"{table.name}.{column.name}"] = "\n".join(str(row.it) for row in rows)
    return found


def test_no_secret_is_found(said: Said) -> None:
    private = {f"{table}.{column}" for table, column in PRIVATE}
    leaks = [
        f"{where}: …{text[max(0, text.find(secret) - 60) : text.find(secret)]}"
        for where, text in said.texts.items()
        for secret in SECRETS
        if secret in text and where not in private
    ]
    assert leaks == []


def test_a_password_is_kept_nowhere_at_all(said: Said) -> None:
    assert [where for where, text in said.texts.items() if PASSWORD in text] == []


def test_of_a_request_that_was_sent_by_name_nobody_tells_the_address(said: Said) -> None:
    """It is in the broker, as the message is; whoever takes the message, or watches, says nothing of what is in it."""
    private = {*(f"{table}.{column}" for table, column in PRIVATE), "what Redis was told"}
    told = [where for where, text in said.texts.items() if SENT in text and where not in private]
    assert [where for where in told if not where.endswith(".aof")] == []
    assert SENT in said.texts["what Redis was told"]
    tasks = json.loads(said.texts["Flower /api/tasks?limit=1000"]).values()
    assert {(one["args"], one["kwargs"]) for one in tasks if one["name"] == "dlpipe.plan"} == {("(not shown)",) * 2}
    workers = said.texts["file w1.log"] + said.texts["file w2.log"]
    assert f"dropped: {Fault.TASK}" in workers


def test_the_search_would_find_something(said: Said) -> None:
    """What is searched does hold what was done: ids in messages and logs, codes in answers, URLs where they belong."""
    texts = said.texts
    assert SIGNATURE in texts["artifact_jobs.request_url"]
    assert SIGNATURE in texts["url_index.canonical_url"]
    for where in ("messages that wait", "what Redis was told", "file w1.log", "file w2.log", "dlpipe jobs --json"):
        assert any(job in texts[where] for job in said.job_ids), where
    assert "DEBUG" in texts["file w1.log"]
    assert "DEBUG" in texts["file beat.log"]
    said_as_json = [json.loads(line) for line in texts["file w2.log"].splitlines() if line.startswith("{")]
    assert {"debug", "info", "warning"} <= {line["level"] for line in said_as_json}
    for where in ("metrics of w1", "metrics of w2"):
        assert "dlpipe_failures_total{" in texts[where], where
    assert 'code="http_404"' in texts["dlpipe metrics"]
    assert "dlpipe.stream" in texts["Flower /api/tasks?limit=1000"]
    assert "protocol_error" in texts["jobs.error_code"]


def test_an_error_of_the_database_tells_no_values(said: Said) -> None:
    """What a driver refuses comes with its statement; the values beside it are URLs."""
    with said.fleet.database.write() as unit:
        unit._connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON artifact_jobs BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    try:
        output = ran(said.fleet, "-c", f"from dlpipe import plan\nplan.delay(url='http://files.example/new{QUERY}')")
    finally:
        with said.fleet.database.write() as unit:
            unit._connection.exec_driver_sql("DROP TRIGGER refuse")
    assert "Traceback" in output
    assert "refused" in output
    assert not any(secret in output for secret in SECRETS)
