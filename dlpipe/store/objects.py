"""The content-addressed store in a bucket: `<prefix>/<tenant>/<project>/ab/<sha256><ext>` (ADR 33).

A key is given to bytes that were hashed on their way, in a request that the server takes as a whole or not at all. It
is written over nothing; over bytes that are not its hash only once they were set aside.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, cast

from dlpipe.core.crash import crash_point
from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import LeaseLost, Permanent, Retryable, StageFailure
from dlpipe.core.layout import Equal, Place, place_of, space_of
from dlpipe.core.ports import Adopted, BlobStore, Foreign, Part, StoredFile
from dlpipe.core.results import DedupeAction
from dlpipe.store import adopt as adopting
from dlpipe.store import strays
from dlpipe.store.bucket import SEEN_S, Bucket, Meta, Taken
from dlpipe.store.folders import READ_BYTES, disk_errors
from dlpipe.store.object_reader import BLOCK_BYTES, ObjectReader
from dlpipe.store.part import part_damaged
from dlpipe.store.strays import QUARANTINE

MARKER = ".dlpipe-store"
_BEHIND_HIDDEN = ".~"
"""Our hidden names in the root sort before it, those of tenants behind it."""
_TRIES = 4


class ObjectBlobStore:
    def __init__(
        self,
        bucket: Bucket,
        space: str,
        address: str,
        *,
        shard_width: int = 2,
        equal: Equal = Equal.POINTER,
        read_back: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`read_back`: the server checks no sha256, so what was sent is read again before it gets its key."""
        self.backend = space
        self.equal = equal
        self._bucket = bucket
        self._address = address.rstrip("/")
        self._shard_width = shard_width
        self._read_back = read_back
        self._clock = clock
        self._marker: str | None = None
        self._marker_at = 0.0

    # ── names ─────────────────────────────────────────────────────────────────────────────────────

    def others(self) -> Sequence[BlobStore]:
        return ()

    def place(self, tenant: str, project: str, sha256: str, ext: str) -> Place:
        return Place(tenant, project, sha256, ext, self._shard_width, self.backend)

    def place_at(self, pointer: str) -> Place:
        return place_of(pointer, self.backend)

    def owns(self, pointer: str) -> bool:
        return space_of(pointer) == self.backend

    def shard(self, pointer: str) -> str:
        place = self.place_at(pointer)
        return place.sha256[: place.shard_width]

    def path(self, pointer: str) -> str:
        return f"{self._address}/{self.place_at(pointer).path}"

    def link(self, pointer: str, expires_s: float) -> str:
        return self._bucket.sign(self.place_at(pointer).path, expires_s)

    def marker(self) -> str | None:
        # Asked for at each stage; and no bucket is mounted where another was a moment ago.
        if self._marker is not None and time.monotonic() - self._marker_at < SEEN_S:
            return self._marker
        self._marker = None
        if self._bucket.look(MARKER) is not None:
            self._marker = b"".join(self._bucket.read(MARKER)).decode("ascii", "replace").strip()
            self._marker_at = time.monotonic()
        return self._marker

    def mark(self, store_id: str) -> str:
        data = f"{store_id}\n".encode()
        try:
            self._bucket.put(MARKER, data, hashlib.sha256(data).hexdigest(), None)
        except Taken:
            return self.marker() or ""  # of several, the first one's counts
        return store_id

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def publish(self, part: Part, place: Place, size: int, *, doubted: bool = False) -> bool:
        fd = part.fileno()
        with disk_errors():
            if os.fstat(fd).st_size != size:
                raise _not_what_was_streamed()
            _check_held(part, fd)
        crash_point("objects.before_put")
        there = self._put(place, fd, size, _not_what_was_streamed, doubted=doubted)
        crash_point("objects.after_put")
        part.remove()
        crash_point("objects.after_unlink")
        return there

    def _put(
        self, place: Place, fd: int, size: int, wrong: Callable[[], StageFailure], *, doubted: bool = False
    ) -> bool:
        """Bytes of a file get their key; True when the right ones had it already. `wrong`: they do not hash to it."""
        for _ in range(_TRIES):
            found = self._bucket.look(place.path)
            if found is not None:
                if self._proven(place, found, size, doubted=doubted):
                    return True
                self._set_aside(place.path, found)
            try:
                self._send(place, fd, size, found, wrong)
            except Taken:
                continue
            except StageFailure as failure:
                if self._read_back or not self._arrived(place, size, failure, doubted=doubted):
                    raise
            return False
        raise Retryable("the place of a blob is taken by other bytes again and again", code="store_error")

    def _arrived(self, place: Place, size: int, failure: StageFailure, *, doubted: bool) -> bool:
        """Did all of it get there, and only the answer was lost? Asked again, a server may know of no such upload."""
        if not failure.code.startswith("store_"):
            return False
        try:
            found = self._bucket.look(place.path)
            return found is not None and self._proven(place, found, size, doubted=doubted)
        except StageFailure:
            return False  # what went wrong first is to be told

    def _send(self, place: Place, fd: int, size: int, over: Meta | None, wrong: Callable[[], StageFailure]) -> None:
        key = self._bucket.temporary() if self._read_back else place.path
        if size <= self._bucket.multipart_bytes:
            with disk_errors():
                data = os.pread(fd, size + 1, 0)
            if (len(data), hashlib.sha256(data).hexdigest()) != (size, place.sha256):
                raise wrong()
            self._bucket.put(key, data, place.sha256, over, anyhow=self._read_back)
        else:
            # Not conditional, as no server completes many requests so for us; but only right bytes come that far.
            self._bucket.put_pieces(key, _checked(fd, size, place.sha256, wrong), size, place.sha256)
        if self._read_back:
            self._prove_and_name(key, place, size, anew=over is None and self.backend != "s3")

    def _prove_and_name(self, key: str, place: Place, size: int, *, anew: bool) -> None:
        try:
            if self._bucket.sha256_of(key) != (place.sha256, size):
                raise Retryable(
                    "the bytes did not reach the object store as they were sent",
                    code="store_upload_damaged",
                    hint="Nothing to do: they are sent again.",
                )
            crash_point("objects.before_name")
            self._bucket.copy(key, place.path, size, anew=anew)
        finally:
            self._bucket.delete(key)

    def _set_aside(self, path: str, found: Meta) -> None:
        """Bytes under a key that is not their hash are kept under another one, before the key gets the right ones."""
        self._bucket.copy(path, self._free_name(path), found.size)
        crash_point("objects.set_aside")

    def _free_name(self, path: str) -> str:
        name = f"{QUARANTINE}/{path}"
        for number in range(1_000):
            new = f"{name}.{number}" if number else name
            if self._bucket.look(new) is None:
                return new
        raise Retryable("a thousand wrong files of this name were set aside already", code="store_error")

    def settle(self, pointer: str) -> None:
        """Nothing to do: what a server has taken, lasts."""

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    def _look(self, pointer: str) -> Meta | None:
        return self._bucket.look(self.place_at(pointer).path)

    def size(self, pointer: str) -> int | None:
        found = self._look(pointer)
        return found.size if found is not None else None

    def holds(self, pointer: str, size: int) -> bool:
        return self.size(pointer) == size

    def keep(self, pointer: str) -> bool:
        return self.exists(pointer)  # nothing collects from a bucket

    def exists(self, pointer: str) -> bool:
        return self._look(pointer) is not None

    def is_right(self, pointer: str, sha256: str, size: int) -> bool:
        place = self.place_at(pointer)
        if place.sha256 != sha256 or not self.holds(pointer, size):
            return False
        return self._bucket.sha256_of(place.path) == (sha256, size)

    def vouched(self, pointer: str, sha256: str, size: int) -> bool:
        place, found = self.place_at(pointer), self._look(pointer)
        return place.sha256 == sha256 and found is not None and self._proven(place, found, size)

    def _proven(self, place: Place, found: Meta, size: int, *, doubted: bool = False) -> bool:
        """By what was checked when it was stored, and stands beside it; else by reading it."""
        if found.size != size:
            return False
        if found.sha256 is not None and not doubted:
            return found.sha256 == place.sha256
        return self._bucket.sha256_of(place.path) == (place.sha256, size)

    def open(self, pointer: str, size: int) -> BinaryIO:
        place, found = self.place_at(pointer), self._look(pointer)
        if found is None:
            raise _at_fault("file_missing", "is gone from the store")
        if found.size != size:
            raise _at_fault("file_damaged", "has not the size with which it was registered")
        reader = ObjectReader(lambda offset: self._bucket.read(place.path, offset), size)
        return cast(BinaryIO, io.BufferedReader(reader, BLOCK_BYTES))

    # ── equal bytes ───────────────────────────────────────────────────────────────────────────────

    def copy(self, pointer: str, place: Place) -> DedupeAction:
        source = self.place_at(pointer)
        theirs = self._bucket.look(source.path)
        if theirs is None or not self._proven(source, theirs, theirs.size):
            raise Retryable("the file that is to be copied does not hash to its name", code="store_io_error")
        found = self._bucket.look(place.path)
        if found is not None:
            if self._proven(place, found, theirs.size):
                return DedupeAction.SKIPPED
            self._set_aside(place.path, found)
        self._bucket.copy(source.path, place.path, theirs.size)
        crash_point("objects.copied")
        return DedupeAction.COPY

    def unify(self, pointer: str, twin: str) -> DedupeAction:
        self.place_at(pointer), self.place_at(twin)
        return DedupeAction.COPY  # objects share nothing

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
        with adopting.opened(file) as theirs, disk_errors():
            size = os.fstat(theirs).st_size if file.size is None else file.size
            sha256 = adopting.hashed(theirs, size, heard)
            if expected not in (None, sha256):
                raise adopting.unexpected()
            place = self.place(tenant, project, sha256, ext)
            there = self._put(place, theirs, size, adopting.changed)
        return Adopted(sha256, size, place.pointer, DedupeAction.SKIPPED if there else DedupeAction.COPY)

    # ── the whole ─────────────────────────────────────────────────────────────────────────────────

    def walk(self, after: str, limit: int) -> Sequence[StoredFile]:
        now = self._clock()
        return [
            strays.described_key(self.backend, path, size, now - changed_at, self._shard_width)
            for path, size, changed_at in self._bucket.list_(after or _BEHIND_HIDDEN, limit)
        ]

    def quarantine(self, path: str) -> bool:
        found = self._bucket.look(path)
        if found is None or self._is_its_name(path):
            return False
        aside = self._free_name(path)
        self._bucket.copy(path, aside, found.size)
        now = self._bucket.look(path)
        if now is None or (now.e_tag, now.size) != (found.e_tag, found.size):
            self._bucket.delete(aside)  # somebody put the right one there after we had looked
            return False
        self._bucket.delete(path)
        return True

    def _is_its_name(self, path: str) -> bool:
        named = strays.described_key(self.backend, path, 0, 0.0, self._shard_width).pointer
        found = self._bucket.sha256_of(path) if named is not None else None
        return named is not None and found is not None and found[0] == self.place_at(named).sha256


def _check_held(part: Part, fd: int) -> None:
    """An overtaken holder stops here; should it be overtaken later, its bytes are right all the same."""
    try:
        there = os.stat(part.path, follow_symlinks=False)
    except FileNotFoundError:
        there = None
    if there is None or there.st_ino != os.fstat(fd).st_ino:
        raise LeaseLost("the part was taken over by a later holder of the job")


def _checked(fd: int, size: int, sha256: str, wrong: Callable[[], StageFailure]) -> Iterator[bytes]:
    """The bytes of a file; the last ones are given only if all of them hash to the name."""
    digest, offset = hashlib.sha256(), 0
    while offset < size:
        with disk_errors():
            block = os.pread(fd, min(READ_BYTES, size - offset), offset)
        if not block:
            raise wrong()
        digest.update(block)
        offset += len(block)
        if offset == size and digest.hexdigest() != sha256:
            raise wrong()
        yield block


def _not_what_was_streamed() -> Retryable:
    return part_damaged("the staged bytes do not hash to what was streamed")


def _at_fault(code: str, what: str) -> Permanent:
    return Permanent(f"the file {what}", code=code, hint="The next reconcile brings it again, or: dlpipe refresh JOB.")
