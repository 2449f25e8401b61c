"""How long to wait before the next try. Chance and time are passed in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_attempts: int = 5
    base_s: float = 2.0
    cap_s: float = 300.0
    server_cap_s: float = 3600.0
    postpone_max_s: float = 604_800.0
    """For so long in all a job may be put off, which costs no attempts, before it has failed."""
    room_max_s: float = 86_400.0
    """For so long it may wait for room on the store's volume."""


def backoff_s(attempt: int, chance: float, policy: RetryPolicy) -> float:
    """Exponential with full jitter; `chance` in [0, 1)."""
    ceiling = min(policy.cap_s, policy.base_s * 2.0 ** min(attempt, 60))
    return ceiling * chance


def next_delay_s(attempt: int, chance: float, asked_s: float | None, policy: RetryPolicy) -> float:
    """What a server asked for counts, within bounds, and is never undercut by our own backoff."""
    own = backoff_s(attempt, chance, policy)
    return own if asked_s is None else max(own, min(max(asked_s, 0.0), policy.server_cap_s))


def retry_after_s(value: str | None, now_epoch_s: float) -> float | None:
    """Parse Retry-After (RFC 9110 §10.2.3): seconds or a date; anything else is as if absent."""
    if value is None:
        return None
    text = value.strip()
    if text and set(text) <= _DIGITS:
        return float(text[:12])
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)  # the obsolete forms name no zone, and mean this one
    return max(0.0, at.timestamp() - now_epoch_s)
