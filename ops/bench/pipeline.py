"""Jobs per second through all six stages, on real workers; each round of each contestant on new ledgers and folders."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from dlpipe.core.flow import STAGES, Queue
from dlpipe.db import SqlDatabase
from ops.bench.drive import READY_S, each_once, planner, up
from ops.bench.failure import Absent, BenchFailed
from ops.bench.ground import Ground, Sample, expect, settle
from ops.bench.options import Options
from ops.bench.processes import PEERS, ROOT, Driver, Lasting, environment, peers_python
from ops.bench.table import Kind, Row, turns
from tests.servers import Valkey

GROUP = "pipeline"
WARM = 40
WORKERS, THREADS, HELPER_THREADS = 2, 4, 2
"""As the one-machine stack has them."""
DBOS_PROCESSES, DBOS_THREADS = 2, 8
_LONGEST_S = 600.0

Contestant = Callable[[Ground, Sequence[Sample], Sequence[Sample]], float]
"""Carry out the first few to be warm, and then the others; answer the seconds of the others."""


def _unbounded(count: int) -> dict[str, str]:
    """One server on this machine plays many hosts, so the limits that spare a host are off."""
    window = str(max(2_000, count))
    return {
        "DLPIPE_NET_RATE_PER_S": "0",
        "DLPIPE_NET_SLOTS_PER_HOST": "0",
        "DLPIPE_DISPATCH_WINDOW": window,
        "DLPIPE_DISPATCH_WINDOW_PER_HOST": window,
    }


# ── ours ──────────────────────────────────────────────────────────────────────────────────────────


def ours_on_postgres(ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample]) -> float:
    with ground.ledger() as url:
        return _ours(ground, warm, jobs, url)


def ours_without_reuse(ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample]) -> float:
    """Each request on a connection of its own, as to an origin that sent bytes behind an answer."""
    with ground.ledger() as url:
        return _ours(ground, warm, jobs, url, reuse=False)


def ours_on_sqlite(ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample]) -> float:
    return _ours(ground, warm, jobs, None)


def _ours(
    ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample], url: str | None, *, reuse: bool = True
) -> float:
    both = [*warm, *jobs]
    with ground.passing("ours") as place, up(place, url, **_unbounded(len(both))) as stack:
        if not reuse:
            stack.mark(jobs[0])
        stack.fetch(warm)
        settle()
        took = stack.fetch(jobs)
        stack.assert_each_once(both)
    return took


def ours_trivial(ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample]) -> float:
    """The same workers on the same ledger, with stages that do nothing."""
    both = [*warm, *jobs]
    with ground.passing("trivial") as place, ground.ledger() as url, ground.valkey() as broker, ExitStack() as stack:
        home = {"DLPIPE_HOME": str(place / "home"), "DLPIPE_ALLOW_PRIVATE": "1", "DLPIPE_DATABASE_URL": url}
        env = environment(place, **home, **_brokers(broker), **_unbounded(len(both)))
        celery = [sys.executable, "-m", "celery", "-A", "ops.bench.trivial", "worker", "-P", "threads", "-l", "INFO"]
        celery += ["--without-mingle", "--without-gossip"]
        for number in range(WORKERS):
            words = ["-c", str(THREADS), "-Q", f"{Queue.NET},{Queue.DISK}", "-n", f"w{number}@%h"]
            stack.enter_context(_worker(f"worker{number}", [*celery, *words], env, place))
        words = ["-c", str(HELPER_THREADS), "-X", Queue.NET.value, "-n", "helper@%h"]
        stack.enter_context(_worker("helper", [*celery, *words], env, place))
        driver = stack.enter_context(planner(env, place))
        driver.ask({"urls": [sample.url for sample in warm]})
        settle()
        told = driver.ask({"urls": [sample.url for sample in jobs]})
        ledger = SqlDatabase(url)
        stack.callback(ledger.close)
        each_once(ledger, len(both), registered=False)
    return float(told["seconds"])


def _brokers(broker: Valkey) -> dict[str, str]:
    return {
        "DLPIPE_BROKER_URL": f"redis+socket://{broker.socket}?virtual_host=0",
        "DLPIPE_REDIS_URL": f"unix://{broker.socket}?db=0",
    }


@contextmanager
def _worker(name: str, argv: list[str], env: dict[str, str], place: Path) -> Iterator[Lasting]:
    with Lasting(name, argv, env, place) as worker:
        worker.until(" ready.", READY_S)
        yield worker


# ── the peers ─────────────────────────────────────────────────────────────────────────────────────


def bare_celery(ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample]) -> float:
    with ground.passing("celery") as place, ground.valkey() as broker:
        names = {"BENCH_BROKER": f"redis+socket://{broker.socket}?virtual_host=0", "BENCH_REDIS": broker.url}
        env = environment(place, **names)
        module = "ops.bench.peers.celery_chain"
        # As it is, so it logs no task; that it is ready is seen by its first answers.
        worker = [sys.executable, "-m", "celery", "-A", module, "worker"]
        with (
            Lasting("celery", worker, env, place),
            Driver("sender", [sys.executable, "-m", module], env, place) as sender,
        ):
            sender.hear(READY_S)
            sender.ask({"jobs": [sample.url for sample in warm]})
            told = sender.ask({"jobs": [sample.url for sample in jobs]})
        if not told["each_once"]:
            raise BenchFailed("the bare chain lost or doubled a job")
        return float(told["seconds"])


def dbos_on_postgres(ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample]) -> float:
    with ground.passing("dbos") as place, ground.database() as url:
        took = _dbos(url, place, warm, jobs, DBOS_PROCESSES)
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            counts = [connection.execute(query.encode()).fetchone() for query in _counted("dbos.")]
        _check_dbos([row[0] if row else -1 for row in counts], place, [*warm, *jobs])
    return took


def dbos_on_sqlite(ground: Ground, warm: Sequence[Sample], jobs: Sequence[Sample]) -> float:
    with ground.passing("dbos-sqlite") as place:
        file = place / "dbos.sqlite"
        # One process: with one writer at a time a second one only makes both wait.
        took = _dbos(f"sqlite:///{file}", place, warm, jobs, 1)
        connection = sqlite3.connect(file)
        try:
            counts = [connection.execute(query).fetchone()[0] for query in _counted("")]
        finally:
            connection.close()
        _check_dbos(counts, place, [*warm, *jobs])
    return took


def _dbos(url: str, place: Path, warm: Sequence[Sample], jobs: Sequence[Sample], processes: int) -> float:
    python, script = peers_python(), str(ROOT / "ops" / "bench" / "peers" / "dbos_six.py")
    env = environment(place)
    env.pop("PYTHONPATH")
    with ExitStack() as stack:
        drivers = []
        for number in range(processes):
            argv = [python, script, url, str(place / "files"), f"executor{number}", str(DBOS_THREADS)]
            driver = stack.enter_context(Driver(f"dbos{number}", argv, env, place))
            driver.hear(READY_S)  # one after the other, as the first one makes the tables
            drivers.append(driver)
        _ask_all(drivers, warm)
        settle()
        return _ask_all(drivers, jobs)


def _ask_all(drivers: Sequence[Driver], samples: Sequence[Sample]) -> float:
    """Each has its share; the time until the last one is done."""
    began = time.monotonic()
    for number, driver in enumerate(drivers):
        driver.tell({"urls": [sample.url for sample in samples[number :: len(drivers)]]})
    for driver in drivers:
        driver.hear(_LONGEST_S)
    return time.monotonic() - began


def _counted(schema: str) -> list[str]:
    return [
        f"SELECT count(*) FROM {schema}workflow_status WHERE status = 'SUCCESS'",  # noqa: S608
        *(f"SELECT count(*) FROM {table}" for table in ("six_artifacts", "six_hashes", "six_urls", "six_manifest")),  # noqa: S608
    ]


def _check_dbos(counts: Sequence[int], place: Path, samples: Sequence[Sample]) -> None:
    if list(counts) != [len(samples)] * len(counts):
        raise BenchFailed(f"DBOS: {len(samples)} workflows and effects should be on record, there are {counts}")
    for sample in samples:
        expect(place / "files" / "store" / sample.sha256[:2] / f"{sample.sha256}.bin", sample, "DBOS")


# ── side by side ──────────────────────────────────────────────────────────────────────────────────

CONTESTANTS: dict[str, Contestant] = {
    "ours": ours_on_postgres,
    "no-reuse": ours_without_reuse,
    "dbos": dbos_on_postgres,
    "trivial": ours_trivial,
    "celery": bare_celery,
    "ours-sqlite": ours_on_sqlite,
    "dbos-sqlite": dbos_on_sqlite,
}


def measure(ground: Ground, options: Options) -> list[Row]:
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    missing = {} if PEERS.exists() else dict.fromkeys(("dbos", "dbos-sqlite"), "not installed: the peers' packages")
    warm, jobs = ground.small("warm", WARM), ground.small("jobs", options.jobs)
    for number in range(options.rounds):
        for name in turns(list(CONTESTANTS), number):
            if name in missing:
                continue
            settle()
            try:
                rates[name].append(len(jobs) / CONTESTANTS[name](ground, warm, jobs))
            except Absent as absent:
                missing[name] = str(absent)
    six = f"{len(STAGES)} steps"

    def row(what: str, ours: str, against: str, theirs: str, bound: float | None) -> Row:
        why = missing.get(ours) or missing.get(theirs) or ""
        figures = tuple(rates[ours]), tuple(rates[theirs])
        return Row(GROUP, what, against, Kind.TIMES_THE_RATE, bound, "jobs/s", *figures, why)

    return [
        row("10 KiB files through all stages, PostgreSQL", "ours", f"DBOS, the same {six} and effects", "dbos", 2.0),
        row("the same", "ours", "the same, of a marked origin: no connection is used twice", "no-reuse", None),
        row("the same, trivial effects", "trivial", "a bare Celery chain of six, defaults, no ledger", "celery", 1.3),
        row("the same, SQLite embedded", "ours-sqlite", "DBOS on SQLite", "dbos-sqlite", 2.5),
    ]
