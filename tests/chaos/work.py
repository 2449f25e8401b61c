"""The jobs of a run, drawn from its seed: what is behind each URL, and how each job must end."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PROJECTS = ("one", "two")


class Sort(StrEnum):
    PLAIN = "plain"
    TWIN = "the bytes of another"
    SLOW = "slow"
    FLAKY = "fails for a while"
    BROKEN = "breaks off for a while"
    CHANGING = "changes under our feet"
    GONE = "gone for good"
    WRONG = "not the bytes that were asked for"


_SHARES = {
    Sort.TWIN: 0.20,
    Sort.SLOW: 0.08,
    Sort.FLAKY: 0.06,
    Sort.BROKEN: 0.04,
    Sort.CHANGING: 0.05,
    Sort.GONE: 0.03,
    Sort.WRONG: 0.02,
}
FAILS = {Sort.GONE: {"http_404", "http_410"}, Sort.WRONG: {"sha256_mismatch"}}
"""The sorts that must end as failed, and with which codes."""


@dataclass(frozen=True)
class Body:
    """Bytes without a pattern, made anew from two numbers whenever they are wanted."""

    seed: int
    size: int

    def data(self) -> bytes:
        return random.Random(self.seed).randbytes(self.size)

    @property
    def etag(self) -> str:
        return f'"{self.seed:x}-{self.size:x}"'


@dataclass(frozen=True)
class Job:
    path: str
    project: str
    sort: Sort
    bodies: tuple[Body, ...]
    """One after the other; more than one where the file changes."""
    trouble: int = 0
    """How many answers go wrong, and after how many requests a changing file changes."""
    rate: float = 0.0
    """Bytes a second, where the server is slow."""

    @property
    def fails(self) -> bool:
        return self.sort in FAILS

    def request(self, base: str) -> dict[str, Any]:
        asked: dict[str, Any] = {"url": base + self.path, "project_id": self.project, "work_id": "chaos"}
        if self.sort is Sort.WRONG:
            asked["sha256"] = hashlib.sha256(b"other bytes").hexdigest()
        return asked


def make(seed: int, jobs: int) -> list[Job]:
    """A fifth of them hold the bytes of another; the order is mixed."""
    draw = random.Random(f"jobs {seed}")
    sorts = [sort for sort, share in _SHARES.items() for _ in range(max(1, round(jobs * share)))]
    sorts = sorts[: jobs // 2] + [Sort.PLAIN] * (jobs - min(len(sorts), jobs // 2))
    draw.shuffle(sorts)
    originals = [_job(draw, number, sort) for number, sort in enumerate(sorts) if sort is not Sort.TWIN]
    models = [job.bodies for job in originals if job.sort in (Sort.PLAIN, Sort.SLOW)]
    twins = [
        Job(f"/{number}.bin", draw.choice(PROJECTS), sort, draw.choice(models))
        for number, sort in enumerate(sorts)
        if sort is Sort.TWIN
    ]
    made = [*originals, *twins]
    draw.shuffle(made)
    return made


def _job(draw: random.Random, number: int, sort: Sort) -> Job:
    path, project = f"/{number}.bin", draw.choice(PROJECTS)
    small = Body(draw.getrandbits(40), draw.randint(500, 40_000))
    large = Body(draw.getrandbits(40), draw.randint(1 << 20, 3 << 20))
    match sort:
        case Sort.SLOW:
            return Job(path, project, sort, (large,), rate=draw.uniform(0.4, 1.5) * (1 << 20))
        case Sort.FLAKY:
            return Job(path, project, sort, (small,), trouble=draw.randint(1, 6))
        case Sort.BROKEN:
            return Job(path, project, sort, (large,), trouble=draw.randint(1, 3))
        case Sort.CHANGING:
            first, then = draw.choice([(small, large), (large, small), (large, large)])
            other = Body(draw.getrandbits(40), then.size)
            return Job(path, project, sort, (first, other), trouble=draw.randint(1, 3), rate=2 << 20)
        case _:
            return Job(path, project, sort, (small,))
