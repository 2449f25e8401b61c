"""The watcher of a connection: bounds on heads, and what it must not let pass (rows 5, 7, 8, 9, 17, 48, 49, 51)."""

from __future__ import annotations

import select
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpcore
import pytest
from httpcore._backends.sync import SyncStream  # what the connections of a worker are, below their watchers

from dlpipe.core.errors import Permanent
from dlpipe.net.policy import NetPolicy
from dlpipe.net.wire import StaleConnection, WatchedStream
from tests.certificates import NAME, Authority

POLICY = NetPolicy(max_header_bytes=1000, max_header_count=20, max_interim_answers=3, head_s=60.0)
GET, HEAD = b"GET / HTTP/1.1\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n"


class Bytes(httpcore.NetworkStream):
    """Hands out the given pieces, each after some time has passed on the clock."""

    def __init__(self, *pieces: bytes | Exception, takes_s: float = 0.0) -> None:
        self.pieces, self.takes_s, self.now = list(pieces), takes_s, 0.0
        self.timeouts: list[float | None] = []

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.timeouts.append(timeout)
        self.now += self.takes_s
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        pass

    def get_extra_info(self, info: str) -> object:
        return False

    def clock(self) -> float:
        return self.now


def _watch(inner: Bytes, request: bytes = GET) -> WatchedStream:
    stream = WatchedStream(inner, "a.example", POLICY, inner.clock)
    stream.write(request)
    stream.write(b"")
    return stream


def _read_all(stream: WatchedStream, inner: Bytes) -> bytes:
    got = b""
    while inner.pieces:
        got += stream.read(65536, 30.0)
    return got


def _reusable(stream: WatchedStream) -> bool:
    return stream.is_over() and not stream.has_surplus()


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "row 8"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", "row 9: two equal"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", "row 9: a list"),
        (b"HTTP/1.1 200 OK\nContent-length: +5\n\n", "row 9: signed, bare line feeds"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n", "row 9: empty"),
        (b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", "a folded line"),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked before HTTP/1.1"),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 4, "row 17: interim answers"),
        (b"HTTP/2.0 103 Early\r\n\r\n", "row 51: an interim answer of another version"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "row 51: another version"),
        (b"HTTP/1.2 200 OK\r\n\r\n", "row 51: another minor version"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "row 51: a status of four digits"),
        (b"ICY 200 OK\r\n\r\n", "row 51: another protocol"),
        (b"HTTP/1.2 200 OK\r\n", "row 51: another version, before the head has ended"),
        (b"HTTP/1.1 2000 OK\r\n", "row 51: a status of four digits, before the head has ended"),
        (b"HTTP/1.1 103 Early\r\nLink: a\r\n b", "row 7: a folded field of an interim answer, before it has ended"),
        (b"XHTT", "row 51: no beginning of a status line, and no end of a head"),
        (b"HTTP/1.1 103 Early\r\nLink: a\r\n b\r\n\r\n", "row 7: a folded field of an interim answer"),
        (b"HTTP/1.1 103 Early\r\n" + b"X: y\r\n" * 7 + b"\r\n", "row 17: counted over interim answers"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 21 + b"\r\n", "row 17: header lines"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000 + b"\r\n\r\n", "row 17: bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000, "row 17: bytes that never end"),
        (b"\x00" * 1001, "row 17: no head at all"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_refused_heads_however_they_are_cut(head: bytes, why: str, size: int) -> None:
    head = head * 3 if "counted" in why else head
    inner = Bytes(*(head[at : at + size] for at in range(0, len(head), size)))
    with pytest.raises(Permanent) as caught:
        _read_all(_watch(inner), inner)
    assert caught.value.code == "protocol_error"
    assert caught.value.message.startswith("a.example")


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_bytes_pass_unchanged_and_an_exact_answer_leaves_the_connection_usable(size: int) -> None:
    data = b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    inner = Bytes(*(data[at : at + size] for at in range(0, len(data), size)))
    stream = _watch(inner)
    assert _read_all(stream, inner) == data
    assert _reusable(stream)


@pytest.mark.parametrize(
    ("request_", "data", "usable"),
    [
        (GET, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!", False),  # row 5
        (GET, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", False),
        (GET, b"HTTP/1.1 204 No\r\n\r\n", True),
        (GET, b"HTTP/1.1 204 No\r\n\r\nx", False),
        (HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", True),
        (HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
        (GET, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", True),
        (GET, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx", False),
        (GET, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", False),
        (HEAD, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (HEAD, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", False),
        (GET, b"HTTP/1.1 200 OK\r\n\r\nhello", False),
    ],
)
def test_connection_is_used_again_only_when_nothing_can_be_left_on_it(
    request_: bytes, data: bytes, usable: bool
) -> None:
    inner = Bytes(data)
    stream = _watch(inner, request_)
    _read_all(stream, inner)
    assert _reusable(stream) is usable


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("behind", "surplus", "over"),
    [(b"", False, True), (b"HTTP/1.1 200 OK\r\n", True, True), (None, False, False)],
    ids=["silence", "bytes", "the end"],
)
def test_idle_connection_tells_late_bytes_from_silence_and_from_its_end(
    tmp_path: Path, tls: bool, behind: bytes | None, surplus: bool, over: bool
) -> None:
    server, client = connected(tmp_path, tls=tls)
    stream = WatchedStream(SyncStream(client), "a.example", POLICY, time.monotonic)
    with server, client:
        for _ in range(2):  # what came in the exchange before does not count
            stream.write(GET)
            server.recv(100)
            server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            while not stream.is_over():
                stream.read(100, 10.0)
            assert not stream.has_surplus()
        if behind is None:
            server.close()
            select.select([client], [], [], 10.0)
        elif behind:
            server.sendall(behind)
            select.select([client], [], [], 10.0)
        assert stream.has_surplus() is surplus
        assert stream.is_over() is over
        stream.close()


@pytest.mark.parametrize("reused", [True, False])
def test_bytes_that_come_before_the_request_is_there_are_no_answer_on_a_reused_connection(reused: bool) -> None:
    """A server that takes no more bytes leaves a request unconfirmed, as a long way to it does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    stream = WatchedStream(SyncStream(client), "a.example", POLICY, time.monotonic)
    with server, client:
        if reused:
            stream.write(GET)
            server.recv(100)
            server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            stream.read(100, 10.0)
        stream.write(b"GET / HTTP/1.1\r\nA: " + b"a" * 60_000 + b"\r\n\r\n")
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        if reused:
            with pytest.raises(Permanent) as caught:
                stream.read(100, 10.0)
            assert caught.value.code == "protocol_error"
        else:  # an early refusal of a long request is an answer
            stream.read(100, 10.0)


def test_bytes_that_only_the_tls_layer_holds_are_surplus(tmp_path: Path) -> None:
    server, client = connected(tmp_path, tls=True)
    stream = WatchedStream(SyncStream(client), "a.example", POLICY, time.monotonic)
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    with server, client:
        stream.write(GET)
        server.recv(100)
        server.sendall(data + b"more")  # one record
        assert stream.read(len(data), 10.0) == data
        assert stream.has_surplus()  # row 5: no poll of the socket sees these


def connected(place: Path, *, tls: bool) -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection, the server's first."""
    server, client = socket.socketpair()
    if not tls:
        return server, client
    authority = Authority(place / "authority")
    made = authority.sign()
    (place / "server.pem").write_text(made.chain + made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "server.pem")
    trust = ssl.create_default_context(cafile=str(authority.file))
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(context.wrap_socket, server, server_side=True)
        here = trust.wrap_socket(client, server_hostname=NAME)
        return there.result(10), here


@pytest.mark.parametrize("end", [b"", httpcore.ReadError("reset")])
def test_stale_is_only_a_used_connection_that_says_nothing_at_all(end: bytes | Exception) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    fresh, used, half = Bytes(end), Bytes(answer, end), Bytes(answer, b"HTTP/1.1 103 Early\r\n\r\n", end)
    with pytest.raises(httpcore.ReadError) as caught:
        _watch(fresh).read(100)
    assert not isinstance(caught.value, StaleConnection)
    stream = _watch(used)
    stream.read(100)
    stream.write(GET)
    with pytest.raises(StaleConnection):
        stream.read(100)
    stream = _watch(half)
    stream.read(100)
    stream.write(GET)
    stream.read(100)
    with pytest.raises(httpcore.ReadError) as caught:
        stream.read(100)
    assert not isinstance(caught.value, StaleConnection)


def test_head_that_drips_is_ended_by_its_own_deadline() -> None:
    inner = Bytes(*(bytes([one]) for one in b"HTTP/1.1 200 OK"), takes_s=29.0)
    stream = _watch(inner)
    with pytest.raises(httpcore.ReadTimeout):
        _read_all(stream, inner)
    assert inner.timeouts == [30.0, 30.0, 2.0]


def test_piece_of_a_body_that_drips_is_ended_by_its_deadline() -> None:
    inner = Bytes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *([b"0"] * 100))
    stream = _watch(inner)
    stream.read(100, 30.0)
    inner.takes_s = 29.0
    stream.expect_within(30.0)
    with pytest.raises(httpcore.ReadTimeout):
        _read_all(stream, inner)
    assert inner.timeouts[1:] == [30.0, 1.0]
