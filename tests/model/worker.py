"""What a worker does, step by step, with one message: pipeline/runner.py over lease, db, staging and store.

A step is what happens between two points at which the process may be stopped or killed.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlpipe.core import flow, states
from dlpipe.core.flow import StageRow
from dlpipe.core.states import Moment, State
from tests.model import table
from tests.model.effects import NAMES, Effects
from tests.model.explorer import Step
from tests.model.guards import Guard, Never
from tests.model.world import GONE, IDLE, Op, Worker, World

TARGET = {
    row.name: next(s.target for s in states.TABLE if s.stage == row.name and s.moment is Moment.FINISH)
    for row in flow.STAGES
}
"""What a stage's result enters; the other way out of `head`, a known URL, needs no model."""
FIRST = {"stream": "open", "finalize": "hash"}
"""The first step of a stage's effect. The others' effect is a question, or within the record."""


class Workers(Effects):
    def steps(self, w: World, me: int) -> Iterator[Step[World]]:
        worker = w.workers[me]
        if worker.stopped:
            return
        match worker.at:
            case "idle":
                for message in sorted(set(w.messages)):
                    yield self._take(w, me, message)
            case "held":
                yield self._claim(w, me)
            case "record":
                yield from self._end(w, me)
            case "giveup":
                yield self._give_up(w, me)
            case "leave":
                yield self._leave(w, me)
            case "owes":
                yield self._return_claim(w, me)
            case "open":
                yield from self._open(w, me)
            case "write":
                yield self._write(w, me)
            case "probe":
                yield self._probe(w, me)
            case "hash":
                yield self._hash(w, me)
            case "link":
                yield self._link(w, me)
            case "unlink":
                yield self._unlink(w, me)
            case unknown:
                raise ValueError(unknown)

    # ── message, lease, claim ─────────────────────────────────────────────────────────────────────

    def _take(self, w: World, me: int, message: tuple[str, int]) -> Step[World]:
        """The message leaves the broker; then `RedisLeases.hold` (lease/lock.py): SET NX."""
        stage, run = message
        left = list(w.messages)
        left.remove(message)
        taken = w._replace(messages=tuple(left))
        who = f"{NAMES[me]} gets the message `{stage}` of run {run}"
        if w.lock is not None and self.has(Guard.LOCK):
            return Step(f"{who}; somebody holds the lock: dropped", taken)
        free = w.lock is None
        taken = taken._replace(lock=me if free else w.lock)
        how = "takes the lock" if free else "takes no notice of the lock"
        return Step(f"{who} and {how}", taken.with_worker(me, Worker("held", stage, run, unlocked=not free)))

    def _claim(self, w: World, me: int) -> Step[World]:
        """`SqlJobs.claim` (db/jobs.py), `SqlLedger.start` (db/ledger.py), `_claim` (pipeline/runner.py)."""
        worker, row = w.workers[me], w.row
        stage = flow.stage(worker.stage)
        name, run = NAMES[me], worker.run
        free = row.owner is None or not row.live or not self.has(Guard.LEASE_FREE)
        open_ = not row.paused or not self.has(Guard.PAUSED)
        within = (
            (row.run == run or not self.has(Guard.RUN))
            and (not row.due or not self.has(Guard.DUE))
            and (row.state in table.claimable(stage.name) or not self.has(Guard.STATE))
        )
        begins = (
            (row.run == run - 1 or (not self.has(Guard.RUN) and row.due))
            and (row.due or not self.has(Guard.DUE_START))
            and row.state in table.startable(stage.name)
        )
        if not (free and open_ and (within or begins)):
            if row.run == run and flow.is_past(row.state, stage.name):
                past = self._next(worker, stage, row.state)
                return Step(f"{name}: `{stage.name}` of run {run} is past; the chain goes on", w.with_worker(me, past))
            return Step(f"{name} is refused by the ledger", w.with_worker(me, worker._replace(at="leave")))
        if within:
            entered = states.on_claim(stage.name) or row.state
        else:
            entered = table.start_target(row.state) or row.state
        sha = self._named(w, stage, run)
        if sha is None:
            return Step(f"{name} comes out of order: refused", w.with_worker(me, worker._replace(at="leave")))
        fence = row.fence + (1 if self.has(Guard.FENCE_UP) else 0)
        key = (stage.op.value, run if len(sha) == 0 else sha)
        op = w.op(key)
        if op is not None and op.done and op.run == run and self.has(Guard.REPLAY):
            replayed = self._next(worker, stage, row.state)
            return Step(
                f"{name} finds `{stage.name}` of run {run} recorded; the chain goes on", w.with_worker(me, replayed)
            )
        then = w._replace(
            row=row._replace(state=entered, run=run, due=False, owner=me, live=True, fence=fence), holder=me
        )
        then = then.with_op(op._replace(fence=fence) if op and op.done else Op(key, False, run, fence))
        first = (
            "probe" if op and stage.name == "finalize" and self.has(Guard.PROBE) else FIRST.get(stage.name, "record")
        )
        if stage.name == "finalize" and not self.has(Guard.EFFECT_FIRST):
            first = "record"
        # Stage.probe (pipeline/stages/stage.py): what was finished before is taken as it is.
        prior = op.result if op and op.done and stage.name != "finalize" else None
        if prior is not None:
            first = "record"
        mine = worker._replace(at=first, fence=fence, placed=op is not None and w.is_right(sha), sha=prior or sha)
        then = then.with_worker(me, mine)
        text = f"{name} claims the job for `{stage.name}` of run {run}"
        return Step(f"{text} (fence {fence})", then, broken=self._wrong_claim(w, me, within=within, begins=begins))

    def _wrong_claim(self, w: World, me: int, *, within: bool, begins: bool) -> str:
        row, other = w.row, w.workers[1 - me]
        if row.paused:
            return Never.PAUSED
        if begins and not within and not row.due:
            return Never.UNWANTED
        if row.run > w.workers[me].run or (row.run == w.workers[me].run and not within):
            return Never.TABLE
        if row.state in states.FINISHED and not begins:
            return Never.TABLE
        if row.due and not begins:
            return Never.OVER
        holds = w.holder == 1 - me and other.fence >= 0
        if holds and ((w.lock == 1 - me and w.workers[me].unlocked) or (row.owner == 1 - me and row.live)):
            return Never.ALONE
        return ""

    @staticmethod
    def _named(w: World, stage: StageRow, run: int) -> tuple[str, ...] | None:
        """`Stage.extras`: the hash that names the effect, () where the run does; None: out of order."""
        needs = {"resume_decide": ("HEAD", run), "stream": ("RESUME", run), "finalize": ("STREAM", run)}
        if stage.name in needs:
            found = w.op(needs[stage.name])
            if found is None or not found.done or found.run != run:
                return None
            return found.result if stage.name == "finalize" else ()
        if stage.name in ("index", "dedupe"):
            kind = "FINALIZE" if stage.name == "index" else "INDEX"
            done = [o for o in w.ops if o.key[0] == kind and o.done]
            return max(done, key=lambda o: o.fence).result if done else None
        return ()

    @staticmethod
    def _next(worker: Worker, stage: StageRow, state: State) -> Worker:
        """`Done.goes_on` (pipeline/runner.py)."""
        on = bool(table.remaining(state)) and state not in states.FINISHED and stage is not flow.STAGES[-1]
        return worker._replace(at="leave", goes_on=on)

    # ── the end of a stage ────────────────────────────────────────────────────────────────────────

    def _end(self, w: World, me: int) -> Iterator[Step[World]]:
        """`end` (pipeline/ending.py): on record, and the next stage waits for its message, or is claimed at once.

        Which of the two depends on queues and on whether the process is ending, so either may be.
        """
        recorded, op = self._record(w, me), w.op(self.key(w.workers[me]))
        yield recorded
        # What an earlier run has finished ends the hand.
        if not recorded.broken and recorded.then.workers[me].goes_on and op and not op.done:
            yield from self._onward(w, me, recorded)

    def _onward(self, w: World, me: int, recorded: Step[World]) -> Iterator[Step[World]]:
        """`SqlEndings.end` (db/endings.py) with an `Onward`: the end of a claim and the next claim in one step.

        Both halves are what they are alone. The lease in Redis stays; a claim that was refused changes nothing.
        """
        worker, name, halfway = w.workers[me], NAMES[me], recorded.then
        following = flow.STAGES[flow.STAGES.index(flow.stage(worker.stage)) + 1]
        held = Worker("held", following.name, worker.run, unlocked=worker.unlocked, lost=worker.lost)
        begun = self._op_of(halfway, following, worker.run)
        if begun is not None and self.has(Guard.ONWARD_NEW):
            return  # who claims it has to ask the world first
        new = halfway._replace(ops=tuple(op for op in halfway.ops if op is not begun))
        claimed = self._claim(new.with_worker(me, held), me)
        mine = claimed.then.workers[me]
        if mine.fence < 0:
            return
        if worker.lost and mine.at == "record" and self.has(Guard.CHECK):
            # That the lease is lost came out after the last look at it: the one in front of the next record will tell.
            claimed = claimed._replace(then=claimed.then.with_worker(me, mine._replace(at="giveup")))
        broken = claimed.broken or (Never.TWICE if begun is not None and begun.done else "")
        text = f"{recorded.text}; with it {claimed.text}"
        yield Step(text, claimed.then, broken=broken, halfway=halfway)
        if not self.has(Guard.FENCE_CHANGES) and w.lock == me and not worker.lost:
            # The heartbeat had set out with the fence of the claim that is ended now.
            text += f"; {name}'s heartbeat finds its fence overtaken"
            then = claimed.then.with_worker(me, mine._replace(lost=1))
            yield Step(text, then, broken=Never.OWN, halfway=halfway)

    def said_again(self, w: World, then: World, me: int) -> Step[World] | None:
        """`LoneEndings.end` (db/endings.py): said once more when its connection breaks; None: that does nothing."""
        again = self._record(then.with_worker(me, w.workers[me]), me)
        if again.then.row is then.row:
            return None
        text = f"{NAMES[me]} records, the connection breaks, and it says so once more: {again.text}"
        return again._replace(text=text, broken=again.broken or Never.TWICE)

    def _op_of(self, w: World, stage: StageRow, run: int) -> Op | None:
        sha = self._named(w, stage, run)
        return None if sha is None else w.op((stage.op.value, run if len(sha) == 0 else sha))

    def _record(self, w: World, me: int) -> Step[World]:
        """The one step of `SqlEndings.end` (db/endings.py)."""
        worker = w.workers[me]
        stage = flow.stage(worker.stage)
        name, target = NAMES[me], TARGET[stage.name]
        counts = self.counts(w, worker, table.sources(target, Moment.FINISH, stage.name))
        op = w.op(self.key(worker))
        fenced = op is not None and (op.fence == worker.fence or not self.has(Guard.FENCE))
        if op is None or not fenced or not (counts or not self.has(Guard.ONE_TRANSACTION)):
            text = f"{name} may not record `{stage.name}`: its fence was overtaken"
            return Step(text, w.with_worker(me, worker._replace(at="giveup")))
        result = worker.sha or ("ok",)
        kept = op.result if op.done and self.has(Guard.FIRST_RESULT) else result
        if op.done and not self.has(Guard.FIRST_RESULT) and stage.name == "finalize":
            kept = (*result, "again")
        then = w.with_op(op._replace(done=True, run=worker.run, result=kept))
        if stage.name == "index":
            mended = tuple(one for one in w.marked if one[0] != worker.sha)
            then = then._replace(artifacts=tuple(sorted({*w.artifacts, worker.sha})), marked=mended)
        broken = ""
        if op.done and (op.run == worker.run or kept != op.result):
            broken = Never.TWICE
        elif w.holder != me:
            broken = Never.OVERTAKEN
        elif w.artifacts and then.artifacts != w.artifacts and not w.row.purpose:
            broken = Never.PUBLISHED
        elif stage.name == "finalize" and not w.is_right(worker.sha) and not worker.robbed:
            broken = Never.THERE
        if not counts:
            return Step(f"{name} records `{stage.name}`, and the state does not follow", then, broken=broken)
        ended = table.is_terminal(target, retry_due=False)
        purpose = "" if ended else w.row.purpose
        row = w.row._replace(state=target, owner=None, live=False, published=not ended, purpose=purpose)
        then = then._replace(row=row, holder=None)
        left = self._next(worker, stage, target)._replace(file=-1)
        if not self.has(Guard.COMMIT_FIRST) and left.goes_on and not broken:
            broken = Never.EARLY
        text = f"{name} records `{stage.name}` of run {worker.run}: {target}"
        return Step(text, then.with_worker(me, left), broken=broken)

    def mistaken(self, w: World, me: int) -> Iterator[Step[World]]:
        """A stage answers with a state that is not its to enter; IllegalTransition in `_carry_out` fails the run."""
        worker = w.workers[me]
        wrong = State.DEDUPED
        if worker.stage == flow.STAGES[-1].name or w.row.fence != worker.fence:
            return
        text = f"by mistake `{worker.stage}` asks for {wrong}"
        if not self.counts(w, worker, table.sources(wrong, Moment.FINISH, worker.stage)):
            yield self.fails(w, me, text)
            return
        row = w.row._replace(state=wrong, owner=None, live=False, published=False)
        left = w.with_worker(me, worker._replace(at="leave", file=-1))
        yield Step(f"{NAMES[me]}: {text}, and enters it", left._replace(row=row, holder=None))

    def _give_up(self, w: World, me: int) -> Step[World]:
        """LeaseLost in `_carry_out`: `SqlJobs.hand_back` (db/jobs.py)."""
        then, text, broken = self._handed_back(w, me)
        nothing = then.lock != me and self.has(Guard.LOCK_TOKEN)
        left = IDLE if nothing else then.workers[me]._replace(at="leave", file=-1)
        return Step(text, then.with_worker(me, left), broken=broken)

    def _handed_back(self, w: World, me: int, further: int = 0) -> tuple[World, str, str]:
        """`_HANDED_BACK` (db/jobs.py), also of so many fences `further` than its own."""
        allowed, worker = table.sources(State.FAILED, Moment.FAIL), w.workers[me]
        owed = (worker._replace(fence=worker.fence + more) for more in range(further + 1))
        ours = w.row.owner == me or not self.has(Guard.OWED_TOKEN)
        if not (ours and any(self.counts(w, claim, allowed) for claim in owed)):
            return w, f"{NAMES[me]} has nothing to hand back", ""
        row = w.row._replace(owner=None, live=False, published=False, due=True)
        broken = Never.OVERTAKEN if w.holder != me else ""
        return w._replace(row=row, holder=None), f"{NAMES[me]} hands the job back: a new run is due", broken

    def _return_claim(self, w: World, me: int) -> Step[World]:
        """`_return_claims` (pipeline/runner.py): the ledger did not answer to the record.

        Nobody knows whether it has claimed onward, so it owes its fence and the next one. Of the two only one can be in
        the row, and nobody but itself can bring the other there under its token: to ask for both is one step.
        """
        then, text, broken = self._handed_back(w, me, further=1)
        return Step(text, then.with_worker(me, IDLE), broken=broken)

    def _leave(self, w: World, me: int) -> Step[World]:
        """The lease is given back (`_GIVE_BACK`, lease/lock.py); then Celery sends the chain's next message."""
        worker = w.workers[me]
        then, text, broken = self.released(w, me)
        if worker.goes_on:
            following = flow.STAGES[flow.STAGES.index(flow.stage(worker.stage)) + 1]
            then = then.sent(following.name, worker.run)
            text += f"; the message `{following.name}` of run {worker.run} is sent"
        return Step(text, then.with_worker(me, IDLE), broken=broken)

    def released(self, w: World, me: int) -> tuple[World, str, str]:
        if w.lock == me:
            return w._replace(lock=None), f"{NAMES[me]} gives the lock back", ""
        if w.lock is None or self.has(Guard.LOCK_TOKEN):
            return w, f"{NAMES[me]} has no lock to give back", ""
        return w._replace(lock=None), f"{NAMES[me]} deletes a lock that is not its own", Never.FOREIGN


def crashed(w: World, me: int) -> World:
    """Locks on files end with the process; what it wrote into Redis and into the row stays."""
    then = w.with_worker(me, IDLE)
    return then._replace(
        lock=GONE if w.lock == me else w.lock,
        row=w.row._replace(owner=GONE) if w.row.owner == me else w.row,
        holder=None if w.holder == me else w.holder,
    )
