"""HttpSource against a server of our own that says exactly the bytes it is told to, however wrong."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import httpcore
import pytest

from dlpipe.core.answers import Reject
from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.ranges import Append, Finished, Incomplete, Restart, Want, judge, verdict
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.sources.http import HttpSource
from tests.origin import Asked, Origin, Say, Then, answer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines(),
]

POLICY = NetPolicy(
    connect_s=5.0, read_s=5.0, head_s=5.0, retries=2, backoff_base_s=0.5, max_retry_sleep_s=5.0,
    max_redirects=4, allow_private=True, max_header_bytes=8192, max_header_count=50,
)  # fmt: skip
BODY = bytes(range(256)) * 1000
ETAG = 'ETag: "v1"'
EXPECTED_HEADERS = {"host", "accept", "accept-encoding", "connection", "user-agent"}


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


class Client:
    """A source whose sleeps are noted instead of slept."""

    def __init__(self, policy: NetPolicy = POLICY, **more: object) -> None:
        self.slept: list[float] = []
        self.hub = Hub(
            policy,
            sleep=self.slept.append,
            clock=lambda: time.monotonic() + sum(self.slept),
            chance=lambda: 0.5,
            **more,  # type: ignore[arg-type]
        )
        self.source = HttpSource(self.hub)

    def head(self, url: str) -> object:
        return self.source.head(url, tenant="default")

    def fetch(self, url: str, want: Want = Want()) -> tuple[object, bytes]:  # noqa: B008 - frozen
        with self.source.get(url, start=want.start, if_range=want.if_range, tenant="default") as got:
            judged = judge(got.status, got.headers, got.framing, want)
            body = b"".join(got.chunks()) if isinstance(judged, Append) else b""
            return (verdict(judged, len(body), got.framing) if isinstance(judged, Append) else judged), body


@pytest.fixture
def make() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def build(policy: NetPolicy = POLICY, **more: object) -> Client:
        made.append(Client(policy, **more))
        return made[-1]

    yield build
    for client in made:
        client.hub.close()


@pytest.fixture
def client(make: Callable[..., Client]) -> Client:
    return make()


def _code(failure: StageFailure) -> str:
    assert failure.hint, "every failure says what to do"
    return failure.code


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


def test_row_1_a_body_with_its_length(origin: Origin, client: Client) -> None:
    url = origin.on("/f", answer(200, BODY, ETAG))
    assert client.fetch(url) == (Finished(), BODY)
    asked = origin.asked[0]
    assert asked.headers.keys() == EXPECTED_HEADERS
    assert asked.headers["accept-encoding"] == "identity"
    assert asked.headers["user-agent"].startswith("dlpipe/")


def test_row_2_a_chunked_body(origin: Origin, client: Client) -> None:
    chunked = answer(200, b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX: y\r\n\r\n", "Transfer-Encoding: chunked", length=False)
    assert client.fetch(origin.on("/f", chunked)) == (Finished(), b"abcde")


def test_row_3_a_body_ended_by_closing(origin: Origin, client: Client) -> None:
    url = origin.on("/f", Say(answer(200, b"abc", length=False), Then.CLOSE))
    assert client.fetch(url) == (Finished(length_unproven=True), b"abc")


@pytest.mark.parametrize("then", [Then.CLOSE, Then.RESET])
def test_row_4_a_short_body_hands_out_what_came_and_then_fails(origin: Origin, client: Client, then: Then) -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 400
    got = b""
    with (  # noqa: PT012
        client.source.get(origin.on("/f", Say(data, then)), tenant="default") as reply,
        pytest.raises(Retryable) as caught,
    ):
        for chunk in reply.chunks():
            got += chunk  # what came before the failure is what is asked about
    assert _code(caught.value) == "body_cut"
    assert then is Then.RESET or got == b"x" * 400  # a reset may overtake what was sent


def test_row_5_bytes_beyond_the_length_never_arrive_and_never_become_the_next_answer(
    origin: Origin, client: Client
) -> None:
    evil = answer(200, b"evil")
    url = origin.on("/f", answer(200, b"good", ETAG) + evil, answer(200, b"next"))
    assert client.fetch(url) == (Finished(), b"good")
    assert client.fetch(url) == (Finished(), b"next")
    assert [asked.connection for asked in origin.asked] == [1, 2]


def test_row_6_a_chunked_body_that_breaks_off(origin: Origin, client: Client) -> None:
    cut = answer(200, b"5\r\nab", "Transfer-Encoding: chunked", length=False)
    with pytest.raises(Retryable) as caught:
        client.fetch(origin.on("/f", Say(cut, Then.CLOSE)))
    assert _code(caught.value) == "body_cut"


@pytest.mark.parametrize(
    "body",
    [b"zz\r\nab\r\n0\r\n\r\n", b"-2\r\nab\r\n0\r\n\r\n", b"2\r\nabXX0\r\n\r\n", b"+2\r\nab\r\n0\r\n\r\n",
     b"2\r\nab\r\n0\r\nno colon\r\n\r\n", b"fffffffffffffffffffffffffffffff\r\nab\r\n"],
    ids=["no number", "negative", "no line ending", "signed", "bad trailer", "absurd size"],
)  # fmt: skip
def test_row_7_malformed_chunks(origin: Origin, client: Client, body: bytes) -> None:
    bad = answer(200, body, "Transfer-Encoding: chunked", length=False)
    with pytest.raises(Permanent) as caught:
        client.fetch(origin.on("/f", Say(bad, Then.HANG)))
    assert _code(caught.value) == "protocol_error"


@pytest.mark.parametrize(
    "lines",
    [("Transfer-Encoding: chunked", "Content-Length: 5"), ("Content-Length: 5", "Content-Length: 5"),
     ("Content-Length: 5, 5",), ("Content-Length: 5", "Content-Length: 6"), ("Content-Length: -5",),
     ("Content-Length: +5",), ("Content-Length: 0x5",), ("Transfer-Encoding: gzip, chunked",), ("no colon",)],
    ids=" / ".join,
)  # fmt: skip
def test_rows_8_and_9_heads_that_leave_the_end_of_the_body_open(
    origin: Origin, client: Client, lines: tuple[str, ...]
) -> None:
    url = origin.on("/f", Say(answer(200, b"hello", *lines, length=False), Then.CLOSE))
    with pytest.raises(Permanent) as caught:
        client.fetch(url)
    assert _code(caught.value) == "protocol_error"
    assert len(origin.asked) == 1


def test_row_10_a_length_over_the_limit_is_refused_before_the_body(origin: Origin, client: Client) -> None:
    url = origin.on("/f", Say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", Then.HANG))
    judged, body = client.fetch(url, Want(max_bytes=999))
    assert isinstance(judged, Reject)
    assert (judged.code, body) == ("too_large", b"")


def test_row_15_gzip_in_spite_of_identity(origin: Origin, client: Client) -> None:
    judged, _ = client.fetch(origin.on("/f", answer(200, b"\x1f\x8b", "Content-Encoding: gzip")))
    assert isinstance(judged, Reject)
    assert judged.code == "content_coding"


def test_row_16_an_empty_file(origin: Origin, client: Client) -> None:
    url = origin.on("/f", answer(200))
    assert client.fetch(url) == (Finished(), b"")
    assert client.fetch(url) == (Finished(), b"")
    assert origin.connections == 1


@pytest.mark.parametrize(
    "flood",
    [b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000, b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 10_000,
     b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 51 + b"\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 9000 + b"\r\n\r\n",
     b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000_000],
    ids=["interim", "many interim", "headers", "one large header", "headers without an end"],
)  # fmt: skip
def test_row_17_floods_before_the_body(origin: Origin, client: Client, flood: bytes) -> None:
    with pytest.raises(Permanent) as caught:
        client.fetch(origin.on("/f", Say(flood, Then.HANG)))
    assert _code(caught.value) == "protocol_error"


def test_a_few_interim_answers_are_fine(origin: Origin, client: Client) -> None:
    url = origin.on("/f", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + answer(200, b"abc"))
    assert client.fetch(url) == (Finished(), b"abc")


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x01\x00\x02\x02\x28", b"HTTP/1.1 2x0 OK\r\n\r\n"]
)
def test_what_does_not_speak_http(origin: Origin, make: Callable[..., Client], garbage: bytes) -> None:
    client = make(replace(POLICY, retries=0))
    with pytest.raises(StageFailure) as caught:
        client.fetch(origin.on("/f", Say(garbage, Then.CLOSE)))
    assert _code(caught.value) in {"protocol_error", "connection_lost"}


def test_a_server_that_stops_in_the_body(origin: Origin, make: Callable[..., Client]) -> None:
    client = make(replace(POLICY, read_s=0.2))
    url = origin.on("/f", Say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", Then.HANG))
    with pytest.raises(Retryable) as caught:
        client.fetch(url)
    assert _code(caught.value) == "read_timeout"
    assert len(origin.asked) == 1, "a body that broke is for the next run, not for a loop in here"


def test_body_comes_in_small_pieces_as_it_arrives(origin: Origin, client: Client) -> None:
    with client.source.get(origin.on("/f", answer(200, BODY * 20)), tenant="default") as got:
        sizes = [len(chunk) for chunk in got.chunks()]
    assert sum(sizes) == len(BODY) * 20
    assert max(sizes) <= 1 << 20


def test_abandoned_body_is_not_drained_and_its_connection_is_not_used_again(origin: Origin, client: Client) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n" + b"x" * 1000
    url = origin.on("/f", Say(head, Then.HANG), answer(200, b"abc"))
    with client.source.get(url, tenant="default") as got:
        assert next(iter(got.chunks())) != b""
    assert client.fetch(url) == (Finished(), b"abc")
    assert [asked.connection for asked in origin.asked] == [1, 2]


def test_answer_that_nobody_reads_is_let_go(origin: Origin, client: Client) -> None:
    url = origin.on("/f", Say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", Then.HANG))
    with client.source.get(url, tenant="default") as got:
        assert not origin.all_have_left(within_s=0.05)
    assert origin.all_have_left()
    assert list(got.chunks()) == []


# ── ranges ────────────────────────────────────────────────────────────────────────────────────────

REST = Want(start=40, if_range='"v1"', etag='"v1"', total=100)
FILE = bytes(range(100))


def _range(line: str, body: bytes, *more: str) -> bytes:
    return answer(206, body, f"Content-Range: {line}", *more)


def test_row_18_the_rest_is_asked_for_under_if_range(origin: Origin, client: Client) -> None:
    url = origin.on("/f", _range("bytes 40-99/100", FILE[40:], ETAG))
    assert client.fetch(url, REST) == (Finished(), FILE[40:])
    assert origin.asked[0].headers["range"] == "bytes=40-"
    assert origin.asked[0].headers["if-range"] == '"v1"'


@pytest.mark.parametrize(
    ("say", "expected"),
    [
        (_range("bytes 41-99/100", FILE[41:], ETAG), Restart("range_starts_later")),
        (_range("bytes 40-99/101", FILE[40:], ETAG), Restart("total_changed")),
        (_range("bytes 40-99/100", FILE[40:], 'ETag: W/"v1"'), Restart("validator_changed")),
        (_range("bytes 40-99/100", FILE[40:], ETAG, "Content-Encoding: br"), Restart("coded_range")),
        (_range("bytes 40-99/100", FILE[40:80], ETAG), Incomplete()),
        (answer(206, FILE[40:], ETAG), Restart("range_malformed")),
        (answer(416, b"", "Content-Range: bytes */40"), Restart("range_all_held_unproven")),
        (answer(412), Restart("status_412")),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", Restart("status_304")),
        (answer(200, FILE, 'ETag: "v2"'), Finished()),
    ],
    ids=["row 20", "row 22", "row 27", "row 28", "row 26", "row 24", "row 30", "row 32: 412", "row 32: 304", "row 29"],
)  # fmt: skip
def test_answers_to_a_range(origin: Origin, client: Client, say: bytes, expected: object) -> None:
    assert client.fetch(origin.on("/f", say), REST)[0] == expected


def test_range_is_asked_for_only_with_a_validator(origin: Origin, client: Client) -> None:
    url = origin.on("/f", answer(200, FILE))
    client.fetch(url, Want(start=40))
    client.fetch(url, Want(start=0, if_range='"v1"'))
    assert all("range" not in asked.headers and "if-range" not in asked.headers for asked in origin.asked)


# ── redirects ─────────────────────────────────────────────────────────────────────────────────────


def _to(location: str, status: int = 302) -> bytes:
    return answer(status, b"moved", f"Location: {location}", "Set-Cookie: id=1; Path=/")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_row_41_redirects_are_followed_without_cookies_and_with_the_range(
    origin: Origin, client: Client, status: int
) -> None:
    origin.on("/there", _range("bytes 40-99/100", FILE[40:], ETAG))
    assert client.fetch(origin.on("/f", _to("there?x=%7e", status)), REST) == (Finished(), FILE[40:])
    last = origin.asked[-1]
    assert last.target == "/there?x=%7e"
    assert "cookie" not in last.headers
    assert last.headers["range"] == "bytes=40-"


def test_row_42_the_final_address_is_told(origin: Origin, client: Client) -> None:
    there, here = origin.on("/there", answer(200, b"abc")), origin.on("/f", _to("/there"))
    with client.source.get(there, tenant="default") as direct, client.source.get(here, tenant="default") as led:
        assert direct.final_url_sha256 == led.final_url_sha256
    facts = client.source.head(here, tenant="default")
    assert facts is not None
    with client.source.get(here, tenant="default") as again:
        assert facts.final_url_sha256 == again.final_url_sha256


def test_redirect_to_another_origin(origin: Origin, client: Client) -> None:
    with Origin() as other:
        url = origin.on("/f", _to(other.on("/g", answer(200, b"abc"))))
        assert client.fetch(url) == (Finished(), b"abc")
        assert len(other.asked) == 1


def test_body_of_a_redirect_is_let_go_unread(origin: Origin, client: Client) -> None:
    endless = b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 1000\r\n\r\n"
    origin.on("/there", Say(answer(200, b"abc"), Then.CLOSE))
    assert client.fetch(origin.on("/f", Say(endless, Then.HANG))) == (Finished(), b"abc")
    assert origin.all_have_left()


def test_redirect_loop(origin: Origin, client: Client) -> None:
    with pytest.raises(Permanent) as caught:
        client.fetch(origin.on("/f", _to("/f")))
    assert _code(caught.value) == "too_many_redirects"
    assert len(origin.asked) == POLICY.max_redirects + 1


@pytest.mark.parametrize(
    "data",
    [answer(302), answer(302, b"", "Location: /a", "Location: /b"), _to("ftp://x.example/"), _to("http://[::1"),
     _to("http://u:p@x.example/"), _to("http://\x00/"), _to("/\xfc"), _to("file:///etc/passwd")],
    ids=["none", "two", "scheme", "unreadable", "userinfo", "control", "latin-1", "file"],
)  # fmt: skip
def test_redirects_that_are_refused(origin: Origin, client: Client, data: bytes) -> None:
    with pytest.raises(Permanent) as caught:
        client.fetch(origin.on("/f", data))
    assert _code(caught.value) in {"redirect_refused", "protocol_error"}


# ── the guard on the way ──────────────────────────────────────────────────────────────────────────


class Loopback(httpcore.NetworkBackend):
    """Public addresses of the test lead to the origin; anything else leads nowhere."""

    def __init__(self, port: int) -> None:
        self.port, self.connected = port, list[str]()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self.connected.append(host)
        assert host == "93.184.215.14", host
        return httpcore.SyncBackend().connect_tcp("127.0.0.1", self.port, timeout, local_address, socket_options)


BOOK = {
    "public.example": ["93.184.215.14"],
    "inside.example": ["10.0.0.1"],
    "mixed.example": ["93.184.215.14", "::1"],
}


def _guarded(make: Callable[..., Client], origin: Origin) -> tuple[Client, Loopback]:
    wire = Loopback(origin.port)
    return make(replace(POLICY, allow_private=False), resolve=lambda host, _port: BOOK[host], connect=wire), wire


def test_public_host_is_asked_at_its_checked_address(origin: Origin, make: Callable[..., Client]) -> None:
    client, wire = _guarded(make, origin)
    origin.on("/f", answer(200, b"abc"))
    assert client.fetch("http://public.example/f") == (Finished(), b"abc")
    assert wire.connected == ["93.184.215.14"]
    assert origin.asked[0].headers["host"] == "public.example"


@pytest.mark.parametrize(
    "location",
    ["http://inside.example/", "http://mixed.example/", "http://127.0.0.1/", "http://localhost/", "http://0x7f.1/",
     "http://[::1]/", "http://169.254.169.254/latest/meta-data/", "http://public.example:6379/", "//2130706433/"],
)  # fmt: skip
def test_every_hop_is_guarded(origin: Origin, make: Callable[..., Client], location: str) -> None:
    client, wire = _guarded(make, origin)
    origin.on("/f", _to(location))
    with pytest.raises(Permanent) as caught:
        client.fetch("http://public.example/f")
    assert _code(caught.value) == "egress_forbidden"
    assert wire.connected == ["93.184.215.14"]
    assert len(origin.asked) == 1


def test_private_address_is_refused_by_default(origin: Origin, make: Callable[..., Client]) -> None:
    client = make(replace(POLICY, allow_private=False, ports=frozenset({origin.port})))
    for ask in (client.head, client.fetch):
        with pytest.raises(Permanent) as caught:
            ask(origin.on("/f", answer(200)))
        assert _code(caught.value) == "egress_forbidden"
    assert origin.connections == 0


def test_offline_is_refused_before_any_look_up(make: Callable[..., Client]) -> None:
    def never(host: str, port: int) -> list[str]:
        raise AssertionError("looked up")

    client = make(replace(POLICY, offline=True), resolve=never)
    for ask in (client.head, client.fetch):
        with pytest.raises(Permanent) as caught:
            ask("https://public.example/f")
        assert _code(caught.value) == "blocked_offline"


def test_proxies_of_the_environment_are_not_used(
    origin: Origin, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert client.fetch(origin.on("/f", answer(200, b"abc"))) == (Finished(), b"abc")


# ── HEAD ──────────────────────────────────────────────────────────────────────────────────────────


def _by_method(head: Say | bytes, get: Say | bytes) -> Callable[[Asked], Say]:
    def script(asked: Asked) -> Say:
        chosen = head if asked.method == "HEAD" else get
        return Say(chosen) if isinstance(chosen, bytes) else chosen

    return script


def _head_of(status: int, length: int, *lines: str) -> bytes:
    return answer(status, b"", *lines, f"Content-Length: {length}", length=False)


def test_head_tells_the_facts_and_its_connection_carries_no_get(origin: Origin, client: Client) -> None:
    lines = (ETAG, "Accept-Ranges: bytes", "Content-Type: text/plain", "Last-Modified: x", "Date: y")
    url = origin.on("/f", _by_method(_head_of(200, 3, *lines), answer(200, b"abc", *lines)))
    facts = client.source.head(url, tenant="default")
    assert facts is not None
    assert (facts.http_status, facts.content_length, facts.etag) == (200, 3, '"v1"')
    assert (facts.accept_ranges, facts.content_type) == ("bytes", "text/plain")
    assert client.fetch(url) == (Finished(), b"abc")
    client.head(url)
    client.fetch(url)
    assert [asked.connection for asked in origin.asked] == [1, 2, 1, 2]  # row 49


@pytest.mark.parametrize("status", [204, 400, 401, 403, 405, 406, 500, 501, 503])
def test_row_40_head_that_is_refused_leaves_it_to_get(origin: Origin, client: Client, status: int) -> None:
    assert client.source.head(origin.on("/f", answer(status)), tenant="default") is None


@pytest.mark.parametrize("then", [Then.HANG, Then.CLOSE, Then.RESET])
def test_row_40_head_that_hangs_or_breaks_leaves_it_to_get(
    origin: Origin, make: Callable[..., Client], then: Then
) -> None:
    client = make(replace(POLICY, read_s=0.2))
    assert client.source.head(origin.on("/f", Say(b"", then)), tenant="default") is None
    assert len(origin.asked) == (1 if then is Then.HANG else POLICY.retries + 1)


def test_row_40_head_with_a_body_leaves_no_bytes_for_the_next_answer(origin: Origin, client: Client) -> None:
    evil = _head_of(200, 4) + answer(200, b"evil")
    url = origin.on("/f", _by_method(evil, answer(200, b"good")))
    client.source.head(url, tenant="default")
    assert client.fetch(url) == (Finished(), b"good")


@pytest.mark.parametrize("status", [404, 410, 451])
def test_head_2_gone_is_believed_only_from_get(origin: Origin, client: Client, status: int) -> None:
    gone, lied = (
        origin.on("/gone", answer(status)),
        origin.on("/lied", _by_method(answer(status), answer(200, b"abc", ETAG))),
    )
    odd = origin.on("/odd", _by_method(answer(status), answer(403)))
    with pytest.raises(Permanent) as caught:
        client.source.head(gone, tenant="default")
    assert _code(caught.value) == f"http_{status}"
    assert [asked.method for asked in origin.of("/gone")] == ["HEAD", "GET"]
    facts = client.source.head(lied, tenant="default")
    assert facts is not None
    assert (facts.content_length, facts.etag) == (3, '"v1"')
    assert client.source.head(odd, tenant="default") is None


# ── trying again ──────────────────────────────────────────────────────────────────────────────────


def test_hub_2_a_server_error_and_then_the_file(origin: Origin, client: Client) -> None:
    url = origin.on("/f", answer(503), Say(b"", Then.CLOSE), answer(200, b"abc"))
    assert client.fetch(url) == (Finished(), b"abc")
    first, *rest, last = client.slept
    assert (first, last) == (0.25, 0.5)
    assert first + sum(rest) == pytest.approx(0.5, abs=0.11), "a busy URL is left alone for half a second"


def test_hub_2_a_short_retry_after_is_slept_and_a_long_one_handed_back(origin: Origin, client: Client) -> None:
    short = origin.on("/short", answer(429, b"", "Retry-After: 3"), answer(200, b"abc"))
    long = origin.on("/long", answer(429, b"", "Retry-After: 600"))
    assert client.fetch(short) == (Finished(), b"abc")
    assert client.slept == [3.0]
    with pytest.raises(Postponed) as caught:
        client.head(long)
    assert (_code(caught.value), int(caught.value.after_s)) == ("retry_after", 600)
    with pytest.raises(Postponed) as caught:  # from now on that URL is not asked for
        client.head(long)
    assert _code(caught.value) == "retry_after"
    assert 590 < caught.value.after_s < 602
    assert client.fetch(short) == (Finished(), b"abc")
    assert (client.slept, len(origin.of("/long"))) == ([3.0], 1)


def test_server_errors_that_go_on(origin: Origin, client: Client) -> None:
    with pytest.raises(Retryable) as caught:
        client.fetch(origin.on("/f", answer(500)))
    assert _code(caught.value) == "http_5xx"
    assert len(origin.asked) == POLICY.retries + 1


def test_nobody_listens(client: Client) -> None:
    with Origin() as gone:
        url = gone.url
    with pytest.raises(Retryable) as caught:
        client.fetch(f"{url}/f")
    assert _code(caught.value) == "connect_failed"
    assert len(client.slept) == POLICY.retries


def test_row_48_an_idle_connection_that_the_server_closes_costs_no_try(origin: Origin, client: Client) -> None:
    # The server takes the second request on the kept connection and closes without a word.
    url = origin.on("/f", answer(200, b"one"), Say(b"", Then.CLOSE), answer(200, b"two"))
    assert client.fetch(url) == (Finished(), b"one")
    assert client.fetch(url) == (Finished(), b"two")
    assert [asked.connection for asked in origin.asked] == [1, 1, 2]
    assert client.slept == []


def test_row_48_the_second_try_takes_no_other_idle_connection_that_may_be_as_stale(
    origin: Origin, client: Client
) -> None:
    url = origin.on(
        "/f",
        lambda asked: Say(
            answer(200, b"abc") if len(origin.asked) <= 2 or asked.connection > 2 else b"",
            Then.KEEP if len(origin.asked) <= 2 else Then.CLOSE,
        ),
    )
    with client.source.get(url, tenant="default") as one, client.source.get(url, tenant="default") as two:
        assert b"".join([*one.chunks(), *two.chunks()]) == b"abcabc"
    assert client.fetch(url) == (Finished(), b"abc")
    assert origin.connections == 3
    assert (len(origin.asked), client.slept) == (4, [])


def test_plain_http_on_a_tls_port_is_a_failure_with_a_name(origin: Origin, client: Client) -> None:
    with pytest.raises(StageFailure) as caught:
        client.fetch(origin.url.replace("http", "https") + "/f")
    assert _code(caught.value) == "tls_failed"


# ── secrets and processes ─────────────────────────────────────────────────────────────────────────


def test_safe_2_no_log_and_no_failure_holds_more_than_the_host(
    origin: Origin, make: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("httpx", "httpcore", "httpcore.http11", "httpcore.connection"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    client = make(replace(POLICY, retries=0))
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for say in (
            answer(200, b"abc"), answer(404), answer(500), answer(302, b"", "Location: http://[s3cret"),
            answer(302, b"", "Location: ftp://u:s3cret@h/"), Say(b"s3cret\r\n\r\n", Then.CLOSE),
            Say(b"HTTP/1.1 200 OK\r\nContent-Length: s3cret\r\n\r\n", Then.CLOSE),
            Say(answer(200, b"s3cret\r\n", "Transfer-Encoding: chunked", length=False), Then.CLOSE),
        ):  # fmt: skip
            for ask in (client.fetch, client.head):
                try:
                    ask(origin.on("/s3cret", say) + "?sig=s3cret")
                except StageFailure as failure:
                    said += [str(failure), failure.hint, repr(failure)]
    assert len(said) >= 9
    assert "s3cret" not in "".join(said)
    assert "s3cret" not in caplog.text
    assert [record for record in caplog.records if record.name.startswith("http")] == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_makes_a_client_of_its_own(origin: Origin, client: Client) -> None:
    url = origin.on("/f", answer(200, b"abc"))
    assert client.fetch(url) == (Finished(), b"abc")
    with client.hub._lock:  # held by another thread at the moment of the fork, as it were
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits for the parent's lock would wait for ever
            try:
                os._exit(0 if client.fetch(url) == (Finished(), b"abc") else 1)
            finally:
                os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert client.fetch(url) == (Finished(), b"abc")
    assert [asked.connection for asked in origin.asked] == [1, 2, 1]


def test_url_that_cannot_be_asked_is_permanent(client: Client) -> None:
    for url, code in (
        ("ftp://a.example/", "url_scheme"),
        ("http://u:p@a.example/", "url_userinfo"),
        ("x", "url_invalid"),
    ):
        with pytest.raises(Permanent) as caught:
            client.fetch(url)
        assert _code(caught.value) == code
