"""The running pipeline at one moment, as its owner watches it (`dlpipe top`). Pure: facts in, a picture out.

It tells and decides nothing. What is counted is counted up to a bound, so that looking costs the same always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from dlpipe.core.states import Status
from dlpipe.core.why import POSTPONED

COUNTED = 5_000
"""No more jobs of one status are counted."""
SAMPLE = 500
"""So many of the jobs that wait longest, and of the newest that failed, are looked at."""
FINISHED = 2_000
"""So many of the newest completed jobs are looked at for those of the last minute."""
SHOWN = 200
"""So many running jobs are listed."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class AtWork:
    """A job that a worker has, as its row says."""

    job_id: str
    url: str
    host: str
    origin: str
    run: int
    stage: str
    worker: str
    lease_left_s: float


@dataclass(frozen=True, slots=True)
class Waiter:
    """A job that no worker has."""

    job_id: str
    host: str
    origin: str
    due_at: datetime | None
    error_code: str | None
    paused: bool
    sent: bool


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    jobs: int
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class Look:
    """What the ledger says; `at` is its time."""

    at: datetime
    counts: Mapping[Status, int]
    at_work: tuple[AtWork, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    failures: tuple[Failure, ...] = ()
    finished: int = 0
    finished_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OriginState:
    """What keeps requests from an origin, and for how long yet; None: nothing does."""

    open_s: float | None = None
    """Its circuit is open: it has failed again and again."""
    cooling_s: float | None = None
    """It has answered for several URLs that it is too busy."""


@dataclass(frozen=True, slots=True)
class LastRound:
    """The last round of reconcile: how long ago, and what it found, by kind."""

    ago_s: float
    found: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Around:
    """What is known beside the ledger: from Redis and the broker, as far as they answer."""

    progress: Mapping[str, tuple[int, int | None]]
    origins: Mapping[str, OriginState]
    in_flight: Mapping[str, int]
    last_round: LastRound | None = None
    queued: int | None = None
    window: int = 0
    per_host: int = 0
    lease_ttl_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Running:
    job_id: str
    url: str
    host: str
    run: int
    stage: str
    worker: str
    lease_age_s: float
    """Since the lease was renewed."""
    done_bytes: int | None
    total_bytes: int | None
    rate_bytes_s: float | None
    eta_s: float | None


class Reason(StrEnum):
    PAUSED = "paused"
    NOT_BEFORE = "not_before"
    POSTPONED = "postponed"
    RETRY = "retry"
    HOST_FULL = "host_full"
    WINDOW_FULL = "window_full"
    DUE = "due"
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs of one origin that wait for the same reason, and until when the first of them does."""

    reason: Reason
    host: str
    origin: str
    code: str | None
    jobs: int
    until: datetime | None
    first_job_id: str
    circuit_open_s: float | None = None
    cooling_s: float | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. What nobody could be asked about is None or empty, and `troubles` says why."""

    at: datetime | None
    tenant_id: str
    project_id: str
    counts: Mapping[str, int]
    """A count of `counted_to` stands for so many or more."""
    counted_to: int = COUNTED
    running: tuple[Running, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    workers: tuple[Worker, ...] = ()
    failures: tuple[Failure, ...] = ()
    finished_last_minute: int | None = None
    finished_bytes_last_minute: int | None = None
    rate_bytes_s: float | None = None
    queued: int | None = None
    in_flight: int | None = None
    window: int | None = None
    reconcile: LastRound | None = None
    troubles: tuple[str, ...] = ()


def picture(
    tenant_id: str,
    project_id: str,
    look: Look,
    around: Around,
    before: Snapshot | None = None,
    troubles: Sequence[str] = (),
) -> Snapshot:
    """Put the facts together; rates come from the snapshot before."""
    elapsed_s = (look.at - before.at).total_seconds() if before is not None and before.at is not None else 0.0
    had = {(one.job_id, one.run): one.done_bytes for one in before.running} if before is not None else {}
    running = tuple(_running(one, around, had.get((one.job_id, one.run)), elapsed_s) for one in look.at_work)
    rates = [one.rate_bytes_s for one in running if one.rate_bytes_s is not None]
    return Snapshot(
        at=look.at,
        tenant_id=tenant_id,
        project_id=project_id,
        counts={status.value: count for status, count in look.counts.items()},
        running=running,
        waiting=waiting(look.waiters, look.at, around),
        workers=tuple(Worker(name, jobs) for name, jobs in sorted(Counter(one.worker for one in look.at_work).items())),
        failures=look.failures,
        finished_last_minute=look.finished,
        finished_bytes_last_minute=look.finished_bytes,
        rate_bytes_s=sum(rates) if rates else None,
        queued=around.queued,
        in_flight=sum(around.in_flight.values()),
        window=around.window,
        reconcile=around.last_round,
        troubles=tuple(troubles),
    )


def _running(held: AtWork, around: Around, had: int | None, elapsed_s: float) -> Running:
    done, total = around.progress.get(held.job_id, (None, None))
    rate = eta = None
    if done is not None and had is not None and elapsed_s > 0 and done >= had:
        rate = round((done - had) / elapsed_s, 1)
        if total is not None and rate > 0:
            eta = round(max(0, total - done) / rate, 1)
    return Running(
        held.job_id,
        held.url,
        held.host,
        held.run,
        held.stage,
        held.worker,
        round(max(0.0, around.lease_ttl_s - held.lease_left_s), 1),
        done,
        total,
        rate,
        eta,
    )


def reason(waiter: Waiter, at: datetime, around: Around) -> Reason:
    """Why nobody works on it."""
    if waiter.paused:
        return Reason.PAUSED
    if waiter.due_at is not None and waiter.due_at > at:
        if waiter.error_code is None:
            return Reason.NOT_BEFORE
        return Reason.POSTPONED if waiter.error_code in POSTPONED else Reason.RETRY
    if waiter.sent or waiter.due_at is None:
        return Reason.SENT
    if around.in_flight.get(waiter.host, 0) >= around.per_host > 0:
        return Reason.HOST_FULL
    if sum(around.in_flight.values()) >= around.window > 0:
        return Reason.WINDOW_FULL
    return Reason.DUE


def waiting(waiters: Sequence[Waiter], at: datetime, around: Around) -> tuple[Waiting, ...]:
    """The jobs that wait, by what they wait for; the most frequent first."""
    groups: dict[tuple[Reason, str, str | None], list[Waiter]] = {}
    for waiter in waiters:
        why = reason(waiter, at, around)
        code = waiter.error_code if why in (Reason.POSTPONED, Reason.RETRY) else None
        groups.setdefault((why, waiter.origin, code), []).append(waiter)
    rows = []
    for (why, origin, code), them in groups.items():
        first = min(them, key=lambda one: (one.due_at is None, one.due_at or at))
        until = first.due_at if why in (Reason.POSTPONED, Reason.RETRY, Reason.NOT_BEFORE) else None
        state = around.origins.get(origin, OriginState())
        rows.append(
            Waiting(why, first.host, origin, code, len(them), until, first.job_id, state.open_s, state.cooling_s)
        )
    return tuple(sorted(rows, key=lambda row: (-row.jobs, row.origin, row.reason)))
