"""The bytes of an object as a file to read: a stream, begun anew where somebody seeks to."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator

import obstore

from dlpipe.store.object_errors import GONE, store_errors

BLOCK_BYTES = 1 << 20


class ObjectReader(io.RawIOBase):
    """`blocks(offset)` opens a stream from there."""

    def __init__(self, blocks: Callable[[int], Iterator[bytes]], size: int) -> None:
        self._open = blocks
        self._size = size
        self._at = 0
        self._blocks: Iterator[bytes] | None = None
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError("a file begins at 0")
        if at != self._at:
            self._at, self._blocks, self._rest = at, None, memoryview(b"")
        return at

    def readinto(self, buffer: object) -> int:
        into = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if not self._rest:
            if self._at >= self._size:
                return 0
            if self._blocks is None:
                self._blocks = self._open(self._at)
            self._rest = memoryview(next(self._blocks, b""))
        count = min(len(into), len(self._rest))
        into[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self._at += count
        return count

    def close(self) -> None:
        self._blocks, self._rest = None, memoryview(b"")
        super().close()


def blocks(bucket: obstore.store.ObjectStore, key: str, offset: int = 0) -> Iterator[bytes]:
    """An object's bytes in pieces, each let go of before the next."""
    with store_errors():
        options: obstore.GetOptions = {"range": {"offset": offset}} if offset else {}
        for block in obstore.get(bucket, key, options=options).stream(min_chunk_size=BLOCK_BYTES):
            yield bytes(block)


def sha256_of(bucket: obstore.store.ObjectStore, key: str) -> tuple[str, int] | None:
    """Hash an object; answer digest and bytes read, None when it is not there."""
    digest, size = hashlib.sha256(), 0
    with store_errors():
        try:
            found = obstore.get(bucket, key)
        except GONE as error:
            if "<Code>NoSuchBucket" in str(error):
                raise
            return None
        for block in found.stream(min_chunk_size=BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size
