"""Carry out one stage of one run of one job, and those behind it that may be done in one hand, each exactly once as
far as the ledger can see.

A message is only a hint. The Redis lock decides who works; the fence in the row decides whose work counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from dlpipe.core import flow, keys, states, waits
from dlpipe.core.about import about
from dlpipe.core.crash import crash_point
from dlpipe.core.errors import (
    IllegalTransition,
    LeaseBusy,
    LeaseLost,
    LeaseUnavailable,
    LedgerUnavailable,
    Overtaken,
    Permanent,
    ResultUnreadable,
    Retryable,
    StageFailure,
    WorkerEnding,
)
from dlpipe.core.flow import StageRow
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Lease, Past, Refused, Unit
from dlpipe.core.recovery import FailureWrite, after_failure
from dlpipe.core.states import State
from dlpipe.pipeline import stores, telling
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.ending import Ended, end
from dlpipe.pipeline.settling import settle
from dlpipe.pipeline.stages import STAGES, Stage
from dlpipe.pipeline.stages.stage import Grip, OutOfOrder, Work


@dataclass(frozen=True, slots=True)
class Done:
    """The effect is recorded (now, or `replayed` from before); the chain goes on while stages remain."""

    state: State
    replayed: bool = False
    node: str | None = None
    """Where the rest of the chain finds the part, where nodes share none."""
    stages: tuple[str, ...] = field(default=(), compare=False)
    """Those that are behind us with it, in their order."""

    @property
    def goes_on(self) -> bool:
        return bool(flow.remaining(self.state)) and self.state not in states.FINISHED

    def __str__(self) -> str:
        return f"{'replayed' if self.replayed else 'done'}: {self.state}"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing was changed: the message was late, early, doubled, or somebody else is on it."""

    reason: str
    goes_on = False

    def __str__(self) -> str:
        return f"dropped: {self.reason}"


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure is recorded; the ledger knows when the next run is due."""

    code: str
    due_after_s: float | None
    stages: tuple[str, ...] = field(default=(), compare=False)
    """Those that are on record all the same, and then the one that failed."""
    goes_on = False

    def __str__(self) -> str:
        wait = "for good" if self.due_after_s is None else f"next run in {self.due_after_s:.0f} s"
        return f"failed: {self.code}, {wait}"


Outcome = Done | Dropped | Failed


def run(deps: Deps, stage_name: str, job_id: str, run_no: int, further: Sequence[str] = ()) -> Outcome:
    """What a message (stage, job, run) comes to. `further`: the stages behind it that need no message of their own."""
    with about(stage=stage_name, job_id=job_id, run=run_no):
        try:
            return _held(deps, stage_name, job_id, run_no, further)
        except LeaseBusy:
            return _dropped(deps, stage_name, "lease_busy")
        except LeaseLost as error:
            return _dropped(deps, stage_name, error.code, error.message)
        except (LeaseUnavailable, LedgerUnavailable) as error:
            return _dropped(deps, stage_name, error.code, error.message)


def _held(deps: Deps, stage_name: str, job_id: str, run_no: int, further: Sequence[str]) -> Outcome:
    _return_claims(deps)
    began = deps.clock()
    with deps.leases.hold(job_id) as lease, closing(Grip(deps, further)) as grip:
        claimed = _claim(deps, STAGES[stage_name](deps), stage_name, job_id, run_no, lease, grip)
        match claimed:
            case Done():
                telling.replayed(deps, stage_name, claimed)
                return claimed
            case Dropped(reason=reason):
                return _dropped(deps, stage_name, reason)
            case FailureWrite():
                return _failed(deps, stage_name, claimed)
            case Work(job=job):
                with about(tenant=job.scope.tenant_id, request_id=job.request_id):
                    return _in_hand(deps, flow.stage(stage_name), claimed, further, began)


def _in_hand(deps: Deps, row: StageRow, work: Work, further: Sequence[str], began: float) -> Outcome:
    """Carry out what was claimed, and whatever is claimed with the end of it."""
    done: tuple[str, ...] = ()
    while True:
        with about(stage=row.name):
            try:
                ended = _carry_out(deps, row, work, further[len(done) :], began)
            except LedgerUnavailable:
                deps.unreturned.extend(_under_either_fence(work.job))
                raise
        if isinstance(ended, Failed):
            return replace(ended, stages=(*done, row.name))
        done += tuple(one.row.name for one in ended.recorded)
        if ended.next is None:
            return Done(ended.state, node=work.job.node, stages=done)
        (row, work), began = ended.next, deps.clock()


def _under_either_fence(job: ArtifactJob) -> tuple[ArtifactJob, ArtifactJob]:
    """As it was claimed, and as an end that nobody answered may have claimed it onward; only what is ours is let go."""
    return job, replace(job, fence=job.fence + 1)


def _dropped(deps: Deps, stage_name: str, reason: str, why: str = "") -> Dropped:
    telling.dropped(deps, stage_name, reason, why=why)
    return Dropped(reason)


def _failed(deps: Deps, stage_name: str, write: FailureWrite, host: str | None = None) -> Failed:
    outcome = Failed(write.code, write.due_after_s)
    telling.failed(deps, stage_name, write, outcome, host)
    return outcome


def _return_claims(deps: Deps) -> None:
    """Claims that the ledger did not let us end are handed back once it answers: nobody was lost, no attempt used."""
    while deps.unreturned:
        job = deps.unreturned.pop()
        try:
            _hand_back(deps, job)
        except LedgerUnavailable:
            deps.unreturned.append(job)
            raise


def _hand_back(deps: Deps, job: ArtifactJob, *, waits: bool = True) -> None:
    """A no-op when its record got through after all, or a later fence is on it."""
    settle(deps.database, lambda unit: unit.jobs.hand_back(job, waits=waits))


def _claim(
    deps: Deps, stage: Stage, stage_name: str, job_id: str, run_no: int, lease: Lease, grip: Grip
) -> Work | Done | Dropped | FailureWrite:
    """One transaction: the job becomes ours under a new fence, and the op is on record as started."""
    row = flow.stage(stage_name)

    def claim_it(unit: Unit) -> Work | Done | Dropped | FailureWrite:
        claim = unit.jobs.claim(row, job_id, run_no, lease.token, deps.policy.lease_ttl_s, deps.policy.nodes)
        if isinstance(claim, Past):
            return Done(claim.state, replayed=True, node=claim.node)
        if isinstance(claim, Refused):
            return Dropped(claim.reason)
        job = claim.job
        try:
            results = unit.ledger.results(job_id, run_no, first=job.fence == 1)
            extras = stage.extras(job, results)
        except OutOfOrder:
            unit.rollback()
            return Dropped("out_of_order")
        except ResultUnreadable as error:
            # No run of the job can get past it, so the job ends here instead of being sent for ever.
            write = FailureWrite(error.code, error.message, deps.debug_id(), None)
            unit.jobs.fail(job, write)
            return write
        op = unit.ledger.start(keys.op_key(row.op, job_id, **extras), row.op, job)
        if op.prior is not None and op.prior_run == run_no:
            unit.rollback()  # recorded in this very run: the state has nothing to catch up on
            return Done(job.state, replayed=True, node=job.node)
        crash_point(f"{stage_name}.claiming")
        return Work(job, results, op, lease, grip)

    claimed = settle(deps.database, claim_it)
    if isinstance(claimed, Work):
        lease.bind(claimed.job.fence)
        _is_claimed(row)
    return claimed


def _is_claimed(row: StageRow) -> None:
    crash_point(f"{row.name}.claimed")


def _carry_out(deps: Deps, row: StageRow, work: Work, further: Sequence[str], began: float) -> Ended | Failed:
    held, stage = (row, work), STAGES[row.name](deps)
    try:
        stores.recognise(deps)  # an unmounted store must get no bytes, and lose none
        result = (stage.probe(work) if work.op.seen else None) or stage.perform(work)
        crash_point(f"{row.name}.performed")
        work.lease.check_held()
        ended = end(deps, row, work, result, further)
        held = ended.next or held
        if work.op.prior is None:
            telling.recorded(deps, ended.recorded, deps.clock() - began)
        else:
            telling.replayed(deps, row.name, Done(ended.state))  # an earlier run's op keeps its first result
        crash_point(f"{row.name}.recorded")
        if ended.next is not None:
            _is_claimed(ended.next[0])
        return ended
    except LeaseLost as lost:
        return _stopped(deps, *held, lost)
    except (LedgerUnavailable, LeaseUnavailable):
        raise
    except StageFailure as failure:
        return _fail(deps, *held, failure, deps.debug_id())
    except Exception as error:
        debug_id = deps.debug_id()
        telling.surprise(error, debug_id)
        surprise = Retryable(f"an unexpected {type(error).__name__}", code="internal_error")
        return _fail(deps, *held, surprise, debug_id)


def _stopped(deps: Deps, row: StageRow, work: Work, lost: LeaseLost) -> Failed:
    """Hand the job back and raise what stopped it; but a job may not be handed back for ever."""
    failure = _no_further(deps, work, lost)
    if failure is not None:
        with suppress(LeaseLost, IllegalTransition):  # then it is true: a later fence is on the job
            return _fail(deps, row, work, failure, deps.debug_id())
    for job in _under_either_fence(work.job):
        _hand_back(deps, job, waits=not isinstance(lost, WorkerEnding))
    raise lost


def _no_further(deps: Deps, work: Work, lost: LeaseLost) -> StageFailure | None:
    """What a lost lease comes to if the row is ours all the same."""
    if isinstance(lost, WorkerEnding):
        return None
    if isinstance(lost, Overtaken) and work.lease.may_go_on():
        return Retryable("the part claims to be a later holder's, and the ledger knows of none", code="part_overtaken")
    waited_s = work.job.waited.put_off_s
    if waited_s > deps.policy.retry.postpone_max_s:
        return Permanent(f"{lost.message} (given up: it was put off for {waits.span(waited_s)})", code=lost.code)
    return None


def _fail(deps: Deps, row: StageRow, work: Work, failure: StageFailure, debug_id: str) -> Failed:
    job = work.job
    write = after_failure(failure, job.state, job.attempts, debug_id, deps.chance(), deps.policy.retry, job.waited)

    def record(unit: Unit) -> None:
        unit.jobs.fail(job, write)
        unit.ledger.fail(work.op, write.code)
        crash_point(f"{row.name}.failing")

    settle(deps.database, record)
    failed = _failed(deps, row.name, write, job.host)
    crash_point(f"{row.name}.failed")
    deps.progress.clear(job.job_id)
    return failed
