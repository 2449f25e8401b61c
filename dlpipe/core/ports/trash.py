"""Blobs on their way out, and what the ledger says of them (ADR 31)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TrashedFile:
    path: str
    """Below the trash."""
    pointer: str
    """Where it stood."""
    size: int
    age_s: float
    """Since it was moved there, or since its bytes were shared anew under another name."""


class Trash(Protocol):
    """A place from which blobs come back until the grace is over. No method overwrites."""

    def put(self, pointer: str, grace_s: float) -> bool:
        """Take the blob out of its place, if nobody has kept it for so long; False: it stays, or is gone.

        Whoever keeps a blob (`BlobStore.keep`, or a publish that finds it there) and this exclude each other.
        """

    def walk(self, after: str, limit: int) -> Sequence[TrashedFile]:
        """In the order of paths, from behind `after` on; fewer than `limit`: that was the end."""

    def restore(self, file: TrashedFile) -> bool:
        """Put it back, if its bytes are right and its place is free."""

    def remove(self, file: TrashedFile, grace_s: float) -> bool:
        """Remove this name for good, if it has been there for so long; other names of the same file keep it."""


class Garbage(Protocol):
    """What the ledger, across all tenants, says of blobs."""

    def wanted(self, pointers: Sequence[str]) -> set[str]:
        """Those that an artifact names which is not retired, or that a job has placed and is yet to register."""

    def forget(self, pointers: Sequence[str]) -> None:
        """These are about to go: another copy of the same bytes stands for them in the index of hashes, or none."""
