"""A small crowd of jobs under every kind of fault (`make chaos` has the large ones), and proof that its checks see."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import postgres
from tests.chaos import check, faults, work
from tests.chaos.__main__ import play
from tests.chaos.faults import Kind
from tests.chaos.origin import Access

JOBS = 150
BASE = "http://127.0.0.1:1"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_small_crowd_heals_after_every_kind_of_fault() -> None:
    postgres.require()
    place = Path(tempfile.mkdtemp(prefix="dlpipe-chaos-"))  # pytest's own are too deep for a socket
    place.chmod(0o755)
    outcome = play(seed=20, count=JOBS, place=place, say=print)
    assert outcome.violations == [], f"everything is in {place}"
    assert set(outcome.story.faults) | set(outcome.story.skipped) == {kind.value for kind in Kind}
    assert outcome.story.damaged > 0, "the last faults broke nothing, so nothing was healed"
    shutil.rmtree(place)


# ── the schedule and the jobs ─────────────────────────────────────────────────────────────────────


def test_a_seed_is_a_schedule_and_a_crowd() -> None:
    assert faults.schedule(7, 2_000) == faults.schedule(7, 2_000)
    assert work.make(7, 200) == work.make(7, 200)
    assert faults.schedule(8, 2_000) != faults.schedule(7, 2_000)
    assert work.make(8, 200) != work.make(7, 200)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_of_fault_comes_and_the_worst_comes_last(seed: int) -> None:
    plan = faults.schedule(seed, JOBS)
    assert {fault.kind for fault in plan} == set(Kind)
    assert [fault.kind for fault in plan[-2:]] == [Kind.WORKER_KILLED, Kind.REDIS_EMPTIED]
    assert [fault.at_done for fault in plan] == sorted(fault.at_done for fault in plan)
    assert all(fault.lasts_s > faults.LEASE_TTL_S for fault in plan if fault.kind is Kind.WORKER_STOPPED)


def test_a_fifth_of_the_crowd_holds_the_bytes_of_others_and_all_sorts_are_there() -> None:
    crowd = work.make(3, 1_000)
    bodies = [job.bodies for job in crowd]
    assert sum(job.sort is work.Sort.TWIN for job in crowd) == 200
    assert len(bodies) - len(set(bodies)) >= 200
    assert {job.sort for job in crowd} == set(work.Sort)
    assert len({job.path for job in crowd}) == len(crowd)


# ── the checks: a clean end has no findings, and each planted fault has the one it deserves ───────


class End:
    """Rows, files and an access log as a run with two jobs should leave them, to be spoilt."""

    def __init__(self, store: Path) -> None:
        body = work.Body(5, 700)
        self.jobs = [
            work.Job("/a.bin", "one", work.Sort.PLAIN, (body,)),
            work.Job("/gone.bin", "one", work.Sort.GONE, (body,)),
        ]
        self.sha = hashlib.sha256(body.data()).hexdigest()
        self.store = store
        self.file = store / "default" / "one" / self.sha[:2] / f"{self.sha}.bin"
        self.file.parent.mkdir(parents=True)
        self.file.write_bytes(body.data())
        self.pointer = f"local:{self.file.relative_to(store)}"
        self.rows: dict[str, list[Any]] = {
            "jobs": [
                SimpleNamespace(job_id="1", status="completed", error_code=None),
                SimpleNamespace(job_id="2", status="failed", error_code="http_404"),
            ],
            "artifact_jobs": [self.row("1", "/a.bin", "DEDUPED"), self.row("2", "/gone.bin", "FAILED")],
            "artifact_ops": [self.op(kind) for kind in ("FINALIZE", "INDEX", "DEDUPE")],
            "artifacts": [self.artifact("x")],
            "job_artifacts": [SimpleNamespace(job_id="1", role="result", artifact_uuid="x")],
            "manifest": [SimpleNamespace(artifact_uuid="x")],
            "hash_index": [SimpleNamespace(pointer=self.pointer)],
            "url_index": [SimpleNamespace(pointer=self.pointer)],
        }
        self.log = [
            Access(0, "HEAD", "/a.bin", 200, body.etag),
            Access(0, "GET", "/a.bin", 200, body.etag, 0, 400),
            Access(0, "GET", "/a.bin", 206, body.etag, 300, 400),
            Access(0, "HEAD", "/gone.bin", 404),
        ]
        self.leases: list[str] = []

    @staticmethod
    def row(job_id: str, path: str, state: str) -> SimpleNamespace:
        idle: Mapping[str, None] = dict.fromkeys(("lease_owner", "lease_until", "due_at", "published_at"))
        return SimpleNamespace(job_id=job_id, request_url=BASE + path, state=state, run=1, **idle)

    @staticmethod
    def op(kind: str, state: str = "finished") -> SimpleNamespace:
        return SimpleNamespace(job_id="1", op_type=kind, state=state, run=1)

    def artifact(self, uuid: str) -> SimpleNamespace:
        return SimpleNamespace(
            artifact_uuid=uuid, created_by_job_id="1", sha256=self.sha, byte_size=700, project_id="one",
            storage_pointer=self.pointer,
        )  # fmt: skip

    def spoil(self, how: str) -> None:
        match how:
            case "no row":
                self.rows["artifact_jobs"].pop(0)
            case "still at work":
                self.rows["artifact_jobs"][0].state = "STREAMING"
                self.rows["jobs"][0].status = "processing"
            case "wrong failure":
                self.rows["jobs"][1].error_code = "internal_error"
            case "two artifacts":
                self.rows["artifacts"].append(self.artifact("y"))
            case "indexed twice":
                self.rows["artifact_ops"].append(self.op("INDEX"))
            case "not indexed":
                self.rows["artifact_ops"].pop(1)
            case "damaged file":
                self.file.write_bytes(b"other")
            case "missing file":
                self.file.unlink()
            case "stray file":
                self.file.with_name("f" * 64 + ".bin").write_bytes(b"")
            case "second copy":
                self.file.with_name(f"{self.sha}.pdf").write_bytes(self.file.read_bytes())
            case "stray part":
                (self.store / ".staging").mkdir()
                (self.store / ".staging" / "x.part").touch()
            case "held":
                self.rows["artifact_jobs"][0].lease_owner = "somebody"
            case "lease":
                self.leases.append("1")
            case "started op":
                self.rows["artifact_ops"].append(self.op("HEAD", "started"))
            case "index to nowhere":
                self.rows["hash_index"].append(SimpleNamespace(pointer="local:elsewhere"))
            case "bytes from nowhere":
                self.log.pop(1)
            case _:
                self.log += [Access(0, "GET", "/a.bin", 200, "", 0, 0)] * 3

    def look(self) -> set[str]:
        found = check.check(self.jobs, BASE, self.rows, self.store, self.log, self.leases)
        return {kind for kind, count in found.counts.items() if count}


@pytest.fixture
def end(tmp_path: Path) -> End:
    return End(tmp_path / "store")


def test_a_clean_end_has_no_findings(end: End) -> None:
    assert end.look() == set()


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("no row", "lost"),
        ("still at work", "lost"),
        ("wrong failure", "wrong end"),
        ("two artifacts", "published twice"),
        ("indexed twice", "published twice"),
        ("not indexed", "lost"),
        ("damaged file", "wrong hash"),
        ("missing file", "lost"),
        ("stray file", "orphan"),
        ("second copy", "orphan"),
        ("stray part", "orphan"),
        ("held", "orphan"),
        ("lease", "orphan"),
        ("started op", "orphan"),
        ("index to nowhere", "orphan"),
        ("bytes from nowhere", "wrong origin"),
        ("asked again and again", "asked too often"),
    ],
)
def test_each_planted_fault_is_found(end: End, how: str, kind: str) -> None:
    end.spoil(how)
    assert kind in end.look()
