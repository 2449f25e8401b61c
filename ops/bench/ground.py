"""What the measurements stand on: a folder, files of known bytes, nginx, PostgreSQL, Redis; each ended by its pid."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import make_url

from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from dlpipe.embedded.files import FileLock
from ops.bench.failure import Absent, BenchFailed
from ops.bench.processes import ROOT, Driver, Lasting, environment, program
from tests import postgres
from tests.postgres import Postgres
from tests.servers import Valkey, free_port

MIB = 1 << 20
START_S = 20.0
SLOW_BYTES_S = 5_000_000
SCRATCH = ROOT / ".bench" / "run"
_SPARE = 2 << 30
_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; {user}
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; default_type application/octet-stream;
  open_file_cache max=100000 inactive=1h;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A file that the server gives, and what it hashes to."""

    url: str
    size: int
    sha256: str


class Ground:
    """Servers start when they are first asked for, and run until the ground is left."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._made: dict[int, Sample] = {}
        self._names = 0

    def place(self, name: str) -> Path:
        """A new empty folder; whoever takes it removes it."""
        self._names += 1
        made = self.folder / f"{self._names}-{name}"
        made.mkdir()
        return made

    @contextmanager
    def passing(self, name: str) -> Iterator[Path]:
        made = self.place(name)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def lasting(self, name: str, argv: list[str]) -> Lasting:
        """A server of ours that runs until the end."""
        return self._stack.enter_context(Lasting(name, argv, environment(self.folder), self.folder))

    def need(self, size: int, what: str) -> None:
        """Refuse before anything is written, rather than fill the disk."""
        free = shutil.disk_usage(self.folder).free
        if free < size + _SPARE:
            raise BenchFailed(f"{what} takes {size >> 20} MiB and 2048 to spare; {self.folder} has {free >> 20}")

    # ── files over HTTP ──

    @cached_property
    def url(self) -> str:
        (self.folder / "www").mkdir(mode=0o755)
        port, config = free_port(), self.folder / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""  # the checkout may be where nobody else gets to
        config.write_text(_NGINX.format(folder=self.folder, port=port, user=user), encoding="utf-8")
        nginx = program("nginx", "nginx-light")
        self.lasting("nginx", [nginx, "-e", str(self.folder / "error.log"), "-p", str(self.folder), "-c", str(config)])
        await_port(port, "nginx")
        return f"http://127.0.0.1:{port}"

    def sample(self, size: int) -> Sample:
        """A file of random bytes; made once, and so it is in memory."""
        if size not in self._made:
            url, name, digest = self.url, f"{size}.bin", hashlib.sha256()
            self.need(3 * size, "a file, its copy and one in the making")
            block = os.urandom(MIB)
            with (self.folder / "www" / name).open("wb") as file:
                for at in range(0, size, MIB):
                    piece = (at.to_bytes(8, "big") + block[8:])[: size - at]
                    file.write(piece)
                    digest.update(piece)
            self._made[size] = Sample(f"{url}/{name}", size, digest.hexdigest())
        return self._made[size]

    def small(self, name: str, count: int, size: int = 10_240) -> list[Sample]:
        """Many small files, each with bytes of its own."""
        folder = Path("www") / name
        url, chance = self.url, random.Random(name)
        (self.folder / folder).mkdir(parents=True)
        made = []
        for number in range(count):
            data = chance.randbytes(size)
            (self.folder / folder / f"{number}.bin").write_bytes(data)
            made.append(Sample(f"{url}/{name}/{number}.bin", size, hashlib.sha256(data).hexdigest()))
        return made

    def drop_small(self, name: str) -> None:
        shutil.rmtree(self.folder / "www" / name, ignore_errors=True)

    @cached_property
    def slow_url(self) -> str:
        """The same server behind a line that gives each connection so many bytes a second, from its first one on."""
        port = free_port()
        target = self.url.rpartition(":")[2]
        words = ["-m", "ops.bench.throttle", str(port), target, str(SLOW_BYTES_S)]
        self.lasting("throttle", [sys.executable, *words])
        await_port(port, "the throttle")
        return f"http://127.0.0.1:{port}"

    # ── databases and brokers ──

    @cached_property
    def postgres(self) -> Postgres:
        if reason := postgres.missing():
            raise Absent(reason)
        return self._stack.enter_context(Postgres(self.folder / "postgres"))

    @cached_property
    def _template(self) -> str:
        database = SqlDatabase(self.postgres.create_database())
        migrate(database)
        database.close()
        assert database.url.database is not None
        return database.url.database

    @contextmanager
    def ledger(self) -> Iterator[str]:
        """The URL of a migrated and empty database on the server; dropped at the end."""
        with self.database(self._template) as url:
            yield url

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        url = self.postgres.create_database(template)
        name = make_url(url).database
        try:
            yield url
        finally:
            with self.postgres.connect() as admin:
                admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    @contextmanager
    def valkey(self) -> Iterator[Valkey]:
        """One that is empty, in a folder with a short path."""
        with tempfile.TemporaryDirectory(prefix="dlbench") as folder, Valkey(folder) as server:
            yield server

    def driver(self, name: str, argv: list[str], env: dict[str, str], place: Path) -> Driver:
        return Driver(name, argv, env, place)


@contextmanager
def ground() -> Iterator[Ground]:
    SCRATCH.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = FileLock(SCRATCH.with_suffix(".lock"))
        if not lock.try_acquire():
            raise BenchFailed("another run is under way in this checkout")
        stack.callback(lock.release)
        if SCRATCH.exists():
            shutil.rmtree(SCRATCH)
        SCRATCH.mkdir()
        stack.callback(shutil.rmtree, SCRATCH, ignore_errors=True)
        yield Ground(SCRATCH, stack)


def settle() -> None:
    """What an earlier contestant left to be written must not be written at the expense of the next one."""
    os.sync()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def expect(path: Path, sample: Sample, who: str) -> None:
    """BenchFailed unless those are the bytes."""
    if not path.is_file() or path.stat().st_size != sample.size or sha256_of(path) != sample.sha256:
        raise BenchFailed(f"{who} left other bytes than the server has, or none, in {path}")


def await_port(port: int, what: str) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(answers, f"an answer from {what}", START_S)


def until(condition: Callable[[], object], what: str, within_s: float) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends:
            raise BenchFailed(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.01)
