"""Moves on the real ledger and on the model at once; each fails where the two disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dlpipe.core import flow, keys, results, states
from dlpipe.core.errors import IllegalTransition, LeaseLost, Permanent, Postponed, Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob, ArtifactRecord, Fault, Scope
from dlpipe.core.ports import Claimed, Held, Hint, Past, Refused, StartedOp
from dlpipe.core.recovery import after_crash, after_failure
from dlpipe.core.results import DedupeAction, FinalizeResult, Result, Results, StreamResult
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import State
from dlpipe.db.clock import after
from tests.ledger_model import CHAIN, FINISHED, GOOD_ENDS, Job, Op, room_for
from tests.ledgers import OWN, Bench, spec

HOSTS = ("a.example", "a.example", "b.example")
# Each with a priority of its own, so that a sequence of steps does the same each time it is tried.
SPECS = [spec(url=f"https://{HOSTS[number % 3]}/{number}", priority=number) for number in range(60)]
POLICY = RetryPolicy(max_attempts=3)
ENDS = (*GOOD_ENDS, "FAILED")
EDGES = {(step.source, step.target) for step in states.TABLE}
OUTCOMES = {"completed": "skipped", "skipped": "skipped", "failed": "failed", "canceled": "canceled"}
JOBS = """SELECT CAST(t.job_id AS TEXT), t.state, t.run, t.fence, t.attempts, t.due_at IS NOT NULL,
    t.published_at IS NOT NULL, t.lease_owner, j.status, t.purpose
    FROM artifact_jobs t JOIN jobs j ON j.job_id = t.job_id"""
ARTIFACTS = """SELECT CAST(artifact_uuid AS TEXT), tenant_id, project_id, storage_pointer, byte_size, sha256,
    created_at, CAST(created_by_job_id AS TEXT) FROM artifacts"""
MARKED = "SELECT CAST(artifact_uuid AS TEXT) FROM artifact_faults WHERE mended_at IS NULL"
OPS = "SELECT op_key, CAST(job_id AS TEXT), op_type, state, fence, run, result_json FROM artifact_ops"

Failure = Retryable | Permanent | Postponed
Look = Callable[[str], list[tuple[Any, ...]]]


@dataclass
class Work:
    """A claim, as its worker remembers it, for however long."""

    job: ArtifactJob
    op: StartedOp
    stage: str
    builds_on: Results


class Moves:
    def __init__(self, bench: Bench, look: Look, counts: Counter[Any]) -> None:
        self.database, self.bench, self.look, self.counts = bench.database, bench, look, counts
        self.jobs: list[Job] = []
        self.work: list[Work] = []
        self.held: list[Held] = []
        self.bag: list[tuple[Job, str, int]] = []
        """Every message that was ever sent."""
        self.retried: set[str] = set()
        """Jobs that were at an end, and that the last move made due again."""
        self.artifacts: dict[str, tuple[Job, str]] = {}
        """By their uuid: whose they are, and the sha256."""
        self.marked: set[str] = set()
        self.before: tuple[dict[str, Any], dict[str, Any], dict[str, Any]] = ({}, {}, {})
        with bench.database.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM jobs")
            connection.exec_driver_sql("DELETE FROM artifacts")

    def _job(self, job_id: str) -> Job:
        return next(job for job in self.jobs if job.job_id == job_id)

    # ── planning, messages ────────────────────────────────────────────────────────────────────────

    def new_job(self) -> Job:
        number = len(self.jobs)
        self.jobs.append(Job(SPECS[number].job_id, HOSTS[number % 3]))
        assert self.bench.plan(SPECS[number])[0].outcome == "created"
        return self.jobs[-1]

    def plan_again(self, job: Job) -> None:
        (answer,) = self.bench.plan(SPECS[self.jobs.index(job)])
        assert (answer.job_id, answer.outcome) == (job.job_id, OUTCOMES.get(job.status, "known"))

    def dispatch(self, limit: int, window: int, per_host: int) -> None:
        expected = room_for(self.jobs, limit, window, per_host)
        with self.database.write() as unit:
            hints = unit.backlog.take_due(limit, window, per_host)
        assert len(hints) == expected
        self._sent(hints, fresh=True)

    def dispatch_lost(self) -> None:
        waiting = {job.job_id for job in self.jobs if job.published and job.owner is None}
        with self.database.write() as unit:
            assert sum(unit.backlog.waiting().values()) == len(waiting)
            hints = unit.backlog.take_lost(100, -1.0, CHAIN)
        assert {hint.job_id for hint in hints} == waiting
        self._sent(hints, fresh=False)

    def _sent(self, hints: list[Hint], *, fresh: bool) -> None:
        for hint in sorted(hints, key=lambda hint: hint.job_id):
            job = self._job(hint.job_id)
            assert job.published is not fresh
            assert not fresh or job.due == "now"
            assert (hint.run, hint.stages[0].name) == (job.next_run(), job.next_stage())
            job.published = True
            self.bag += [(job, row.name, hint.run) for row in hint.stages]

    def unpublish(self, job: Job) -> None:
        with self.database.write() as unit:
            unit.backlog.unpublish([job.job_id])
        job.published = job.published and job.due == "no"

    # ── a worker ──────────────────────────────────────────────────────────────────────────────────

    def deliver(self, job: Job, stage: str, run: int) -> Work | None:
        """A message arrives: the claim and the start of its op are one transaction, as in the runner."""
        verdict, token, row = job.verdict(stage, run), f"t{self.counts['steps']}", flow.stage(stage)
        with self.database.write() as unit:
            claim = unit.jobs.claim(row, job.job_id, run, token, 600.0)
            if not isinstance(claim, Claimed):
                assert claim == (Past(State(job.state)) if verdict == "past" else Refused(verdict))
                return None
            assert verdict == "claimed"
            found = unit.ledger.results(job.job_id, run)
            self._compare(found, job, run)
            key = self._op_key(stage, claim.job, found)
            if key is None:
                unit.rollback()
                return None
            op = unit.ledger.start(key, row.op, claim.job)
            known = job.ops.get(key)
            done = known is not None and known.state == "finished"
            assert (op.seen, op.prior is not None) == (known is not None, done)
            if known is not None and done:
                assert (op.prior, op.prior_run) == (known.result, known.run)
                if known.run == run and stage == "stream":
                    unit.rollback()  # recorded, and its state has nothing to catch up on
                    return None
        job.claim(stage, run, token)
        assert (claim.job.state, claim.job.run, claim.job.fence) == (job.state, job.run, job.fence)
        if known is None or not done:
            job.ops[key] = Op(row.op, job.fence, run)
        else:
            known.fence = job.fence
        self.counts["claims"] += 1
        self.work.append(Work(claim.job, op, stage, found))
        return self.work[-1]

    def _compare(self, found: Results, job: Job, run: int) -> None:
        for kind in OpType:
            op = job.latest(kind)
            assert found.latest(kind) == (op.result if op else None)
            assert found.of_run(kind) == (op.result if op and op.run == run else None)

    def _op_key(self, stage: str, job: ArtifactJob, found: Results) -> str | None:
        """As the stages name their ops; None when what they build on is not there yet.

        But resume_decide has one op for good, so that every run replays the result of the first.
        """
        extras: dict[str, keys.Scalar] = {} if stage == "resume_decide" else {"run": job.run}
        if stage == "finalize":
            streamed = found.of_run(OpType.STREAM)
            if not isinstance(streamed, StreamResult):
                return None
            extras = {"sha256": streamed.sha256}
        elif stage in ("index", "dedupe"):
            placed = found.latest(OpType.FINALIZE)
            assert isinstance(placed, FinalizeResult)
            extras = {"sha256": placed.sha256, "pointer": placed.pointer}
        return keys.op_key(flow.stage(stage).op, job.job_id, **extras)

    def finish(self, work: Work, sha: str, *, skips: bool = False) -> None:
        target = "SKIPPED_DUPLICATE" if work.stage == "head" and skips else CHAIN[work.stage][1]
        result, made = self._result(work, sha), self._artifact(work)

        def record() -> None:
            with self.database.write() as unit:
                if made is not None:
                    unit.registry.add_artifact(made)
                unit.jobs.advance(work.job, flow.stage(work.stage), State(target))
                unit.ledger.finish(work.op, result, "ok")

        if self._counts(work, record):
            job = self._job(work.job.job_id)
            job.advance(target)
            if made is not None:
                self.artifacts.setdefault(made.artifact_uuid, (job, made.sha256))
                job.registered = True
            op = job.ops[work.op.op_key]
            op.run = work.job.run
            self.counts["replays"] += op.state == "finished"
            if op.state != "finished":
                op.state, op.result = "finished", result

    def _artifact(self, work: Work) -> ArtifactRecord | None:
        """As index names it; all else is different each time, and must not matter."""
        if work.stage != "index":
            return None
        placed = work.builds_on.latest(OpType.FINALIZE)
        assert isinstance(placed, FinalizeResult)
        uuid, job = keys.artifact_uuid(work.op.op_key), work.job
        return ArtifactRecord(uuid, OWN, "file", "local", placed.pointer, None, job.fence, placed.sha256, 1, job.job_id)

    def _result(self, work: Work, sha: str) -> Result:
        number = work.job.fence  # so that no two results are alike
        if work.stage == "finalize":
            streamed = work.builds_on.of_run(OpType.STREAM)
            assert isinstance(streamed, StreamResult)
            return FinalizeResult(streamed.sha256, number, f"local:{streamed.sha256}", already_there=False)
        made: dict[str, Result] = {
            "head": results.HeadResult(200, sha, content_length=number),
            "resume_decide": results.ResumeResult("fresh", "new", number),
            "stream": StreamResult(sha, number, 0, number, 1, 1),
            "index": results.IndexResult(sha, "local:x", str(number)),
            "dedupe": results.DedupeResult(DedupeAction.COPY, number),
        }
        return made[work.stage]

    def fail(self, work: Work, failure: Failure, chance: float) -> None:
        write = after_failure(failure, work.job.state, work.job.attempts, "d", chance, POLICY)

        def record() -> None:
            with self.database.write() as unit:
                unit.jobs.fail(work.job, write)
                unit.ledger.fail(work.op, write.code)

        if self._counts(work, record):
            job, delay = self._job(work.job.job_id), write.due_after_s
            job.let_go("no" if delay is None else "later" if delay else "now")
            job.state = job.state if write.keeps_state and delay is not None else "FAILED"
            job.attempts += write.uses_attempt
            op = job.ops[work.op.op_key]
            op.state = "failed" if op.state == "started" else op.state

    def _counts(self, work: Work, record: Callable[[], None]) -> bool:
        """Only the write of the one who holds the job counts; any other raises, and changes nothing."""
        if self._job(work.job.job_id).holds(work.job.fence):
            record()
            return True
        with pytest.raises((LeaseLost, IllegalTransition)):
            record()
        self.counts["late writes"] += 1
        return False

    def hand_back(self, work: Work) -> None:
        job = self._job(work.job.job_id)
        with self.database.write() as unit:
            freed = unit.jobs.hand_back(work.job)
        assert freed is job.holds(work.job.fence)
        if freed:
            job.let_go("now")

    def renew(self, work: Work) -> None:
        job = self._job(work.job.job_id)
        with self.database.write() as unit:
            gone = unit.jobs.renew([(work.job.job_id, work.job.fence)], 600.0)
        assert bool(gone) is not job.holds(work.job.fence)
        job.live = job.live or not gone

    # ── time, reconcile, owners ───────────────────────────────────────────────────────────────────

    def lease_runs_out(self, job: Job) -> None:
        if job.owner is not None:
            self.bench.expire(job.job_id)
            job.live = False

    def time_comes(self, job: Job) -> None:
        if job.due == "later":
            self.bench.set(job.job_id, due_at=after(-1.0))
            job.due = "now"

    def reconcile(self) -> None:
        with self.database.read() as unit:
            expired, live = unit.backlog.expired(100), unit.backlog.held(100)
        assert {one.job.job_id for one in expired} == {job.job_id for job in self.jobs if job.owner and not job.live}
        assert {one.job.job_id for one in live} == {job.job_id for job in self.jobs if job.live}
        found = [*sorted(expired, key=lambda one: one.job.job_id), *sorted(live, key=lambda one: one.job.job_id)]
        self.held = [*self.held, *found][-6:]
        for one in found[: len(expired)]:
            self.orphan(one)

    def orphan(self, one: Held) -> None:
        job, write = self._job(one.job.job_id), after_crash(one.job.attempts, "d", POLICY)
        with self.database.write() as unit:
            freed = unit.backlog.orphan(one, write)
        assert freed is (job.holds(one.job.fence) and job.owner == one.token)
        if freed:
            job.let_go("now" if write is None else "no")
            job.state = job.state if write is None else "FAILED"
            job.fence, job.attempts = job.fence + 1, job.attempts + 1

    def mark_abandoned(self) -> None:
        overtaken = [op for j in self.jobs for op in j.ops.values() if op.state == "started" and op.fence < j.fence]
        with self.database.write() as unit:
            assert unit.ledger.mark_abandoned(1000) == len(overtaken)
        for op in overtaken:
            op.state = "abandoned"

    def cancel(self, job: Job, scope: Scope) -> None:
        with self.database.write() as unit:
            status = unit.owned(scope).cancel(job.job_id)
        if scope == OWN:
            job.cancel()
        assert status == (job.status if scope == OWN else None)

    def refresh(self, job: Job, scope: Scope) -> None:
        with self.database.write() as unit:
            status = unit.owned(scope).refresh(job.job_id)
        if scope == OWN and job.ended and job.state != "CANCELED":
            job.refresh()
            self.retried.add(job.job_id)
            self.counts["refreshes"] += 1
        assert status == (job.status if scope == OWN else None)

    # ── files that are gone ───────────────────────────────────────────────────────────────────────

    def reopen(self, job: Job, age: int = 0) -> None:
        """Reconcile found its file gone, when the fence was `age` lower; it marks what it knows of it."""
        uuids = [uuid for uuid, (owner, _) in self.artifacts.items() if owner is job]
        can = age == 0 and job.can_be_reopened()
        with self.database.write() as unit:
            for uuid in uuids:
                assert unit.registry.add_fault(uuid, Fault.MISSING) is (uuid not in self.marked)
            assert unit.backlog.reopen(job.job_id, job.fence - age, Fault.MISSING) is can
        self.marked.update(uuids)
        if can:
            self.retried.add(job.job_id)
            job.reopen()
            self.counts["reopened"] += 1

    def mend(self, sha: str) -> None:
        again = {uuid for uuid in self.marked if self.artifacts[uuid][1] == sha}
        with self.database.write() as unit:
            assert unit.registry.mend(sha, f"local:{sha}") == len(again)
        self.marked -= again

    def retry(self, job: Job, scope: Scope) -> None:
        with self.database.write() as unit:
            status = unit.owned(scope).retry(job.job_id)
        if scope == OWN and job.status == "failed":
            if job.purpose is None and any(owner is job for owner, _ in self.artifacts.values()):
                job.state = "INDEXED"  # its result is registered: it goes on with what remains
            job.due, job.attempts = "now", 0
            self.retried.add(job.job_id)
        assert status == (job.status if scope == OWN else None)

    # ── what must hold after each step ────────────────────────────────────────────────────────────

    def check(self) -> None:
        """The rows are what the model says, and came there by the rules."""
        rows, ops = {row[0]: row for row in self.look(JOBS)}, {row[0]: row for row in self.look(OPS)}
        assert rows == {
            j.job_id: (
                j.job_id,
                j.state,
                j.run,
                j.fence,
                j.attempts,
                j.due != "no",
                j.published,
                j.owner,
                j.status,
                j.purpose,
            )
            for j in self.jobs
        }
        assert {key: row[1:6] for key, row in ops.items()} == {
            key: (job.job_id, op.kind, op.state, op.fence, op.run) for job in self.jobs for key, op in job.ops.items()
        }
        self._moved_by_the_rules(rows, ops)
        artifacts = {row[0]: row for row in self.look(ARTIFACTS)}
        assert artifacts.keys() == self.artifacts.keys()
        assert {uuid: artifacts[uuid] for uuid in self.before[2]} == self.before[2]  # JOB-3: no row ever changes
        assert {row[0] for row in self.look(MARKED)} == self.marked
        self.before, self.retried = (rows, ops, artifacts), set()
        self.counts["steps"] += 1

    def _moved_by_the_rules(self, rows: dict[str, Any], ops: dict[str, Any]) -> None:
        """Once more without the model: from the rows before and the rows now."""
        for job_id, was in self.before[0].items():
            _, state, run, fence, _, due, _, owner, status, purpose = rows[job_id]
            assert state == was[1] or (was[1], state) in EDGES
            self.counts[was[1], state] += 1
            assert run in (was[2], was[2] + 1)
            assert fence in (was[3], was[3] + 1)
            assert owner in (was[7], None) or fence > was[3]
            assert run > was[2] or state != "LEASED" or was[1] == "LEASED"
            if was[1] == "CANCELED" or (was[1] in ENDS and not was[5]):
                again = was[1] == state != "CANCELED" or (was[1], state) == ("FAILED", "INDEXED")
                assert rows[job_id] == was or (again and due and job_id in self.retried)
            assert purpose == was[9] or job_id in self.retried or (purpose is None and state in FINISHED)
            assert status == states.status_of(State(state), retry_due=bool(due))
        for key, was in self.before[1].items():
            if was[3] == "finished":
                assert (ops[key][3], ops[key][6]) == ("finished", was[6])
