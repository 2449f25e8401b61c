"""Blobs that nobody wants: looked for, moved to the trash, and removed from there after a second grace (ADR 31).

Nothing happens because the database looks empty, nor where the store looks like another's (HEAL-3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import Misconfigured
from dlpipe.core.garbage import Blob, BlobFacts, Trashed, doubt, judge_blob, judge_trashed
from dlpipe.core.layout import place_of
from dlpipe.core.ports.trash import Trash, TrashedFile
from dlpipe.pipeline import stores
from dlpipe.pipeline.deps import Deps

PAGE = 500
Heard = Callable[[str, str, int], None]
"""What was done (`unwanted`, `moved`, `restored`, `removed`), to which path, and how large it is."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a collection is for."""

    grace_s: float
    unknown: bool = False
    """Files too that no artifact ever named."""
    expect: int | None = None
    """So many of those are meant, and no reason for doubt."""

    def means(self, blob: Blob) -> bool:
        return blob is Blob.RETIRED or (blob is Blob.UNKNOWN and self.unknown)


@dataclass(slots=True)
class Collected:
    """What a collection found and did; of a dry run: what it found."""

    looked_at: int = 0
    wanted: int = 0
    young: int = 0
    foreign: int = 0
    unwanted: int = 0
    unwanted_bytes: int = 0
    unknown: int = 0
    """No artifact ever named them; unwanted only where that was asked for."""
    moved: int = 0
    restored: int = 0
    in_trash: int = 0
    removed: int = 0
    removed_bytes: int = 0
    doubt: str | None = None


def survey(deps: Deps, asked: Asked, heard: Heard) -> Collected:
    """Look at every file of the store; change nothing. Another ledger's store holds no garbage of this one's."""
    stores.recognise(deps, dry_run=True)
    found = Collected()
    known = 0
    for pointer, size, blob in _judged(deps, asked.grace_s, found):
        found.unknown += blob is Blob.UNKNOWN
        known += blob in (Blob.WANTED, Blob.RETIRED)
        if asked.means(blob):
            found.unwanted += 1
            found.unwanted_bytes += size
            heard("unwanted", pointer.removeprefix("local:"), size)
    if asked.unknown and (asked.expect is None or found.unknown > asked.expect):
        looked_at = found.looked_at - found.foreign - found.young
        found.doubt = doubt(looked_at, known, found.unknown, deps.policy.heal.max_missing)
    return found


def collect(deps: Deps, trash: Trash, asked: Asked, heard: Heard) -> Collected:
    """Empty the trash of what has been there for the grace, and move what is unwanted there.

    Raises:
        Misconfigured: what no row knows is too much to be garbage; nothing has changed.
    """
    found = survey(deps, asked, lambda *_: None)
    if found.doubt is not None:
        raise Misconfigured(
            f"{found.doubt}; nothing was changed",
            code="store_doubtful",
            hint="Do DLPIPE_DATABASE_URL and DLPIPE_STORE_ROOT belong together? If they do, and the files are garbage "
            "indeed: --expect with their number.",
        )
    _empty(deps, trash, asked.grace_s, found, heard)
    batch: list[tuple[str, int]] = []
    for pointer, size, blob in _judged(deps, asked.grace_s, Collected()):
        if asked.means(blob):
            batch.append((pointer, size))
        if len(batch) == PAGE:
            _move(deps, trash, batch, asked.grace_s, found, heard)
            batch = []
    _move(deps, trash, batch, asked.grace_s, found, heard)
    return found


def _judged(deps: Deps, grace_s: float, found: Collected) -> Iterator[tuple[str, int, Blob]]:
    after = ""
    while True:
        page = deps.store.walk(after, PAGE)
        pointers = [file.pointer for file in page if file.pointer]
        with deps.database.read() as unit:
            wanted = unit.garbage.wanted(pointers)
            registered = unit.registry.registered([(pointer, place_of(pointer).sha256) for pointer in pointers])
        for file in page:
            pointer = file.pointer or ""
            blob = judge_blob(BlobFacts(bool(pointer), pointer in wanted, pointer in registered, file.age_s), grace_s)
            found.looked_at += 1
            found.wanted += blob is Blob.WANTED
            found.young += blob is Blob.YOUNG
            found.foreign += blob is Blob.FOREIGN
            yield pointer, file.size, blob
        if len(page) < PAGE:
            return
        after = page[-1].path


def _move(
    deps: Deps, trash: Trash, batch: list[tuple[str, int]], grace_s: float, found: Collected, heard: Heard
) -> None:
    """Out of their places, and back again if somebody came to want one meanwhile."""
    if not batch:
        return
    with deps.database.write() as unit:
        wanted = unit.garbage.wanted([pointer for pointer, _ in batch])
        going = [(pointer, size) for pointer, size in batch if pointer not in wanted]
        unit.garbage.forget([pointer for pointer, _ in going])
    crash_point("gc.forgotten")
    for pointer, size in going:
        if trash.put(pointer, grace_s):
            found.moved += 1
            found.in_trash += 1
            heard("moved", pointer.removeprefix("local:"), size)
    crash_point("gc.trashed")
    with deps.database.read() as unit:
        regretted = unit.garbage.wanted([pointer for pointer, _ in going])
    if regretted:
        _each_trashed(trash, lambda file: file.pointer in regretted and _restored(trash, file, found, heard))


def _empty(deps: Deps, trash: Trash, grace_s: float, found: Collected, heard: Heard) -> None:
    after = ""
    while True:
        page = trash.walk(after, PAGE)
        with deps.database.read() as unit:
            wanted = unit.garbage.wanted(sorted({file.pointer for file in page}))
        for file in page:
            verdict = judge_trashed(
                wanted=file.pointer in wanted,
                in_place=deps.store.exists(file.pointer),
                age_s=file.age_s,
                grace_s=grace_s,
            )
            if verdict is Trashed.RESTORE and _restored(trash, file, found, heard):
                continue
            if verdict is Trashed.REMOVE and trash.remove(file, grace_s):
                found.removed += 1
                found.removed_bytes += file.size
                heard("removed", file.path, file.size)
                crash_point("gc.removed")
            else:
                found.in_trash += 1
        if len(page) < PAGE:
            return
        after = page[-1].path


def _restored(trash: Trash, file: TrashedFile, found: Collected, heard: Heard) -> bool:
    if not trash.restore(file):
        return False
    found.restored += 1
    heard("restored", file.pointer.removeprefix("local:"), file.size)
    return True


def _each_trashed(trash: Trash, do: Callable[[TrashedFile], object]) -> None:
    after = ""
    while True:
        page = trash.walk(after, PAGE)
        for file in page:
            do(file)
        if len(page) < PAGE:
            return
        after = page[-1].path
