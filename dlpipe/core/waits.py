"""For how long a job may be put off, which costs no attempt, before it has failed: every wait has an end. Pure.

One rule for all that a job may wait for, and a shorter one for room on the store's volume (STREAM-7, HOST-3).
"""

from __future__ import annotations

from dataclasses import dataclass

from dlpipe.core.errors import Permanent, Postponed
from dlpipe.core.retries import RetryPolicy

ROOM = "quota_exceeded"
POSTPONED_TOO_LONG = "postponed_too_long"
ASKED_BY_SERVERS = frozenset({"retry_after", "host_cooling_down"})


@dataclass(frozen=True, slots=True)
class Waited:
    """How long a job has been put off since its file last came further than `stream`, by the database's clock."""

    put_off_s: float = 0.0
    """For whatever reasons, in all."""
    room_s: float = 0.0
    """For room alone, since the last run in which there was enough."""


NOT_WAITED = Waited()


def left_s(code: str, waited: Waited, policy: RetryPolicy) -> float:
    """For how much longer a job may be put off with this code; below 0 it has failed."""
    in_all = policy.postpone_max_s - waited.put_off_s
    return min(in_all, policy.room_max_s - waited.room_s) if code == ROOM else in_all


def final_code(code: str) -> str:
    """The code of a job whose last wait was for this, and too long."""
    return POSTPONED_TOO_LONG if code in ASKED_BY_SERVERS else code


def given_up(failure: Postponed, waited: Waited, policy: RetryPolicy) -> Permanent | None:
    """What the job fails with, once it has waited for too long; None: it may be put off once more."""
    if failure.anew:
        waited = Waited(waited.put_off_s)
    if left_s(failure.code, waited, policy) >= 0:
        return None
    if failure.code == ROOM and waited.room_s > policy.room_max_s:
        message = f"{failure.message} (given up: it has waited for room for {span(waited.room_s)})"
    elif failure.code in ASKED_BY_SERVERS:
        in_all = f"put off for {span(waited.put_off_s)} in all"
        message = f"it was {in_all}, the last time because its server is too busy; use another source"
    else:
        message = f"{failure.message} (given up: it was put off for {span(waited.put_off_s)} in all)"
    return Permanent(message, code=final_code(failure.code))


def span(seconds: float) -> str:
    return f"{seconds / 86_400:.1f} days" if seconds >= 2 * 86_400 else f"{seconds / 3_600:.1f} hours"
