"""A web server for the demo: files from a folder, byte ranges, strong ETags, and one slow file.

It keeps its own log of every answer, so that what the pipeline says about bytes can be compared with it.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_PIECE = 64 * 1024
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")


@dataclass(slots=True)
class Sent:
    """One answer. `body_bytes` counts what was handed to the network, while it is being sent."""

    method: str
    path: str
    status: int
    start: int
    body_bytes: int = 0


class DemoServer(ThreadingHTTPServer):
    """Serves `folder` on a free port of the loopback; `rates` names the slow paths, in bytes a second."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path, rates: Mapping[str, float]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rates = rates
        self.files = {f"/{file.relative_to(folder)}": file for file in folder.rglob("*") if file.is_file()}
        self.etags = {path: _etag(file) for path, file in self.files.items()}
        self.log: list[Sent] = []
        self._thread = threading.Thread(target=self.serve_forever, name="demo-server", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def body_bytes(self, path: str) -> int:
        """What was sent of this file, in all answers together."""
        return sum(sent.body_bytes for sent in list(self.log) if sent.path == path)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is what the demo is about: nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: DemoServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        file = self.server.files.get(self.path)
        if file is None:
            self.send_error(404)
            return
        size, etag = file.stat().st_size, self.server.etags[self.path]
        begin, end = self._wanted(size, etag)
        status = 206 if (begin, end) != (0, size) else 200
        sent = Sent(self.command, self.path, status, begin)
        self.server.log.append(sent)
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Content-Type", mimetypes.guess_type(self.path)[0] or "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", formatdate(file.stat().st_mtime, usegmt=True))
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if with_body:
            self._send(file, begin, end, sent)

    def _wanted(self, size: int, etag: str) -> tuple[int, int]:
        """The bytes that are asked for; all of them when the range does not fit this very file (RFC 9110 §13.1.5)."""
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        if match is None or self.headers.get("If-Range", etag) != etag:
            return 0, size
        begin = int(match[1])
        end = min(int(match[2]) + 1, size) if match[2] else size
        return (begin, end) if begin < end else (0, size)

    def _send(self, file: Path, begin: int, end: int, sent: Sent) -> None:
        rate = self.server.rates.get(self.path)
        if rate is not None:
            # Small, or the kernel would take megabytes that the other side never reads, and the log would count them.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)
        began = time.monotonic()
        with file.open("rb") as stream:
            stream.seek(begin)
            while sent.body_bytes < end - begin:
                piece = stream.read(min(_PIECE, end - begin - sent.body_bytes))
                self.wfile.write(piece)
                sent.body_bytes += len(piece)
                if rate is not None:
                    time.sleep(max(0.0, began + sent.body_bytes / rate - time.monotonic()))

    def log_message(self, *_: object) -> None:
        """The log is kept as data."""


def _etag(file: Path) -> str:
    with file.open("rb") as stream:
        return f'"{hashlib.file_digest(stream, "sha256").hexdigest()[:32]}"'
