"""What becomes of a job whose run failed or whose worker vanished. Chance is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from dlpipe.core import retries
from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import State, start_target

ATTEMPTS_EXHAUSTED = "attempts_exhausted"


@dataclass(frozen=True, slots=True)
class FailureWrite:
    """One guarded write: the error as it may be shown, and when the next run is due (None: never)."""

    code: str
    message: str
    debug_id: str
    due_after_s: float | None
    uses_attempt: bool = True
    keeps_state: bool = False
    """The file is in its place: the job waits where it is instead of going back to the start."""


def after_failure(
    failure: StageFailure, state: State, attempts: int, debug_id: str, chance: float, policy: RetryPolicy
) -> FailureWrite:
    """Decide between a wait that costs an attempt, one that does not, and the end."""
    keeps = start_target(state) is state and state is not State.LEASED
    match failure:
        case Postponed(after_s=after_s):
            return FailureWrite(failure.code, failure.message, debug_id, after_s, False, keeps)
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
