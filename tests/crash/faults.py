"""What can go wrong at a crash point, and how it is made to happen to one worker, for real where that is cheap."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from dlpipe.core.errors import LedgerUnavailable
from dlpipe.core.ports import Endings
from dlpipe.db import SqlDatabase
from dlpipe.db.engine import SqlUnit


class Fault(StrEnum):
    KILLED = "killed"
    """kill -9; the message is lost with the worker."""
    KILLED_SENT_AGAIN = "killed, message again"
    """kill -9; the broker hands the message out again before anything is healed."""
    EXCEPTION = "exception"
    FSYNC = "fsync error"
    """EIO from every fsync from there on."""
    NO_SPACE = "no space"
    """ENOSPC from whatever writes bytes or makes a name."""
    DATABASE = "database gone"
    """Connections are cut, and no new one is taken, until the worker is at its end."""
    ANSWER = "answer lost"
    """From there on each commit succeeds, and the worker is never told."""
    REDIS = "Redis gone"
    """The same for Redis, which comes back empty."""
    LEASE = "lease lost"
    """The heartbeat has noticed: somebody else has the lock."""
    OVERTAKEN = "overtaken"
    """The worker was stopped; somebody else does all of it; then the first one wakes up and goes on."""


class Bug(Exception):
    """What a worker's own mistake would raise."""


class FaultyDatabase(SqlDatabase):
    """A ledger of which a test can cut the connections. It knows whether a transaction is open."""

    def __init__(self, url: str, cut: Callable[[], None]) -> None:
        super().__init__(url)
        self._cut = cut
        self.reset()

    def reset(self) -> None:
        """As in a new process, but for the statements that are compiled already."""
        self.writing = 0
        self.gone = self.mute = False
        if self._engine is not None and self._pid != os.getpid():
            self._engine.dispose(close=False)  # the connections are the parent's
            self._pid = os.getpid()

    def go(self) -> None:
        self.gone = True
        self._cut()

    @contextmanager
    def write(self) -> Iterator[SqlUnit]:
        self._answer()
        with super().write() as unit:
            self.writing += 1
            try:
                yield unit
            finally:
                self.writing -= 1
            self._answer()  # gone meanwhile: nothing of it is committed
        if self.mute:
            raise LedgerUnavailable("the commit was made, and its answer lost")

    @contextmanager
    def read(self) -> Iterator[SqlUnit]:
        self._answer()
        with super().read() as unit:
            yield unit

    @contextmanager
    def single(self) -> Iterator[Endings]:
        if self._is_sqlite:  # there it is a transaction, which the above is told of
            with super().single() as endings:
                yield endings
            return
        with super().single() as endings:
            yield endings
        if self.mute:
            raise LedgerUnavailable("the ending was recorded, and its answer lost")

    def _answer(self) -> None:
        # A file of SQLite cannot be taken away from who has it open; PostgreSQL refuses by itself.
        if self.gone and self.url.get_backend_name() == "sqlite":
            raise LedgerUnavailable("the database did not answer")


class Disk:
    """The calls that Python makes to the file system: looked on, or answered with an error."""

    FSYNC = ("fsync", "fdatasync")
    SPACE = ("write", "pwrite", "open", "mkdir", "link", "posix_fallocate")

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}
        self.hits = 0
        self.heard: Callable[[str], None] = lambda name: None

    def fail(self, calls: tuple[str, ...], code: int) -> None:
        self.fails = dict.fromkeys(calls, code)

    @contextmanager
    def watched(self) -> Iterator[None]:
        kept = {name: getattr(os, name) for name in (*self.FSYNC, *self.SPACE)}
        for name, call in kept.items():
            setattr(os, name, self._wrapped(name, call))
        try:
            yield
        finally:
            for name, call in kept.items():
                setattr(os, name, call)
            self.fails = {}

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                self.heard(name)
                if name in self.fails:
                    self.hits += 1
                    raise OSError(self.fails[name], os.strerror(self.fails[name]))
            return call(*arguments, **named)

        return wrapped


NO_SPACE = errno.ENOSPC
BAD_DISK = errno.EIO
