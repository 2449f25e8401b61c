"""Which request may use a connection again, and what a server gains by sending more than it was asked for.

HTTP.md, rows 5 and 48 to 50; also covers dlpipe/net/connection.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from dlpipe.core.errors import Permanent, Postponed, StageFailure
from dlpipe.net import pool, urls
from dlpipe.net.client import Hub
from dlpipe.net.limits import Bounds, HostLimits
from dlpipe.net.policy import NetPolicy
from tests.origin import Asked, Origin, Say, Then, answer

POLICY = NetPolicy(allow_private=True, retries=0, breaker_failures=0)
FORGED = answer(200, b"forged")


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


@pytest.fixture
def make() -> Iterator[Callable[..., Hub]]:
    made: list[Hub] = []

    def build(policy: NetPolicy = POLICY) -> Hub:
        made.append(Hub(policy))
        return made[-1]

    yield build
    for hub in made:
        hub.close()


@pytest.fixture
def hub(make: Callable[..., Hub]) -> Hub:
    return make()


def ask(hub: Hub, url: str, method: str = "GET", tenant: str = "one", **headers: str) -> tuple[int, bytes]:
    reply = hub.send(method, urls.address(url), {k.replace("_", "-"): v for k, v in headers.items()}, tenant=tenant)
    try:
        return reply.status, b"".join(reply.chunks())
    finally:
        reply.close()


def by_method(asked: Asked) -> Say:
    data = answer(200, b"abc")
    return Say(data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if asked.method == "HEAD" else data)


def connections(origin: Origin) -> list[int]:
    return [asked.connection for asked in origin.asked]


def test_connection_is_used_again_for_the_same_tenant_and_kind_of_request_only(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", by_method)
    for _ in range(2):
        for tenant in ("one", "two"):
            ask(hub, url, "HEAD", tenant)
            ask(hub, url, "GET", tenant)
    assert connections(origin) == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_late_bytes_on_an_idle_connection_end_it_and_all_reuse_of_its_origin(
    origin: Origin, hub: Hub, method: str
) -> None:
    url = origin.on("/f", by_method)
    with Origin() as other:
        elsewhere = other.on("/f", by_method)
        for tenant in ("one", "two"):
            ask(hub, url, tenant=tenant)
            ask(hub, elsewhere, tenant=tenant)
        ask(hub, url, method)
        origin.push(origin.asked[-1], FORGED)
        before = origin.connections
        assert ask(hub, url, method)[1] != b"forged"
        for tenant in ("one", "two", "one", "two"):
            assert ask(hub, url, tenant=tenant) == (200, b"abc")
            ask(hub, elsewhere, tenant=tenant)
        assert origin.connections == before + 5  # each request had a connection of its own
        assert other.connections == 2


@pytest.mark.parametrize("end", ["kept for too long", "too many", "closed"])
def test_late_bytes_are_noticed_when_their_connection_is_let_go(
    origin: Origin, make: Callable[..., Hub], end: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make(replace(POLICY, keepalive_s=0.0 if end == "kept for too long" else 30.0, max_idle_connections=1))
    with Origin() as other:
        ask(hub, origin.on("/f", by_method))
        if end == "kept for too long":  # it was let go at once
            assert origin.has_left(origin.asked[-1])
            return
        origin.push(origin.asked[-1], b"x")
        if end == "too many":
            ask(hub, other.on("/f", by_method))
        else:
            hub.close()
    (line,) = [one.getMessage() for one in caplog.records if one.name == "dlpipe.net.reuse"]
    assert line.endswith(pool.SURPLUS)
    assert str(origin.port) in line


@pytest.mark.parametrize(
    "said",
    [b"nonsense\r\n\r\n", b"HTTP/1.1 ", answer(206, b"abc", "Content-Range: bytes 0-2/9"), answer(304, length=False),
     answer(412), answer(416), b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 99,
     b"HTTP/2.0 200 OK\r\n\r\n", answer(200, b"", "Content-Length: 5"), b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000],
    ids=["nonsense", "half", "206", "304", "412", "416", "101", "1xx", "HTTP/2", "lengths", "large"],
)  # fmt: skip
def test_impossible_head_on_a_reused_connection_is_asked_again_on_a_fresh_one_and_marks_the_origin(
    origin: Origin, hub: Hub, said: bytes
) -> None:
    then = Then.CLOSE if said == b"HTTP/1.1 " else Then.KEEP
    url = origin.on("/f", answer(200, b"abc"), Say(said, then), answer(200, b"abc"))
    assert [ask(hub, url) for _ in range(2)] == [(200, b"abc")] * 2
    assert connections(origin) == [1, 1, 2]
    assert [ask(hub, url) for _ in range(2)] == [(200, b"abc")] * 2
    assert connections(origin)[3:] == [3, 4]


@pytest.mark.parametrize("said", [b"nonsense\r\n\r\n", b"HTTP/2.0 200 OK\r\n\r\n"])
def test_impossible_head_on_a_fresh_connection_is_judged(origin: Origin, hub: Hub, said: bytes) -> None:
    url = origin.on("/f", answer(200, b"abc"), said)
    ask(hub, url)
    with pytest.raises(Permanent) as caught:
        ask(hub, url)
    assert caught.value.code == "protocol_error"
    assert connections(origin) == [1, 1, 2]


@pytest.mark.parametrize("status", [204, 302, 401, 403, 404, 410, 451, 501])
def test_refusal_on_a_reused_connection_counts_when_a_fresh_one_says_so_too(
    origin: Origin, hub: Hub, status: int
) -> None:
    url = origin.on("/f", answer(200, b"abc"), *[answer(status, length=status != 204)] * 2)
    ask(hub, url)
    assert ask(hub, url)[0] == status
    assert connections(origin) == [1, 1, 2]
    innocent = origin.on("/g", answer(200, b"abc"))
    assert [ask(hub, innocent) for _ in range(2)] == [(200, b"abc")] * 2
    assert connections(origin)[3:] == [3, 3], "the origin is not marked"


@pytest.mark.parametrize("status", [302, 404])
def test_refusal_on_a_reused_connection_that_a_fresh_one_denies_marks_the_origin(
    origin: Origin, hub: Hub, status: int
) -> None:
    url = origin.on("/f", answer(200, b"abc"), answer(status), answer(200, b"abc"))
    assert [ask(hub, url) for _ in range(4)] == [(200, b"abc")] * 4
    assert connections(origin) == [1, 1, 2, 3, 4]


@pytest.mark.parametrize(("status", "header"), [(206, {"Range": "bytes=0-"}), (304, {"If_None_Match": '"a"'})])
def test_answer_that_was_asked_for_is_believed_on_a_reused_connection(
    origin: Origin, hub: Hub, status: int, header: dict[str, str]
) -> None:
    said = answer(status, b"abc" if status == 206 else b"", length=status == 206)
    url = origin.on("/f", answer(200, b"abc"), said)
    ask(hub, url)
    assert ask(hub, url, **header)[0] == status
    assert connections(origin) == [1, 1]


def test_answer_that_is_disowned_ends_all_reuse_of_its_origin(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"abc"))
    ask(hub, url)
    reply = hub.send("GET", urls.address(url), tenant="one")
    reply.close()
    reply.disown()
    for _ in range(2):
        ask(hub, url)
    assert connections(origin) == [1, 1, 2, 3]


def test_redirecting_server_is_not_asked_twice_each_time(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(302, b"", "Location: /g"))
    for _ in range(3):
        ask(hub, url)
    assert connections(origin) == [1, 2, 3]


def test_answer_that_has_ended_with_more_behind_it_is_asked_for_again(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"abc"), FORGED + answer(200, b"abc"), answer(200, b"abc"))
    assert [ask(hub, url) for _ in range(2)] == [(200, b"abc")] * 2
    assert connections(origin) == [1, 1, 2]


def test_body_behind_which_a_reused_connection_brings_more_is_refused(origin: Origin, hub: Hub) -> None:
    long = answer(200, b"forged" * 100_000)  # it goes on when its head has been read
    url = origin.on("/f", answer(200, b"abc"), long + answer(200, b"abc"), answer(200, b"abc"))
    ask(hub, url)
    with pytest.raises(Permanent) as caught:
        ask(hub, url)
    assert caught.value.code == "protocol_error"
    assert ask(hub, url) == (200, b"abc")
    assert connections(origin) == [1, 1, 2]


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_bytes_behind_a_body_on_a_fresh_connection_are_ignored_and_end_it(
    origin: Origin, hub: Hub, framing: str
) -> None:  # row 5
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    url = origin.on("/f", (answer(200, b"abc") if framing == "length" else data) + FORGED)
    assert [ask(hub, url) for _ in range(3)] == [(200, b"abc")] * 3
    assert connections(origin) == [1, 2, 3]


def test_chunked_answer_leaves_its_connection_for_the_next(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    assert [ask(hub, url) for _ in range(3)] == [(200, b"abc")] * 3
    assert connections(origin) == [1, 1, 1]


def test_idle_connections_are_bounded(origin: Origin, make: Callable[..., Hub]) -> None:
    hub = make(replace(POLICY, max_idle_connections=2))
    url = origin.on("/f", by_method)
    for tenant in ("one", "two", "three"):
        ask(hub, url, tenant=tenant)
    assert origin.has_left(origin.asked[0])
    for tenant in ("three", "two", "one"):
        ask(hub, url, tenant=tenant)
    assert connections(origin) == [1, 2, 3, 3, 2, 4]


def test_surplus_behind_an_answer_that_is_not_kept_marks_its_origin(origin: Origin, hub: Hub) -> None:
    ask(hub, origin.on("/gone", answer(404) + b"surplus"))
    url = origin.on("/f", answer(200, b"abc"))
    ask(hub, url)
    ask(hub, url)
    assert connections(origin) == [1, 2, 3]


@pytest.mark.parametrize("fresh", [412, 429, 503])
def test_refusal_that_a_fresh_connection_does_not_deny_marks_nothing(origin: Origin, hub: Hub, fresh: int) -> None:
    url = origin.on("/f", answer(200, b"abc"), answer(412 if fresh == 412 else 404), answer(fresh), answer(fresh))
    ask(hub, url)
    with suppress(StageFailure):
        ask(hub, url, Range="bytes=1-", If_Range='"x"')
    innocent = origin.on("/g", answer(200, b"abc"))
    ask(hub, innocent)
    ask(hub, innocent)
    assert connections(origin)[-2] == connections(origin)[-1]


def test_request_that_may_not_be_repeated_has_a_connection_of_its_own(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"abc"), answer(201))
    ask(hub, url)
    assert ask(hub, url, "POST")[0] == 201
    assert [(asked.method, asked.connection) for asked in origin.asked] == [("GET", 1), ("POST", 2)]


def test_host_with_a_closing_dot_has_connections_of_its_own() -> None:
    with Origin() as origin:
        hub = Hub(POLICY, resolve=lambda _host, _port: ["127.0.0.1"])
        origin.on("/f", answer(200, b"abc"))
        for host in ("a.example", "a.example.") * 2:
            assert ask(hub, f"http://{host}:{origin.port}/f") == (200, b"abc")
        assert connections(origin) == [1, 2, 1, 2]
        hub.close()


def test_connection_is_not_used_again_where_a_second_request_would_have_to_wait(origin: Origin) -> None:
    """Below one request a second a doubted answer could not be asked for again in its turn."""
    for rate, used in ((0.9, [1, 2]), (1.0, [3, 3])):
        hub = Hub(
            replace(POLICY, max_wait_s=5.0), limits=HostLimits(Bounds(rate_per_s=rate)), sleep=lambda _seconds: None
        )
        url, before = origin.on("/f", answer(200, b"abc")), len(origin.asked)
        while len(origin.asked) < before + 2:
            with suppress(Postponed):
                ask(hub, url)
        assert connections(origin)[before:] == used
        hub.close()
