"""A worker's network side as a process of its own: asks again and again, until its standard input ends.

One line of JSON in: what to ask and under which limits. One line out for each request.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dlpipe.core.errors import StageFailure
from dlpipe.net import urls
from dlpipe.net.client import Hub
from dlpipe.net.gate import ENTER
from dlpipe.net.limits import Bounds, HostLimits
from dlpipe.net.line import RedisLine
from dlpipe.net.policy import NetPolicy

LAST = threading.local()


class NotingLine(RedisLine):
    """Notes when this thread last asked to be let through: it was not let through before."""

    def run(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        if script == ENTER:
            LAST.let_through = time.monotonic()
        return super().run(script, keys, args)


def main() -> None:
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    client = redis.Redis.from_url(
        told["redis"], socket_timeout=10, socket_connect_timeout=10, retry=Retry(NoBackoff(), 0)
    )
    policy = NetPolicy(allow_private=True, retries=0, **told.get("policy", {}))
    hub = Hub(
        policy,
        limits=HostLimits(Bounds(**told.get("bounds", {}))),
        line=NotingLine(client, away_s=told.get("away_s", 5)),
    )
    ending = threading.Event()

    def go_on() -> None:
        while not ending.is_set():
            ask(hub, told["method"], told["url"])
            ending.wait(told.get("pause_s", 0.0))

    threads = [threading.Thread(target=go_on, daemon=True) for _ in range(told.get("threads", 1))]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join(5)


def ask(hub: Hub, method: str, url: str) -> None:
    began = LAST.let_through = time.monotonic()
    code, after_s = "ok", None
    try:
        reply = hub.send(method, urls.address(url), tenant="default")
        try:
            for _ in reply.chunks():
                pass
        finally:
            reply.close()
        code = str(reply.status)
    except StageFailure as failure:
        code, after_s = failure.code, getattr(failure, "after_s", None)
    ended = time.monotonic()
    line = json.dumps(
        {"code": code, "after_s": after_s, "took_s": ended - began, "under_way_s": ended - LAST.let_through}
    )
    with suppress(BrokenPipeError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
