"""The file of a part: its name, its lock, and the sidecar beside it. One holder, known by job and fence."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import Overtaken, Postponed
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import sidecar
from dlpipe.store.folders import disk_errors
from dlpipe.store.sidecar import Checkpoint, Sidecar

log = logging.getLogger(__name__)

BUSY_AGAIN_S = 30.0
TRIES = 100
"""So often a part is opened that is gone, or another one, when it is locked."""
NOTES = 256
"""Checkpoints that are added to a sidecar before it is written anew."""
LOOK_EVERY_NOTES = 16
"""So often it is looked whether the part is still ours. If not, notes go into a sidecar that nobody reads any more."""


class PartFile:
    def __init__(self, where: int, slug: str, job_id: str, fence: int) -> None:
        self._where = where
        self._name = f"{slug}.part"
        self._side_name = f"{slug}.json"
        self._job_id = job_id
        self._fence = fence
        self._fd = -1
        self._sealed = False
        """Its file has, or was about to get, its final name: it is not written to any more."""
        self._side: Sidecar | None = None
        self._side_fd = -1
        self._noted = 0
        self._is_new = False
        """This claim made the file, and has written nothing into it."""
        self._side_waits = False
        """What the sidecar says by now is written with the first bytes that it vouches for."""

    # ── the lock ──────────────────────────────────────────────────────────────────────────────────

    def lock(self, is_newest: Callable[[], bool] = lambda: False) -> None:
        """`is_newest`: is our fence the last one that the ledger gave? Asked where the sidecar names a later one."""
        for _ in range(TRIES):
            fd, made = self._open()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                self._overtake_or_raise(is_newest)
                continue
            if self._is_at_name(fd):
                self._fd, self._is_new = fd, made
                break
            os.close(fd)  # unlinked or replaced between our opening and locking it
        else:
            raise _busy("the part changes under our hands")
        crash_point("part.locked")
        side = self._read_side()
        if side is not None and side.job_id == self._job_id and side.fence > self._fence and not is_newest():
            raise Overtaken("a later holder of this job works on the part")
        found = os.fstat(self._fd)
        self._sealed = found.st_nlink > 1 or not found.st_mode & stat.S_IWUSR
        if side is None or side.inode != found.st_ino:
            side = self._new_side(None, found.st_ino)
        # On record from the first moment: who comes next must know whom it would overtake.
        side.job_id, side.fence = self._job_id, self._fence
        self._side = side
        self._write_side()

    def _overtake_or_raise(self, is_newest: Callable[[], bool]) -> None:
        """Somebody holds the part. An overtaken holder of this very job may be stopped for ever: leave it its file."""
        side = self._read_side()
        if side is None or side.job_id != self._job_id:
            raise _busy("another job is fetching the same URL right now")
        if side.fence == self._fence or (side.fence > self._fence and not is_newest()):
            raise Overtaken("a later holder of this job works on the part")
        self._unlink()

    def _open(self) -> tuple[int, bool]:
        """The file, and whether it was made by this. What stands in its place and is none of ours to open makes way."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        for _ in range(TRIES):
            with suppress(FileExistsError):
                made = flags | os.O_RDWR | os.O_CREAT | os.O_EXCL
                return os.open(self._name, made, 0o600, dir_fd=self._where), True
            with suppress(FileNotFoundError):
                # Before it is opened: to open a device may do something.
                found = os.stat(self._name, dir_fd=self._where, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode) or (fd := self._opened(flags)) is None:
                    self._set_apart(self._name)
                    continue
                return fd, False
        raise _busy("the part changes under our hands")

    def _opened(self, flags: int) -> int | None:
        """None where it may not even be read."""
        with suppress(PermissionError):
            return os.open(self._name, flags | os.O_RDWR, dir_fd=self._where)
        with suppress(PermissionError):
            # Sealed, by a publisher that died before it took this name away: to be read, and locked.
            return os.open(self._name, flags | os.O_RDONLY, dir_fd=self._where)
        return None

    def _set_apart(self, name: str) -> None:
        """It is not ours, so it is not removed either; `dlpipe verify` names it."""
        apart = f"{name}.{uuid.uuid4().hex[:8]}.apart"
        os.rename(name, apart, src_dir_fd=self._where, dst_dir_fd=self._where)
        log.warning("staging: what stood in a part's place and is no file of ours was renamed to %s", apart)

    def _is_at_name(self, fd: int) -> bool:
        try:
            there = os.stat(self._name, dir_fd=self._where, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return there.st_ino == os.fstat(fd).st_ino

    def _check_ours(self) -> None:
        if not self._is_at_name(self._fd):
            raise Overtaken("the part was taken over by a later holder of the job")

    def _replace(self) -> None:
        """Put an empty file in the part's place."""
        self._check_ours()
        # Locked before it has the name, so that nobody can slip in between.
        fresh = f"{self._name}.{uuid.uuid4().hex[:8]}.new"
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
        fd = os.open(fresh, flags, 0o600, dir_fd=self._where)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._put(fresh, self._name)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self._sealed, self._is_new = fd, False, True
        crash_point("part.replaced")

    def close(self) -> None:
        if self._fd >= 0:
            try:
                with suppress(OSError):
                    self._remove_if_nothing_came()
                self._close_side()
            finally:
                os.close(self._fd)  # closing lets go of the lock
                self._fd = -1

    def _remove_if_nothing_came(self) -> None:
        empty = self._side is not None and not self._side.checkpoints and not os.fstat(self._fd).st_size
        if empty and self._is_at_name(self._fd):
            self._unlink()

    def go_on(self, fence: int) -> None:
        # The sidecar may still name the fence before: whoever comes next overtakes the one as well as the other.
        with disk_errors():
            self._check_ours()
        self._fence = fence
        if self._side is not None:
            self._side.fence = fence

    # ── the sidecar ───────────────────────────────────────────────────────────────────────────────

    def _unlink(self) -> None:
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(self._side_name, dir_fd=self._where)
        crash_point("part.half_removed")
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._where)
        self._side = None

    def _unlink_one(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._where)

    def _unlink_left_sidecar(self) -> None:
        """Its file was moved to its place, where the file system has no links: nothing here belongs to it any more."""
        side = self._read_side()
        if side is not None and side.inode == os.fstat(self._fd).st_ino:
            self._unlink_one(self._side_name)

    def _read_side(self) -> Sidecar | None:
        return sidecar.read(self._where, self._side_name)

    def _write_side(self) -> None:
        """Replace the sidecar at once. It is not fsynced: after a power cut its hashes are checked anyway."""
        if self._side is None:
            return
        self._side_waits = False
        self._check_ours()
        temporary = f"{self._side_name}.{os.getpid()}.{self._fd}"
        fd = os.open(
            temporary,
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=self._where,
        )
        try:
            _write_whole(fd, self._side.dump())
            self._put(temporary, self._side_name)
        except BaseException:
            os.close(fd)
            self._unlink_one(temporary)  # a disk that is full must not fill up with these
            raise
        self._close_side()
        self._side_fd, self._noted = fd, 0

    def _note_mark(self, mark: Checkpoint) -> None:
        """Add one checkpoint to the sidecar. To replace it would be dear: file systems then write it out at once."""
        if self._side is None:
            return
        if self._side_fd < 0 or self._side_waits or self._noted >= NOTES:
            self._write_side()
            return
        if not self._noted % LOOK_EVERY_NOTES:
            self._check_ours()
        note = self._side.note(mark)
        if os.write(self._side_fd, note) == len(note):
            self._noted += 1
        else:
            self._close_side()  # what follows half a line counts for nothing: the next one is written with all others

    def _close_side(self) -> None:
        if self._side_fd >= 0:
            os.close(self._side_fd)
            self._side_fd = -1

    def _put(self, temporary: str, name: str) -> None:
        """Give what was prepared its name; where that fails, nothing stays of it."""
        try:
            crash_point("part.putting")
            try:
                os.rename(temporary, name, src_dir_fd=self._where, dst_dir_fd=self._where)
            except IsADirectoryError:
                self._set_apart(name)
                os.rename(temporary, name, src_dir_fd=self._where, dst_dir_fd=self._where)
        except BaseException:
            self._unlink_one(temporary)
            raise

    def _new_side(self, remote: RemoteFacts | None, inode: int) -> Sidecar:
        return Sidecar(
            job_id=self._job_id,
            fence=self._fence,
            inode=inode,
            final_url_sha256=remote.final_url_sha256 if remote else "",
            etag=remote.etag if remote else None,
            last_modified=remote.last_modified if remote else None,
            date=remote.date if remote else None,
            total=remote.content_length if remote else None,
            complete=False,
            checkpoints=[],
        )


def _write_whole(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _busy(what: str) -> Postponed:
    hint = "Nothing to do: this job goes on when the other one is done."
    return Postponed(what, code="part_busy", after_s=BUSY_AGAIN_S, hint=hint)
