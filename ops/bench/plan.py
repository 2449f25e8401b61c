"""Planning many jobs at once, against a COPY of the same rows into the same tables with the same indexes."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psycopg

from ops.bench.drive import planner
from ops.bench.failure import BenchFailed
from ops.bench.ground import Ground, settle
from ops.bench.options import Options
from ops.bench.processes import environment
from ops.bench.table import Kind, Row, turns

GROUP = "plan"
TABLES = ("jobs", "artifact_jobs")


def measure(ground: Ground, options: Options) -> list[Row]:
    rows = _planned_rows(ground, options.plan_rows)
    took: dict[str, list[float]] = {"ours": [], "copy": []}
    for number in range(options.rounds):
        for name in turns(list(took), number):
            settle()
            with ground.ledger() as url:
                took[name].append(
                    _plan(ground, url, options.plan_rows) if name == "ours" else _copy(url, rows, options.plan_rows)
                )
    what = f"planning {options.plan_rows:,} jobs, PostgreSQL"
    against = "COPY of the same rows into the same indexed tables"
    ours, theirs = tuple(took["ours"]), tuple(took["copy"])
    return [
        Row(GROUP, what, against, Kind.TIMES_THE_TIME, 3.0, "s", ours, theirs, note="checks and first sends included")
    ]


def _plan(ground: Ground, url: str, count: int) -> float:
    """By `plan_many`, with a broker to send to, as callers do it."""
    with ground.passing("plan") as place, ground.valkey() as broker:
        env = environment(
            place,
            DLPIPE_HOME=str(place / "home"),
            DLPIPE_DATABASE_URL=url,
            DLPIPE_BROKER_URL=f"redis+socket://{broker.socket}?virtual_host=0",
            DLPIPE_REDIS_URL=f"unix://{broker.socket}?db=0",
        )
        with planner(env, place) as driver:
            told = driver.ask({"plan": count})
    if (told["created"], told["refused"]) != (count, 0):
        raise BenchFailed(f"{count} jobs should be planned: {told}")
    _expect(url, count)
    return float(told["seconds"])


def _planned_rows(ground: Ground, count: int) -> Mapping[str, bytes]:
    """What planning writes, as COPY spells it."""
    with ground.ledger() as url:
        _plan(ground, url, count)
        with _connect(url) as connection:
            found = {}
            for table in TABLES:
                with connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as copy:
                    found[table] = b"".join(bytes(piece) for piece in copy)
    return found


def _copy(url: str, rows: Mapping[str, bytes], count: int) -> float:
    with _connect(url) as connection:
        began = time.monotonic()
        for table in TABLES:
            with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                copy.write(rows[table])
        connection.commit()
        took = time.monotonic() - began
    _expect(url, count)
    return took


def _expect(url: str, count: int) -> None:
    with _connect(url) as connection:
        query = "SELECT count(*) FROM jobs JOIN artifact_jobs USING (job_id) WHERE due_at IS NOT NULL"
        found = connection.execute(query).fetchone()
    if found != (count,):
        raise BenchFailed(f"{count} jobs should be due, there are {found}")


def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url.replace("+psycopg", ""))
