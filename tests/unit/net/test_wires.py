"""Connections that are cut wake whoever waits at them, and no other work is begun over new ones."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import httpcore
import pytest

from dlpipe.core.errors import WorkerEnding
from dlpipe.net.backend import WatchedBackend
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.net.urls import address
from dlpipe.net.wire import WatchedStream
from dlpipe.net.wires import Wires

PATIENCE_S = 60.0
"""Nobody waits so long here: whoever is not woken fails the test by its time-out."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def wires() -> Wires:
    return Wires()


@contextmanager
def connected(listener: socket.socket, wires: Wires) -> Iterator[tuple[WatchedStream, socket.socket]]:
    host, port = listener.getsockname()
    stream = WatchedBackend(httpcore.SyncBackend(), NetPolicy(), wires=wires).connect_tcp(host, port, 5)
    assert isinstance(stream, WatchedStream)
    with closing(stream), listener.accept()[0] as peer:
        stream.write(b"GET / HTTP/1.1\r\n\r\n", 5)
        yield stream, peer


READS: dict[str, Callable[[WatchedStream], object]] = {
    "through the parser": lambda stream: stream.read(65_536, PATIENCE_S),
    "into the reader's memory": lambda stream: stream.read_into(memoryview(bytearray(65_536)), PATIENCE_S),
}


@pytest.mark.parametrize("way", READS)
def test_who_waits_for_a_silent_server_is_woken(way: str, listener: socket.socket, wires: Wires) -> None:
    with connected(listener, wires) as (stream, _), ThreadPoolExecutor(1) as pool:
        stream.expect_within(PATIENCE_S)
        waiting = pool.submit(READS[way], stream)
        time.sleep(0.05)
        assert not waiting.done()
        wires.cut()
        with pytest.raises(WorkerEnding):
            waiting.result(10)
    wires.cut()  # of one that is closed there is nothing to cut


def test_what_has_arrived_can_still_be_read(listener: socket.socket, wires: Wires) -> None:
    with connected(listener, wires) as (stream, peer):
        peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        assert stream.read(65_536, 5).startswith(b"HTTP")
        peer.sendall(b"bytes")
        wires.cut()
        assert stream.read(65_536, 5) == b"bytes"
        with pytest.raises(WorkerEnding):
            stream.read(65_536, 5)


def test_nobody_is_asked_any_more(listener: socket.socket, wires: Wires) -> None:
    wires.cut()
    host, port = listener.getsockname()
    with pytest.raises(WorkerEnding):
        WatchedBackend(httpcore.SyncBackend(), NetPolicy(), wires=wires).connect_tcp(host, port, 5)
    listener.settimeout(0.05)
    with pytest.raises(TimeoutError):
        listener.accept()


def test_who_sleeps_between_two_tries_is_woken(wires: Wires) -> None:
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(wires.pause, PATIENCE_S)
        wires.cut()
        with pytest.raises(WorkerEnding):
            sleeping.result(10)


def test_a_server_is_not_blamed_and_not_asked_again(listener: socket.socket) -> None:
    """No retry, no failure that a circuit would count: only WorkerEnding comes out of the hub."""
    hub = Hub(NetPolicy(allow_private=True, retries=3, breaker_failures=1))
    host, port = listener.getsockname()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(hub.send, "GET", address(f"http://{host}:{port}/"), tenant="default")
        peer, _ = listener.accept()
        hub.hang_up()
        with peer, pytest.raises(WorkerEnding):
            asked.result(10)
    listener.settimeout(0.05)
    with pytest.raises(TimeoutError):
        listener.accept()
    hub.close()


def test_a_child_that_is_forked_afterwards_asks_as_ever() -> None:
    hub = Hub(NetPolicy(allow_private=True))
    hub.hang_up()
    with pytest.raises(WorkerEnding):
        hub._wires.check()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            hub._wires.check()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_wait_and_all_are_woken(listener: socket.socket, wires: Wires) -> None:
    woken = threading.Semaphore(0)

    def wait(stream: WatchedStream) -> None:
        with pytest.raises(WorkerEnding):
            stream.read(65_536, PATIENCE_S)
        woken.release()

    with ExitStack() as stack:
        streams = [stack.enter_context(connected(listener, wires))[0] for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            for stream in streams:
                pool.submit(wait, stream)
            wires.cut()
    assert all(woken.acquire(timeout=1) for _ in streams)
