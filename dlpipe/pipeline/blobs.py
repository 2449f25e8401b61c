"""Rows and files, both ways (HEAL-3): what a row has lost is brought again, what no row knows is made known.

A file is moved aside at most; whatever the database does or does not know, none is removed.
"""

from __future__ import annotations

import logging

from dlpipe.core import states
from dlpipe.core.crash import crash_point
from dlpipe.core.model import NO_JOB, ArtifactRecord, Fault, Scope
from dlpipe.core.ports import StoredFile, Unit
from dlpipe.core.recovery import (
    Adopt,
    LeaveIt,
    Lost,
    Mended,
    NeedHash,
    RegisteredFacts,
    SetApart,
    StoredFacts,
    believable,
    judge_registered,
    judge_stored,
)
from dlpipe.pipeline import stores
from dlpipe.pipeline.round import PAGE, Round

log = logging.getLogger(__name__)

ROWS, REHASH, FILES = "reconcile.rows", "reconcile.rehash", "reconcile.files"


# ── from rows to files ────────────────────────────────────────────────────────────────────────────


def registered(this: Round) -> None:
    """Is each registered file there with its size? A page of them in each round."""
    before = after = this.cursor(ROWS)
    looked, lost = 0, list[tuple[ArtifactRecord, Fault]]()
    while looked < this.heal.items:
        if this.over:
            this.found("unfinished", "rows", "goes on in the next round")
            break
        with this.deps.database.read() as unit:
            page = unit.registry.artifacts_after(after, PAGE)
        for record in page:
            with this.passing_over(record.artifact_uuid):
                if (fault := _look(this, record)) is not None:
                    lost.append((record, fault))
        looked += len(page)
        after = page[-1].artifact_uuid if len(page) == PAGE else ""
        if not after:
            break
    if not believable(looked, len(lost), this.heal.max_missing):
        log.error("%d of %d files are missing: is the store mounted? Nothing is changed", len(lost), looked)
        this.found("unfinished", "rows", f"{len(lost)} of {looked} files are missing: is the store mounted?")
        return
    for record, fault in lost:
        with this.passing_over(record.artifact_uuid):
            bring_again(this, record, fault)
    this.go_on_at(ROWS, before, after)


def _look(this: Round, record: ArtifactRecord) -> Fault | None:
    """What is wrong with the file, if that is news; a mark on one that is right again is taken off."""
    store = this.deps.store
    if not store.owns(record.storage_pointer):
        return None
    pointer, marked = record.storage_pointer, record.fault is not None
    size, right = store.size(pointer), None
    verdict = judge_registered(RegisteredFacts(record.byte_size, size, marked))
    if isinstance(verdict, NeedHash):
        right = store.is_right(pointer, record.sha256, record.byte_size)
        verdict = judge_registered(RegisteredFacts(record.byte_size, size, marked, right))
    if isinstance(verdict, Mended):
        with this.unit() as unit:
            if unit.registry.mend(record.sha256, pointer):
                this.found("files_mended", record.artifact_uuid, "no longer marked")
            crash_point("heal.mending")
    return verdict.fault if isinstance(verdict, Lost) else None


def rehashed(this: Round) -> None:
    """Do the bytes still hash to the name? So many bytes in each round, at least one file; 0 bytes: never."""
    budget = this.heal.rehash_bytes
    before = after = this.cursor(REHASH)
    while budget > 0 and not this.over:
        with this.deps.database.read() as unit:
            page = unit.registry.artifacts_after(after, PAGE)
        for record in page:
            if budget < this.heal.rehash_bytes and record.byte_size > budget:
                budget = 0
            if budget <= 0 or this.over:
                break
            budget -= max(record.byte_size, 1)
            after = record.artifact_uuid
            if record.fault is None and this.deps.store.owns(record.storage_pointer):
                with this.passing_over(record.artifact_uuid):
                    _reread(this, record)
        else:
            if len(page) < PAGE:
                after = ""
                break
    this.go_on_at(REHASH, before, after)


def _reread(this: Round, record: ArtifactRecord) -> None:
    store, pointer = this.deps.store, record.storage_pointer
    if not store.holds(pointer, record.byte_size):
        return  # the other walk sees that without reading
    right = store.is_right(pointer, record.sha256, record.byte_size)
    verdict = judge_registered(RegisteredFacts(record.byte_size, store.size(pointer), marked=False, right=right))
    if isinstance(verdict, Lost) and verdict.fault is Fault.DAMAGED:
        bring_again(this, record, verdict.fault)


def bring_again(this: Round, record: ArtifactRecord, fault: Fault) -> None:
    """Mark the artifact and send its job back to a new run, in one transaction; a job that is busy is left to it."""
    job_id = record.created_by_job_id
    with this.deps.database.read() as unit:
        job = unit.backlog.get(job_id)
    # After the fence was read, so that a run which brings the file from now on makes the write fail.
    store, pointer = this.deps.store, record.storage_pointer
    if fault is Fault.MISSING and store.size(pointer) is not None:
        return
    if fault is Fault.DAMAGED and store.is_right(pointer, record.sha256, record.byte_size):
        return
    stores.recognise(this.deps, dry_run=True)  # it may have gone away since the round began
    stores.recognise_others(this.deps)
    with this.unit() as unit:
        wanted = job is not None and _is_newest(unit, record)
        reopened = wanted and job is not None and unit.backlog.reopen(job_id, job.fence, fault)
        if wanted and not reopened and job is not None:
            now = unit.backlog.get(job_id)
            moved = now is not None and now.fence != job.fence
            if now is not None and (moved or not states.is_terminal(now.state, retry_due=now.due_at is not None)):
                return  # a run of it has brought the file, or does; else this is found again
        if not unit.registry.add_fault(record.artifact_uuid, fault):
            return
        this.found(f"files_{fault}", record.artifact_uuid, "a new run is due" if reopened else "marked")
        if reopened:
            this.count("jobs_reopened")
        crash_point("heal.bringing")
    crash_point("heal.brought")


def _is_newest(unit: Unit, record: ArtifactRecord) -> bool:
    """A further run brings what the server has now: never the bytes of an earlier version."""
    newest = unit.registry.newest_result(record.created_by_job_id)
    return newest is not None and newest.artifact_uuid == record.artifact_uuid


# ── from files to rows ────────────────────────────────────────────────────────────────────────────


def stored(this: Round) -> None:
    """Does some row know each file? A page of them in each round."""
    before = after = this.cursor(FILES)
    looked = 0
    while looked < this.heal.items:
        store = this.deps.store
        page = store.walk(after, PAGE)
        with this.deps.database.read() as unit:
            known = unit.registry.registered([(f.pointer, store.place_at(f.pointer).sha256) for f in page if f.pointer])
        done = 0
        for file in page:
            if this.over:
                break
            with this.passing_over(file.path):
                _judge(this, file, file.pointer in known)
            done, after = done + 1, file.path
        looked += done
        if done < len(page):
            this.found("unfinished", "files", "goes on in the next round")
            break
        if len(page) < PAGE:
            after = ""
            break
    this.go_on_at(FILES, before, after)


def _judge(this: Round, file: StoredFile, is_registered: bool) -> None:
    named = file.pointer is not None
    known = is_registered or (file.pointer is not None and _is_indexed(this, file.pointer, file.size))
    verdict = judge_stored(StoredFacts(file.ours, named, known, file.age_s), this.heal.grace_s)
    if isinstance(verdict, NeedHash) and file.pointer is not None:
        right = this.deps.store.is_right(file.pointer, this.deps.store.place_at(file.pointer).sha256, file.size)
        verdict = judge_stored(StoredFacts(file.ours, named, known, file.age_s, right), this.heal.grace_s)
    if isinstance(verdict, LeaveIt) and verdict.reason == "foreign":
        this.found("files_foreign", file.path, "left alone")
    elif isinstance(verdict, Adopt) and file.pointer is not None:
        _adopt(this, file.pointer, file.size)
        this.found("files_adopted", file.path, "known by its hash")
    elif isinstance(verdict, SetApart) and (this.dry_run or this.deps.store.quarantine(file.path)):
        this.found("files_quarantined", file.path, "moved below .quarantine")


def _is_indexed(this: Round, pointer: str, size: int) -> bool:
    """By itself, or because the same bytes are known elsewhere within the dedupe scope, and are there."""
    sha256 = this.deps.store.place_at(pointer).sha256
    with this.deps.database.read() as unit:
        first = unit.registry.first_copy(_scope(this, pointer), sha256)
    if first is None or first.pointer == pointer:
        return first is not None
    return this.deps.store.owns(first.pointer) and this.deps.store.holds(first.pointer, size)


def _adopt(this: Round, pointer: str, size: int) -> None:
    sha256, scope = this.deps.store.place_at(pointer).sha256, _scope(this, pointer)
    with this.unit() as unit:
        first = unit.registry.first_copy(scope, sha256)
        if first is None:
            unit.registry.add_copy(scope, sha256, pointer, size, NO_JOB)
        elif first.pointer != pointer:  # what the row names is gone
            unit.registry.repoint(scope, sha256, first.pointer, pointer, NO_JOB)
        crash_point("heal.adopting")


def _scope(this: Round, pointer: str) -> str:
    place = this.deps.store.place_at(pointer)
    return this.deps.policy.scope_key(Scope(place.tenant, place.project))
