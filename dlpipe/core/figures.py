"""How much of what stands in the ledger, over all tenants: for operators, never for an owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """The work that is not at its end. What it costs to count depends on that work alone."""

    due: int
    """Jobs whose message may be sent now."""
    due_later: int
    """Jobs that wait for a retry, a postponed turn or a not-before time."""
    oldest_due_s: float
    """For how long the job that waits longest could have been sent; 0 when there is none."""
    in_flight: int
    """Jobs that are held, or have a message outstanding."""
    sent: int
    """Of those, jobs that nobody has taken yet."""
    held: int
    """Jobs with a lease in the row, live or run out."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Everything there is. Counting it reads whole tables."""

    jobs: Mapping[tuple[str, str], int]
    """By kind and status."""
    dead_letters: Mapping[str, int]
    """Jobs that failed for good, by error code."""
    artifacts: int
    artifact_bytes: int
    """As registered: equal bytes that are shared on disk count each time."""
    faulty: int
    """Artifacts whose file is known to be missing or damaged."""
