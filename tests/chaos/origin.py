"""The web server of a run: each path behaves as its job says, and every request is written into an access log."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from tests.chaos.work import Body, Job, Sort

_PIECE = 1 << 16
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)\Z")


@dataclass
class Access:
    """One request, and the bytes of which body went out, from which offset on."""

    at: float
    method: str
    path: str
    status: int
    etag: str = ""
    start: int = 0
    sent: int = 0


@lru_cache(maxsize=256)
def _data(body: Body) -> bytes:
    return body.data()


class ChaosOrigin:
    def __init__(self, jobs: Iterable[Job], log: Path) -> None:
        self.jobs = {job.path: job for job in jobs}
        self.accesses: list[Access] = []
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self._log = log.open("w")
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.origin = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def note(self, access: Access) -> None:
        with self.lock:
            self.accesses.append(access)
            self._log.write(json.dumps(asdict(access)) + "\n")

    def turn(self, path: str, method: str) -> int:
        """How often this has been asked for before."""
        with self.lock:
            self.asked[path] += 1
            self.asked[f"{method} {path}"] += 1
            return self.asked[f"{method} {path}"] - 1

    def __enter__(self) -> ChaosOrigin:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
        with self.lock:
            self._log.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    origin: ChaosOrigin

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away in the middle are what a run is about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        origin = self.server.origin
        job = origin.jobs.get(self.path)
        turn = origin.turn(self.path, self.command)
        access = Access(time.time(), self.command, self.path, 200)
        try:
            if job is None or job.sort is Sort.GONE:
                self._refuse(access, 410 if job is not None and len(job.path) % 2 else 404)
            elif job.sort is Sort.FLAKY and turn < job.trouble:
                self._refuse(access, 503)
            else:
                self._answer(job, turn, access)
        finally:
            origin.note(access)

    def _refuse(self, access: Access, status: int) -> None:
        access.status = status
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, job: Job, turn: int, access: Access) -> None:
        later = job.sort is Sort.CHANGING and self.server.origin.asked[job.path] > job.trouble
        body = job.bodies[-1 if later else 0]
        first, last = self._range(body)
        whole = (first, last) == (0, body.size - 1)
        access.status, access.etag, access.start = (200 if whole else 206), body.etag, first
        self.send_response(access.status)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("ETag", body.etag)
        self.send_header("Accept-Ranges", "bytes")
        if not whole:
            self.send_header("Content-Range", f"bytes {first}-{last}/{body.size}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = last + 1
        if job.sort is Sort.BROKEN and turn < job.trouble:
            end = first + (end - first) // 2
            self._send(job, body, first, end, access)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        self._send(job, body, first, end, access)

    def _range(self, body: Body) -> tuple[int, int]:
        """First and last byte of the answer: those asked for, if their condition holds, else all."""
        match = _RANGE.match(self.headers.get("Range", ""))
        if match is None or self.headers.get("If-Range") not in (None, body.etag) or int(match[1]) >= body.size:
            return 0, body.size - 1
        return int(match[1]), min(int(match[2] or body.size), body.size - 1)

    def _send(self, job: Job, body: Body, start: int, end: int, access: Access) -> None:
        view = memoryview(_data(body))
        for offset in range(start, end, _PIECE):
            piece = view[offset : min(offset + _PIECE, end)]
            if job.rate:
                time.sleep(len(piece) / job.rate)  # a slow line is what this is
            self.wfile.write(piece)
            access.sent += len(piece)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name for it
        """The access log is the origin's own."""
