"""Who a process is, in a way that outlives it, so that another one can tell for certain that it is gone.

An owner reads `<node>.<pid>.<starttime>`; a token appends one more part. Every doubt answers "not dead".
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass

_TOKEN = re.compile(r"([0-9A-Za-z-]+)\.([1-9][0-9]{0,8})\.([0-9]{1,20})\.[^.]+", re.ASCII)
_ENDED = "ZXx"


@dataclass(frozen=True, slots=True)
class _Stat:
    pid: int
    state: str
    threads: int
    started: int


def _stat(path: str) -> _Stat | None:
    """Read what a `/proc/<pid>/stat` says; None when it says nothing."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("latin-1")
        pid, _, rest = text.partition(" ")
        # proc(5): the command's name may itself hold blanks and parentheses, so the last one ends it.
        fields = rest[rest.rindex(")") + 1 :].split()
        return _Stat(int(pid), fields[0], int(fields[17]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class _Self:
    pid: int
    node: str | None
    owner: str


class Identity:
    """This process's name, and the question whether another's process has ended."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._host = f"host-{uuid.uuid4().hex}"
        self._self: _Self | None = None

    def owner(self) -> str:
        """`<node>.<pid>.<starttime>` of the process that asks: a forked child gets its own."""
        return self._me().owner

    def is_dead(self, token: str) -> bool:
        """Is it certain that the process behind this token has ended? False for every other machine's."""
        parts = _TOKEN.fullmatch(token)
        if parts is None or parts[1] != self._me().node:
            return False
        pid, started = int(parts[2]), int(parts[3])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # there is such a process, but not one of ours
        stat = _stat(f"{self._proc}/{pid}/stat")
        if stat is None:
            return False  # /proc may be mounted so that it hides what belongs to other users
        if stat.started != started:
            return True
        # A zombie whose other threads have not ended yet may still be in the middle of a write.
        return stat.state in _ENDED and stat.threads <= 1

    def _me(self) -> _Self:
        me, pid = self._self, os.getpid()
        if me is None or me.pid != pid:
            me = self._self = self._look(pid)
        return me

    def _look(self, pid: int) -> _Self:
        stat = _stat(f"{self._proc}/self/stat")
        node = self._node()
        # /proc may be that of another pid namespace: its numbers then mean other processes.
        if node is None or stat is None or stat.pid != pid:
            return _Self(pid, None, f"{self._host}.{pid}.0")
        return _Self(pid, node, f"{node}.{pid}.{stat.started}")

    def _node(self) -> str | None:
        """Boot and pid namespace: within one of these a pid and a start time name one process for good."""
        try:
            with open(f"{self._proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
                boot = file.read().strip().replace("-", "")[:12]
            namespace = os.stat(f"{self._proc}/self/ns/pid").st_ino
        except (OSError, ValueError):
            return None
        return f"{boot}-{namespace}" if boot.isalnum() else None


_identity = Identity()
current = _identity.owner
is_dead = _identity.is_dead
