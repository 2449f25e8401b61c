"""Several stores behind one port: what is new goes to the first, what is named goes where its pointer says.

So an installation that has moved to a bucket goes on reading the files it had before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import InvalidInput
from dlpipe.core.layout import Place
from dlpipe.core.ports import Adopted, BlobStore, Foreign, Part, StoredFile
from dlpipe.core.results import DedupeAction


class RoutedBlobStore:
    def __init__(self, *stores: BlobStore) -> None:
        """The first one gets what is new."""
        self._stores = {store.backend: store for store in stores}
        self._first = stores[0]
        self.backend = self._first.backend
        self.equal = self._first.equal

    def _of(self, pointer: str) -> BlobStore:
        for store in self._stores.values():
            if store.owns(pointer):
                return store
        raise InvalidInput(
            "the pointer is of a store that is not set",
            code="pointer_invalid",
            hint="Set store.url as it was when the file was stored.",
        )

    def _at(self, place: Place) -> BlobStore:
        return self._of(place.pointer)

    def owns(self, pointer: str) -> bool:
        return any(store.owns(pointer) for store in self._stores.values())

    def marker(self) -> str | None:
        return self._first.marker()

    def mark(self, store_id: str) -> str:
        return self._first.mark(store_id)

    def others(self) -> Sequence[BlobStore]:
        return list(self._stores.values())[1:]

    def place(self, tenant: str, project: str, sha256: str, ext: str) -> Place:
        return self._first.place(tenant, project, sha256, ext)

    def place_at(self, pointer: str) -> Place:
        return self._of(pointer).place_at(pointer)

    def publish(self, part: Part, place: Place, size: int, *, doubted: bool = False) -> bool:
        return self._at(place).publish(part, place, size, doubted=doubted)

    def size(self, pointer: str) -> int | None:
        return self._of(pointer).size(pointer)

    def keep(self, pointer: str) -> bool:
        return self._of(pointer).keep(pointer)

    def holds(self, pointer: str, size: int) -> bool:
        return self._of(pointer).holds(pointer, size)

    def exists(self, pointer: str) -> bool:
        return self._of(pointer).exists(pointer)

    def is_right(self, pointer: str, sha256: str, size: int) -> bool:
        return self._of(pointer).is_right(pointer, sha256, size)

    def vouched(self, pointer: str, sha256: str, size: int) -> bool:
        return self._of(pointer).vouched(pointer, sha256, size)

    def open(self, pointer: str, size: int) -> BinaryIO:
        return self._of(pointer).open(pointer, size)

    def settle(self, pointer: str) -> None:
        self._of(pointer).settle(pointer)

    def copy(self, pointer: str, place: Place) -> DedupeAction:
        return self._at(place).copy(pointer, place)

    def unify(self, pointer: str, twin: str) -> DedupeAction:
        mine, theirs = self._of(pointer), self._of(twin)
        return mine.unify(pointer, twin) if mine is theirs else DedupeAction.COPY

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
        return self._first.adopt(file, tenant, project, ext, sharing, heard, expected=expected)

    def walk(self, after: str, limit: int) -> Sequence[StoredFile]:
        """One store after the other; in front of a path stands which one it is of."""
        names = list(self._stores)
        name, _, path = after.partition(":")
        found: list[StoredFile] = []
        for one in names[names.index(name) if name in names else 0 :]:
            page = self._stores[one].walk(path if one == name else "", limit - len(found))
            found += [replace(file, path=f"{one}:{file.path}") for file in page]
            if len(found) >= limit:
                break
        return found

    def quarantine(self, path: str) -> bool:
        name, _, within = path.partition(":")
        return self._stores[name].quarantine(within)

    def shard(self, pointer: str) -> str:
        return self._of(pointer).shard(pointer)

    def path(self, pointer: str) -> str:
        return self._of(pointer).path(pointer)

    def link(self, pointer: str, expires_s: float) -> str:
        return self._of(pointer).link(pointer, expires_s)
