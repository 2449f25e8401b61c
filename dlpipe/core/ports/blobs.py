"""Bytes: on their way, and at their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from dlpipe.core.downloads import Sharing
from dlpipe.core.layout import Equal, Place
from dlpipe.core.quota import Room
from dlpipe.core.remote import PartFacts, RemoteFacts
from dlpipe.core.results import DedupeAction


@dataclass(frozen=True, slots=True)
class Staged:
    """What lies in staging under one name: a part with its sidecar, or something else. Ages are of the last change."""

    path: str
    part: str | None
    """The name that its job has for it; None when it is no part."""
    temporary: bool
    """Made on the way to something else: nobody looks for it once its maker is gone."""
    job_id: str | None
    """Who held it last, as far as a whole sidecar says so; without one no byte of it is vouched for."""
    size: int
    age_s: float
    trouble: str = ""
    """Why it is neither looked at nor removed: it stands where ours belong, and is not ours or may not be read."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store's folders. `path` is relative to the root; ages are of the last change."""

    path: str
    pointer: str | None
    """What rows call it, if its name is one that blobs have. Says nothing about its bytes."""
    size: int
    age_s: float
    ours: bool
    """It stands where blobs stand. Anything else is somebody else's, and left alone."""


class Part(Protocol):
    """Bytes on their way, under an exclusive lock. Progress is what the sidecar vouches for, never the size."""

    @property
    def facts(self) -> PartFacts | None:
        """What the sidecar says is here; None for a new or unreadable one."""

    @property
    def offset(self) -> int:
        """Where the next byte goes."""

    @property
    def sha256(self) -> str:
        """The hash of everything before the offset."""

    @property
    def path(self) -> str: ...

    def go_on(self, fence: int) -> None:
        """The same holder has the next stage of the job under this fence; LeaseLost when a later one has the part."""

    def begin(self, remote: RemoteFacts) -> None:
        """Throw away what is here (unlink, never truncate) and start at offset 0 under these validators."""

    def verify(self, upto: int) -> int:
        """Re-hash what is held, keep the furthest checkpoint that matches, at most `upto`; answer the offset."""

    def rewind(self, offset: int) -> int:
        """Go back to `offset`, which is at most what was verified or written; answer where that is."""

    def buffer(self) -> memoryview:
        """Memory to be filled for `write`; what was not written from it is lost at the next call."""

    def write(self, data: bytes | memoryview) -> None:
        """Append at the offset, and checkpoint now and then; what lies in a buffer must not be touched any more."""

    def flush(self) -> None:
        """Let the sidecar vouch for every byte written so far."""

    def promise(self, sha256: str) -> None:
        """Put on record, before they come, that the next bytes fit only if the file has this sha256 in the end.

        What is held counts for nobody who does not want that file, until all of it is thrown away.
        """

    @property
    def begun(self) -> RemoteFacts | None:
        """The file that what is here was begun as, also when nothing is vouched for but pieces further on."""

    def put(self, offset: int, data: bytes | memoryview) -> None:
        """Write somewhere ahead of the offset. The only method that several threads may call."""

    def keep(self, start: int, end: int, sha256: str) -> None:
        """Let the sidecar vouch for a piece that was put; the offset moves over all pieces that join it."""

    def verify_pieces(self) -> list[tuple[int, int]]:
        """Re-hash the pieces ahead of the offset, forget those that are wrong; answer (start, end) of the others."""

    def finish(self, *, length_unproven: bool = False) -> tuple[str, int, int]:
        """Make all bytes durable; answer (sha256, size, milliseconds of fsync).

        Whoever finds them whole is told whether nothing but the end of the connection says that they are.
        """

    def is_as_hashed(self, sha256: str, size: int) -> bool:
        """Is it certain, without reading them, that these bytes are what `finish` hashed and made durable?

        False for every doubt: another file, a sign that anybody touched it, another boot, a file system that other
        machines write to.
        """

    def read(self, offset: int, size: int) -> bytes:
        """Bytes held, at most up to the offset where the next one goes."""

    def fileno(self) -> int: ...

    def remove(self) -> None:
        """Remove part and sidecar."""


class Staging(Protocol):
    def claim(
        self, tenant: str, canonical_url: str, job_id: str, fence: int, is_newest: Callable[[], bool] = lambda: False
    ) -> AbstractContextManager[Part]:
        """Lock the part of a URL. A holder of the same job with a lower fence is overtaken: the part is then new.

        Postponed(`part_busy`) when another job holds it; LeaseLost when a later fence of this job does. What is on the
        disk may name any fence: where `is_newest` says that the ledger gave none after ours, it is not believed.
        """

    def held(
        self, tenant: str, canonical_url: str, job_id: str, fence: int, is_newest: Callable[[], bool] = lambda: False
    ) -> PartFacts | None:
        """What a claim finds vouched for, and the same failures; of what is not there nothing is made."""

    def identity(self) -> str:
        """The id that this folder bears, made when there is none: of two machines' folders each has its own."""

    def room(self, tenant: str, canonical_url: str) -> Room:
        """The volume that parts lie on, and what this URL's part takes of it. Makes and locks nothing."""

    def walk(self, after: str, limit: int) -> Sequence[Staged]:
        """What is staged, in the order of paths, from behind `after` on; fewer than `limit`: that was the end."""

    def discard(self, staged: Staged, older_than_s: float) -> bool:
        """Remove a part and its sidecar, or a temporary file, under its lock.

        False, and nothing is changed, when somebody holds it, has touched it since, or it is gone.
        """


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file that somebody else keeps, and goes on keeping: a name under a root that the operator named."""

    root: str
    parts: tuple[str, ...]
    size: int | None
    """As it was announced; None: whatever it is."""


@dataclass(frozen=True, slots=True)
class Adopted:
    sha256: str
    size: int
    pointer: str
    action: DedupeAction


class BlobStore(Protocol):
    """Bytes named by their sha256. Nothing is ever overwritten with other bytes."""

    backend: str
    """What the pointers that it gives begin with."""

    equal: Equal
    """What it makes of bytes that are in the same dedupe scope already (ADR 33)."""

    def owns(self, pointer: str) -> bool:
        """Is it a pointer of this store, whatever there is at it?"""

    def marker(self) -> str | None:
        """The id that the store bears, so that another or an empty place is not taken for it; None: it bears none."""

    def mark(self, store_id: str) -> str:
        """Let the store bear this id, durably, unless it bears one; answer which it bears. Many may do it at once."""

    def others(self) -> Sequence[BlobStore]:
        """Stores behind this one that keep files from before, and get no new ones."""

    def place(self, tenant: str, project: str, sha256: str, ext: str) -> Place: ...

    def place_at(self, pointer: str) -> Place:
        """The place that a pointer of this store names."""

    def publish(self, part: Part, place: Place, size: int, *, doubted: bool = False) -> bool:
        """Give the part's bytes their final name, durably; True when they were there already. They are hashed again,
        unless it is certain that nobody touched them since they were.

        `doubted`: what is there was found wrong, so that only reading it can tell that it is right.

        Retryable(`part_damaged`) when the bytes do not hash to the name.
        """

    def size(self, pointer: str) -> int | None:
        """How large the blob is; None when no file is there. (cheap)"""

    def keep(self, pointer: str) -> bool:
        """Say that this blob is about to be registered: the collector leaves it for its grace. False: it is gone.

        What publishes, copies or adopts does so by itself.
        """

    def holds(self, pointer: str, size: int) -> bool:
        """Is the blob there with this size? (cheap)"""

    def exists(self, pointer: str) -> bool:
        """Is anything at all under the blob's name?"""

    def is_right(self, pointer: str, sha256: str, size: int) -> bool:
        """Is the blob there and do its bytes hash to its name? (reads it all)"""

    def vouched(self, pointer: str, sha256: str, size: int) -> bool:
        """The same, where the proof from when it was stored may stand for reading it: after a crash, and of twins."""

    def open(self, pointer: str, size: int) -> BinaryIO:
        """The blob's bytes, for reading, which the caller closes; Permanent(`file_missing`, `file_damaged`) when it is
        not there with this size."""

    def settle(self, pointer: str) -> None:
        """Make last what was found right: who put it there may have died before its name did."""

    def copy(self, pointer: str, place: Place) -> DedupeAction:
        """Put the same bytes at another place, by link where possible, else by copy."""

    def unify(self, pointer: str, twin: str) -> DedupeAction:
        """Make `pointer` share the bytes of `twin`, atomically; COPY when the file system cannot."""

    def adopt(
        self,
        file: Foreign,
        tenant: str,
        project: str,
        ext: str,
        sharing: Sharing,
        heard: Callable[[int], None],
        *,
        expected: str | None = None,
    ) -> Adopted:
        """Take a foreign file in, hashed; it stays where it is. `heard` gets each number of bytes hashed.

        Permanent(`sha256_mismatch`) when it does not hash to what is expected; then it has no place in the store.

        No symlink is followed on the way to it. Retryable(`torrent_file_missing`, `file_changed`) when it is not there,
        or not as it was announced; Permanent(`file_refused`) when what is there is not a plain file.
        """

    def walk(self, after: str, limit: int) -> Sequence[StoredFile]:
        """The files, in the order of paths, from behind `after` on; fewer than `limit`: that was the end."""

    def quarantine(self, path: str) -> bool:
        """Move a file that is not what its name says aside, below `.quarantine`, over nothing.

        False, and it stays, when it is gone or its bytes hash to its name after all.
        """

    def shard(self, pointer: str) -> str:
        """The folder prefix that spreads blobs, for the manifest."""

    def path(self, pointer: str) -> str:
        """Where the owner of this machine, or of the bucket, finds the file."""

    def link(self, pointer: str, expires_s: float) -> str:
        """A signed address from which whoever has it may read the blob for so long. A secret: never log it.

        InvalidInput(`link_unsupported`) where files are on a disk.
        """
