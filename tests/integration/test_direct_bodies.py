"""A body read straight from its socket is the body that the parser gives: the same bytes, errors and bounds."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlpipe.core.errors import StageFailure
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.net.wire import WatchedStream
from dlpipe.sources.http import HttpAnswer, HttpSource
from tests.certificates import Authority
from tests.origin import Origin, Say, Then, answer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines(),
]

POLICY = NetPolicy(connect_s=5.0, read_s=5.0, head_s=5.0, retries=0, allow_private=True)
KIB = 1 << 10
Read = Callable[[HttpAnswer], Iterator[bytes]]


def by_pieces(reply: HttpAnswer) -> Iterator[bytes]:
    return reply.chunks()


def by_buffers(chance: random.Random) -> Read:
    def read(reply: HttpAnswer) -> Iterator[bytes]:
        while True:
            buffer = memoryview(bytearray(chance.choice((1, 100, 64 * KIB, 256 * KIB, 1024 * KIB))))
            size = reply.read_into(buffer)
            if not size:
                return
            yield bytes(buffer[:size])

    return read


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


@pytest.fixture
def source() -> Iterator[HttpSource]:
    hub = Hub(POLICY)
    yield HttpSource(hub)
    hub.close()


@pytest.fixture
def direct_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    ordinary = WatchedStream.read_into

    def counted(self: WatchedStream, buffer: memoryview, within_s: float) -> int:
        sizes.append(ordinary(self, buffer, within_s))
        return sizes[-1]

    monkeypatch.setattr(WatchedStream, "read_into", counted)
    return sizes


def outcome(source: HttpSource, url: str, read: Read) -> tuple[bytes, str | None]:
    got = bytearray()
    try:
        with source.get(url, tenant="default") as reply:
            for piece in read(reply):
                got += piece
    except StageFailure as failure:
        return bytes(got), failure.code
    return bytes(got), None


def says(kind: str, body: bytes, cut: int) -> bytes | Say:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    match kind:
        case "whole":
            return answer(200, body)
        case "cut":
            return Say(head + body[:cut], Then.CLOSE)
        case "with more behind it":
            return answer(200, body) + answer(200, b"evil")
        case "in chunks":
            lines = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
            return answer(200, lines + b"0\r\n\r\n", "Transfer-Encoding: chunked", length=False)
        case "in chunks that break off":
            lines = b"%x\r\n%s" % (len(body) + 1, body)
            return Say(answer(200, lines, "Transfer-Encoding: chunked", length=False), Then.CLOSE)
        case _:
            return Say(answer(200, body, length=False), Then.CLOSE)


KINDS = ["whole", "cut", "with more behind it", "in chunks", "in chunks that break off", "ended by closing"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_give_the_same_bytes_and_the_same_end(origin: Origin, kind: str) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for turn in range(25):
        body = chance.randbytes(chance.choice((0, 1, 300, 255 * KIB, 256 * KIB, 257 * KIB, 700 * KIB, 1500 * KIB)))
        cut = chance.randrange(len(body) + 1)
        found: list[object] = []
        for read in (by_pieces, by_buffers(chance)):
            hub = Hub(POLICY)
            source = HttpSource(hub)
            path = f"/{turn}-{len(found)}"
            ended = outcome(source, origin.on(path, says(kind, body, cut), answer(200, b"next")), read)
            after = outcome(source, origin.url + path, read)
            asked = [one.connection for one in origin.of(path)]
            assert after == (b"next", None)
            found.append((ended, len(set(asked))))
            hub.close()
        assert found[0] == found[1], f"seed {seed}, turn {turn}, {kind}"


def test_a_large_body_of_known_length_is_read_straight(
    origin: Origin, source: HttpSource, direct_reads: list[int]
) -> None:
    body = random.randbytes(2048 * KIB)
    got, code = outcome(source, origin.on("/f", answer(200, body)), by_buffers(random.Random(1)))
    assert (got, code) == (body, None)
    assert sum(direct_reads) > len(body) // 2
    assert outcome(source, origin.on("/g", answer(200, b"next")), by_pieces) == (b"next", None)
    assert origin.connections == 1, "its connection serves the next request"


@pytest.mark.parametrize("kind", ["in chunks", "ended by closing"])
def test_other_bodies_go_the_ordinary_way(
    origin: Origin, source: HttpSource, direct_reads: list[int], kind: str
) -> None:
    body = random.randbytes(1024 * KIB)
    assert outcome(source, origin.on("/f", says(kind, body, 1)), by_buffers(random.Random(1))) == (body, None)
    assert direct_reads == []


def test_a_parser_that_looks_otherwise_than_expected_is_left_alone(
    origin: Origin, source: HttpSource, direct_reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlpipe.net.direct.READER", "a reader of another version")
    body = random.randbytes(1024 * KIB)
    got = outcome(source, origin.on("/f", answer(200, body)), by_buffers(random.Random(1)))
    assert got == (body, None)
    assert direct_reads == []


def test_a_server_that_falls_silent_is_waited_for_no_longer_than_the_ordinary_way(origin: Origin) -> None:
    hub = Hub(NetPolicy(connect_s=5.0, read_s=0.3, head_s=5.0, retries=0, allow_private=True))
    body = random.randbytes(900 * KIB)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {2 * len(body)}\r\n\r\n".encode()
    url = origin.on("/f", Say(head + body, Then.HANG))
    assert outcome(HttpSource(hub), url, by_buffers(random.Random(1))) == (body, "read_timeout")
    hub.close()


class Secure(Origin):
    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "authority")
        signed = authority.sign("localhost")
        chain, key = folder / "chain.pem", folder / "key.pem"
        chain.write_text(signed.chain)
        key.write_text(signed.key)
        self.authority = str(authority.file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        super().__init__(context)
        self.url = f"https://localhost:{self.port}"


@pytest.mark.parametrize("read", [by_pieces, by_buffers(random.Random(1))], ids=["pieces", "buffers"])
def test_what_follows_an_answer_in_its_last_tls_record_is_not_the_next_answer(tmp_path: Path, read: Read) -> None:
    body = random.randbytes(300_000)
    origin = Secure(tmp_path)
    with origin:
        policy = NetPolicy(read_s=5.0, head_s=5.0, retries=0, allow_private=True, ca_file=origin.authority)
        hub = Hub(policy, resolve=lambda _host, _port: ["127.0.0.1"])
        source = HttpSource(hub)
        url = origin.on("/f", answer(200, body) + answer(200, b"evil"), answer(200, b"next"))
        assert outcome(source, url, read) == (body, None)
        assert outcome(source, url, read) == (b"next", None)
        assert origin.connections == 2
        hub.close()


def test_a_connection_whose_body_is_over_is_left_alone(
    origin: Origin, source: HttpSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be at another answer by then, whose time is its own."""
    body, buffer = random.randbytes(700 * KIB), memoryview(bytearray(64 * KIB))
    with source.get(origin.on("/f", answer(200, body)), tenant="default") as reply:
        while reply.read_into(buffer):
            pass
        touched: list[float] = []
        monkeypatch.setattr(WatchedStream, "expect_within", lambda _self, seconds: touched.append(seconds))
        assert (reply.read_into(buffer), touched) == (0, [])
