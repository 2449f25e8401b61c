"""What stands between dlpipe and a real server: it counts, cuts, and does what that server cannot be told to do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

_PIECE = 65_536


@dataclass
class Passed:
    """One request as it came by, and the first of what was answered."""

    method: str
    target: str
    headers: dict[str, str]
    answer: bytes = b""

    @property
    def status(self) -> int:
        words = self.answer.split(b" ", 2)
        return int(words[1]) if len(words) > 1 else 0

    def header(self, name: str) -> str | None:
        """Of the answer's head."""
        for line in self.answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


@dataclass
class Front:
    """Hands requests on to a server on loopback, byte for byte, unless it was told otherwise."""

    port_behind: int
    cut_after: int | None = None
    """Break off the next GET's answer after so many bytes of it."""
    strip: frozenset[str] = frozenset()
    """Headers that the server does not get to see."""
    instead: Callable[[Passed], bytes | None] = lambda _passed: None
    """An answer of our own, for what the server cannot be configured to do."""
    before_get: Callable[[], object] = lambda: None
    passed: list[Passed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def gets(self) -> list[Passed]:
        return [one for one in self.passed if one.method == "GET"]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            with self._lock:
                self._open.add(client)
                self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as asked:
                while (passed := _read(asked.readline)) is not None:
                    self.passed.append(passed)
                    if not self._answer(client, passed):
                        return
        except OSError:
            pass  # the client has gone, or the test is over
        finally:
            with self._lock:
                self._open.discard(client)

    def _answer(self, client: socket.socket, passed: Passed) -> bool:
        """One request, on a connection of its own to the server; False when the client's is done with."""
        if (own := self.instead(passed)) is not None:
            passed.answer = own
            client.sendall(own)
            return True  # on the same connection
        cut = None
        if passed.method == "GET":
            self.before_get()
            cut, self.cut_after = self.cut_after, None
        with socket.create_connection(("127.0.0.1", self.port_behind)) as server:
            server.sendall(self._request(passed))
            self._relay(server, client, passed, cut)
        return False  # the server was asked to close, and so do we

    def _request(self, passed: Passed) -> bytes:
        kept = {name: value for name, value in passed.headers.items() if name not in {*self.strip, "connection"}}
        lines = [f"{passed.method} {passed.target} HTTP/1.1", *(f"{name}: {value}" for name, value in kept.items())]
        return "\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1")

    def _relay(self, server: socket.socket, client: socket.socket, passed: Passed, cut: int | None) -> None:
        sent = 0
        while piece := server.recv(_PIECE):
            if cut is not None:
                piece = piece[: max(0, cut - sent)]
            if b"\r\n\r\n" not in passed.answer:
                passed.answer += piece
            client.sendall(piece)
            sent += len(piece)
            if cut is not None and sent >= cut:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone leaves the accept blocked
        self._listener.close()
        with self._lock:
            for client in self._open:
                try:
                    client.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Front:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(readline: Callable[[], bytes]) -> Passed | None:
    first = readline().decode("latin-1").split()
    if len(first) != 3:
        return None
    headers = {}
    while (line := readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Passed(first[0], first[1], headers)
