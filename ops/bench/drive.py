"""Our stack as users run it (`dlpipe up`), the process that plans for it, and a look at what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dlpipe.core.flow import STAGES
from dlpipe.db import SqlDatabase
from ops.bench.failure import BenchFailed
from ops.bench.ground import Sample, expect, until
from ops.bench.processes import Driver, Lasting, environment

READY_S = 60.0


class Up:
    """A running stack on a home and a ledger of its own."""

    def __init__(self, home: Path, ledger: SqlDatabase, services: Mapping[str, int], planner: Driver) -> None:
        self.services = services
        self._home, self._ledger, self._planner = home, ledger, planner

    def fetch(self, samples: Sequence[Sample]) -> float:
        """Plan them in one call, and wait for the last; the seconds from the call on."""
        told = self._planner.ask({"urls": [sample.url for sample in samples]})
        if told["completed"] != told["planned"]:
            raise BenchFailed(f"not all jobs were completed: {told}; the logs are in {self._home / 'log'}")
        return float(told["seconds"])

    def mark(self, sample: Sample) -> None:
        """From now on no connection to its server is used twice."""
        self._planner.ask({"mark": sample.url})

    def file(self, sample: Sample) -> Path:
        (pointer,) = (row[0] for row in self._rows(_POINTER, url=sample.url))
        return self._home / "store" / str(pointer).removeprefix("local:")

    def assert_each_once(self, samples: Sequence[Sample], *, files: bool = True) -> None:
        each_once(self._ledger, len(samples))
        if not files:
            return
        pointers = {row[0]: row[1] for row in self._rows(_POINTERS)}
        for sample in samples:
            expect(self._home / "store" / str(pointers[sample.url]).removeprefix("local:"), sample, "ours")

    def _rows(self, query: str, **values: Any) -> list[Any]:
        with self._ledger.engine.connect() as connection:
            return list(connection.execute(sa.text(query), values).all())


_POINTERS = (
    "SELECT j.request_url, a.storage_pointer FROM artifact_jobs j JOIN artifacts a ON a.created_by_job_id = j.job_id"
)
_POINTER = (
    "SELECT a.storage_pointer FROM artifact_jobs j JOIN artifacts a ON a.created_by_job_id = j.job_id "
    "WHERE j.request_url = :url"
)


def each_once(ledger: SqlDatabase, count: int, *, registered: bool = True) -> None:
    """Every job at its end, each of its six ops recorded once, and each file registered once."""
    with ledger.engine.connect() as connection:
        states = {row[0]: row[1] for row in connection.execute(sa.text(_STATES))}
        ops = {row[0]: (row[1], row[2]) for row in connection.execute(sa.text(_OPS))}
        files = [connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) for table in ("artifacts", "manifest")]  # noqa: S608
    if states != {"DEDUPED": count}:
        raise BenchFailed(f"{count} jobs should be done; their states: {states}")
    if ops != {row.op.value: (count, count) for row in STAGES}:
        raise BenchFailed(f"each op should be recorded once for each of {count} jobs: {ops}")
    if registered and files != [count, count]:
        raise BenchFailed(f"{count} files should be registered; artifacts and manifest have {files}")


_STATES = "SELECT state, count(*) FROM artifact_jobs GROUP BY state"
_OPS = (
    "SELECT op_type, count(*), count(DISTINCT job_id) FROM artifact_ops "
    "WHERE state = 'finished' AND run = 1 GROUP BY op_type"
)


@contextmanager
def up(place: Path, ledger_url: str | None = None, **settings: str) -> Iterator[Up]:
    """`dlpipe up` in that folder, all of its workers ready, and a planner that stands by."""
    home = place / "home"
    env = environment(place, DLPIPE_HOME=str(home), DLPIPE_ALLOW_PRIVATE="1", **settings)
    if ledger_url is not None:
        env["DLPIPE_DATABASE_URL"] = ledger_url
    ledger = SqlDatabase(ledger_url or f"sqlite:///{home / 'ledger.db'}")
    try:
        with Lasting("up", [sys.executable, "-m", "dlpipe", "up", "--json"], env, place) as stack:
            stack.until('"services"')
            services = _services(stack.log)
            for name in services:
                if name != "beat":
                    _await_ready(home / "log" / f"{name}.log")
            with planner(env, place) as driver:
                yield Up(home, ledger, services, driver)
    finally:
        ledger.close()


@contextmanager
def planner(env: Mapping[str, str], place: Path) -> Iterator[Driver]:
    with Driver("planner", [sys.executable, "-m", "ops.bench.planner"], env, place) as driver:
        driver.hear(READY_S)
        yield driver


def _services(log: Path) -> dict[str, int]:
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            found: dict[str, int] = json.loads(line)["services"]
            return found
    raise BenchFailed(f"`dlpipe up` did not say what it runs: {log.read_text()[-1000:]}")


def _await_ready(log: Path) -> None:
    until(lambda: log.exists() and " ready." in log.read_text(errors="replace"), f"{log.name} to be ready", READY_S)
