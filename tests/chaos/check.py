"""What must be true once a run is over, found out from outside: rows by plain SQL, files by reading them,
requests from the origin's access log. Nothing of the pipeline's own code is asked; `dlpipe verify`, which shares none
of it either, is asked as well.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import checker
from tests.chaos.origin import Access
from tests.chaos.town import SETTINGS
from tests.chaos.work import FAILS, Body, Job, Sort

_TRIES = 1 + int(SETTINGS["DLPIPE_NET_RETRIES"])
_RESTARTS = 1 + 2
"""A stream may begin again twice within its run (DLPIPE_STREAM_MAX_RESTARTS)."""
_SHOWN = 20
MARK = ".dlpipe-store"
_NAME = re.compile(r"[0-9a-f]{64}\.bin\Z")


@dataclass
class Findings:
    """Violations by kind, and the figures that are worth a look."""

    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[str, Any] = field(default_factory=dict)

    def say(self, kind: str, what: str) -> None:
        self.wrong[kind].append(what)

    def ask_checker(self, url: str, store: Path) -> None:
        for one in checker.findings(url, store):
            self.say("verify", str(one))

    def lines(self) -> list[str]:
        return [f"{kind}: {what}" for kind, all_of_it in sorted(self.wrong.items()) for what in all_of_it[:_SHOWN]]

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(self.wrong.get(kind, ())) for kind in KINDS}


KINDS = ("lost", "published twice", "wrong end", "wrong hash", "orphan", "wrong origin", "asked too often", "verify")
Rows = Mapping[str, Sequence[Any]]
TABLES = ("jobs", "artifact_jobs", "artifact_ops", "artifacts", "job_artifacts", "manifest", "hash_index", "url_index")


def check(
    jobs: Sequence[Job], base: str, rows: Rows, store: Path, accesses: Sequence[Access], leases: Iterable[str] = ()
) -> Findings:
    """Hold everything that was asked for against everything that is there."""
    found = Findings()
    hashes = _hashes(jobs)
    by_url = {row.request_url: row for row in rows["artifact_jobs"]}
    canonical = {str(row.job_id): row for row in rows["jobs"]}
    results = _group(rows["artifacts"], lambda row: str(row.created_by_job_id))
    links = _group(rows["job_artifacts"], lambda row: str(row.job_id))
    ops = _group(rows["artifact_ops"], lambda row: str(row.job_id))
    notes = Counter(str(row.artifact_uuid) for row in rows["manifest"])
    log = _group(accesses, lambda access: access.path)
    pointers: dict[str, set[str]] = defaultdict(set)
    ends: Counter[str] = Counter()
    for job in jobs:
        row = by_url.get(base + job.path)
        if row is None:
            found.say("lost", f"{job.path}: no row")
            continue
        job_id = str(row.job_id)
        ends[f"{job.sort}: {canonical[job_id].status}"] += 1
        _the_end(found, job, row, canonical[job_id])
        _nothing_left(found, job, row, ops[job_id])
        _asked(found, job, row.run, log[job.path])
        if job.fails:
            if results[job_id] or links[job_id]:
                found.say("wrong end", f"{job.path}: failed, and has an artifact")
            continue
        _published_once(found, job, results[job_id], links[job_id], ops[job_id], notes)
        for artifact in results[job_id]:
            pointers[artifact.storage_pointer].add(artifact.sha256)
            body = hashes[job.path].get(artifact.sha256)
            if body is None:
                found.say("wrong hash", f"{job.path}: {artifact.sha256} is of none of its bodies")
            elif body.size != artifact.byte_size or artifact.project_id != job.project:
                found.say("wrong hash", f"{job.path}: size or project of its artifact is wrong")
            elif not _came(body, log[job.path]):
                found.say("wrong origin", f"{job.path}: not all of its bytes were sent by the origin")
    for extra in set(by_url) - {base + job.path for job in jobs}:
        found.say("orphan", f"a job for {extra} that nobody planned")
    _files(found, store, pointers)
    for row in (*rows["hash_index"], *rows["url_index"]):
        if row.pointer not in pointers:
            found.say("orphan", f"the index points at {row.pointer}, which no artifact has")
    for job_id in leases:
        found.say("orphan", f"a lease on {job_id} is left in Redis")
    sent = sum(access.sent for access in accesses)
    needed = sum(artifact.byte_size for artifact in rows["artifacts"])
    found.figures = {
        "jobs by end": dict(sorted(ends.items())),
        "runs": sum(row.run for row in rows["artifact_jobs"]),
        "requests": len(accesses),
        "bytes of results": needed,
        "bytes sent by the origin": sent,
        "bytes sent beyond what was needed": sent - needed,
    }
    return found


def _group(rows: Iterable[Any], key: Any) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        grouped[key(row)].append(row)
    return grouped


def _hashes(jobs: Sequence[Job]) -> dict[str, dict[str, Body]]:
    """For each path, the sha256 of each of its bodies."""
    known: dict[Body, str] = {}
    for job in jobs:
        for body in job.bodies:
            if body not in known:
                known[body] = hashlib.sha256(body.data()).hexdigest()
    return {job.path: {known[body]: body for body in job.bodies} for job in jobs}


def _the_end(found: Findings, job: Job, row: Any, canonical: Any) -> None:
    if job.fails:
        if canonical.status != "failed" or canonical.error_code not in FAILS[job.sort] or row.state != "FAILED":
            found.say("wrong end", f"{job.path} ({job.sort}): {row.state} {canonical.status} {canonical.error_code}")
    elif (row.state, canonical.status) != ("DEDUPED", "completed"):
        kind = "lost" if canonical.status in ("pending", "processing") else "wrong end"
        found.say(kind, f"{job.path} ({job.sort}): {row.state} {canonical.status} {canonical.error_code}")


def _nothing_left(found: Findings, job: Job, row: Any, ops: Sequence[Any]) -> None:
    for name in ("lease_owner", "lease_until", "due_at", "published_at"):
        if getattr(row, name) is not None:
            found.say("orphan", f"{job.path}: {name} is still set ({row.state})")
    for op in ops:
        if op.state == "started":
            found.say("orphan", f"{job.path}: {op.op_type} of run {op.run} is still marked as started")


def _published_once(
    found: Findings, job: Job, results: Sequence[Any], links: Sequence[Any], ops: Sequence[Any], notes: Counter[str]
) -> None:
    if not results:
        found.say("lost", f"{job.path}: no artifact")
    if len(results) > 1 or len(links) > 1:
        found.say("published twice", f"{job.path}: {len(results)} artifacts, {len(links)} result links")
    if [link.role for link in links[:1]] != ["result"] or {str(link.artifact_uuid) for link in links} != {
        str(artifact.artifact_uuid) for artifact in results
    }:
        found.say("lost", f"{job.path}: its result does not point at its artifact")
    for kind in ("FINALIZE", "INDEX", "DEDUPE"):
        finished = [op for op in ops if op.op_type == kind and op.state == "finished"]
        if len(finished) > 1 and kind == "INDEX":
            found.say("published twice", f"{job.path}: {kind} is recorded {len(finished)} times")
        if not finished:
            found.say("lost", f"{job.path}: {kind} is not recorded")
    for artifact in results:
        if notes[str(artifact.artifact_uuid)] != 1:
            found.say("orphan", f"{job.path}: {notes[str(artifact.artifact_uuid)]} manifest rows for its artifact")


def _asked(found: Findings, job: Job, runs: int, log: Sequence[Access]) -> None:
    """Within a run HEAD and GET are retried so often, and a stream begins again so often, and no more."""
    heads = sum(access.method == "HEAD" for access in log)
    gets = len(log) - heads
    may = runs * _TRIES * (_RESTARTS if job.sort is Sort.CHANGING else 1)
    if job.sort is Sort.GONE:
        may += runs * _TRIES  # a refusal of HEAD counts only once GET confirms it
    if heads > runs * _TRIES or gets > may:
        found.say("asked too often", f"{job.path} ({job.sort}): {heads} HEAD and {gets} GET in {runs} runs")


def _came(body: Body, log: Sequence[Access]) -> bool:
    """Do the pieces that the origin sent of this body cover it?"""
    pieces = sorted((a.start, a.start + a.sent) for a in log if a.method == "GET" and a.etag == body.etag)
    reached = 0
    for start, end in pieces:
        if start > reached:
            break
        reached = max(reached, end)
    return reached >= body.size


def _files(found: Findings, store: Path, pointers: Mapping[str, set[str]]) -> None:
    """Every file by its hash, every pointer by its file, and nothing beside them."""
    wanted = {pointer.removeprefix("local:"): shas for pointer, shas in pointers.items()}
    inodes: dict[str, set[int]] = defaultdict(set)
    for path in sorted(store.rglob("*")):
        if path.is_dir():
            continue
        name = str(path.relative_to(store))
        if name.startswith(".staging/"):
            found.say("orphan", f"left in the staging folder: {name}")
            continue
        if name == MARK:
            continue
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        inodes[sha256].add(path.stat().st_ino)
        if not _NAME.match(path.name) or not path.name.startswith(sha256):
            found.say("wrong hash", f"{name} holds {sha256}")
        if wanted.pop(name, {sha256}) != {sha256}:
            found.say("wrong hash", f"{name} is registered with another sha256")
        if f"local:{name}" not in pointers:
            found.say("orphan", f"{name} is known to no row")
    for name in wanted:
        found.say("lost", f"{name} is registered, and not there")
    for sha256, copies in inodes.items():
        if len(copies) > 1:
            found.say("orphan", f"{len(copies)} copies of {sha256} were not unified")
