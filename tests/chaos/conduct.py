"""Let the faults of a schedule happen to a town, mend each in its time, and measure how long the healing takes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlpipe.core.errors import LedgerUnavailable
from dlpipe.settings import Heal
from tests.chaos.faults import LEASE_TTL_S, Fault, Kind
from tests.chaos.town import FILE_GRACE_S, HEAL_EVERY_S, Town
from tests.chaos.work import Job
from tests.fleet import Process

HEAL_WITHIN_S = LEASE_TTL_S + 2 * HEAL_EVERY_S
"""From the end of the last fault on (HEAL-2): the lease's time, and two rounds of reconcile."""
PLAN_AT = (0.0, 0.15, 0.30, 0.45)
"""Planning goes on under faults: a quarter of the jobs each time that such a share of all is at its end."""
STALLED_S = 12.0
"""Without a fault and without any job ending for so long the next fault comes all the same."""
STUCK_S = 60.0
_AGAIN_S = 0.5
_SENT_AGAIN = 40


@dataclass
class Story:
    """What happened, as it is shown and checked."""

    timeline: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    damaged: int = 0
    heal_s: float | None = None
    heal_rounds: int | None = None
    seconds: float = 0.0
    last_fault_at: float = 0.0


@dataclass
class _Active:
    fault: Fault
    until: float
    mend: Callable[[], object]


class Conductor:
    def __init__(self, town: Town, jobs: Sequence[Job], faults: Sequence[Fault], say: Callable[[str], object]) -> None:
        self.town, self.jobs, self.story, self._say = town, jobs, Story(), say
        self._coming = list(faults)
        self._active: list[_Active] = []
        self._began = time.monotonic()
        self._done = 0
        self._done_at = self._began
        self._dead: dict[int, float] = {}
        """Workers to be started again, and when."""
        share = -(-len(jobs) // len(PLAN_AT))
        self._unplanned = [jobs[n : n + share] for n in range(0, len(jobs), share)]
        self._planning: tuple[subprocess.Popen[str], Sequence[Job]] | None = None
        self._planned = 0

    def run(self) -> Story:
        """Until all faults are over, all is healed, and every job is at its end."""
        try:
            while self._coming or self._active or self._unplanned or self._planning:
                self._tick()
            self._mended()
            self._until_the_end()
        finally:
            if self._planning is not None:
                self._planning[0].kill()
                self._planning[0].wait()
        self.story.seconds = time.monotonic() - self._began
        return self.story

    # ── one look ──

    def _tick(self) -> None:
        time.sleep(0.05)
        self._look()
        if time.monotonic() - max(self._done_at, self.story.last_fault_at) > STUCK_S and not self._active:
            self.story.violations.append(f"nothing came to its end for {STUCK_S:.0f} s under faults")
            self._coming.clear()
            self._unplanned.clear()
            return
        self._plan()
        now = time.monotonic()
        for one in [one for one in self._active if now >= one.until]:
            self._mend(one)
        for fault in list(self._coming):
            if not self._is_due(fault):
                break  # in their order
            if self._is_free(fault):
                self._coming.remove(fault)
                self._strike(fault)
            break

    def _look(self) -> None:
        now = time.monotonic()
        try:
            done = self.town.ended()
        except LedgerUnavailable:
            done = self._done  # it is being restarted
        if done != self._done:
            self._done, self._done_at = done, now
        for number, worker in self.town.workers.items():
            if number in self._dead and now >= self._dead[number]:
                del self._dead[number]
                self.town.start_worker(number)
            elif number not in self._dead and not worker.lives:
                self._ended_by_itself(worker)
                self._dead[number] = now + _AGAIN_S
        if not self.town.beat.lives:
            self.story.violations.append(f"the scheduler ended by itself, see {self.town.beat.log}")
            self.town.beat = self.town.fleet.beat()

    def _ended_by_itself(self, worker: Process) -> None:
        if not worker.says("ready.") and worker.says("[ledger_unavailable]"):
            self._tell(f"{worker.name} will not start without its database, as it should; it is started again")
        else:
            self.story.violations.append(f"{worker.name} ended by itself, see {worker.log}")

    def _plan(self) -> None:
        if self._planning is not None:
            process, batch = self._planning
            if process.poll() is None:
                return
            self._planning = None
            if process.returncode == 0:
                self._planned += 1
                self._tell(f"{len(batch)} jobs planned")
            else:
                self._tell("planning failed, and is done again")
                self._unplanned.insert(0, batch)
        if self._unplanned and self._done >= PLAN_AT[min(self._planned, 3)] * len(self.jobs) * 0.9:
            batch = self._unplanned.pop(0)
            self._planning = self.town.plan(batch), batch

    # ── faults ──

    def _is_due(self, fault: Fault) -> bool:
        last = not any(one.at_done < fault.at_done for one in self._coming)
        quiet = time.monotonic() - max(self._done_at, self.story.last_fault_at)
        stalled = quiet > STALLED_S and not self._active
        return self._done >= fault.at_done or (last and stalled)

    def _is_free(self, fault: Fault) -> bool:
        """One thing is broken in one way at a time; and the last faults wait until the others are over."""
        if fault.at_done == self._coming[-1].at_done and len(self._coming) <= 2:
            return not self._active and not self._dead and not self._unplanned and self._planning is None
        taken = {_target(one.fault) for one in self._active} | {f"w{number}" for number in self._dead}
        return _target(fault) not in taken

    def _strike(self, fault: Fault) -> None:
        if fault.kind is Kind.CLOCK_SHIFTED and self.town.library is None:
            self.story.skipped[fault.kind.value] += 1
            self._tell(f"left out: {fault} (no libfaketime here)")
            return
        extra = self._do(fault)
        self.story.faults[fault.kind.value] += 1
        self._tell(f"{fault}{f' ({extra})' if extra else ''}")
        self.story.last_fault_at = time.monotonic()

    def _do(self, fault: Fault) -> str | None:
        town = self.town
        match fault.kind:
            case Kind.WORKER_KILLED:
                town.signal_worker(fault.worker, signal.SIGKILL)
                town.workers[fault.worker].kill()
                self._dead[fault.worker] = time.monotonic() + _AGAIN_S
            case Kind.WORKER_STOPPED:
                town.signal_worker(fault.worker, signal.SIGSTOP)
                self._later(fault, lambda: town.signal_worker(fault.worker, signal.SIGCONT))
            case Kind.CLOCK_SHIFTED:
                town.set_clock(fault.worker, fault.shift_s)
            case Kind.REDIS_EMPTIED:
                town.line.flushall()
            case Kind.REDIS_RESTARTED:
                town.redis.kill()
                self._later(fault, town.redis.start)
            case Kind.REDIS_CUT:
                town.redis_link.cut()
                self._later(fault, town.redis_link.mend)
            case Kind.REDIS_STALLED:
                town.redis_link.stall()
                self._later(fault, town.redis_link.mend)
            case Kind.DATABASE_RESTARTED:
                town.postgres.stop_at_once()
                self._later(fault, town.postgres.start)
            case Kind.DATABASE_CUT:
                town.database_link.cut()
                self._later(fault, town.database_link.mend)
            case Kind.DATABASE_STALLED:
                town.database_link.stall()
                self._later(fault, town.database_link.mend)
            case Kind.MESSAGES_AGAIN:
                try:
                    return f"{town.send_again(fault.seed, _SENT_AGAIN)} messages"
                except LedgerUnavailable:
                    return "none: the database is away"  # which ones to send stands there
            case Kind.MESSAGES_LOST:
                return f"{town.lose_messages()} messages"
        return None

    def _later(self, fault: Fault, mend: Callable[[], object]) -> None:
        self._active.append(_Active(fault, time.monotonic() + fault.lasts_s, mend))

    def _mend(self, one: _Active) -> None:
        one.mend()
        self._active.remove(one)
        self.story.last_fault_at = time.monotonic()
        self._tell(f"over: {one.fault}")

    # ── after the last fault ──

    def _mended(self) -> None:
        """Watch what the faults broke: each damaged job must move on, by dlpipe's own doing."""
        # What is broken at this very moment: a holder that is dead or without its lease, or a message that is nowhere.
        while (rows := self._damaged()) is None:
            time.sleep(0.02)
        began, rounds = self.story.last_fault_at, self.town.rounds()
        self.story.damaged = len(rows)
        self._tell(f"the last fault is over; {len(rows)} jobs are damaged")
        moved = began
        while rows and time.monotonic() - began < HEAL_WITHIN_S + STUCK_S:
            time.sleep(0.05)
            self._look()
            now = self.town.rows()
            if gone := [job for job, before in rows.items() if job not in now or _moved(before, now[job])]:
                moved = time.monotonic()
                for job in gone:
                    del rows[job]
        self.story.heal_s = moved - began
        self.story.heal_rounds = self.town.rounds() - rounds
        if rows:
            self.story.violations.append(f"{len(rows)} damaged jobs never moved on: {', '.join(sorted(rows)[:5])}")
        elif self.story.heal_s > HEAL_WITHIN_S:
            self.story.violations.append(f"healing took {self.story.heal_s:.1f} s, more than {HEAL_WITHIN_S:.0f} s")
        took = f"{self.story.heal_s:.1f} s and {self.story.heal_rounds} rounds of reconcile"
        self._tell(f"healed in {took} (at most {HEAL_WITHIN_S:.0f} s are allowed)")

    def _damaged(self) -> dict[str, Any] | None:
        try:
            rows = self.town.rows()
        except LedgerUnavailable:
            return None
        waiting, leases, alive = self.town.in_the_broker(), self.town.leases(), self.town.living_pids()

        def holds(job: str, row: Any) -> bool:
            return leases.get(job) == row.lease_owner and int(row.lease_owner.split(".")[1]) in alive

        return {
            job: row
            for job, row in rows.items()
            if (row.lease_owner is not None and not holds(job, row))
            or (row.lease_owner is None and row.published_at is not None and job not in waiting)
        }

    def _until_the_end(self) -> None:
        while self._done < len(self.jobs):
            time.sleep(0.1)
            self._look()
            if time.monotonic() - self._done_at > STUCK_S:
                self.story.violations.append(f"{len(self.jobs) - self._done} jobs never came to their end")
                return
        self._tell("every job is at its end")
        # The last messages find nothing to do, and reconcile sweeps what killed workers left in staging; only then
        # is nothing left over.
        deadline = time.monotonic() + STUCK_S
        town = self.town
        while (town.in_the_broker() or town.leases() or town.staged()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._until_all_files_were_looked_at(deadline)

    def _until_all_files_were_looked_at(self, deadline: float) -> None:
        """A file whose publisher died before the record, and whose job got other bytes since, is known to no row."""
        young_until = time.monotonic() + FILE_GRACE_S
        while time.monotonic() < young_until:
            time.sleep(0.1)
        # The round that is under way may have passed it; the others begin after its grace.
        wanted = self.town.rounds() + 1 + math.ceil(len(self.jobs) / Heal().items_per_round)
        while self.town.rounds() < wanted and time.monotonic() < deadline:
            time.sleep(0.1)

    def _tell(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {self._done:6d} done  {what}"
        self.story.timeline.append(line)
        self._say(line)


def _moved(before: Any, after: Any) -> bool:
    return any(
        getattr(before, name) != getattr(after, name) for name in ("run", "fence", "state", "published_at", "due_at")
    )


def _target(fault: Fault) -> str:
    match fault.kind:
        case Kind.WORKER_KILLED | Kind.WORKER_STOPPED | Kind.CLOCK_SHIFTED:
            return f"w{fault.worker}"
        case Kind.DATABASE_RESTARTED | Kind.DATABASE_CUT | Kind.DATABASE_STALLED:
            return "database"
        case _:
            return "redis"


def interrupted() -> None:
    """Ctrl-C ends a run at any moment, also where the shell started it deaf to it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
