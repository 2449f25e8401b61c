"""One supervised process: when to start it again, where its output goes, how it is ended."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlpipe.core.errors import InvalidInput, Misconfigured
from dlpipe.embedded.files import open_log, tail
from dlpipe.embedded.nursery import Forked, Nursery
from dlpipe.embedded.spawn import start_tethered

QUICK_S = 5.0
QUICK_LIMIT = 5
STEADY_S = 60.0
LONGEST_WAIT_S = 30.0
LOG_LIMIT_BYTES = 10 << 20
log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Service:
    """What to run. The name becomes a file name; `env` is laid over what all services are given.

    It starts `after_s` seconds later than the stack: what the first job does not need should not take its processors.
    What only `eases` the work of others is given up when it cannot stay up, and the others run on.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    eases: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or not self.argv:
            raise InvalidInput(f"{self.name!r} with {len(self.argv)} words is not a service")


@dataclass(slots=True)
class Restarts:
    """How long to wait before a service is started again."""

    in_a_row: int = 0
    quick: int = 0

    def ended(self, ran_s: float) -> float | None:
        """Seconds until the next start; None when it ended right after its start too often."""
        self.quick = self.quick + 1 if ran_s < QUICK_S else 0
        if ran_s >= STEADY_S:
            self.in_a_row = 0
        if self.quick >= QUICK_LIMIT:
            return None
        wait_s = 0.0 if self.in_a_row == 0 else min(2.0 ** (self.in_a_row - 1), LONGEST_WAIT_S)
        self.in_a_row += 1
        return wait_s


class Supervised:
    """A service and its current process, if it has one. Times are passed in."""

    def __init__(
        self, service: Service, *, log_dir: Path, env: Mapping[str, str], nursery: Nursery | None = None
    ) -> None:
        self.service = service
        self._nursery = nursery
        self.log_file = log_dir / f"{service.name}.log"
        self._env = {**env, **service.env}
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._restarts = Restarts()
        self._status = 0
        self._started_s = 0.0
        self._due_s = 0.0
        self._log_from = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, now_s: float) -> None:
        output = open_log(self.log_file, limit_bytes=LOG_LIMIT_BYTES)
        try:
            self._log_from = os.lseek(output, 0, os.SEEK_END)
            self._process = self._start(output)
        finally:
            os.close(output)
        self._started_s = now_s

    def _start(self, log_fd: int) -> subprocess.Popen[bytes] | Forked:
        if self._nursery is not None and self._nursery.fits(self.service.argv):
            try:
                return self._nursery.start(self.service.argv, log=log_fd, env=self._env)
            except OSError as error:
                log.info("%s is not forked, but started anew: %s", self.service.name, error)
        return start_tethered(self.service.argv, log=log_fd, env=self._env)

    def plan_start(self, now_s: float) -> None:
        self._due_s = now_s + self.service.after_s

    def start_if_due(self, now_s: float) -> bool:
        if self._process is not None or now_s < self._due_s:
            return False
        self.start(now_s)
        return True

    def reap(self) -> int | None:
        """The pid of the process if it ended since the last look; what is left of its group goes with it."""
        process = self._process
        if process is None or process.poll() is None:
            return None
        self._process = None
        _kill_group(process.pid)
        self._status = process.returncode or 0
        return process.pid

    def plan_restart(self, now_s: float) -> None:
        """After `reap`: fix the time of the next start. Raises Misconfigured when there is no point in it."""
        wait_s = self._restarts.ended(now_s - self._started_s)
        if wait_s is None and self.service.eases:
            log.warning("%s cannot stay up, and is left out; see %s", self.service.name, self.log_file)
            self._due_s = math.inf
            return
        if wait_s is None:
            raise Misconfigured(
                f"{self.service.name} ended {QUICK_LIMIT} times right after its start, the last time with "
                f"status {self._status}; the end of {self.log_file}:\n" + tail(self.log_file, after=self._log_from),
                code="service_crashes",
                hint=f"The rest is in {self.log_file}.",
            )
        self._due_s = now_s + wait_s

    def ask_to_end(self) -> None:
        # To the main process only: Celery's children would drop their task on it.
        if self._process is not None:
            self._process.terminate()

    def await_end(self, timeout_s: float) -> bool:
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError):
            self._process.wait(max(timeout_s, 0.0))
        return self.reap() is not None

    def kill(self) -> None:
        if self._process is not None:
            _kill_group(self._process.pid)
            self._process.wait()
            self._process = None


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
