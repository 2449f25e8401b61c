"""What the measurements stand on: a folder, an nginx with files of known bytes; ended by pid."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
START_S = 20.0
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000; default_type application/octet-stream;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{
    listen 127.0.0.1:{port}; root {folder}/www;
    location /slow/ {{ alias {folder}/www/; limit_rate {slow_rate}; }}
  }}
}}
"""
SLOW_BYTES_S = 5_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """A file that the server gives, and what it hashes to."""

    name: str
    size: int
    sha256: str


class Ground:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._made: dict[int, Sample] = {}

    def sample(self, size: int) -> Sample:
        """A file of random bytes; made once, and read once, so that it is in memory."""
        if size not in self._made:
            name, digest = f"{size}.bin", hashlib.sha256()
            block = os.urandom(MIB)
            with (self.folder / "www" / name).open("wb") as file:
                for at in range(0, size, MIB):
                    piece = (at.to_bytes(8, "big") + block[8:])[: size - at]
                    file.write(piece)
                    digest.update(piece)
            self._made[size] = Sample(name, size, digest.hexdigest())
        return self._made[size]


@contextmanager
def ground() -> Iterator[Ground]:
    folder = Path(os.environ.get("BENCH_FOLDER") or ".bench").resolve()
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "www").mkdir(parents=True)
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(program).exists():
        sys.exit("bench: nginx is missing (apt-get install nginx-light)")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        port = _free_port()
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, port=port, slow_rate=SLOW_BYTES_S), encoding="utf-8")
        server = subprocess.Popen([program, "-p", str(folder), "-c", str(config)], stderr=subprocess.DEVNULL)
        stack.callback(_end, server)
        _await_port(port)
        yield Ground(folder, f"http://127.0.0.1:{port}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(port: int) -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    sys.exit("bench: nginx did not start")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)
