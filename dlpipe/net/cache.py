"""What servers let us remember of their answers to HEAD and other small questions (RFC 9111, by hishel).

Never of files: those go over the raw client. All workers of a machine share one bounded file, which nobody else
may read: a Location in it can hold secrets. Entries are found by a digest, so that they hold no request's URL.
A cache that does not work is as if there were none.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hishel import Entry, Headers, Request, Response, SqliteStorage

from dlpipe.net.urls import Address

log = logging.getLogger(__name__)

MIB = 1 << 20
_MAX_BODY_BYTES = MIB


@dataclass(frozen=True, slots=True)
class CachePolicy:
    file: Path
    max_bytes: int = 32 * MIB
    ttl_s: float = 300.0
    """However long a server says that an answer holds; and HEAD decides nothing that GET does not find out."""


def open_storage(policy: CachePolicy) -> SqliteStorage | None:
    """The store, or None where it cannot be: that is logged, and no reason to fail."""
    try:
        policy.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _touch(policy.file)
        if not _is_sound(policy.file):
            log.warning("the HTTP cache in %s was damaged and is made anew", policy.file)
            for end in ("", "-wal", "-shm"):
                Path(f"{policy.file}{end}").unlink(missing_ok=True)
            _touch(policy.file)
    except OSError as error:
        log.warning("no HTTP cache in %s: %s", policy.file, type(error).__name__)
        return None
    return _Storage(policy)


def _touch(file: Path) -> None:
    """Make it with its mode; SQLite gives the files beside it the same one."""
    handle = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)
    finally:
        os.close(handle)


def _is_sound(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file, timeout=5.0)) as connection:
            connection.execute("SELECT name FROM sqlite_master").fetchall()
    except sqlite3.DatabaseError as error:
        # A file that is only in use elsewhere is fine.
        return isinstance(error, sqlite3.OperationalError)
    return True


def key(tenant: str, address: Address) -> str:
    """Under which an answer is found: each tenant has answers of its own, as connections have (row 49).

    The canonical form of the address would not do: it gives up differences a server may see.
    """
    return hashlib.sha256(f"{tenant} {address.root[:-1]}{address.target}".encode()).hexdigest()


class _Storage(SqliteStorage):
    """A damaged file is a miss, not a failure."""

    def __init__(self, policy: CachePolicy) -> None:
        super().__init__(
            database_path=policy.file,
            default_ttl=policy.ttl_s,
            max_size=policy.max_bytes,
            max_stream_size=_MAX_BODY_BYTES,
        )

    def get_entries(self, key: str) -> list[Entry]:
        try:
            return super().get_entries(key)
        except (RuntimeError, sqlite3.Error, OSError) as error:
            log.warning("the HTTP cache cannot be read: %s", type(error).__name__)
            return []

    def create_entry(self, request: Request, response: Response, key: str, **limits: Any) -> Entry:
        try:
            return super().create_entry(request, response, key, **limits)
        except (RuntimeError, sqlite3.Error, OSError) as error:
            log.warning("the HTTP cache cannot be written: %s", type(error).__name__)
            return Entry(uuid.uuid4(), request, response)

    def update_headers(self, id: uuid.UUID, headers: Headers) -> None:  # noqa: A002 - the parent's name for it
        try:
            super().update_headers(id, headers)
        except (RuntimeError, sqlite3.Error, OSError) as error:
            log.warning("the HTTP cache cannot be written: %s", type(error).__name__)
