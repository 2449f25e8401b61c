"""A fast web server for one made-up file of any size: strong ETag, ranges, If-Range. It knows what the kernel holds."""

from __future__ import annotations

import hashlib
import random
import re
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType

from tests.servers import wait_until

_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)\Z")
_PIECE = 1 << 18
_SETTLED_S = 0.06
"""Longer than the kernel puts off an acknowledgement."""


class Body:
    """Bytes that are made when asked for. The period is prime, so no piece of a round size is like another."""

    PERIOD = 1_048_573

    def __init__(self, size: int, seed: int = 7) -> None:
        self.size = size
        block = random.Random(seed).randbytes(self.PERIOD)
        self._twice = memoryview(block + block)

    def read(self, offset: int, size: int) -> memoryview:
        at = offset % self.PERIOD
        return self._twice[at : at + min(size, self.PERIOD, self.size - offset)]

    def sha256(self, upto: int | None = None) -> str:
        digest, at, end = hashlib.sha256(), 0, self.size if upto is None else upto
        while at < end:
            piece = self.read(at, end - at)
            digest.update(piece)
            at += len(piece)
        return digest.hexdigest()


@dataclass
class Served:
    """One GET: the range, how much of it the kernel has taken, and the client's port."""

    start: int
    end: int
    status: int
    port: int
    sent: int = 0
    ended: bool = False


class RangeServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, body: Body, path: str = "/file.bin", etag: str = '"strong"') -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body, self.path, self.etag = body, path, etag
        self.port: int = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}{path}"
        self.gets: list[Served] = []
        self.on_sent: Callable[[Served], None] = lambda served: None
        self.honest = True
        """Answers with ranges; else each range is answered with the whole file."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def in_the_kernel(self, served: Served) -> int:
        """Bytes of that answer that the kernel has taken from us and not given to the client; both must stand still."""
        seen: list[tuple[float, int]] = []

        def settled() -> bool:
            now, held = time.monotonic(), self._queues(served.port)
            if not seen or seen[-1][1] != held:
                seen.append((now, held))
            return now - seen[-1][0] >= _SETTLED_S

        wait_until(settled, "the kernel's queues stand still")
        return seen[-1][1]

    def _queues(self, port: int) -> int:
        """Not yet acknowledged at our end, and not yet read at the client's (proc(5), /proc/net/tcp)."""
        held = 0
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, queues, *_ = line.split()
            sending, receiving = (int(text, 16) for text in queues.split(":"))
            ends = int(local.split(":")[1], 16), int(remote.split(":")[1], 16)
            if ends == (self.port, port):
                held += sending
            elif ends == (port, self.port):
                held += receiving
        return held

    def __enter__(self) -> RangeServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(10)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def _answer(self, *, send: bool) -> None:
        server, size = self.server, self.server.body.size
        asked = _RANGE.match(self.headers.get("Range", "")) if send and server.honest else None
        start, end, status = 0, size, 200
        if asked is not None and self.headers.get("If-Range", server.etag) == server.etag and int(asked[1]) < size:
            start, end, status = int(asked[1]), min(size, int(asked[2] or size - 1) + 1), 206
        self.send_response(status)
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", server.etag)
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        if not send:
            return
        served = Served(start, end, status, self.client_address[1])
        server.gets.append(served)
        try:
            at = start
            while at < end:
                piece = server.body.read(at, min(_PIECE, end - at))
                taken = self.connection.send(piece)
                at += taken
                served.sent += taken
                server.on_sent(served)
        finally:
            served.ended = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name for it
        """The log is kept in the server, not on standard error."""
