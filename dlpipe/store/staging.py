"""Where bytes on their way are kept: a folder of parts for each tenant, how much room there is, and what was left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dlpipe.core.layout import check_id, part_slug
from dlpipe.core.ports import Staged
from dlpipe.core.quota import Room
from dlpipe.core.remote import PartFacts
from dlpipe.store import leftovers
from dlpipe.store.folders import disk_errors, folder, staging_errors
from dlpipe.store.identity import identity
from dlpipe.store.part import DISK_BLOCK_BYTES, LocalPart, Sizes

STAGING = ".staging"
NODE = leftovers.NODE


class LocalStaging:
    """Parts under `<root>/.staging/<tenant>/`, on the file system of the final root.

    Where nodes do not share them they are under `<root>/.staging/@<node>/<tenant>/`: no tenant is called like that, and
    nodes whose root is one and the same all the same keep out of each other's way.
    """

    def __init__(
        self,
        root: Path,
        preallocate_bytes: int | None = None,
        uncached_bytes: int | None = None,
        *,
        node: str | None = None,
        own_disk: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Files of `preallocate_bytes` or more get their blocks in advance, and those of `uncached_bytes` or more leave
        memory as they come; None: none does.

        `own_disk`: the root is on a disk of this node, whatever other nodes' disks look like.
        """
        self._root = root
        self._within = (STAGING,) if node is None else (STAGING, f"{NODE}{node}")
        self._disk = f"-{node}" if own_disk and node is not None else ""
        self._clock = clock
        self._sizes = Sizes(preallocate_bytes, uncached_bytes)

    @contextmanager
    def claim(
        self, tenant: str, canonical_url: str, job_id: str, fence: int, is_newest: Callable[[], bool] = lambda: False
    ) -> Iterator[LocalPart]:
        slug = part_slug(tenant, canonical_url)
        with ExitStack() as stack:
            with staging_errors():  # not around the body: what goes wrong there need not be the disk's fault
                names = (*self._within, check_id("tenant", tenant))
                where = stack.enter_context(folder(self._root, names, create=True))
                part = LocalPart(self._root.joinpath(*names), where, slug, job_id, fence, self._sizes)
                stack.callback(part.close)
                part.lock(is_newest)
            yield part

    def held(
        self, tenant: str, canonical_url: str, job_id: str, fence: int, is_newest: Callable[[], bool] = lambda: False
    ) -> PartFacts | None:
        names = (*self._within, check_id("tenant", tenant))
        with staging_errors():
            try:
                with folder(self._root, names) as where:
                    os.stat(f"{part_slug(tenant, canonical_url)}.part", dir_fd=where, follow_symlinks=False)
            except FileNotFoundError:
                return None
        with self.claim(tenant, canonical_url, job_id, fence, is_newest) as part:
            return part.facts

    def identity(self) -> str:
        with disk_errors(), folder(self._root, self._within, create=True) as where:
            return identity(where)

    def room(self, tenant: str, canonical_url: str) -> Room:
        names = (*self._within, check_id("tenant", tenant), f"{part_slug(tenant, canonical_url)}.part")
        with staging_errors(), folder(self._root, (STAGING,), create=True) as where:
            volume, here = os.fstatvfs(where), os.fstat(where)
            taken = 0
            with suppress(FileNotFoundError), folder(self._root, names[:-1]) as tenant_folder:
                taken = os.stat(names[-1], dir_fd=tenant_folder, follow_symlinks=False).st_blocks * DISK_BLOCK_BYTES
        # Not the device number: two machines that share a volume each have their own for it.
        name = f"{volume.f_fsid:x}-{here.st_ino:x}{self._disk}"
        # What only root may fill is of no use to us, be it empty or not.
        size = volume.f_blocks - (volume.f_bfree - volume.f_bavail)
        return Room(name, volume.f_bavail * volume.f_frsize, taken, size * volume.f_frsize)

    def walk(self, after: str, limit: int) -> Sequence[Staged]:
        return leftovers.walk(self._root, STAGING, self._within[1:], self._clock(), after, limit)

    def discard(self, staged: Staged, older_than_s: float) -> bool:
        return leftovers.discard(self._root, STAGING, self._clock(), staged, older_than_s)
