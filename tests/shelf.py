"""Where a world or a fleet keeps its finished files: in its own folder, or in a bucket of a real S3 server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dlpipe.core.ports import BlobStore
from dlpipe.store import LocalBlobStore
from dlpipe.store.objects import MARKER
from dlpipe.store.routed import RoutedBlobStore
from tests.objectserver import ObjectServer, objects
from tests.objectserver import contents as contents_of
from tests.world import blobs, sha256


class Shelf(Protocol):
    """What is on its way is in the folder `root` in any case."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What a worker needs in its environment."""

    def store(self, root: Path) -> BlobStore: ...

    def contents(self, root: Path) -> dict[str, bytes]:
        """Every finished file by its name, which must be its hash."""

    def versions(self, root: Path) -> dict[str, object]:
        """What becomes another one for each file that is written again, even with the same bytes."""

    def spoil(self, root: Path, name: str, data: bytes | None) -> None:
        """From outside, put these bytes in place of a file; None takes it away."""


class Folder:
    settings: Mapping[str, str] = {}

    def store(self, root: Path) -> BlobStore:
        return LocalBlobStore(root)

    def contents(self, root: Path) -> dict[str, bytes]:
        return blobs(root)

    def versions(self, root: Path) -> dict[str, object]:
        stats = {name: (root / name).stat() for name in blobs(root)}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}

    def spoil(self, root: Path, name: str, data: bytes | None) -> None:
        (root / name).unlink()
        if data is not None:
            (root / name).write_bytes(data)


class InBucket:
    def __init__(self, server: ObjectServer) -> None:
        self.url = server.new_prefix()
        self._bucket = server.bucket(self.url)
        self.settings: Mapping[str, str] = server.settings(self.url)

    def store(self, root: Path) -> BlobStore:
        return RoutedBlobStore(objects(self._bucket, self.url), LocalBlobStore(root))

    def contents(self, root: Path) -> dict[str, bytes]:
        assert blobs(root) == {}, "a file is in the folder, though there is a bucket"
        found = {name: data for name, data in contents_of(self._bucket.store).items() if name != MARKER}
        for name, data in found.items():
            if not name.startswith(".") and ".damaged-" not in name:
                assert name.rpartition("/")[2].partition(".")[0] == sha256(data), f"{name} holds other bytes"
        return found

    def versions(self, root: Path) -> dict[str, object]:
        import obstore

        names = self.contents(root)
        return {name: obstore.head(self._bucket.store, name)["last_modified"] for name in names}

    def spoil(self, root: Path, name: str, data: bytes | None) -> None:
        import obstore

        if data is None:
            self._bucket.delete(name)
        else:
            obstore.put(self._bucket.store, name, data)
