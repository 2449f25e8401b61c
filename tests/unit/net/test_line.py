"""The line to Redis: what it sends, and that it leaves a Redis that is away alone for a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dlpipe.net.line import PRELUDE, Away, RedisLine


class Client:
    """A Redis that knows no script by its digest, or fails as the test wants."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.known: set[str] = set()
        self.calls: list[tuple[str, ...]] = []

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: str) -> str:
        self.calls.append(("evalsha", sha, *keys_and_args))
        if self.error is not None:
            raise self.error
        if sha not in self.known:
            self.known.add(sha)
            raise NoScriptError
        return "by digest"

    def eval(self, script: str, numkeys: int, *keys_and_args: str) -> str:
        self.calls.append(("eval", script, *keys_and_args))
        return "by text"


def test_a_script_is_sent_once_and_then_named() -> None:
    client = Client()
    line = RedisLine(client)
    assert [line.run("return 1", ("k",), ("a", 2)) for _ in range(2)] == ["by text", "by digest"]
    assert client.calls[1] == ("eval", PRELUDE + "return 1", "k", "", "a", "2")
    assert client.calls[2][2:] == ("k", "", "a", "2")


def test_a_clock_of_the_test_goes_before_the_arguments() -> None:
    client = Client()
    RedisLine(client, now_ms=lambda: 17).run("x", ("k",), ("a",))
    assert client.calls[0][2:] == ("k", "17", "a")


@pytest.mark.parametrize(
    "error", [RedisConnectionError("x"), RedisTimeoutError("x"), ResponseError("LOADING"), OSError("x")]
)
def test_after_a_failure_redis_is_left_alone_for_a_while(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    client, now = Client(), [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    line = RedisLine(client, away_s=5.0, clock=clock)
    client.error = error
    with pytest.raises(Away):
        line.run("x", (), ())
    now[0] = 4.9
    with pytest.raises(Away):
        line.run("x", (), ())
    assert (len(client.calls), caplog.text.count("Redis is away")) == (1, 1)
    now[0], client.error = 5.0, None
    assert line.run("x", (), ()) == "by text"
