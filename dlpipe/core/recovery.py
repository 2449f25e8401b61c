"""What becomes of a job whose run failed, whose worker vanished or whose file is gone, and of what lies about.

Facts come in, verdicts go out; chance is passed in. Nothing here reads a missing row as a reason to remove anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlpipe.core import retries, waits
from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.model import Fault
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import State, is_terminal, start_target
from dlpipe.core.waits import NOT_WAITED, Waited

ATTEMPTS_EXHAUSTED = "attempts_exhausted"


@dataclass(frozen=True, slots=True)
class FailureWrite:
    """One guarded write: the error as it may be shown, and when the next run is due (None: never)."""

    code: str
    message: str
    debug_id: str
    due_after_s: float | None
    uses_attempt: bool = True
    """Of a wait that costs none it is counted how long the job has waited so."""
    keeps_state: bool = False
    """The file is in its place: the job waits where it is instead of going back to the start."""
    anew: bool = False
    """What it waits for was there in this run: the wait for it begins now."""


def after_failure(
    failure: StageFailure,
    state: State,
    attempts: int,
    debug_id: str,
    chance: float,
    policy: RetryPolicy,
    waited: Waited = NOT_WAITED,
) -> FailureWrite:
    """Decide between a wait that costs an attempt, one that does not, and the end."""
    keeps = start_target(state) is state and state is not State.LEASED
    match failure:
        case Postponed(code=code, after_s=after_s):
            if (end := waits.given_up(failure, waited, policy)) is not None:
                return FailureWrite(end.code, end.message, debug_id, None)
            return FailureWrite(code, failure.message, debug_id, after_s, False, keeps, failure.anew)
        case Retryable(after_s=asked) if attempts + 1 < policy.max_attempts:
            delay = retries.next_delay_s(attempts, chance, asked, policy)
            return FailureWrite(failure.code, failure.message, debug_id, delay, True, keeps)
        case Retryable():
            message = f"{failure.message} (given up after {attempts + 1} attempts)"
            return FailureWrite(failure.code, message, debug_id, None)
        case Permanent() | _:
            return FailureWrite(failure.code, failure.message, debug_id, None)


def after_crash(attempts: int, debug_id: str, policy: RetryPolicy) -> FailureWrite | None:
    """A worker died while it held the job: a new run is due at once (None), until the attempts are used up."""
    if attempts + 1 < policy.max_attempts:
        return None
    return FailureWrite(
        ATTEMPTS_EXHAUSTED,
        f"the worker was lost {attempts + 1} times while it held this job",
        debug_id,
        None,
    )


# ── a lease that a row mirrors (HEAL-2, HEAL-5) ───────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HolderFacts:
    state: State
    run_due: bool
    attempts: int
    owner_dead: bool
    """The process behind the lease is certainly gone."""
    ran_out: bool
    """By the database's clock."""
    live: bool
    """Redis still has the lease."""


@dataclass(frozen=True, slots=True)
class LeaveIt:
    """`reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """A new run is due at once; the lost one has cost an attempt."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    write: FailureWrite


@dataclass(frozen=True, slots=True)
class ClearMirror:
    """The job is not in a run, so nobody was lost: only the mirror is stale."""


def after_silence(facts: HolderFacts, debug_id: str, policy: RetryPolicy) -> LeaveIt | Requeue | GiveUp | ClearMirror:
    """The row's clock and Redis must both say that the holder is gone, or its process must be known to be."""
    if not facts.owner_dead and not facts.ran_out:
        return LeaveIt("held")
    if not facts.owner_dead and facts.live:
        return LeaveIt("live in Redis")
    if facts.run_due or is_terminal(facts.state, retry_due=False):
        return ClearMirror()
    write = after_crash(facts.attempts, debug_id, policy)
    return Requeue() if write is None else GiveUp(write)


# ── a registered file (HEAL-3) ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RegisteredFacts:
    size: int
    found_size: int | None
    """None: no file is there."""
    marked: bool
    """It was found missing or damaged before."""
    right: bool | None = None
    """Do its bytes hash to its name? None: nobody has looked."""


@dataclass(frozen=True, slots=True)
class Lost:
    fault: Fault


@dataclass(frozen=True, slots=True)
class Mended:
    """It is there again, and right."""


@dataclass(frozen=True, slots=True)
class NeedHash:
    """Its bytes must be read before anything can be said."""


def judge_registered(facts: RegisteredFacts) -> LeaveIt | Lost | Mended | NeedHash:
    """A file is lost once; as long as it stays so, its mark says it."""
    fault = None
    if facts.found_size is None:
        fault = Fault.MISSING
    elif facts.found_size != facts.size or facts.right is False:
        fault = Fault.DAMAGED
    if fault is not None:
        return LeaveIt("marked") if facts.marked else Lost(fault)
    if not facts.marked:
        return LeaveIt("there")
    return NeedHash() if facts.right is None else Mended()


def believable(looked_at: int, missing: int, at_most: int) -> bool:
    """Many files missing at once, and most of those looked at: a disk that is not mounted rather than a loss."""
    return missing <= at_most or missing * 2 <= looked_at


# ── a file that no row knows (HEAL-3) ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StoredFacts:
    ours: bool
    named: bool
    """Its name is one that blobs have."""
    known: bool
    age_s: float
    right: bool | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """A row makes it known again."""


@dataclass(frozen=True, slots=True)
class SetApart:
    """Out of the store's way, under a name of its own; it is kept."""


def judge_stored(facts: StoredFacts, grace_s: float) -> LeaveIt | NeedHash | Adopt | SetApart:
    """What is young may belong to a job that has yet to record it."""
    if not facts.ours:
        return LeaveIt("foreign")
    if facts.known:
        return LeaveIt("known")
    if facts.age_s < grace_s:
        return LeaveIt("young")
    if not facts.named:
        return SetApart()
    if facts.right is None:
        return NeedHash()
    return Adopt() if facts.right else SetApart()


# ── what lies in staging (HEAL-4) ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StagedFacts:
    part: bool
    temporary: bool
    age_s: float
    vouched: bool
    """A whole sidecar says whose it is; without one no byte of it is of use."""
    job_known: bool
    """The database has the job that held it last."""
    wanted: bool
    """A job that is not at its end goes by this part."""
    leased: bool


@dataclass(frozen=True, slots=True)
class Remove:
    reason: str


def judge_staged(facts: StagedFacts, age_s: float) -> LeaveIt | Remove:
    """Only what is old; and of bytes that are vouched for, only those whose job is known to need them no more."""
    if not facts.part and not facts.temporary:
        return LeaveIt("foreign")
    if facts.age_s < age_s:
        return LeaveIt("young")
    if facts.temporary:
        return Remove("temporary")
    if facts.leased:
        return LeaveIt("leased")
    if facts.wanted:
        return LeaveIt("wanted")
    if not facts.vouched:
        return Remove("nothing vouches for it")
    return Remove("unwanted") if facts.job_known else LeaveIt("unknown job")
