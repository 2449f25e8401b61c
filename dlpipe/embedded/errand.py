"""What a command hands to the ready process that carries it out, and the marks by which both know each other (ADR 40).

Only the standard library, and little of it: it is imported before anything else of a command.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SOCKET_NAME = "ready.sock"
CREDENTIALS = struct.Struct("3i")
"""Pid, uid and gid, as SO_PEERCRED tells them."""
HELLO = b"H"
"""Somebody is there who takes what comes."""
READY = b"R"
"""All of it can be done; nothing has been."""
GO = b"G"
"""From here on the command counts as begun, and nobody begins it once more."""
STATUS_BYTES = 4
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH)
"""As they are. Of SIGTSTP and SIGCONT the command is sent what does the same without a terminal."""
MOST_FDS = 64
HIGHEST_FD = 500
"""What is above must still fit into a select."""
MOST_BYTES = 16 << 20
LENGTH_BYTES = 4

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOT = os.path.dirname(_HERE)
_PACKAGES = ("site-packages", "dist-packages")
_KERNEL = (b"Uid:", b"Gid:", b"Groups:", b"Cap", b"NoNewPrivs:", b"Seccomp", b"Cpus_allowed:")
"""Who a process is and what it may, in /proc/self/status. A ready process cannot become somebody else."""
_EARLY = (
    "PYTHON", "LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "CELERY_", "KOMBU_", "SQLALCHEMY_", "DISABLE_SQLALCHEMY_",
    "PYDANTIC_",
)  # fmt: skip
"""Of variables that are read while programs and libraries are loaded, so that they cannot be changed afterwards."""
_GOES_ALONG = frozenset(
    {"PYTHONPATH", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "CELERY_CONFIG_MODULE"}
)
"""Of these, what is compared otherwise, goes along in what is handed over, or is read later."""


class Errand:
    """A command with its surroundings. The open files, and the current folder, come beside it as descriptors."""

    __slots__ = ("argv", "environ", "fds", "ignored", "limits", "marks", "path", "streams", "umask")

    def __init__(
        self, marks: list[str], argv: list[str], environ: list[str], path: list[str], streams: list[str],
        limits: list[str], ignored: list[str], fds: list[str], umask: list[str],
    ) -> None:  # fmt: skip
        self.marks, self.argv, self.environ, self.path, self.streams = marks, argv, environ, path, streams
        self.limits, self.ignored, self.fds, self.umask = limits, ignored, fds, umask

    def packed(self) -> bytes:
        """Nothing in it can hold a zero byte: neither words, variables nor paths."""
        found: list[str] = []
        parts = self.marks, self.argv, self.environ, self.path, self.streams, self.limits, self.ignored, self.fds
        for part in (*parts, self.umask):
            found += [str(len(part)), *part]
        return os.fsencode("\0".join(found))

    @classmethod
    def unpacked(cls, data: bytes) -> Errand:
        """Raises ValueError for what `packed` did not make."""
        words = os.fsdecode(data).split("\0")
        parts, at = [], 0
        while at < len(words):
            count = int(words[at])
            parts.append(words[at + 1 : at + 1 + count])
            at += 1 + count
        if at != len(words) or len(parts) != 9:
            raise ValueError("not an errand")
        return cls(*parts)


def own_errand(marks: list[str], signals: Signals, fds: Sequence[int]) -> Errand:
    """That of this process."""
    umask = os.umask(0o077)
    os.umask(umask)
    return Errand(
        marks,
        argv=list(sys.argv),
        environ=[f"{name}={value}" for name, value in os.environ.items() if name],
        path=list(sys.path),
        streams=[_stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
        limits=list(limits()),
        ignored=[str(number) for number in signals.ignored],
        fds=[str(fd) for fd in fds],
        umask=[str(umask)],
    )


def _stream(one: object) -> str:
    if one is None:
        return ""
    said = (getattr(one, name) for name in ("encoding", "errors", "line_buffering", "write_through"))
    return " ".join(str(value) for value in said)


def limits() -> Iterator[str]:
    for number in sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}):
        soft, hard = resource.getrlimit(number)
        yield f"{number} {soft} {hard}"


class Signals:
    """What this process ignores and blocks, as it was handed on by whoever started it."""

    def __init__(self, status: bytes) -> None:
        found = {line[:7]: int(line[7:], 16) for line in status.splitlines() if line[:7] in (b"SigBlk:", b"SigIgn:")}
        self.blocked = _numbers(found[b"SigBlk:"])
        # The C library keeps 32 and 33 to itself, and lets nobody set them; `make` hands them on as ignored.
        self.ignored = [number for number in _numbers(found[b"SigIgn:"]) if number in signal.valid_signals()]


def _numbers(mask: int) -> list[int]:
    return [number for number in range(1, 65) if mask >> (number - 1) & 1]


def kernel_status(pid: int) -> bytes:
    """OSError where there is no such thing."""
    with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
        return file.read()


def marks() -> list[str]:
    """What has to be equal, or the command would not do the same there: the code, the interpreter and what it reads.

    OSError where that cannot be told.
    """
    early = sorted(
        f"{name}={value}" for name, value in os.environ.items()
        if name.startswith(_EARLY) and name not in _GOES_ALONG
    )  # fmt: skip
    # Where a script lies, or the current folder, says nothing about what is imported from elsewhere.
    path = sys.path if sys.flags.safe_path else sys.path[1:]
    searched = list(dict.fromkeys(place for place in path if place != _ROOT))
    said: dict[str, object] = {
        "code": f"{_HERE} {_code()}",
        "packages": [os.stat(place).st_mtime_ns for place in searched if place.endswith(_PACKAGES)],
        "python": f"{sys.executable} {sys.version} {sys.prefix} {sys.getfilesystemencoding()}",
        "flags": [getattr(sys.flags, name) for name in dir(sys.flags) if name.islower() and _counts(name)],
        "options": [sys.warnoptions, sorted(sys._xoptions.items())],
        "path": searched,
        "environment": early,
    }
    return _said(said)


def rights(pid: int) -> list[str]:
    """Who that process is, what it may and what it sees, as the kernel says: nobody is asked about himself.

    OSError where that is not to be known.
    """
    place, root = f"/proc/{pid}", os.stat(f"/proc/{pid}/root")
    said: dict[str, object] = {
        "identity": [line for line in kernel_status(pid).splitlines() if line.startswith(_KERNEL)],
        "label": _label(pid),
        "namespaces": [os.readlink(f"{place}/ns/{name}") for name in sorted(os.listdir(f"{place}/ns"))],
        "root": (root.st_dev, root.st_ino),
        "niceness": os.getpriority(os.PRIO_PROCESS, pid),
    }
    return _said(said)


def _label(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/attr/current", "rb", buffering=0) as file:
            return file.read()
    except OSError:  # no SELinux, AppArmor or the like
        return b""


def _said(what: dict[str, object]) -> list[str]:
    return [f"{name}: {value}".replace("\0", " ") for name, value in what.items()]


def _counts(flag: str) -> bool:
    # What `dir` finds of a tuple, and how the path begins, which is compared by itself.
    return not flag.startswith(("_", "n_")) and flag not in ("count", "index", "safe_path")


def _code() -> str:
    """Changes with every file of ours."""
    found = []
    for folder, folders, files in os.walk(_HERE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            about = os.stat(os.path.join(folder, name))
            found.append(f"{folder}/{name} {about.st_size} {about.st_mtime_ns}")
    return f"{zlib.crc32(os.fsencode(chr(10).join(sorted(found)))):08x}"
