"""The real repositories against a simple model, at random: crashes, late and doubled writes, lost leases, retries.

STATE-4, STATE-5, LEDGER-1, LEASE-2, LEASE-3. The moves, and what must hold after each, are in tests.ledger_moves.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import event

from dlpipe.core.errors import Permanent, Postponed, Retryable
from dlpipe.core.model import Scope
from dlpipe.db import SqlDatabase
from tests.ledger_model import KEPT, STAGES, Job
from tests.ledger_moves import EDGES, HOSTS, SPECS, Failure, Look, Moves, Work
from tests.ledgers import FOREIGN, OWN, Bench
from tests.postgres import Postgres

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.own_engines("a test for each of them", "ledger"),
    pytest.mark.no_engines("broker", "store"),
]

NEVER = {
    # Nobody holds a job in these states, so nobody can fail it, and no run of it can be given up.
    ("PLANNED", "FAILED"),
    ("RESUME_OK", "FAILED"),
    ("RESUME_OK", "LEASED"),
}
which = st.integers(0, len(HOSTS) - 1)
messages = st.sampled_from(["next", "chain", "new run", "any", "again"])
memories = st.sampled_from(["finish", "fail", "hand back", "renew"])
few = st.integers(0, 4)
old = st.integers(0, 7)
shas = st.sampled_from(["a" * 64, "b" * 64])
scopes = st.sampled_from([OWN, *FOREIGN])
chances = st.sampled_from([0.0, 0.5])
failures = st.sampled_from([
    Retryable("x", code="http_5xx"), Retryable("x", code="http_429", after_s=90.0), Permanent("x", code="http_404"),
    Postponed("x", code="part_busy", after_s=0.0), Postponed("x", code="part_busy", after_s=90.0),
])  # fmt: skip


LATE_FAILURES = 20
TAKEN_BACK = [(0, "begins"), (1, ""), (2, ""), (2, "begins"), (3, ""), (0, "fails")]
"""How many stages of a further run are done, and whether the next one has begun, when it is canceled."""


class Machine(RuleBasedStateMachine):
    bench: ClassVar[Bench]
    look: ClassVar[Any]  # a Look, which mypy would take for a method
    counts: ClassVar[Counter[Any]]

    @initialize()
    def begin(self) -> None:
        self.moves = Moves(self.bench, self.look, self.counts)
        self.slots = [self.moves.new_job() for _ in HOSTS]

    @rule(
        number=which, stages=st.integers(1, 7), sha=shas, failure=failures, chance=chances,
        fate=st.sampled_from(["fine", "death", "failure", "give back", "cancel", "regret", "overtaken", "loss"]),
    )  # fmt: skip
    def work(self, number: int, stages: int, sha: str, failure: Failure, chance: float, fate: str) -> None:
        """A worker to which nothing happens before its last stage. A job at its end runs once more, or makes way."""
        job = self.slots[number]
        if job.ended and job.state != "CANCELED" and chance:
            self._once_more(job, fate)
            self.moves.check()
        elif job.ended and len(self.moves.jobs) < len(SPECS):
            job = self.slots[number] = self.moves.new_job()
            self.moves.check()
        for left in reversed(range(stages)):
            work = self._next(job)
            self.moves.check()
            if work is None:
                return
            if left:
                self.moves.finish(work, sha)
            else:
                self._end(fate, job, work, sha, failure, chance)
            self.moves.check()

    def _once_more(self, job: Job, fate: str) -> None:
        if job.status == "failed" and fate != "fine":
            self.moves.retry(job, OWN)
        elif job.status != "failed" and fate in ("death", "loss", "overtaken"):
            self.moves.reopen(job)
        else:
            self.moves.refresh(job, OWN)

    def _next(self, job: Job) -> Work | None:
        return self.moves.deliver(job, job.next_stage(), job.next_run())

    def _end(self, fate: str, job: Job, work: Work, sha: str, failure: Failure, chance: float) -> None:
        match fate:
            case "fine":
                self.moves.finish(work, sha, skips=chance > 0)
            case "failure":
                self.moves.fail(work, failure, chance)
            case "give back":
                self.moves.hand_back(work)
            case "cancel":
                self.moves.cancel(job, OWN)
            case "regret":
                self.moves.fail(work, failure, chance) if chance else self.moves.finish(work, sha)
                self.moves.check()
                self.moves.cancel(job, OWN)
            case "overtaken" | "loss":
                self.moves.lease_runs_out(job)
                self.moves.check()
                if fate == "overtaken":
                    self.moves.deliver(job, work.stage, job.run)
                else:
                    self.moves.reconcile()
                self.moves.check()
                self.moves.finish(work, sha)
            case _:
                pass  # it dies, and says nothing

    @rule(number=which, kind=messages, stage=few, run=st.integers(-2, 2), n=old)
    def message(self, number: int, kind: str, stage: int, run: int, n: int) -> None:
        """One message: the right one, one of the chain, of a new run, any at all, or one that was sent before."""
        job = self.slots[number]
        if kind == "again" and self.moves.bag:
            self.moves.deliver(*self.moves.bag[-1 - n * 3 % len(self.moves.bag)])
        elif kind == "any":
            self.moves.deliver(job, STAGES[n % 6], job.run + run)
        elif kind == "new run":
            self.moves.deliver(job, KEPT.get(job.state, "head"), job.run + 1)
        elif kind == "chain":
            self.moves.deliver(job, STAGES[min(STAGES.index(job.next_stage()) + stage, 5)], job.run)
        else:
            self._next(job)

    @rule(n=old, kind=memories, sha=shas, failure=failures, chance=chances)
    def remember(self, n: int, kind: str, sha: str, failure: Failure, chance: float) -> None:
        """A worker of now or of long ago writes."""
        if not self.moves.work:
            return
        work = self.moves.work[-1 - n % len(self.moves.work)]
        match kind:
            case "finish":
                self.moves.finish(work, sha, skips=chance > 0)
            case "fail":
                self.moves.fail(work, failure, chance)
            case "hand back":
                self.moves.hand_back(work)
            case _:
                self.moves.renew(work)

    @rule(number=which, kind=st.sampled_from(["lease", "due", "reconcile", "late reconcile", "ops"]), n=old)
    def time(self, number: int, kind: str, n: int) -> None:
        match kind:
            case "lease":
                self.moves.lease_runs_out(self.slots[number])
            case "due":
                self.moves.time_comes(self.slots[number])
            case "reconcile":
                self.moves.reconcile()
            case "late reconcile" if self.moves.held:
                self.moves.orphan(self.moves.held[-1 - n % len(self.moves.held)])
            case _:
                self.moves.mark_abandoned()

    @rule(number=which, kind=st.sampled_from(["due", "due", "lost", "unsent"]), limit=few, window=few, per_host=few)
    def dispatch(self, number: int, kind: str, limit: int, window: int, per_host: int) -> None:
        match kind:
            case "due":
                self.moves.dispatch(limit, window, per_host)
            case "lost":
                self.moves.dispatch_lost()
            case _:
                self.moves.unpublish(self.slots[number])

    @rule(number=which, sha=shas, lost=st.booleans())
    def duplicate(self, number: int, sha: str, lost: bool) -> None:
        """A job that ends as a duplicate, and runs once more."""
        job = self.slots[number]
        work = None if job.ended or job.next_stage() != "head" else self._next(job)
        self.moves.check()
        if work is not None:
            self.moves.finish(work, sha, skips=True)
            self.moves.check()
            self.moves.reopen(job) if lost else self.moves.refresh(job, OWN)
            self.moves.check()
            self._next(job)

    @rule(number=which, sha=shas)
    def fail_late(self, number: int, sha: str) -> None:
        """A job that fails for good with only its last stage left, and is tried again; a few such are enough."""
        job = self.slots[number]
        if self.moves.counts["late failures"] >= LATE_FAILURES:
            return
        while not job.ended and (work := self._next(job)) is not None:
            self.moves.check()
            if work.stage == "dedupe":
                self.moves.fail(work, Permanent("x", code="x"), 0.0)
                self.moves.check()
                self.moves.retry(job, OWN)
                self.moves.counts["late failures"] += 1
                break
            self.moves.finish(work, sha)
            self.moves.check()

    @rule(number=which, sha=shas)
    def take_back(self, number: int, sha: str) -> None:
        """A finished job is refreshed, and canceled when that has come so far; by turns, from wherever it can be."""
        job = self.slots[number]
        turn = self.moves.counts["taken back"]
        skips, (stages, begins) = turn % 2 == 0, TAKEN_BACK[turn // 2 % len(TAKEN_BACK)]
        if turn >= 4 * len(TAKEN_BACK):
            return
        while not job.ended and (work := self._next(job)) is not None:
            self.moves.check()
            self.moves.finish(work, sha, skips=skips)
            self.moves.check()
        if not job.ended or job.state != ("SKIPPED_DUPLICATE" if skips else "DEDUPED"):
            return
        self.moves.refresh(job, OWN)
        self.moves.check()
        for left in range(stages + (begins != "")):
            work = self._next(job)
            self.moves.check()
            if work is None:
                return
            if left < stages:
                self.moves.finish(work, sha)
            elif begins == "fails":
                self.moves.fail(work, Retryable("x", code="http_5xx"), 0.0)
            self.moves.check()
        self.moves.cancel(job, OWN)
        self.moves.counts["taken back"] += 1

    @rule(number=which, kind=st.sampled_from(["lost", "lost", "seen before", "mend"]), sha=shas)
    def files(self, number: int, kind: str, sha: str) -> None:
        match kind:
            case "mend":
                self.moves.mend(sha)
            case _:
                self.moves.reopen(self.slots[number], age=kind == "seen before")

    @rule(number=which, kind=st.sampled_from(["plan", "retry", "retry", "refresh", "refresh", "cancel"]), scope=scopes)
    def owner(self, number: int, kind: str, scope: Scope) -> None:
        match kind:
            case "plan":
                self.moves.plan_again(self.slots[number])
            case "retry":
                self.moves.retry(self.slots[number], scope)
            case "refresh":
                self.moves.refresh(self.slots[number], scope)
            case _:
                self.moves.cancel(self.slots[number], scope)

    @invariant()
    def check(self) -> None:
        self.moves.check()


def drive(
    database: SqlDatabase, look: Look, enough: Callable[[Counter[Any]], bool], examples: int, further: int
) -> Counter[Any]:
    """Histories, and some more as long as chance has left out what there must be enough of."""
    counts: Counter[Any] = Counter()
    here = type("Here", (Machine,), {"bench": Bench(database), "look": staticmethod(look), "counts": counts})
    for most in (examples, *[further] * 10):
        run_state_machine_as_test(
            here,
            settings=settings(
                max_examples=most, stateful_step_count=50, deadline=None, print_blob=True, derandomize=False,
                suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
        if enough(counts):
            break
    print(", ".join(f"{n} {name}" for name, n in counts.items() if isinstance(name, str)))
    print(", ".join(f"{n} {name[0]}-{name[1]}" for name, n in counts.items() if isinstance(name, tuple)))
    return counts


def _short(counts: Counter[Any], steps: int) -> dict[str, int]:
    """Of what there is too little, beside so many steps."""
    least = {
        "steps": steps, "claims": steps / 10, "late writes": steps / 50, "replays": steps / 500,
        "refreshes": steps / 1000, "reopened": steps / 1000,
    }  # fmt: skip
    return {name: counts[name] for name, wanted in least.items() if counts[name] < wanted}


def test_the_ledger_on_sqlite_does_what_the_model_says(sqlite_url: str) -> None:
    database = SqlDatabase(sqlite_url)
    # No power is cut here, and the disk would take most of the time.
    event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF").close())
    eye = sqlite3.connect(str(database.sqlite_file), isolation_level=None)

    def look(query: str) -> list[Any]:
        return eye.execute(query).fetchall()

    def enough(counts: Counter[Any]) -> bool:
        return not _short(counts, 40_000) and not _missing(counts)

    counts = drive(database, look, enough, examples=600, further=200)
    eye.close()
    database.close()
    assert _short(counts, 40_000) == {}
    assert _missing(counts) == set()  # every step of the table was taken


def _missing(counts: Counter[Any]) -> set[Any]:
    return {pair for pair in EDGES - NEVER if not counts[pair]}


def test_the_ledger_on_postgresql_does_what_the_model_says(postgres: Postgres, postgres_url: str) -> None:
    database = SqlDatabase(postgres_url)
    with psycopg.connect(host=str(postgres.socket_dir), user="postgres", dbname=database.url.database) as eye:
        eye.autocommit = True
        counts = drive(
            database, lambda query: eye.execute(query).fetchall(), lambda counts: not _short(counts, 10_000),
            examples=150, further=50,
        )  # fmt: skip
    database.close()
    assert _short(counts, 10_000) == {}
