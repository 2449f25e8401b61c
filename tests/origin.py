"""A web server that sends exactly the bytes it is told to, however wrong, and remembers what it was asked."""

from __future__ import annotations

import fcntl
import io
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType

from tests.certificates import NAME

_JOIN_S = 10.0


class Then(Enum):
    KEEP = "wait for the next request on this connection"
    CLOSE = "close the connection"
    RESET = "reset the connection"
    HANG = "send nothing more until the client goes away"


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    connection: int


@dataclass(frozen=True)
class Late:
    """Bytes that no request asked for, some time behind an answer, in front of the next one on that connection."""

    data: bytes
    after_s: float | None = None
    """None: as soon as the next request has come."""


@dataclass(frozen=True)
class Say:
    data: bytes = b""
    then: Then = Then.KEEP
    drip: bytes = b""
    """Sent again and again until the client goes away, or the test is over."""
    every_s: float = 0.01
    late: Late | None = None


Script = Callable[[Asked], Say]


def answer(status: int = 200, body: bytes = b"", *headers: str, length: bool = True) -> bytes:
    """An honest answer's bytes."""
    lines = [f"HTTP/1.1 {status} Whatever", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Origin:
    """Scripts per path: the n-th request for it gets the n-th, and the last one from then on."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """With `tls` it is the server of `certificates.NAME`."""
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}" if tls is None else f"https://{NAME}:{self.port}"
        self.asked: list[Asked] = []
        self.connections = 0
        self._scripts: dict[str, list[Script]] = {}
        self._open: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._left = threading.Condition(self._lock)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def on(self, path: str, *scripts: Say | bytes | Script) -> str:
        """Register what to say for a path; answers its URL."""
        self._scripts[path] = [_script(one) for one in scripts]
        return self.url + path

    def of(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.target.partition("?")[0] == path]

    def all_have_left(self, within_s: float = _JOIN_S) -> bool:
        """Wait until every connection is closed; False when one is still open by then."""
        with self._left:
            return self._left.wait_for(lambda: not self._open, within_s)

    def push(self, asked: Asked, data: bytes) -> None:
        """Send these bytes on the connection of an answered request, and wait until they have arrived."""
        with self._lock:
            connection = self._open[asked.connection]
        connection.sendall(data)
        deadline = time.monotonic() + _JOIN_S
        while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]:  # not acknowledged yet
            assert time.monotonic() < deadline
            self._ending.wait(0.001)

    def has_left(self, asked: Asked, within_s: float = _JOIN_S) -> bool:
        """Wait until the connection of this request is closed; False when it is still open by then."""
        with self._left:
            return self._left.wait_for(lambda: asked.connection not in self._open, within_s)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open[self.connections] = connection
                thread = threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                with self._lock:
                    connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                    self._open[number] = connection
            with connection.makefile("rb") as stream:
                while self._one(connection, stream, number):
                    pass
        except OSError:
            pass  # the client has gone, or the test is over
        finally:
            with self._lock:
                self._open.pop(number, None)
                connection.close()
                self._left.notify_all()

    def _one(self, connection: socket.socket, stream: io.BufferedReader, number: int) -> bool:
        readline = stream.readline
        first = readline().decode("latin-1").split()
        if len(first) != 3:
            return False
        headers = {}
        while (line := readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        asked = Asked(first[0], first[1], headers, number)
        path = asked.target.partition("?")[0]
        with self._lock:
            self.asked.append(asked)
            scripts = self._scripts.get(path, [_script(answer(404))])
            script = scripts[min(len(self.of(path)), len(scripts)) - 1]
        say = script(asked)
        connection.sendall(say.data)
        while say.drip and not self._ending.wait(say.every_s):
            connection.sendall(say.drip)
        if say.late is not None and not self._send_late(connection, stream, say.late):
            return False
        if say.then is Then.RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if say.then is Then.HANG:
            readline()
        return say.then is Then.KEEP

    def _send_late(self, connection: socket.socket, stream: io.BufferedReader, late: Late) -> bool:
        """False: the client has gone without another request."""
        if late.after_s is not None:
            self._ending.wait(late.after_s)
        elif not stream.peek(1):
            return False
        connection.sendall(late.data)
        return True

    def close(self) -> None:
        self._ending.set()
        # Waking the accept needs a shutdown: closing alone leaves it blocked on Linux.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open.values():
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        for thread in self._threads:
            thread.join(_JOIN_S)

    def __enter__(self) -> Origin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _script(one: Say | bytes | Script) -> Script:
    if isinstance(one, bytes):
        one = Say(one)
    if isinstance(one, Say):
        return lambda _asked, say=one: say  # type: ignore[misc]
    return one
