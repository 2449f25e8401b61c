"""A web server for tests that does it right: strong ETags, ranges, If-Range; and counts what it sends.

What is wrong with servers is tests/origin.py; here is what is slow about them: a gate at some byte.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

_PIECE = 1 << 16
_RANGE = re.compile(r"bytes=([0-9]+)-\Z")


@dataclass
class File:
    body: bytes
    content_type: str = "application/octet-stream"
    bytes_per_s: float | None = None
    hold_at: int | None = None
    """Send no byte beyond this one as long as the gate is shut."""
    mute: str | None = None
    """Answer nothing at all to this method as long as the gate is shut."""
    declares: Mapping[str, int] = field(default_factory=dict)
    """The length in the head of an answer, by method, where it is not the truth."""
    gate: threading.Event = field(default_factory=threading.Event)

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:16]}"'


@dataclass
class Served:
    """One request, and the bytes of its body that went out."""

    method: str
    path: str
    range: str | None
    status: int = 0
    sent: int = 0


class WebServer:
    """Serves what was put there, on a loopback port of its own, until the block ends."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._files: dict[str, File] = {}
        self.log: list[Served] = []
        self._ending = threading.Event()
        self._server = _Server((host, 0), _Handler)
        self._server.web = self
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def put(
        self,
        path: str,
        body: bytes,
        *,
        bytes_per_s: float | None = None,
        hold_at: int | None = None,
        mute: str | None = None,
        declares: Mapping[str, int] | None = None,
    ) -> str:
        """Serve these bytes under that path; answers the URL."""
        self._files[path] = File(body, bytes_per_s=bytes_per_s, hold_at=hold_at, mute=mute, declares=declares or {})
        return self.url + path

    def drop(self, path: str) -> None:
        """From now on it is not there."""
        del self._files[path]

    def file(self, path: str) -> File | None:
        return self._files.get(path)

    def release(self, path: str) -> None:
        """Open the gate for good."""
        self._files[path].gate.set()

    def gets(self, path: str) -> list[Served]:
        return [one for one in self.log if one.path == path and one.method == "GET"]

    def sent(self, path: str) -> int:
        """Bytes of bodies that went out for that path, over all requests."""
        return sum(one.sent for one in self.gets(path))

    def wait(self, file: File, offset: int, size: int) -> None:
        """Let time pass as a slow line would."""
        if file.hold_at is not None and offset + size > file.hold_at:
            self.stand_still(file)
        if file.bytes_per_s is not None:
            self._ending.wait(size / file.bytes_per_s)

    def stand_still(self, file: File) -> None:
        while not (file.gate.wait(0.05) or self._ending.is_set()):
            pass

    def __enter__(self) -> WebServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    web: WebServer

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, *, body: bool) -> None:
        served = Served(self.command, self.path, self.headers.get("Range"))
        self.server.web.log.append(served)
        file = self.server.web.file(self.path)
        if file is None:
            served.status = 404
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if file.mute == self.command:
            self.server.web.stand_still(file)
        start = self._start(file)
        served.status = 206 if start else 200
        self.send_response(served.status)
        self.send_header("Content-Length", str(file.declares.get(self.command, len(file.body) - start)))
        self.send_header("Content-Type", file.content_type)
        self.send_header("ETag", file.etag)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(file.body) - 1}/{len(file.body)}")
        self.end_headers()
        if body:
            self._send(file, start, served)

    def _start(self, file: File) -> int:
        """Where to begin: at a range's start if its condition holds, else at the front."""
        match = _RANGE.match(self.headers.get("Range", ""))
        if match is None or self.headers.get("If-Range") not in (None, file.etag):
            return 0
        start = int(match[1])
        return start if start < len(file.body) else 0

    def _send(self, file: File, offset: int, served: Served) -> None:
        size = _PIECE if file.hold_at is None else min(_PIECE, max(1, file.hold_at))
        while offset < len(file.body):
            piece = file.body[offset : offset + size]
            if file.hold_at is not None and offset < file.hold_at:
                piece = piece[: file.hold_at - offset]
            self.server.web.wait(file, offset, len(piece))
            self.wfile.write(piece)
            served.sent += len(piece)
            offset += len(piece)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name for it
        """The log is kept in the server, not on standard error."""
