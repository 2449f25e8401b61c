"""Starts Celery processes for tests quickly: one process imports what they need, and each of them is a fork of it.

`Forks.start` does what `subprocess.Popen` with `python -m celery …` would; what is imported beforehand is what the
ready process of a stack imports (ADR 40): nothing that is made from settings. Run as a module it is that process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from dlpipe.embedded.ready import carry_out, end
from dlpipe.embedded.tether import die_with_parent, tethered

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable, "-m"]
_CELERY = [*PYTHON, "celery", "-A", "dlpipe"]
_KINDS = {"worker", "beat"}
_NUMBER = 4
_AT_START = ("LANG", "LC_", "LD_", "MALLOC_", "PYTHON")
_TAKEN = {"PYTHONWARNINGS": "ignore"}


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """What is read when an interpreter starts, or before: a fork has it of the process that it is a fork of."""
    return {name: value for name, value in env.items() if name.startswith(_AT_START)}


def become(env: Mapping[str, str], cwd: str, streams: Mapping[int, int]) -> None:
    """As if this fork had been started there, in that environment, with these descriptors as its streams."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in streams.items():
        os.dup2(stream, number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()


class Forked:
    """A process that another one waits for: as much of `subprocess.Popen` as tests need."""

    def __init__(self, pid: int, ends: int) -> None:
        self.pid, self._ends = pid, ends
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float) -> int:
        if (status := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, within_s: float) -> int | None:
        if self.returncode is None and select.select([self._ends], [], [], within_s)[0]:
            said = os.read(self._ends, _NUMBER)  # nothing, when whoever waited was killed as well
            self.returncode = int.from_bytes(said, "big", signed=True) if said else -signal.SIGKILL
            os.close(self._ends)
        return self.returncode


class Forks:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                tethered([*PYTHON, __name__, str(theirs.fileno())]),
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **_TAKEN},
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._line = ours

    @staticmethod
    def fit(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> bool:
        """A fork has this package imported; in another folder there may be another release of it."""
        known = list(argv[:5]) == _CELERY and argv[5] in _KINDS
        return known and cwd == REPOSITORY and read_at_start(env) == _TAKEN

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: int) -> Forked:
        asked = json.dumps([argv[len(PYTHON) :], dict(env), str(cwd)]).encode()
        hears, tells = os.pipe()
        try:
            socket.send_fds(self._line, [len(asked).to_bytes(_NUMBER, "big")], [log, tells])
        finally:
            os.close(tells)
        self._line.sendall(asked)
        pid = os.read(hears, _NUMBER)
        assert len(pid) == _NUMBER, "it was not forked"
        return Forked(int.from_bytes(pid, "big"), hears)


@cache
def forks() -> Forks:
    """One for all tests of this process."""
    return Forks()


# ── the process that forks ────────────────────────────────────────────────────────────────────────


def _serve(line: socket.socket) -> NoReturn:
    from dlpipe.cli.ready import load

    load(commands=False)
    for name in ("celery.bin.celery", "celery.apps.beat", "celery.apps.worker", "celery.concurrency.prefork",
                 "celery.concurrency.thread", "sqlalchemy.dialects.postgresql.psycopg"):  # fmt: skip
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait are waited for by nobody
    gc.freeze()
    while True:
        size, fds, _, _ = socket.recv_fds(line, _NUMBER, 2)
        if not size:
            os._exit(0)
        asked = b""
        while len(asked) < int.from_bytes(size, "big"):
            asked += line.recv(1 << 16)
        if os.fork() == 0:
            line.close()
            _wait_for_one(*json.loads(asked), *fds)
        for fd in fds:
            os.close(fd)


def _wait_for_one(words: list[str], env: dict[str, str], cwd: str, log: int, tells: int) -> NoReturn:
    forker = os.getppid()
    die_with_parent()
    if os.getppid() != forker:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    owner = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(tells)
        _be(owner, words, env, cwd, log)
    os.write(tells, pid.to_bytes(_NUMBER, "big"))
    os.close(log)
    _, status = os.waitpid(pid, 0)
    os.write(tells, os.waitstatus_to_exitcode(status).to_bytes(_NUMBER, "big", signed=True))
    os._exit(0)


def _be(owner: int, words: list[str], env: dict[str, str], cwd: str, log: int) -> NoReturn:
    try:
        die_with_parent()
        if os.getppid() != owner:
            os._exit(1)
        become(env, cwd, {1: log, 2: log})
        os.close(log)
        sys.path[0] = cwd  # as an interpreter has it that is started with -m
        sys.argv = words
        end(carry_out(lambda: runpy.run_module(words[0], run_name="__main__", alter_sys=True)))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
