"""How a claim ends: which stages go on record with it, and whether its holder has the next one at once (ADR 42).

Stages that change nothing outside of the database are recorded together with the one in front of them. The one after
that may be claimed in the same step, under the next fence, as long as it belongs to the same hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dlpipe.core import flow, keys, states
from dlpipe.core.crash import crash_point
from dlpipe.core.errors import LeaseLost, LeaseUnavailable, LedgerUnavailable
from dlpipe.core.flow import StageRow
from dlpipe.core.ports import Ending, Joined, Onward, Registration, StartedOp, Unit
from dlpipe.core.results import Result
from dlpipe.core.states import State
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.settling import settle, settle_alone
from dlpipe.pipeline.stages import STAGES, Stage
from dlpipe.pipeline.stages.stage import OutOfOrder, Work


@dataclass(frozen=True, slots=True)
class Recorded:
    """One stage that is on record now."""

    row: StageRow
    state: State
    result: Result


@dataclass(frozen=True, slots=True)
class Ended:
    recorded: tuple[Recorded, ...]
    next: tuple[StageRow, Work] | None = None
    """What its holder has claimed with it."""

    @property
    def state(self) -> State:
        return self.recorded[-1].state


def end(deps: Deps, row: StageRow, work: Work, result: Result, further: Sequence[str]) -> Ended:
    """Record what was performed, in one step with all that can go with it. `further`: what this hand may go on with."""
    stage = STAGES[row.name](deps)
    # An op that an earlier run has finished keeps the result it had, and the stages behind it go by that one.
    hand = _Hand(deps, further if work.op.prior is None and work.lease.may_go_on() else ())
    hand.take(_Said(row, stage, work, result))
    while (said := hand.ahead()) is not None:
        hand.take(said)
    alone = hand.as_first()
    if alone is not None:
        _recording(row)
        if settle_alone(deps.database, ended := alone.ending()):
            return alone.gone_on(ended)
    if hand.writes:
        ended, found = settle(deps.database, hand.record)
        return found.gone_on(ended)
    _recording(row)
    if not settle_alone(deps.database, ended := hand.ending()):
        ended = replace(ended, onward=None)  # it may not be claimed now: it waits for its message
        settle_alone(deps.database, ended)
    return hand.gone_on(ended)


def _recording(row: StageRow) -> None:
    """Before the one statement goes out, or behind the last one of a transaction."""
    crash_point(f"{row.name}.recording")


@dataclass(frozen=True, slots=True)
class _Said:
    """A stage and what it has come to."""

    row: StageRow
    stage: Stage
    work: Work
    result: Result

    @property
    def enters(self) -> State:
        return self.stage.enters(self.result)


@dataclass
class _Hand:
    """What one holder has come to and not recorded yet, the claimed stage first."""

    deps: Deps
    further: Sequence[str]
    said: list[_Said] = field(default_factory=list)
    registers: Registration | None = None
    _behind: dict[int, tuple[StageRow, Work] | None] = field(default_factory=dict, init=False)
    """What `_next` has answered, by how many have been said."""

    def take(self, said: _Said) -> None:
        self.said.append(said)

    @property
    def writes(self) -> bool:
        return any(one.stage.writes(one.result) for one in self.said)

    def ahead(self) -> _Said | None:
        """The next stage, if its result can be told before those in front of it are on record."""
        found = self._next()
        if found is None:
            return None
        row, work = found
        stage = STAGES[row.name](self.deps)
        try:
            result = stage.ahead(work)
        except (LeaseLost, LedgerUnavailable, LeaseUnavailable):
            raise
        except Exception:
            return None  # it fails under its own name, once it is claimed: what is done in front of it stays done
        return None if result is None else _Said(row, stage, work, result)

    def as_first(self) -> _Hand | None:
        """With the next stage as well, as it would be if nobody had these bytes; None: that has to be found out."""
        writing = [one for one in self.said if one.stage.writes(one.result)]
        found = self._next() if len(writing) == 1 else None
        new = writing[0].stage.registers(writing[0].work, writing[0].result) if found is not None else None
        if found is None or new is None:
            return None
        row, work = found
        stage = STAGES[row.name](self.deps)
        if (told := stage.if_first(work, new)) is None:
            return None
        result, new = told
        return replace(self, said=[*self.said, _Said(row, stage, work, result)], registers=new)

    def record(self, unit: Unit) -> tuple[Ending, _Hand]:
        """In a transaction, which may be begun again: this hand stays as it is."""
        hand = replace(self, said=list(self.said))
        for one in self.said:
            one.stage.record(unit, one.work, one.result)
        if (found := hand._next()) is not None:
            row, work = found
            stage = STAGES[row.name](self.deps)
            result = stage.within(unit, work)
            if result is not None:
                stage.record(unit, work, result)
                hand.take(_Said(row, stage, work, result))
        ending = hand.ending()
        if not unit.endings.end(ending):
            ending = replace(ending, onward=None)
            unit.endings.end(ending)
        _recording(self.said[0].row)
        return ending, hand

    def ending(self) -> Ending:
        first, *others = self.said
        joined = tuple(Joined(one.row, one.work.op.op_key, one.result, one.enters) for one in others)
        onward = None
        if (found := self._next()) is not None:
            row, work = found
            onward = Onward(row, work.op.op_key, self.deps.policy.lease_ttl_s)
            first.work.lease.bind(None)  # while nobody can say which fence is ours
        claim = first.work
        return Ending(
            claim.job, first.row, claim.op, first.result, first.enters, joined, onward, registers=self.registers
        )

    def gone_on(self, ended: Ending) -> Ended:
        recorded = tuple(Recorded(one.row, one.enters, one.result) for one in self.said)
        first = self.said[0].work
        found = self._next() if ended.onward is not None else None
        if found is None:
            return Ended(recorded)
        row, work = found
        job = replace(first.job, fence=first.job.fence + 1, state=states.on_claim(row.name) or ended.state)
        first.lease.bind(job.fence)
        return Ended(recorded, (row, replace(work, job=job, op=replace(work.op, fence=job.fence))))

    def _next(self) -> tuple[StageRow, Work] | None:
        """The stage behind those, as this hand would hold it; None when it is for somebody else."""
        if len(self.said) not in self._behind:
            self._behind[len(self.said)] = self._found()
        return self._behind[len(self.said)]

    def _found(self) -> tuple[StageRow, Work] | None:
        last = self.said[-1]
        if last.enters in states.FINISHED or len(self.said) > len(self.further):
            return None
        name = self.further[len(self.said) - 1]
        row, job = flow.after(last.row), last.work.job
        if row is None or row.name != name or last.enters not in states.claimable(name):
            return None
        results = last.work.results.with_(last.row.op, last.work.op.op_key, last.result)
        try:
            op_key = keys.op_key(row.op, job.job_id, **STAGES[name](self.deps).extras(job, results))
        except OutOfOrder:
            return None
        if results.knows(op_key):
            return None  # somebody began with it: who claims it has to ask the world first
        op = StartedOp(op_key, row.op, job.run, job.fence, seen=False)
        return row, replace(last.work, results=results, op=op)
