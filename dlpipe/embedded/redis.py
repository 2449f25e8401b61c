"""The private Redis of one machine: one server per data directory, on a unix socket, dying with its owner.

Whoever holds `<home>/run/redis.lock` owns the server and starts it; all others only talk to it. What is in it
may vanish (the ledger is the truth), so a damaged append-only file is set aside and not fatal.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

from dlpipe.core.errors import Misconfigured
from dlpipe.embedded.files import FileLock, open_log, own_dir_in_shared_place, private_dir, tail
from dlpipe.embedded.place import socket_in
from dlpipe.embedded.program import find_server
from dlpipe.embedded.spawn import start_tethered

ANSWER_S = 10.0
LOADING_S = 600.0
STOP_S = 10.0
GUARD_S = 0.3
GUARD_BACKOFF_S = 30.0
LOG_LIMIT_BYTES = 1 << 20
_POLL_S = 0.02
_DAMAGED = re.compile(
    r"(?i)(bad file format|unexpected end of file) reading the append only file|aof manifest"
    r"|unable to obtain the aof file .* no such file"
    r"|internal error in rdb|rdb preamble|rdb file reading failure"
)

log = logging.getLogger(__name__)


class Answer(enum.Enum):
    READY = "ready"
    LOADING = "loading"
    NONE = "none"


def socket_path(home: Path) -> Path:
    """Where the server of this data directory listens; looks, and creates nothing."""
    return Path(socket_in(str(home), "redis.sock"))


def ping(path: Path, *, timeout_s: float = 1.0) -> Answer:
    """Ask the server at the socket whether it is ready. Raw: loading a client would slow every command."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(timeout_s)
            line.connect(str(path))
            line.sendall(b"PING\r\n")
            reply = line.recv(64)
    except OSError:
        return Answer.NONE
    if reply.startswith(b"+PONG"):
        return Answer.READY
    return Answer.LOADING if reply.startswith(b"-LOADING") else Answer.NONE


def is_owned(home: Path) -> bool:
    """Does some process run the server of this data directory? Looks, and creates nothing."""
    return _lock_of(Path(home).resolve()).is_held_elsewhere()


def _lock_of(home: Path) -> FileLock:
    return FileLock(home / "run" / "redis.lock")


class PrivateRedis:
    """The server of one data directory, seen from one process. In a forked child it owns nothing."""

    def __init__(self, home: Path) -> None:
        self._home = Path(home).resolve()
        self.socket = socket_path(self._home)
        self.log_file = self._home / "run" / "redis.log"
        self._data = self._home / "redis"
        self._lock = _lock_of(self._home)
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._child: subprocess.Popen[bytes] | None = None
        self._log_from = 0
        self._guardian: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def server_pid(self) -> int | None:
        """The pid of the server when it is ours, for status and tests."""
        return self._child.pid if self._child is not None and os.getpid() == self._process else None

    def ensure(self) -> None:
        """Return when a server answers: start it when nobody owns it, else wait for the owner's.

        Raises Misconfigured when it does not come up, with the end of its log.
        """
        if os.getpid() != self._process:
            self._join(may_own=False)
            return
        with self._mutex:
            self._join(may_own=True)

    def keep(self) -> None:
        """Like `ensure`, and from then on see to it that there is a server, whoever ends, until `stop`."""
        self.ensure()
        if os.getpid() != self._process:
            return
        with self._mutex:
            if self._guardian is None:
                self._stopping.clear()
                self._guardian = threading.Thread(target=self._watch, name="dlpipe-redis", daemon=True)
                self._guardian.start()

    def stop(self) -> None:
        """End the server if it is ours, politely, and let others own it. Safe to call twice."""
        if os.getpid() != self._process:
            return
        self._stopping.set()
        if self._guardian is not None:
            self._guardian.join()
            self._guardian = None
        with self._mutex:
            self._end_child()
            if self._lock.held and self._in_short_place():
                with contextlib.suppress(OSError):
                    self.socket.parent.rmdir()
            self._lock.release()

    def _in_short_place(self) -> bool:
        return self.socket.parent != self._home / "run"

    def _watch(self) -> None:
        failures = 0
        while not self._stopping.wait(min(GUARD_S * 2.0**failures, GUARD_BACKOFF_S)):
            try:
                with self._mutex:
                    if self._lock.try_acquire(at_once=True) and not self._running():
                        self._serve()
                failures = 0
            except (Misconfigured, OSError) as error:
                failures = min(failures + 1, 10)
                log.warning("the private Redis could not be started, trying again: %s", error)

    def _join(self, *, may_own: bool) -> None:
        began = time.monotonic()
        while True:
            if may_own and self._lock.try_acquire(at_once=True):
                self._serve()
                return
            answer = ping(self.socket)
            if answer is Answer.READY:
                return
            waited_s = time.monotonic() - began
            if waited_s > (LOADING_S if answer is Answer.LOADING else ANSWER_S):
                owner = self._lock.holder_pid()
                raise Misconfigured(
                    f"the private Redis of process {owner} does not answer at {self.socket}",
                    code="redis_silent",
                    hint=f"See {self.log_file}. If that process is stuck, end it; if it runs with another "
                    "XDG_RUNTIME_DIR, set DLPIPE_HOME to a shorter path.",
                )
            time.sleep(_POLL_S)

    def _running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _serve(self) -> None:
        """With the lock held: have a server that answers, or give the lock back and raise."""
        try:
            if self._running() and self._await_ready():
                return
            self._launch()
            if self._await_ready():
                return
            if _DAMAGED.search(self._last_words()):
                self._set_damaged_aside()
                self._launch()
                if self._await_ready():
                    return
            raise self._ended()
        except BaseException:
            self._end_child()
            self._lock.release()
            raise

    def _launch(self) -> None:
        program = find_server()
        private_dir(self._data)
        if self._in_short_place():
            own_dir_in_shared_place(self.socket.parent)
        data_lock = self._lock_data()
        try:
            self.socket.unlink(missing_ok=True)
            output = open_log(self.log_file, limit_bytes=LOG_LIMIT_BYTES)
            try:
                self._log_from = os.lseek(output, 0, os.SEEK_END)
                self._child = start_tethered(
                    [program, *self._arguments()], cwd=self._data, log=output, keep_fds=[data_lock.fileno()]
                )
            finally:
                os.close(output)
        finally:
            data_lock.close_here()

    def _lock_data(self) -> FileLock:
        # The server itself holds this one. Our own lock is freed a moment before the kernel kills the server
        # of a dead owner, and two servers must never write one append-only file.
        lock = FileLock(self._home / "run" / "redis-data.lock")
        deadline = time.monotonic() + ANSWER_S
        while not lock.try_acquire():
            if time.monotonic() > deadline:
                raise Misconfigured(
                    f"an earlier Redis server still uses {self._data}",
                    code="redis_busy",
                    hint=f"End the process that holds {lock.path} (see `fuser {lock.path}`).",
                )
            time.sleep(_POLL_S)
        return lock

    def _arguments(self) -> list[str]:
        return [
            "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700",
            "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
            "--maxmemory-policy", "noeviction",
            "--dir", str(self._data), "--logfile", str(self.log_file), "--daemonize", "no",
        ]  # fmt: skip

    def _await_ready(self) -> bool:
        """Wait until our server answers; False when it ended."""
        began = time.monotonic()
        while True:
            if not self._running():
                return False
            answer = ping(self.socket)
            if answer is Answer.READY:
                return True
            if time.monotonic() - began > (LOADING_S if answer is Answer.LOADING else ANSWER_S):
                raise Misconfigured(
                    f"the private Redis does not answer at {self.socket}; the end of {self.log_file}:\n"
                    + self._last_words(),
                    code="redis_silent",
                )
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        return tail(self.log_file, after=self._log_from)

    def _ended(self) -> Misconfigured:
        status = self._child.returncode if self._child is not None else None
        return Misconfigured(
            f"the private Redis ended at once with status {status}; the end of {self.log_file}:\n" + self._last_words(),
            code="redis_ended",
            hint=f"Check that {self._home} is writable and has free space.",
        )

    def _set_damaged_aside(self) -> None:
        aside = self._data.with_name(self._data.name + ".damaged")
        shutil.rmtree(aside, ignore_errors=True)
        self._data.replace(aside)
        log.warning("the private Redis could not read its file: set aside as %s, starting empty", aside)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
