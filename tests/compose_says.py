"""What services of docker-compose.yml say to those who ask, so that it can be searched for what they must not say."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path

from tests.compose import Compose


def ask(up: Compose, path: str, *, login: str | None = None, method: str = "GET") -> tuple[int, str] | None:
    """Flower's answer, or None when nobody answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{up.port('flower', 5555)}{path}", method=method)
    if login is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError:
        return None


def pages(job_or_task: str = "x") -> list[tuple[str, str]]:
    """Everything that Flower has, as its own table of addresses says; static files are the same for all."""
    from flower.urls import handlers

    found = []
    for one in handlers:
        pattern = one.regex.pattern.rstrip("$") if hasattr(one, "regex") else one[0]
        if not pattern.startswith("/static"):
            path = pattern.replace("(.+)", job_or_task).replace("(.*)", job_or_task).replace("/?", "")
            found += [("GET", path.replace(".*", "/nothing")), ("POST", path.replace(".*", "/nothing"))]
    return found


def login(up: Compose) -> str:
    """A name and its password, as Flower knows them."""
    return up.secret("flower_users").strip()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def passwords(up: Compose) -> set[str]:
    """All that are kept from others; a bucket's key among them."""
    found = {up.secret(file.name) for file in up.secrets.glob("*_password")}
    assert len(found) == 6
    assert up.secret("s3_password") in up.secret("store_credentials")
    return found


def everything_said(up: Compose, job: str, service: str) -> dict[str, str]:
    """By where it was said: arguments, environments, commands, Flower to one who is known, logs."""
    known = login(up)
    alive = [process for process in up.processes.values() if process.lives]
    pids = [pid for process in alive for pid in (process.pid, *children_of(process.pid))]
    found = {f"arguments of {pid}": Path(f"/proc/{pid}/cmdline").read_text() for pid in pids}
    found |= {f"environment of {pid}": Path(f"/proc/{pid}/environ").read_text() for pid in pids}
    for words in (["doctor"], ["doctor", "--json"], ["status"], ["top", "--once"], ["show", job]):
        done = up.run(service, "dlpipe", *words)
        found[" ".join(words)] = done.stdout + done.stderr
    task = next(iter(json.loads((ask(up, "/api/tasks?limit=100", login=known) or (0, "{}"))[1])), "x")
    worker = next(iter(json.loads((ask(up, "/api/workers?refresh=1", login=known) or (0, "{}"))[1])))
    for method, path in [*pages(task), *pages(worker)]:
        if method == "GET" and path != "/logout":
            found[f"Flower {path}"] = (ask(up, path, login=known) or (0, ""))[1]
    files = [*(file for file in up.log.rglob("*") if file.is_file()), up.database().log_file]
    return found | {f"log {file.name}": file.read_text(errors="replace") for file in files}
