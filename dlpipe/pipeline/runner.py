"""Carry out one stage of one run of one job, exactly once as far as the ledger can see.

A message is only a hint. The Redis lock decides who works; the fence in the row decides whose work counts.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass

from dlpipe.core import flow, keys, states
from dlpipe.core.crash import crash_point
from dlpipe.core.errors import (
    LeaseBusy,
    LeaseLost,
    LeaseUnavailable,
    LedgerUnavailable,
    ResultUnreadable,
    Retryable,
    StageFailure,
)
from dlpipe.core.ports import Lease, Past, Refused
from dlpipe.core.recovery import FailureWrite, after_failure
from dlpipe.core.states import State
from dlpipe.pipeline import stores
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.stages import STAGES, Stage
from dlpipe.pipeline.stages.stage import OutOfOrder, Work

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """The effect is recorded (now, or `replayed` from before); the chain goes on while stages remain."""

    state: State
    replayed: bool = False

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
    goes_on = False

    def __str__(self) -> str:
        wait = "for good" if self.due_after_s is None else f"next run in {self.due_after_s:.0f} s"
        return f"failed: {self.code}, {wait}"


Outcome = Done | Dropped | Failed


def run(deps: Deps, stage_name: str, job_id: str, run_no: int) -> Outcome:
    """What a message (stage, job, run) comes to."""
    stage = STAGES[stage_name](deps)
    try:
        _return_claims(deps)
        with deps.leases.hold(job_id) as lease:
            claimed = _claim(deps, stage, stage_name, job_id, run_no, lease)
            if not isinstance(claimed, Work):
                return claimed
            try:
                return _carry_out(deps, stage, stage_name, claimed)
            except LedgerUnavailable:
                deps.unreturned.append(claimed.job)  # whichever of its writes it was that was not answered
                raise
    except LeaseBusy:
        return Dropped("lease_busy")
    except LeaseLost:
        return Dropped("lease_lost")
    except (LeaseUnavailable, LedgerUnavailable) as error:
        log.warning("stage=%s job=%s run=%d not done: %s", stage_name, job_id, run_no, error.code)
        return Dropped(error.code)


def _return_claims(deps: Deps) -> None:
    """Claims that the ledger did not let us end are handed back once it answers: nobody was lost, no attempt used."""
    while deps.unreturned:
        job = deps.unreturned.pop()
        try:
            with deps.database.write() as unit:
                unit.jobs.hand_back(job)  # a no-op when the record got through after all, or a later fence is on it
        except LedgerUnavailable:
            deps.unreturned.append(job)
            raise


def _claim(deps: Deps, stage: Stage, stage_name: str, job_id: str, run_no: int, lease: Lease) -> Work | Outcome:
    """One transaction: the job becomes ours under a new fence, and the op is on record as started."""
    row = flow.stage(stage_name)
    with deps.database.write() as unit:
        claim = unit.jobs.claim(row, job_id, run_no, lease.token, deps.policy.lease_ttl_s)
        if isinstance(claim, Past):
            return Done(claim.state, replayed=True)
        if isinstance(claim, Refused):
            return Dropped(claim.reason)
        job = claim.job
        try:
            results = unit.ledger.results(job_id, run_no)
            extras = stage.extras(job, results)
        except OutOfOrder:
            unit.rollback()
            return Dropped("out_of_order")
        except ResultUnreadable as error:
            # No run of the job can get past it, so the job ends here instead of being sent for ever.
            write = FailureWrite(error.code, error.message, deps.debug_id(), None)
            unit.jobs.fail(job, write)
            return Failed(write.code, None)
        op = unit.ledger.start(keys.op_key(row.op, job_id, **extras), row.op, job)
        if op.prior is not None and op.prior_run == run_no:
            unit.rollback()  # recorded in this very run: the state has nothing to catch up on
            return Done(job.state, replayed=True)
        crash_point(f"{stage_name}.claiming")
    lease.bind(job.fence)
    crash_point(f"{stage_name}.claimed")
    return Work(job, results, op, lease)


def _carry_out(deps: Deps, stage: Stage, stage_name: str, work: Work) -> Outcome:
    job = work.job
    try:
        stores.recognise(deps)  # an unmounted store must get no bytes, and lose none
        result = (stage.probe(work) if work.op.seen else None) or stage.perform(work)
        crash_point(f"{stage_name}.performed")
        work.lease.check()
        with deps.database.write() as unit:
            state = stage.record(unit, work, result)
            unit.ledger.finish(work.op, result, "ok")
            unit.jobs.advance(job, flow.stage(stage_name), state)
            crash_point(f"{stage_name}.recording")
        crash_point(f"{stage_name}.recorded")
        return Done(state)
    except LeaseLost as error:
        log.warning("stage=%s job=%s run=%d given up: %s", stage_name, job.job_id, job.run, error.message)
        with deps.database.write() as unit:
            unit.jobs.hand_back(job)  # a no-op when a later fence is on it already
        return Dropped("lease_lost")
    except (LedgerUnavailable, LeaseUnavailable):
        raise
    except StageFailure as failure:
        return _fail(deps, stage_name, work, failure)
    except Exception as error:
        surprise = Retryable(f"an unexpected {type(error).__name__}", code="internal_error")
        return _fail(deps, stage_name, work, surprise, unexpected=error)


def _fail(
    deps: Deps, stage_name: str, work: Work, failure: StageFailure, unexpected: Exception | None = None
) -> Outcome:
    job, debug_id = work.job, deps.debug_id()
    write = after_failure(failure, job.state, job.attempts, debug_id, deps.chance(), deps.policy.retry, job.put_off_s)
    log.log(
        logging.ERROR if unexpected else logging.WARNING,
        "stage=%s job=%s run=%d host=%s failed code=%s debug_id=%s due_after_s=%s",
        stage_name,
        job.job_id,
        job.run,
        job.host,
        write.code,
        debug_id,
        write.due_after_s,
    )
    if unexpected is not None:
        # Where it happened, without the exception's own text: that may hold an address with a secret.
        frames = "".join(traceback.format_tb(unexpected.__traceback__))
        log.error("debug_id=%s %s at\n%s", debug_id, type(unexpected).__name__, frames)
    try:
        with deps.database.write() as unit:
            unit.ledger.fail(work.op, write.code)
            unit.jobs.fail(job, write)
            crash_point(f"{stage_name}.failing")
    except LeaseLost:
        return Dropped("lease_lost")
    crash_point(f"{stage_name}.failed")
    deps.progress.clear(job.job_id)
    return Failed(write.code, write.due_after_s)
