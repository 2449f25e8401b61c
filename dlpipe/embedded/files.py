"""The small files around processes: locks, logs, state for others. It does not know what they are for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from dlpipe.core.errors import Misconfigured
from dlpipe.core.escape import escape

_PROBES_S = (0.0, 0.01, 0.02, 0.04)
_open_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """An exclusive flock that says who is responsible; it ends with the process, however that ends.

    The file stays: removing it would let two processes lock two files of the same name. Its text is the
    holder's pid, for people to read. A forked child does not hold the lock: its copy of the handle is closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def try_acquire(self, *, at_once: bool = False) -> bool:
        """Take the lock unless somebody has it. Taking it twice is the same as once.

        `is_held_elsewhere` of another process holds it for microseconds: it is asked for again before the answer
        is no, but not `at_once`, for those who come back anyway.
        """
        if self.held:
            return True
        fd = self._open()
        for pause_s in _PROBES_S[:1] if at_once else _PROBES_S:
            time.sleep(pause_s)
            if _flock(fd):
                break
        else:
            os.close(fd)
            return False
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        _open_locks.add(self)
        return True

    def release(self) -> None:
        """Give the lock back, also for whoever inherited the handle."""
        if self.held:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.close_here()

    def fileno(self) -> int:
        return self._fd

    def close_here(self) -> None:
        """Close our handle only: the lock stays with a process that inherited it, until that one ends."""
        if self.held:
            os.close(self._fd)
            self._fd = -1

    def is_held_elsewhere(self) -> bool:
        """Tell whether somebody other than this object holds the lock; creates nothing."""
        if self.held:
            return False
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            return not _flock(fd)
        finally:
            os.close(fd)

    def holder_pid(self) -> int | None:
        """The pid written by the last holder, which may have ended since."""
        try:
            return int(self.path.read_text())
        except (OSError, ValueError):
            return None

    def _open(self) -> int:
        private_dir(self.path.parent)
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_in_child() -> None:
    # flock belongs to the open file, which fork shares: a prefork child would keep its dead parent's lock.
    for lock in list(_open_locks):
        lock.close_here()


os.register_at_fork(after_in_child=_close_in_child)


def private_dir(path: Path) -> Path:
    """Create the directory for us alone; one that exists is left as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def own_dir_in_shared_place(path: Path) -> Path:
    """Create a directory where others may write too, or make sure that the existing one is ours alone."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Misconfigured(
            f"{path} is not a directory that belongs to us alone",
            hint=f"Remove {path}, or set DLPIPE_HOME to a shorter path so that it is not needed.",
        )
    return path


def refuse_foreign(home: Path) -> None:
    """Misconfigured when the data directory, or what is in it for processes to meet, may be another user's doing.

    Looks, and creates nothing; what is not there yet is made by us. The data directory, or a link to it, may be
    root's as well: so are volumes that a container is given to write to by its group.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        ours = frozenset({os.geteuid()})
        if home.lstat().st_uid not in ours | {0}:
            raise _foreign(home, "belongs to another user")
        _refuse(home, home.stat(), stat.S_ISDIR, 0o002, ours | {0})
        run = home / "run"
        _refuse(run, run.lstat(), stat.S_ISDIR, 0o022, ours)
        for found in sorted(run.glob("*.sock")):
            _refuse(found, found.lstat(), stat.S_ISSOCK, 0, ours)


def _refuse(
    path: Path, found: os.stat_result, is_kind: Callable[[int], bool], open_to_others: int, owners: frozenset[int]
) -> None:
    if not is_kind(found.st_mode):
        raise _foreign(path, "is a link, or something else than dlpipe makes there")
    if found.st_uid not in owners:
        raise _foreign(path, "belongs to another user")
    if stat.S_IMODE(found.st_mode) & open_to_others:
        raise _foreign(path, "may be written to by other users")


def _foreign(path: Path, what: str) -> Misconfigured:
    return Misconfigured(
        f"{path} {what}",
        code="home_foreign",
        hint="Run dlpipe as the user who owns it, or set DLPIPE_HOME to a directory of your own; or, if it is yours, "
        f"look what is in {path}, and mend it: chown it to the user of dlpipe, and chmod go-w.",
    )


def open_log(path: Path, *, limit_bytes: int) -> int:
    """Open a log for appending; one that has grown past the limit becomes `<name>.1` first."""
    private_dir(path.parent)
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_size > limit_bytes:
            path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def tail(path: Path, *, after: int = 0, lines: int = 12, limit_bytes: int = 8192) -> str:
    """The last lines written past an offset, control characters escaped, ready to be shown."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(after if after <= size else 0, size - limit_bytes))
            text = log.read(limit_bytes).decode(errors="replace")
    except OSError:
        return ""
    last = text.splitlines()[-lines:]
    return "\n".join(map(escape, last))


def write_whole(path: Path, text: str) -> None:
    """Replace the file's content at once, so that a reader sees the old or the new."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o600)
    draft.replace(path)
