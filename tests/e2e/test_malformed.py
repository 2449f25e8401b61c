"""`dlpipe up` outlives the messages that ended it (ADR 45)."""

from __future__ import annotations

import base64
import json
import re

import redis

from dlpipe.embedded.redis import socket_path
from tests.e2e.conftest import Command
from tests.fuzz.forgery import CALLS, good
from tests.servers import wait_until
from tests.webserver import WebServer

EACH = 30
"""Workers that ended so often one after the other ended the stack."""
TASK, CALL = CALLS[0]


def shapes() -> list[bytes]:
    """Each of which, sent again and again, ended `up`."""
    frame = good(TASK, CALL, "forged")
    headers = frame["headers"]
    changed: list[dict[str, object]] = [
        {"content-type": None},
        {"body": None},
        {"body": "%%%"},
        {"headers": {**headers, "timelimit": 5}},
        {"body": base64.b64encode(b"null").decode()},
    ]
    return [b"[]", b"\xff garbage", *(json.dumps({**frame, **one}).encode() for one in changed)]


def test_up_outlives_malformed_messages_and_goes_on(command: Command, web: WebServer) -> None:
    up = command.start("up")
    wait_until((command.home / "run" / "stack.json").exists, "the stack to run", 60)
    first = command.run("fetch", web.put("/a", b"a" * 5_000))
    assert first.code == 0, first.err
    before = command.services()
    with redis.Redis(unix_socket_path=str(socket_path(command.home)), db=0) as line:
        for shape in shapes():
            for queue in ("dlpipe.net", "dlpipe.disk", "dlpipe.beat"):
                line.lpush(queue, *[shape] * EACH)
        wait_until(lambda: not line.exists("dlpipe.net", "dlpipe.disk", "dlpipe.beat"), "all of it to be taken", 60)
    second = command.run("fetch", web.put("/b", b"b" * 5_000))
    assert second.code == 0, second.err
    assert command.services() == before
    assert up.poll() is None
    logs = "".join(file.read_text() for file in (command.home / "log").glob("*.log"))
    assert re.findall(r"dropped: (malformed_\w+)", logs)
    assert "Unrecoverable" not in logs
    assert command.run("down").code == 0
    up.communicate(timeout=30)
