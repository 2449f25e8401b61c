"""What happens around the workers: time, heartbeats, what heals, what is wished, and all that may go wrong."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.effects import EFFECTS, NAMES
from tests.model.explorer import Step
from tests.model.guards import Fault, Guard, Never
from tests.model.healing import Healing
from tests.model.wishes import Wishes
from tests.model.worker import Workers, crashed
from tests.model.world import GONE, WHOLE, Worker, World


class Around:
    def __init__(self, guards: frozenset[Guard], faults: frozenset[Fault], workers: Workers) -> None:
        self._guards = guards
        self._may = faults.__contains__
        self._workers = workers
        self._healing = Healing(guards)
        self._wishes = Wishes(guards, faults)

    def has(self, guard: Guard) -> bool:
        return guard in self._guards

    def steps(self, w: World) -> Iterator[Step[World]]:
        yield from self._time(w)
        for me in (0, 1):
            yield from self._heartbeat(w, me)
        yield from self._healing.steps(w)
        if w.row.paused:
            yield Step("somebody resumes the job", w._replace(row=w.row._replace(paused=False)))
        if w.faults:
            left = w._replace(faults=w.faults - 1)
            yield from (step._replace(helps=False) for step in self._faults(left))

    def between(self, w: World, me: int) -> Iterator[Step[World]]:
        """What may go wrong for a worker between two steps that else count as one."""
        if not w.faults:
            return
        left = w._replace(faults=w.faults - 1)
        for fault in self._faults_of(left, me):
            yield fault._replace(helps=False)
        if self._may(Fault.EMPTY) and (left.lock is not None or left.messages):
            yield self._emptied(left)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def _time(self, w: World) -> Iterator[Step[World]]:
        """A lease runs out only where nobody renews it: its holder is gone, or knows that it was late."""
        for token in sorted({t for t in (w.lock, w.row.owner if w.row.live else None) if t is not None}):
            if self._unrenewed(w, token):
                yield Step(f"the lease of {self._whose(token)} runs out", self._over(w, token))

    @staticmethod
    def _over(w: World, token: int) -> World:
        """In Redis and in the row: that one of them is over first, an emptied Redis and a wrong clock show."""
        row = w.row._replace(live=False) if w.row.owner == token else w.row
        return w._replace(lock=None if w.lock == token else w.lock, row=row)

    @staticmethod
    def _unrenewed(w: World, token: int) -> bool:
        if token == GONE:
            return True
        holder = w.workers[token]
        return holder.lost > 0 or holder.stopped or holder.at in ("idle", "giveup", "owes")

    @staticmethod
    def _whose(token: int) -> str:
        return "the dead worker" if token == GONE else NAMES[token]

    def _heartbeat(self, w: World, me: int) -> Iterator[Step[World]]:
        """`Heartbeat.beat` (lease/heartbeat.py): `_EXTEND` in Redis, then `SqlJobs.renew` (db/jobs.py)."""
        worker, row, name = w.workers[me], w.row, NAMES[me]
        if worker.stopped:
            awake = w.with_worker(me, worker._replace(stopped=False, lost=1))
            nobody_else = w.workers[1 - me].stopped
            for step in self._workers.steps(awake, me):
                yield step._replace(text=f"{name} wakes up; {step.text}", helps=nobody_else)
            if worker.half:
                yield self._second_half(w, me)
            return
        if worker.at in ("idle", "leave", "owes"):
            return
        if worker.lost:
            if not self.has(Guard.RENEW_EXPIRED) and w.lock == me:
                yield Step(f"{name}'s heartbeat extends a lease that is over", w, broken=Never.EXPIRED)
            return
        if w.lock != me:
            if w.lock is not None and not self.has(Guard.RENEW_TOKEN):
                yield Step(f"{name}'s heartbeat extends a lock that is not its own", w, broken=Never.FOREIGN)
            yield Step(f"{name}'s heartbeat finds the lock gone", w.with_worker(me, worker._replace(lost=1)))
        elif worker.fence >= 0 and (row.fence != worker.fence or row.owner is None):
            yield Step(f"{name}'s heartbeat finds its fence overtaken", w.with_worker(me, worker._replace(lost=1)))
        elif worker.fence >= 0 and not row.live:
            yield Step(f"{name}'s heartbeat renews the row", w._replace(row=row._replace(live=True)))

    def _second_half(self, w: World, me: int) -> Step[World]:
        """The row is renewed by a heartbeat that was stopped between Redis and the row."""
        worker, row = w.workers[me], w.row
        then = w.with_worker(me, worker._replace(half=False))
        ours = row.owner is not None and row.fence == worker.fence
        if not ours and (self.has(Guard.RENEW_FENCE) or row.owner is None):
            return Step(f"{NAMES[me]}'s heartbeat finds its fence overtaken", then, helps=False)
        broken = "" if w.holder == me else Never.FOREIGN
        text = f"{NAMES[me]}'s heartbeat goes on and renews the row"
        return Step(text, then._replace(row=row._replace(live=True)), helps=False, broken=broken)

    # ── what may go wrong ─────────────────────────────────────────────────────────────────────────

    def _faults(self, w: World) -> Iterator[Step[World]]:
        for me in (0, 1):
            yield from self._faults_of(w, me)
        for message in sorted(set(w.messages)):
            what = f"the message `{message[0]}` of run {message[1]}"
            if self._may(Fault.DOUBLE):
                yield Step(f"the broker doubles {what}", w.sent(*message))
            if self._may(Fault.LOSE):
                kept = list(w.messages)
                kept.remove(message)
                yield Step(f"{what} is lost", w._replace(messages=tuple(kept)))
        if self._may(Fault.EMPTY) and (w.lock is not None or w.messages):
            yield self._emptied(w)
        if self._may(Fault.EARLY) and w.row.live and w.row.owner in (0, 1):
            text = "the row's lease runs out early: heartbeats cannot reach the database, or its clock jumps"
            yield Step(text, w._replace(row=w.row._replace(live=False)))
        if self._may(Fault.SLOW) and w.slow is None and self._healing.seems_dead(w):
            yield Step("a slow reconcile finds the lease over, and has not acted yet", w._replace(slow=w.row.fence))
        if self._may(Fault.SLOW) and w.looked is None and (lost := self._healing.lost(w)) is not None:
            yield Step(
                "a slow reconcile misses the file, and has not acted yet", w._replace(looked=(w.row.fence, lost))
            )
        if self._may(Fault.GONE):
            yield from self._gone(w)
        if self._may(Fault.CHANGE) and w.server == "a":
            yield Step("the server's file changes", w._replace(server="b"))
        if self._may(Fault.DAMAGE):
            yield from self._damage(w)
        if self._may(Fault.TWIN) and w.final((w.server,) * WHOLE) is None:
            same, file = w.new_file((w.server,) * WHOLE)
            text = "another job publishes the same bytes"
            yield Step(text, same._replace(finals=tuple(sorted([*w.finals, ((w.server,) * WHOLE, file)]))))
        yield from self._wishes.steps(w)

    def _faults_of(self, w: World, me: int) -> Iterator[Step[World]]:
        worker, name = w.workers[me], NAMES[me]
        if worker.at == "idle":
            return
        if self._may(Fault.KILL):
            yield Step(f"{name} is killed", crashed(w, me))
        if self._may(Fault.STOP) and not worker.stopped and worker.at != "owes":
            asleep = worker._replace(stopped=True)
            over = self._over(w, me)
            yield Step(f"{name} is stopped for longer than its lease", over.with_worker(me, asleep))
            if w.lock == me and worker.fence >= 0 and worker.at != "leave" and not worker.lost and not worker.half:
                text = f"{name} is stopped for longer than its lease, in the middle of a heartbeat"
                yield Step(text, over.with_worker(me, asleep._replace(half=True)))
        if worker.stopped:
            return
        if self._may(Fault.FAILURE) and (worker.at in EFFECTS or worker.at == "record"):
            yield self._workers.fails(w, me, "the network or the disk fails")
        if self._may(Fault.MISTAKE) and worker.at == "record":
            yield from self._workers.mistaken(w, me)
        if self._may(Fault.UNANSWERED) and worker.at == "record":
            yield from self._unanswered(w, me)

    def _unanswered(self, w: World, me: int) -> Iterator[Step[World]]:
        """LedgerUnavailable in `_in_hand`: nobody knows whether it was committed, and the next claim with it."""
        name, owes = NAMES[me], Worker("owes", fence=w.workers[me].fence)
        for step in self._workers.steps(w, me):
            if step.broken or step.then.row is w.row:
                continue
            again = self._workers.said_again(w, step.then, me)
            if again is not None:
                yield again
            then, _, _ = self._workers.released(step.then, me)
            what = "records" if step.halfway is None else "records and claims onward"
            text = f"{name} {what}, and the database does not answer; it is committed all the same"
            yield Step(text, then.with_worker(me, owes), halfway=step.halfway)
        then, _, _ = self._workers.released(w, me)
        text = f"{name} records, and the database does not answer; it is not committed"
        yield Step(text, then.with_worker(me, owes))

    @staticmethod
    def _emptied(w: World) -> Step[World]:
        text = "Redis is emptied: locks and messages are gone"
        return Step(text, w._replace(lock=None, messages=()), helps=False)

    @staticmethod
    def _gone(w: World) -> Iterator[Step[World]]:
        for name, _ in w.finals:
            robbed = [
                worker._replace(robbed=True) if worker.stage == "finalize" and worker.sha == name else worker
                for worker in w.workers
            ]
            then = w._replace(finals=tuple(f for f in w.finals if f[0] != name), workers=(robbed[0], robbed[1]))
            yield Step("the disk loses a file that has its final name", then)

    @staticmethod
    def _damage(w: World) -> Iterator[Step[World]]:
        """Held bytes go bad (a torn write, a power cut) while nobody has the part open."""
        part = w.part
        used = part is None or any(k == part.file for _, k in w.finals) or any(o.file == part.file for o in w.workers)
        if part is not None and not used and w.files[part.file][0] != "x":
            bad = ("x", *w.files[part.file][1:])
            files = tuple(bad if number == part.file else held for number, held in enumerate(w.files))
            yield Step("the disk damages the part", w._replace(files=files))
