"""A nursery: forked from a command that has everything imported, it forks services, which begin with that (ADR 40).

Linux only: the services are handed to the command as its own children, and die with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from dlpipe.embedded.errand import LENGTH_BYTES
from dlpipe.embedded.ready import carry_out, end, exactly
from dlpipe.embedded.tether import die_with_parent

_SOON, _FORK = b"S", b"F"
_PR_SET_CHILD_SUBREAPER = 36
_ANSWER_S = 60.0
_HANDED_OVER_S = 5.0
_FAILED = 70
_PYTHON = [sys.executable, "-P", "-m"]


class Forked:
    """A child of ours that we did not start: as much of `subprocess.Popen` as services need."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                gone, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # whoever started us ignores the end of children, so the kernel forgot it
                gone, status = self.pid, 0
            if gone:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """TimeoutError when it lasts."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause_s = 0.001
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return status

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class Nursery:
    """Belongs to one process, which calls it from one thread at a time."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line, self._process = line, Forked(pid)

    @classmethod
    def plant(cls, modules: Sequence[str]) -> Nursery | None:
        """Before there is a thread, a connection or an engine; None where it cannot be.

        `modules` are what services need beyond what is imported by now; see `soon`.
        """
        if not sys.platform.startswith("linux") or threading.active_count() > 1:
            return None
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # what is left in it, a child would say once more
        # Services lose the process that forked them, and become children of the nearest ancestor that asked for it.
        if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            return None
        ours, theirs = socket.socketpair()
        owner = os.getpid()
        gc.freeze()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            return None
        if pid == 0:
            ours.close()
            _tend(theirs, owner, modules)
        theirs.close()
        gc.unfreeze()
        ours.settimeout(_ANSWER_S)
        return cls(ours, pid)

    @staticmethod
    def fits(argv: Sequence[str]) -> bool:
        """A module run by our own interpreter."""
        return list(argv[: len(_PYTHON)]) == _PYTHON

    def soon(self) -> None:
        """Services are going to be wanted: what they need beyond our own imports can be imported now."""
        try:
            self._line.send(_SOON)
        except OSError:  # then `start` will say so
            return

    def start(self, argv: Sequence[str], *, log: int, env: Mapping[str, str]) -> Forked:
        """Start it in a session of its own; it dies with this process. OSError when the nursery cannot, now or ever."""
        words = argv[len(_PYTHON) :]
        text = "\0".join([str(len(words)), *words, *(f"{name}={value}" for name, value in env.items())])
        data = os.fsencode(text)
        try:
            socket.send_fds(self._line, [_FORK], [log])
            self._line.sendall(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            return Forked(int.from_bytes(exactly(self._line, LENGTH_BYTES), "big"))
        except OSError:
            self.end()  # or it might start it yet, when somebody else has done so
            raise

    def end(self) -> None:
        """Nothing more is started. What was started is not touched. Safe to call twice."""
        self._line.close()
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)  # it holds nothing
            self._process.wait()


def _tend(line: socket.socket, owner: int, modules: Sequence[str]) -> NoReturn:
    try:
        die_with_parent()
        os.setsid()  # Ctrl-C is the owner's
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        # What was left open for the owner is not left open for services.
        os.closerange(3, line.fileno())
        os.closerange(line.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        while os.getppid() == owner:
            said, fds, _, _ = socket.recv_fds(line, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if said == _FORK:
                size = int.from_bytes(exactly(line, LENGTH_BYTES), "big")
                pid = _fork_away(line, owner, fds[0], exactly(line, size))
                os.close(fds[0])
                line.sendall(pid.to_bytes(LENGTH_BYTES, "big"))
            elif said == _SOON:
                for name in modules:
                    importlib.import_module(name)
            else:
                break
    finally:
        os._exit(0)


def _fork_away(line: socket.socket, owner: int, log: int, data: bytes) -> int:
    """Fork a child that is nobody's, so that it becomes the owner's; its pid."""
    told, tell = os.pipe()
    between = os.fork()
    if between == 0:
        service = os.fork()
        if service:
            os.write(tell, service.to_bytes(LENGTH_BYTES, "big"))
            os._exit(0)
        line.close()
        os.close(told)
        os.close(tell)
        _be_the_service(owner, log, data)
    os.close(tell)
    try:
        pid = os.read(told, LENGTH_BYTES)
    finally:
        os.close(told)
        os.waitpid(between, 0)  # from now on it is the owner's
    if len(pid) < LENGTH_BYTES:
        raise OSError("the service was not forked")
    return int.from_bytes(pid, "big")


def _be_the_service(owner: int, log: int, data: bytes) -> NoReturn:
    try:
        os.setsid()
        deadline = time.monotonic() + _HANDED_OVER_S
        while os.getppid() != owner and time.monotonic() < deadline:
            time.sleep(0.001)
        die_with_parent()
        if os.getppid() != owner:  # asked after the request is in place, as in tether
            os._exit(_FAILED)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        count, *rest = os.fsdecode(data).split("\0")
        words, variables = rest[: int(count)], rest[int(count) :]
        os.environ.clear()
        for variable in variables:
            name, _, value = variable.partition("=")
            os.environ[name] = value
        time.tzset()
        # As an interpreter that is started with -P has it: neither a script's folder nor the current one.
        own = sys.path if sys.flags.safe_path else sys.path[1:]
        named = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        sys.path[:] = dict.fromkeys([*named, *own])
        importlib.invalidate_caches()
        sys.argv = words
        end(carry_out(lambda: runpy.run_module(words[0], run_name="__main__", alter_sys=True)))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(_FAILED)
