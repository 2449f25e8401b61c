"""The processes of one machine behind `dlpipe up` and `dlpipe fetch`: private Redis, worker, beat.

One stack per data directory, guarded by `<home>/run/stack.lock`. When its owner is killed, all of it dies.
What a killed one leaves behind (leases, jobs under way) is the business of others.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from dlpipe.embedded.files import FileLock, private_dir, write_whole
from dlpipe.embedded.nursery import Nursery
from dlpipe.embedded.process import birth
from dlpipe.embedded.redis import PrivateRedis
from dlpipe.embedded.service import Service, Supervised

__all__ = ["Service", "Stack", "StackInfo", "ask_to_stop", "running"]

_POLL_S = 0.05
_WRITING_S = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StackInfo:
    """Who runs the stack. `here` tells whether that pid is a living process that this one can signal."""

    pid: int
    birth: str
    started_at: str
    services: Mapping[str, int]
    here: bool


class Stack:
    """Starts services, starts them again when they end, and ends them. Call it from one thread at a time.

    Args:
        commands: started in this order, after Redis.
        env: laid over the environment of this process.
        on_worker_death: told the pid of every service that ended by itself, before it is started again.
        log_dir: `<home>/log` unless given.
        nursery: forks those services that fit it; without one, or when it is gone, they are started anew.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        home: Path,
        commands: Sequence[Service],
        redis: PrivateRedis,
        env: Mapping[str, str],
        on_worker_death: Callable[[int], object] | None = None,
        log_dir: Path | None = None,
        *,
        nursery: Nursery | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = Path(home).resolve()
        self._redis = redis
        self._on_worker_death = on_worker_death
        self._clock = clock
        self._process = os.getpid()
        self._lock = _lock(self._home)
        self._info_file = _info_file(self._home)
        self._started_at = ""
        complete = {**os.environ, **env}
        self._services = [
            Supervised(command, log_dir=log_dir or self._home / "log", env=complete, nursery=nursery)
            for command in commands
        ]

    @property
    def pids(self) -> dict[str, int]:
        """The services that have a process now."""
        return {each.service.name: each.pid for each in self._services if each.pid is not None}

    def try_start(self, *, at_once: bool = False) -> bool:
        """Start Redis and the services; False when another stack of this data directory runs.

        `at_once` is for those who come back anyway (`FileLock.try_acquire`).
        """
        if self._lock.held or not self._lock.try_acquire(at_once=at_once):
            return False
        try:
            self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
            self._write_info()
            self._redis.keep()
            for each in self._services:
                each.plan_start(self._clock())
                each.start_if_due(self._clock())
            self._write_info()
        except BaseException:
            self.stop(0.0)
            raise
        return True

    def poll(self) -> None:
        """Start again what ended. The owner calls it a few times a second; Redis looks after itself.

        Raises Misconfigured, with the end of the log, when a service cannot stay up; then call `stop`.
        Nothing happens while another stack runs: its processes are its owner's.
        """
        if not self._lock.held or os.getpid() != self._process:
            return
        before = self.pids
        for each in self._services:
            ended = each.reap()
            if ended is not None:
                log.warning("%s (pid %d) ended", each.service.name, ended)
                self._tell(ended)
                each.plan_restart(self._clock())
            each.start_if_due(self._clock())
        if self.pids != before:
            self._write_info()

    def stop(self, grace_s: float) -> None:
        """Ask the services to end, kill those that still run after the grace time, then end Redis."""
        if not self._lock.held or os.getpid() != self._process:
            return
        try:
            deadline = time.monotonic() + grace_s
            for each in self._services:
                each.ask_to_end()
            for each in self._services:
                each.await_end(deadline - time.monotonic())
        finally:
            # Also when a second Ctrl-C ends the waiting.
            for each in self._services:
                each.kill()
            self._redis.stop()
            self._info_file.unlink(missing_ok=True)
            self._lock.release()

    def _tell(self, pid: int) -> None:
        if self._on_worker_death is None:
            return
        try:
            self._on_worker_death(pid)
        except Exception:
            # The ledger may be away for a moment; that must not end the services which still run.
            log.exception("the end of process %d could not be reported", pid)

    def _write_info(self) -> None:
        pid = os.getpid()
        info = StackInfo(pid, birth(pid) or "", self._started_at, self.pids, here=True)
        private_dir(self._info_file.parent)
        write_whole(self._info_file, json.dumps(asdict(info)))


def is_run(home: Path) -> bool:
    """Somebody runs a stack on this data directory."""
    return _lock(Path(home).resolve()).is_held_elsewhere()


def running(home: Path) -> StackInfo | None:
    """Who runs the stack of this data directory now; None when nobody does, whatever an old file says."""
    lock = _lock(Path(home).resolve())
    deadline = time.monotonic() + _WRITING_S
    while lock.is_held_elsewhere():
        info = _read_info(_info_file(Path(home).resolve()))
        # Between taking the lock and writing the file, the file of a killed predecessor is still there.
        if info is not None and info.here:
            return info
        if time.monotonic() > deadline:
            return info or StackInfo(lock.holder_pid() or 0, "", "", {}, here=False)
        time.sleep(_POLL_S)
    return None


def ask_to_stop(home: Path, timeout_s: float) -> bool:
    """Ask the stack to end (SIGTERM to its owner) and wait; True when none runs any more.

    A pid that cannot be shown to be the owner's is left alone: it may have been given to another process.
    """
    info = running(home)
    if info is None:
        return True
    if not info.here:
        return False
    try:
        os.kill(info.pid, signal.SIGTERM)
    except (ProcessLookupError, PermissionError) as error:
        log.warning("process %d could not be asked to end: %s", info.pid, error)
    lock = _lock(Path(home).resolve())
    deadline = time.monotonic() + timeout_s
    while lock.is_held_elsewhere():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _lock(home: Path) -> FileLock:
    return FileLock(home / "run" / "stack.lock")


def _info_file(home: Path) -> Path:
    return home / "run" / "stack.json"


def _read_info(path: Path) -> StackInfo | None:
    try:
        raw = json.loads(path.read_text())
        pid, born = int(raw["pid"]), str(raw["birth"])
        services = {str(name): int(each) for name, each in raw["services"].items()}
        return StackInfo(pid, born, str(raw["started_at"]), services, here=bool(born) and birth(pid) == born)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
