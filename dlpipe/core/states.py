"""The states of an artifact job and the one table of steps between them.

Whoever needs to know what may follow what (the guard in the database, the chain, the reconcile tail,
the diagram in the docs) reads TABLE through the functions below; nobody writes a second list.
A state is entered after what it names has happened. STREAMING alone is entered before: when the
stream stage claims the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    PLANNED = "PLANNED"
    LEASED = "LEASED"
    HEAD_DONE = "HEAD_DONE"
    RESUME_OK = "RESUME_OK"
    STREAMING = "STREAMING"
    FINALIZED = "FINALIZED"
    INDEXED = "INDEXED"
    DEDUPED = "DEDUPED"
    FAILED = "FAILED"
    SKIPPED_DUPLICATE = "SKIPPED_DUPLICATE"
    CANCELED = "CANCELED"


class Status(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELED = "canceled"


class Purpose(StrEnum):
    """Why a further run of a job happens that had come to its end."""

    REFRESH = "refresh"  # its owner wants to know whether the server has something newer (PLAN-6)
    REPAIR = "repair"  # the file is missing or damaged (HEAL-3)
    REPLAY = "replay"  # its stages are to be done again from the stored file, without the network (JOB-7)


class Moment(StrEnum):
    """When a step is taken."""

    START = "start"  # the first stage of a new run claims the job
    CLAIM = "claim"  # a stage claims the job within its run
    FINISH = "finish"  # a stage's result is recorded
    FAIL = "fail"  # a run ends without success
    CANCEL = "cancel"  # somebody asked for the end
    RETRY = "retry"  # somebody wants a job that failed for good to be tried again
    REOPEN = "reopen"  # a further run, from the start, is wanted of a job that has its file
    WITHDRAW = "withdraw"  # a further run that has begun is taken back


@dataclass(frozen=True, slots=True)
class Step:
    source: State
    target: State
    moment: Moment
    stage: str = ""


def _steps(sources: tuple[State, ...], target: State, moment: Moment) -> tuple[Step, ...]:
    return tuple(Step(source, target, moment) for source in sources)


_S = State
TABLE: tuple[Step, ...] = (
    # A run starts: from the beginning, or, once the file is in its place, with what remains.
    # Every start needs a due time in the row, so a job at a good end stays there until a further run is wanted.
    *_steps(
        (
            _S.PLANNED, _S.LEASED, _S.HEAD_DONE, _S.RESUME_OK, _S.STREAMING, _S.FAILED, _S.DEDUPED,
            _S.SKIPPED_DUPLICATE,
        ),
        _S.LEASED,
        Moment.START,
    ),
    Step(_S.FINALIZED, _S.FINALIZED, Moment.START),
    Step(_S.INDEXED, _S.INDEXED, Moment.START),
    # Within the run, only forward.
    Step(_S.LEASED, _S.HEAD_DONE, Moment.FINISH, "head"),
    Step(_S.LEASED, _S.SKIPPED_DUPLICATE, Moment.FINISH, "head"),
    Step(_S.HEAD_DONE, _S.RESUME_OK, Moment.FINISH, "resume_decide"),
    Step(_S.RESUME_OK, _S.STREAMING, Moment.CLAIM, "stream"),
    Step(_S.STREAMING, _S.STREAMING, Moment.FINISH, "stream"),
    Step(_S.STREAMING, _S.FINALIZED, Moment.FINISH, "finalize"),
    Step(_S.FINALIZED, _S.INDEXED, Moment.FINISH, "index"),
    Step(_S.INDEXED, _S.DEDUPED, Moment.FINISH, "dedupe"),
    # The other ends. FAILED with a due time is a wait for the next run.
    *_steps(
        (
            _S.PLANNED, _S.LEASED, _S.HEAD_DONE, _S.RESUME_OK, _S.STREAMING, _S.FINALIZED, _S.INDEXED, _S.FAILED,
        ),
        _S.FAILED,
        Moment.FAIL,
    ),
    # Tried again from the start; once the result is registered, with what remains: it is not to be registered twice.
    Step(_S.FAILED, _S.FAILED, Moment.RETRY),
    Step(_S.FAILED, _S.INDEXED, Moment.RETRY),
    # Once the result is registered (INDEXED) there is nothing left to cancel.
    *_steps(
        (_S.PLANNED, _S.LEASED, _S.HEAD_DONE, _S.RESUME_OK, _S.STREAMING, _S.FINALIZED, _S.FAILED),
        _S.CANCELED,
        Moment.CANCEL,
    ),
    # A further run is wanted. At an end the job waits where it is, and what has not begun can be withdrawn. One that
    # is not at its end and whose file is gone has failed: no remaining stage could give its bytes back.
    Step(_S.DEDUPED, _S.DEDUPED, Moment.REOPEN),
    Step(_S.SKIPPED_DUPLICATE, _S.SKIPPED_DUPLICATE, Moment.REOPEN),
    *_steps((_S.FINALIZED, _S.INDEXED), _S.FAILED, Moment.REOPEN),
    Step(_S.DEDUPED, _S.DEDUPED, Moment.CANCEL),
    Step(_S.SKIPPED_DUPLICATE, _S.SKIPPED_DUPLICATE, Moment.CANCEL),
    # One that has begun is withdrawn to the end that the job had; its result was registered long ago (JOB-9). Once the
    # new file is in its place, it goes through.
    *_steps((_S.LEASED, _S.HEAD_DONE, _S.RESUME_OK, _S.STREAMING, _S.FAILED), _S.DEDUPED, Moment.WITHDRAW),
    *_steps((_S.LEASED, _S.HEAD_DONE, _S.RESUME_OK, _S.STREAMING, _S.FAILED), _S.SKIPPED_DUPLICATE, Moment.WITHDRAW),
)  # fmt: skip

ENDS = frozenset(s.target for s in TABLE) - frozenset(s.source for s in TABLE if s.stage)
"""States in which no stage of the run has anything left to do: terminal, unless a further run is due and may start."""

FINISHED = ENDS - {State.FAILED}


def sources(target: State, moment: Moment, stage: str = "") -> frozenset[State]:
    """From which states may `target` be entered at that moment (by that stage)?"""
    return frozenset(s.source for s in TABLE if (s.target, s.moment, s.stage) == (target, moment, stage))


def origins(target: State) -> frozenset[State]:
    """From which other states may `target` be entered at all?"""
    return frozenset(s.source for s in TABLE if s.target is target and s.source is not target)


def targets(source: State, moment: Moment) -> frozenset[State]:
    return frozenset(s.target for s in TABLE if s.source is source and s.moment is moment)


def start_target(source: State) -> State | None:
    """Where a new run of a job in this state begins, or None when none may start."""
    found = targets(source, Moment.START)
    return next(iter(found)) if found else None


def claimable(stage: str) -> frozenset[State]:
    """In which states may this stage claim a job of its own run?"""
    return frozenset(s.source for s in TABLE if s.stage == stage)


def on_claim(stage: str) -> State | None:
    """The state that the claim itself enters, if any."""
    return next((s.target for s in TABLE if s.stage == stage and s.moment is Moment.CLAIM), None)


def reopened(state: State) -> State | None:
    """Where a job in this state waits for a further run from the start, or None when it cannot be reopened."""
    found = targets(state, Moment.REOPEN)
    return next(iter(found)) if found else None


def retried(*, registered: bool) -> State:
    """Where a job that failed for good waits for its next run; `registered`: it has its result already."""
    found = targets(State.FAILED, Moment.RETRY) - {State.FAILED}
    return next(iter(found)) if registered else State.FAILED


def refreshable() -> frozenset[State]:
    """At which ends may an owner wish for a further run? FAILED has its retry."""
    return frozenset(state for state in State if reopened(state) is state)


def withdrawable() -> frozenset[State]:
    """Where does canceling take back the wish for a further run, and leave the job at the end it had?"""
    return frozenset(s.source for s in TABLE if s.moment is Moment.CANCEL and s.target is s.source)


def can_go_back() -> frozenset[State]:
    """In which states of a further run may it be taken back, so that the job is again at the end it had?"""
    return frozenset(s.source for s in TABLE if s.moment is Moment.WITHDRAW)


def is_terminal(state: State, *, retry_due: bool) -> bool:
    """Is nothing going to happen by itself? `retry_due`: the row has a due time, so a further run is wanted."""
    return state in ENDS and not (retry_due and start_target(state) is not None)


def status_of(state: State, *, retry_due: bool) -> Status:
    """The canonical job status that belongs to a state (STATE-7)."""
    if state in ENDS and not is_terminal(state, retry_due=retry_due):
        return Status.PENDING
    match state:
        case State.PLANNED:
            return Status.PENDING
        case State.FAILED:
            return Status.FAILED
        case State.DEDUPED:
            return Status.COMPLETED
        case State.SKIPPED_DUPLICATE:
            return Status.SKIPPED
        case State.CANCELED:
            return Status.CANCELED
        case _:
            return Status.PROCESSING
