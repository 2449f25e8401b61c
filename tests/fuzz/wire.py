"""A network without threads and without time, for a fuzzer: real sockets, at whose other end a script answers.

Whatever can happen to the bytes of an answer happens at a point that the case chose, not at a moment: as the client
reads reads on, while the connection is idle, or once the next request has come. A wait that nothing can end is over at
once, and only the clock moves; so a case is the same each time it is played.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httpcore


class When(Enum):
    IDLE = "when the connection is idle"
    ASKED = "when the next request has come"


class End(Enum):
    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"


@dataclass(frozen=True)
class Said:
    """One answer, a piece for each read of the client's, then the end of the connection or surplus behind it."""

    pieces: tuple[bytes, ...]
    end: End = End.KEEP
    late: bytes = b""
    when: When = When.ASKED
    alone: bool = False
    """The answer to that next request comes behind the surplus only as the client reads on."""

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    connection: int
    reused: bool


Answers = Callable[[Request], Said]


class Hang(Exception):
    """A download goes on and on."""


class Network(httpcore.NetworkBackend):
    """Leads every connection to the server of the case, and bounds what one download may take."""

    def __init__(self, *, waits_s: float, requests: int) -> None:
        self.now = 1_000.0
        """The clock: it moves when somebody waits, and not otherwise."""
        self.connections = 0
        self.transcript: list[tuple[int, str, bytes]] = []
        self.answers: Answers = lambda _request: Said((), End.CLOSE)
        self._waits_s, self._requests = waits_s, requests
        self.begin()

    def begin(self) -> None:
        """The next download begins."""
        self._waited, self._asked = 0.0, 0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._waited += seconds
        if self._waited > self._waits_s:
            raise Hang(f"it has waited for {self._waited:.0f} s")

    def ask(self, request: Request) -> Said:
        self._asked += 1
        if self._asked > self._requests:
            raise Hang(f"it has sent {self._asked} requests")
        return self.answers(request)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self.connections += 1
        return _Wire(self, self.connections)


class _Wire(httpcore.NetworkStream):
    """One connection: the client's end is a real socket, which watchers may look at as they like."""

    def __init__(self, network: Network, number: int) -> None:
        self._network, self._number = network, number
        self._client, self._server = socket.socketpair()
        self._heard = bytearray()
        self._requests = 0
        self._left: deque[bytes] = deque()
        self._late: tuple[When, bytes] | None = None
        self._alone = False
        self._end = End.KEEP

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        while self._left:  # what it did not wait for has come by now
            self._go_on()
        self._surplus(When.IDLE)
        try:
            self._client.sendall(buffer)
            self._heard += self._server.recv(1 << 20)
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error
        while b"\r\n\r\n" in self._heard:
            head, _, rest = bytes(self._heard).partition(b"\r\n\r\n")
            self._heard[:] = rest
            self._answer(head)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._readable():
            self._go_on()
        if not self._readable():
            self._network.wait(timeout or 0.0)
            raise httpcore.ReadTimeout("nothing will come")
        try:
            found = self._client.recv(max_bytes)
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error
        if not found and self._end is End.RESET:
            raise httpcore.ReadError("reset")
        return found

    def close(self) -> None:
        self._client.close()
        self._server.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "socket":
            return self._client
        if info == "is_readable":
            if not self._left:
                self._surplus(When.IDLE)
            return self._readable()
        return None

    def _answer(self, head: bytes) -> None:
        held = self._surplus(When.ASKED) and self._alone
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        fields = (line.partition(":") for line in lines[1:])
        headers = {name.lower(): value.strip() for name, _, value in fields}
        self._network.transcript.append((self._number, ">", head))
        self._requests += 1
        said = self._network.ask(Request(method, path, headers, self._number, self._requests > 1))
        self._left.extend(piece for piece in said.pieces if piece)
        self._late, self._alone = ((said.when, said.late) if said.late else None), said.alone
        self._end = said.end
        if not held:
            self._go_on()

    def _go_on(self) -> None:
        if self._left:
            self._send(self._left.popleft())
        if not self._left and self._end is not End.KEEP:
            self._late = None
            self._server.close()

    def _surplus(self, when: When) -> bool:
        if self._late is None or self._late[0] is not when:
            return False
        data, self._late = self._late[1], None
        self._send(data, "<!")
        return True

    def _send(self, data: bytes, sign: str = "<") -> None:
        self._network.transcript.append((self._number, sign, data))
        with suppress(OSError):  # the client has gone
            self._server.sendall(data)

    def _readable(self) -> bool:
        looks = select.poll()
        try:
            looks.register(self._client, select.POLLIN)
        except (OSError, ValueError):
            return True
        return bool(looks.poll(0))
