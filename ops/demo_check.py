"""Looks at what a run of the pipeline left behind, with nothing of dlpipe: sqlite3 and hashlib only.

`python ops/demo_check.py DATA_DIRECTORY ORIGIN_FOLDER` checks a data directory that `make demo ARGS=--keep` left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

OPS = ("HEAD", "RESUME", "STREAM", "FINALIZE", "INDEX", "DEDUPE")
ONCE_FOR_GOOD = ("FINALIZE", "INDEX", "DEDUPE")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that has to hold, and what speaks against it."""

    what: str
    objections: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.objections


def check(home: Path, origin: Path) -> Iterator[Finding]:
    """Everything that must be true of a data directory in which all jobs have ended and nothing runs."""
    with closing(sqlite3.connect(f"file:{home / 'ledger.db'}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        jobs = db.execute("SELECT * FROM jobs JOIN artifact_jobs USING (job_id)").fetchall()
        records = db.execute(
            "SELECT a.*, r.job_id FROM artifacts a JOIN job_artifacts r USING (artifact_uuid) WHERE r.role = 'result'"
        ).fetchall()
        ops = db.execute("SELECT * FROM artifact_ops ORDER BY fence").fetchall()
        damage = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    yield Finding("the ledger is sound", tuple(damage))
    yield _ended(jobs)
    yield from _files(home / "store", origin, jobs, records)
    yield _ops_finished(ops)
    yield _ops_per_job(jobs, ops)
    yield _ops_agree(ops, records)
    left = [str(path) for path in (home / "store" / ".staging").rglob("*") if path.is_file()]
    yield Finding("nothing is left in .staging", tuple(left))
    yield _nobody(home)


def _ended(jobs: list[sqlite3.Row]) -> Finding:
    return Finding(
        f"all {len(jobs)} jobs are completed or skipped, and nobody holds or awaits one",
        tuple(
            f"{job['job_id']}: {job['status']}, {job['state']}"
            for job in jobs
            if (job["status"], job["state"]) not in (("completed", "DEDUPED"), ("skipped", "SKIPPED_DUPLICATE"))
            or job["lease_owner"] is not None
            or job["due_at"] is not None
            or job["published_at"] is not None
        ),
    )


def _files(store: Path, origin: Path, jobs: list[sqlite3.Row], records: list[sqlite3.Row]) -> Iterator[Finding]:
    # What begins with a dot is the store's own: its mark, and what is being received.
    shown = [path for path in store.rglob("*") if path.is_file() and path.relative_to(store).parts[0][0] != "."]
    names = {path: _sha256(path) for path in shown}
    yield Finding(
        f"the bytes of all {len(names)} files in the store hash to their names, and none can be written to",
        tuple(str(p) for p, digest in names.items() if p.name.split(".")[0] != digest or p.stat().st_mode & 0o222),
    )
    wrong, expected = [], set()
    by_job = {record["job_id"]: record for record in records}
    for job in jobs:
        record = by_job.get(job["job_id"])
        source = origin / urlsplit(job["canonical_url"]).path.lstrip("/")
        path = store / record["storage_pointer"].removeprefix("local:") if record else None
        expected.add(path)
        if record is None or path is None or not names.get(path) == record["sha256"] == _sha256(source):
            wrong.append(f"{job['job_id']}: not what {source.name} is at the origin")
        elif path.stat().st_size != record["byte_size"]:
            wrong.append(f"{job['job_id']}: the size differs")
    yield Finding("every job has its one result, and its bytes are those of the origin", tuple(wrong))
    strangers = tuple(str(path) for path in names if path not in expected)
    yield Finding("the store holds no file that no job asked for", strangers)
    counted = Counter(record["job_id"] for record in records)
    yield Finding(
        "no result was registered twice",
        tuple(f"{job}: {n} results" for job, n in counted.items() if n != 1),
    )


def _ops_finished(ops: list[sqlite3.Row]) -> Finding:
    keys = Counter(op["op_key"] for op in ops)
    bad = [f"{key}: {n} rows" for key, n in keys.items() if n != 1]
    for op in ops:
        whole = op["result_json"] is not None and op["finished_at"] is not None
        if op["state"] == "started" or (op["state"] == "finished") != whole:
            bad.append(f"{op['op_key']}: {op['op_type']} is {op['state']}")
    finished = sum(op["state"] == "finished" for op in ops)
    return Finding(f"{finished} ops are finished, each key once; none is left half done", tuple(bad))


def _ops_per_job(jobs: list[sqlite3.Row], ops: list[sqlite3.Row]) -> Finding:
    """A completed job has each of the six effects once in the last run that did it, and a skipped one its HEAD."""
    bad = []
    for job in jobs:
        mine = [op for op in ops if op["job_id"] == job["job_id"] and op["state"] == "finished"]
        for kind in OPS if job["state"] == "DEDUPED" else ("HEAD",):
            runs = [op["run"] for op in mine if op["op_type"] == kind]
            if not runs or runs.count(max(runs)) != 1 or (kind in ONCE_FOR_GOOD and len(runs) != 1):
                bad.append(f"{job['job_id']}: {kind} is finished in the runs {runs}")
    return Finding("every completed job has each of its six ops exactly once, every skipped one its HEAD", tuple(bad))


def _ops_agree(ops: list[sqlite3.Row], records: list[sqlite3.Row]) -> Finding:
    """What one stage recorded is what the next one took up."""
    bad = []
    digests = {record["job_id"]: record["sha256"] for record in records}
    for op in ops:
        if op["state"] != "finished" or op["op_type"] not in ("STREAM", "FINALIZE", "INDEX"):
            continue
        told = json.loads(op["result_json"])
        if told["sha256"] != digests.get(op["job_id"]):
            bad.append(f"{op['op_key']}: {op['op_type']} recorded another sha256")
        if op["op_type"] == "STREAM" and told["resumed_from_bytes"] + told["bytes_written"] != told["size"]:
            bad.append(f"{op['op_key']}: resumed and written bytes do not add up to the size")
    return Finding("stream, finalize and index recorded the same sha256, and their bytes add up", tuple(bad))


def _nobody(home: Path) -> Finding:
    """The stack's lock is free, and no process names this data directory (where /proc tells)."""
    found = []
    for name in ("stack.lock", "redis.lock", "redis-data.lock"):
        with (home / "run" / name).open("rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(f"{name} is held")
    marks = (b"DLPIPE_HOME=" + os.fsencode(home) + b"\0", os.fsencode(home) + b"/")
    me = {os.getpid(), os.getppid()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "environ").read_bytes() + b"\0", (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(folder.name) not in me and (marks[0] in lines[0] or marks[1] in lines[1]):
            found.append(f"process {folder.name} is still there")
    return Finding("no process is left", tuple(found))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def report(findings: Iterator[Finding]) -> bool:
    """Print each finding; True when all hold."""
    good = True
    for finding in findings:
        good = good and finding.ok
        print(f"  {'yes' if finding.ok else 'NO '}  {finding.what}")
        for objection in finding.objections[:5]:
            print(f"         {objection}")
    return good


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python ops/demo_check.py DATA_DIRECTORY ORIGIN_FOLDER")
    sys.exit(0 if report(check(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())) else 1)
