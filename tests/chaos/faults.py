"""Which faults happen in a run, and when: drawn from a seed, and from nothing else.

A fault is due when so many jobs are at their end, so it meets a busy pipeline on a fast machine and on a slow one
alike. What the seed fixes is this schedule; how the processes run between the faults it cannot fix.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

LEASE_TTL_S = 6.0
WORKERS = 4
"""The last of them takes the queues that do not reach out to the network."""


class Kind(StrEnum):
    WORKER_KILLED = "worker killed -9"
    WORKER_STOPPED = "worker stopped beyond its lease"
    CLOCK_SHIFTED = "clock of a worker shifted"
    REDIS_EMPTIED = "Redis emptied"
    REDIS_RESTARTED = "Redis killed and restarted"
    REDIS_CUT = "link to Redis cut"
    REDIS_STALLED = "link to Redis stalled"
    DATABASE_RESTARTED = "PostgreSQL restarted at once"
    DATABASE_CUT = "link to the database cut"
    DATABASE_STALLED = "link to the database stalled"
    MESSAGES_AGAIN = "messages sent again, and of older runs"
    MESSAGES_LOST = "messages of a queue lost"


_WEIGHTS = {
    Kind.WORKER_KILLED: 6,
    Kind.WORKER_STOPPED: 3,
    Kind.CLOCK_SHIFTED: 2,
    Kind.REDIS_EMPTIED: 3,
    Kind.REDIS_RESTARTED: 2,
    Kind.REDIS_CUT: 2,
    Kind.REDIS_STALLED: 1,
    Kind.DATABASE_RESTARTED: 2,
    Kind.DATABASE_CUT: 2,
    Kind.DATABASE_STALLED: 1,
    Kind.MESSAGES_AGAIN: 4,
    Kind.MESSAGES_LOST: 2,
}
_LAST_AT = 0.9


@dataclass(frozen=True)
class Fault:
    kind: Kind
    at_done: int
    """Due when so many jobs are at their end."""
    lasts_s: float = 0.0
    worker: int = 0
    shift_s: float = 0.0
    seed: int = 0
    """For what the fault itself draws: which messages, for example."""

    def __str__(self) -> str:
        words = [self.kind.value]
        if self.kind in (Kind.WORKER_KILLED, Kind.WORKER_STOPPED, Kind.CLOCK_SHIFTED):
            words.append(f"w{self.worker}")
        if self.shift_s:
            words.append(f"by {self.shift_s:+.0f} s")
        if self.lasts_s:
            words.append(f"for {self.lasts_s:.1f} s")
        return ", ".join(words)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def schedule(seed: int, jobs: int, faults: int | None = None) -> list[Fault]:
    """Every kind at least once, as far as there is room, and at the end the worst: a kill and an empty Redis."""
    draw = random.Random(f"faults {seed}")
    wanted = faults if faults is not None else max(12, min(120, jobs // 40))
    kinds = draw.sample(list(Kind), min(wanted, len(Kind)))
    kinds += draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=wanted - len(kinds))
    draw.shuffle(kinds)
    places = sorted(draw.randint(jobs // 50, int(jobs * _LAST_AT)) for _ in kinds)
    made = [_fault(draw, kind, place) for kind, place in zip(kinds, places, strict=True)]
    last = int(jobs * _LAST_AT)
    end = [
        Fault(Kind.WORKER_KILLED, last, worker=draw.randint(1, WORKERS - 1)),
        Fault(Kind.REDIS_EMPTIED, last),
    ]
    return [*made, *end]


def _fault(draw: random.Random, kind: Kind, at_done: int) -> Fault:
    worker, seed = draw.randint(1, WORKERS), draw.getrandbits(32)
    match kind:
        case Kind.WORKER_STOPPED:
            return Fault(kind, at_done, lasts_s=draw.uniform(1.2, 1.6) * LEASE_TTL_S, worker=worker)
        case Kind.CLOCK_SHIFTED:
            shift = draw.choice([-86_400.0, -3_600.0, -90.0, 90.0, 3_600.0, 86_400.0])
            return Fault(kind, at_done, worker=worker, shift_s=shift)
        case Kind.REDIS_CUT | Kind.REDIS_STALLED | Kind.DATABASE_CUT | Kind.DATABASE_STALLED:
            return Fault(kind, at_done, lasts_s=draw.uniform(0.5, 1.4) * LEASE_TTL_S)
        case Kind.REDIS_RESTARTED | Kind.DATABASE_RESTARTED:
            return Fault(kind, at_done, lasts_s=draw.uniform(0.1, 2.0))
        case _:
            return Fault(kind, at_done, worker=worker, seed=seed)
