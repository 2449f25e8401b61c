"""What the hot questions cost when millions of jobs are done, against the same on a ledger without any."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import psycopg

from dlpipe.core.model import Scope
from dlpipe.core.ports import Endings, Glance, Unit
from dlpipe.core.states import Status
from dlpipe.core.wishes import JobFilter
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import blobs, dispatch, reconcile, runner, stores
from ops.bench import finished
from ops.bench.failure import BenchFailed
from ops.bench.ground import Ground
from ops.bench.options import Options
from ops.bench.table import Kind, Row, turns
from tests.world import World

GROUP = "growth"
BOUND = 1.3
JOBS = 60
"""Carried through all stages in each round, on each ledger."""
LISTINGS = 20
_TUNED = {
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
}
MEASURED = {
    "claim": "claim of a stage (one transaction)",
    "record": "record of a stage (one transaction)",
    "dispatch": f"dispatch of {JOBS} due jobs",
    "jobs": "`jobs`, the newest 50",
    "failed": "`jobs --status failed`, of which there are none",
    "reconcile": "a round of reconcile",
}


class Timed:
    """The ledger, and what its last writing transactions took."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self.took: list[float] = []

    @contextmanager
    def write(self) -> Iterator[Unit]:
        began = time.monotonic()
        with self._database.write() as unit:
            yield unit
        self.took.append(time.monotonic() - began)

    @contextmanager
    def single(self) -> Iterator[Endings]:
        began = time.monotonic()
        with self._database.single() as endings:
            yield endings
        self.took.append(time.monotonic() - began)

    @contextmanager
    def read(self) -> Iterator[Unit]:
        with self._database.read() as unit:
            yield unit

    @contextmanager
    def glance(self) -> Iterator[Glance]:
        with self._database.glance() as glance:
            yield glance


@dataclass
class Ledger:
    """One of the ledgers, with a whole pipeline in this process: real rows and files; no network, no Redis."""

    world: World
    timed: Timed
    finished: int
    rounds: int = 0

    def round(self) -> dict[str, float]:
        """Milliseconds by what was done."""
        self.rounds += 1
        world, found = self.world, dict[str, float]()
        for number in range(JOBS):
            url = f"https://new.example.org/{self.rounds}/{number}.bin"
            world.source.put(url, f"{self.rounds}/{number}".encode().ljust(512, b"."))
            world.plan(url)
        found["dispatch"] = _ms(lambda: dispatch.dispatch(world.deps))
        claims, records = self._carry_out()
        found |= {"claim": median(claims), "record": median(records)}
        for name, only in (("jobs", None), ("failed", JobFilter(status=Status.FAILED))):
            found[name] = median(_ms(partial(self._list, only)) for _ in range(LISTINGS))
        with world.database.write() as unit:
            for walk in (blobs.ROWS, blobs.REHASH):
                unit.cursors.put(walk, finished.position(self.finished))
            unit.cursors.put(blobs.FILES, "")
        found["reconcile"] = _ms(self._reconcile)
        return found

    def _carry_out(self) -> tuple[list[float], list[float]]:
        claims, records = [], []
        queue, self.world.publisher.queue = self.world.publisher.queue, []
        if len(queue) != JOBS:
            raise BenchFailed(f"{JOBS} jobs should have been dispatched, not {len(queue)}")
        for hint in queue:
            for row in hint.stages:
                self.timed.took.clear()
                outcome = runner.run(self.world.deps, row.name, hint.job_id, hint.run)
                if not isinstance(outcome, runner.Done) or len(self.timed.took) < 2:
                    raise BenchFailed(f"{row.name} of {hint.job_id}: {outcome}")
                claims.append(self.timed.took[0] * 1000)
                records.append(self.timed.took[-1] * 1000)
        return claims, records

    def _list(self, only: JobFilter | None) -> None:
        with self.world.database.read() as unit:
            unit.owned(Scope()).list_(only, 50, None)

    def _reconcile(self) -> None:
        report = reconcile.reconcile(self.world.deps)
        if any(report.counts().values()):
            raise BenchFailed(f"a round should have had nothing to do: {report}")


def measure(ground: Ground, options: Options) -> list[Row]:
    ground.need(options.growth_rows * finished.BYTES_PER_JOB, f"a ledger of {options.growth_rows:,} finished jobs")
    _tune(ground)
    counts = {"empty": 0, "page": min(finished.FILES, options.growth_rows), "full": options.growth_rows}
    took: dict[str, list[dict[str, float]]] = {name: [] for name in counts}
    with ExitStack() as stack:
        ledgers = {name: _ledger(ground, stack, count) for name, count in counts.items()}
        for number in range(-1, options.rounds):
            for name in turns(list(counts), number):
                found = ledgers[name].round()
                if number >= 0:  # the one before is there to be warm
                    took[name].append(found)
        size = _size(ledgers["full"])

    def row(name: str, what: str, base: str, against: str, bound: float | None) -> Row:
        ours, theirs = (tuple(one[name] for one in took[side]) for side in ("full", base))
        note = f"{options.growth_rows:,} finished jobs are {size / 1e9:.1f} GB"
        return Row(GROUP, what, against, Kind.TIMES_THE_TIME, bound, "ms", ours, theirs, note=note)

    full = f" with {options.growth_rows:,} finished jobs"
    page = f"the same with {counts['page']:,}: as many as one round looks at"
    rows = [
        row(name, what + full, "empty", "the same on an empty ledger", BOUND)
        for name, what in MEASURED.items()
        if name != "reconcile"
    ]
    what = MEASURED["reconcile"] + full
    return [
        *rows,
        row("reconcile", what, "page", page, BOUND),
        row("reconcile", what, "empty", "the same on an empty ledger, which has no file to look at", None),
    ]


def _ledger(ground: Ground, stack: ExitStack, count: int) -> Ledger:
    url = stack.enter_context(ground.ledger())
    root = stack.enter_context(ground.passing(f"store-{count}"))
    if count:
        print(f"{GROUP}: loading {count:,} finished jobs", file=sys.stderr, flush=True)
        finished.fill(url, root, count)
    database = SqlDatabase(url)
    stack.callback(database.close)
    world, timed = World(database, root), Timed(database)
    world.deps = replace(world.deps, database=timed, clock=time.monotonic)
    stores.accept(world.deps)  # of all those files only some are there
    return Ledger(world, timed, count)


def _tune(ground: Ground) -> None:
    """As a ledger of that size would be run: the default of 128 MiB of buffers is meant for the smallest machines."""
    with ground.postgres.connect() as admin:
        for name, value in _TUNED.items():
            admin.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
    ground.postgres.restart()


def _size(ledger: Ledger) -> int:
    with psycopg.connect(str(ledger.world.database.url.render_as_string(False)).replace("+psycopg", "")) as connection:
        row: Any = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return int(row[0])


def _ms(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return (time.monotonic() - began) * 1000
