"""Which blobs nobody wants any more, and when a store or a database is not to be believed (ADR 31). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from dlpipe.core.recovery import believable


class Blob(Enum):
    """What becomes of a file in the store."""

    FOREIGN = auto()
    """No name that blobs have: not ours to judge."""
    WANTED = auto()
    """An artifact, or a job on its way to register one, names it."""
    YOUNG = auto()
    """Somebody may be about to register it."""
    RETIRED = auto()
    """Whoever registered it has given it up."""
    UNKNOWN = auto()
    """No artifact ever named it."""


@dataclass(frozen=True, slots=True)
class BlobFacts:
    named: bool
    wanted: bool
    registered: bool
    """Some artifact names it, be it retired."""
    age_s: float


def judge_blob(facts: BlobFacts, grace_s: float) -> Blob:
    if not facts.named:
        return Blob.FOREIGN
    if facts.wanted:
        return Blob.WANTED
    if facts.age_s < grace_s:
        return Blob.YOUNG
    return Blob.RETIRED if facts.registered else Blob.UNKNOWN


class Trashed(Enum):
    """What becomes of a file in the trash."""

    RESTORE = auto()
    """It is wanted after all, and nothing stands in its place."""
    KEEP = auto()
    REMOVE = auto()


def judge_trashed(*, wanted: bool, in_place: bool, age_s: float, grace_s: float) -> Trashed:
    if wanted and not in_place:
        return Trashed.RESTORE
    return Trashed.REMOVE if age_s >= grace_s else Trashed.KEEP


def doubt(looked_at: int, known: int, unknown: int, at_most: int) -> str | None:
    """Why not to believe that what no row knows is garbage; None when it may be believed.

    What was retired is believed: somebody has said so, blob by blob.
    """
    if unknown == 0:
        return None
    if known == 0:
        return "the database knows none of the files in the store"
    if not believable(looked_at, unknown, at_most):
        return f"the database does not know {unknown} of the {looked_at} files in the store, which is most of them"
    return None
