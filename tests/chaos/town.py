"""Everything that a run needs, up and real: servers, links that can break, workers, a scheduler, an origin."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from celery import Celery, chain

from dlpipe.core import flow
from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from tests.chaos.faults import LEASE_TTL_S, WORKERS
from tests.chaos.origin import ChaosOrigin
from tests.chaos.work import Job
from tests.fleet import Fleet, Process
from tests.link import Link
from tests.postgres import Postgres
from tests.servers import Valkey

HEAL_EVERY_S = 2.0
PART_AGE_S = 4.0
FILE_GRACE_S = 4.0
SETTINGS = {
    "DLPIPE_LEASE_TTL_S": str(LEASE_TTL_S),
    "DLPIPE_LEASE_RENEW_S": "1.5",
    "DLPIPE_HEAL_EVERY_S": str(HEAL_EVERY_S),
    "DLPIPE_HEAL_PART_AGE_S": str(PART_AGE_S),
    "DLPIPE_HEAL_FILE_GRACE_S": str(FILE_GRACE_S),
    "DLPIPE_DISPATCH_EVERY_S": "0.5",
    "DLPIPE_DISPATCH_LOST_AFTER_S": "2",
    "DLPIPE_RETRY_BASE_S": "0.2",
    "DLPIPE_RETRY_CAP_S": "2",
    # A job may meet many faults; giving up on it is another matter, and has its own tests.
    "DLPIPE_RETRY_MAX_ATTEMPTS": "60",
    "DLPIPE_NET_RETRIES": "2",
    "DLPIPE_NET_MAX_RETRY_SLEEP_S": "0.5",
    "DLPIPE_NET_RATE_PER_S": "0",
    "DLPIPE_NET_SLOT_TTL_S": "5",
    "DLPIPE_NET_BREAKER_OPEN_S": "1",
    "DLPIPE_NET_READ_S": "10",
}
_PLAN = """
import json, sys
from dlpipe import plan_many
summary = plan_many(map(json.loads, sys.stdin))
print(json.dumps({"created": summary.created, "known": summary.known, "skipped": summary.skipped,
                  "failed": summary.failed, "refused": summary.refused_count}))
"""
QUEUES = ("dlpipe.net", "dlpipe.disk")
_ROUND = re.compile(r"dlpipe\.reconcile\[[^]]*\] succeeded in [0-9.]+s: '(?!another one)")


def faketime() -> str | None:
    """The library that shifts a process's clock: the one named in LIBFAKETIME, else Debian's."""
    named = os.environ.get("LIBFAKETIME")
    found = [Path(named)] if named else sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return next((str(path) for path in found if path.is_file()), None)


class Town:
    """Up when the block begins, and all of it gone by its end."""

    def __init__(self, place: Path, jobs: Sequence[Job]) -> None:
        self.place, self.jobs = place, jobs
        self.library = faketime()
        self.workers: dict[int, Process] = {}
        self._turns = 0
        self._stack = ExitStack()

    def __enter__(self) -> Town:
        with ExitStack() as stack:
            enter = stack.enter_context
            (self.place / "redis").mkdir()
            self.redis = enter(Valkey(self.place / "redis"))
            self.postgres = enter(Postgres(self.place / "postgres"))
            self.url = self.postgres.create_database()
            self.database = SqlDatabase(self.url)
            migrate(self.database)
            stack.callback(self.database.close)
            name = self.database.url.database
            self.redis_link = enter(Link(self.redis.socket))
            self.database_link = enter(Link(str(self.postgres.socket_dir / ".s.PGSQL.5432")))
            redis_url = f"redis://127.0.0.1:{self.redis_link.port}/0"
            self.fleet = Fleet(
                self.place / "home", self.redis, **SETTINGS,
                DLPIPE_BROKER_URL=redis_url, DLPIPE_REDIS_URL=redis_url,
                DLPIPE_DATABASE_URL=f"postgresql+psycopg://postgres@127.0.0.1:{self.database_link.port}/{name}"
                "?sslmode=disable&gssencmode=disable",
            )  # fmt: skip
            self.fleet.database = self.database
            # A run that is over, or was broken off, has nothing to wait for.
            stack.callback(self._kill_all)
            self.origin = enter(ChaosOrigin(self.jobs, self.place / "access.jsonl"))
            self.line = enter(self.redis.client())
            self._sender = Celery("chaos", broker=f"redis+socket://{self.redis.socket}?virtual_host=0")
            self._sender.conf.update(task_ignore_result=True, broker_transport_options={"ack_emulation": False})
            stack.callback(self._sender.close)
            for number in range(1, WORKERS + 1):
                self.start_worker(number)
            self.beat = self.fleet.beat()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        for process in self.fleet.processes:
            for pid in family(process) if process.lives else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()

    # ── workers ──

    def start_worker(self, number: int) -> None:
        """A new process for this worker, also for one that was killed; its clock starts out right."""
        self._turns += 1
        name = f"w{number}.{self._turns}"
        pool = ["-P", "prefork", "-c", "2", "-X", "net"] if number == WORKERS else ["-P", "threads", "-c", "4"]
        env = {}
        if self.library is not None:
            self.set_clock(number, 0.0)
            env = {
                "LD_PRELOAD": self.library,
                "FAKETIME_TIMESTAMP_FILE": str(self._clock(number)),
                "FAKETIME_CACHE_DURATION": "1",
                # Leases and time-outs are told by the monotonic clock, which nobody can set on a real machine either.
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "NO_FAKE_STAT": "1",
                "PYTHONPATH": str(Path(__file__).parent / "shifted"),
            }
        self.workers[number] = self.fleet.celery(
            name, "worker", *pool, "-n", f"{name}@chaos", "-l", "INFO", "--without-gossip", "--without-mingle", **env
        )

    def set_clock(self, number: int, shift_s: float) -> None:
        self._clock(number).write_text(f"{shift_s:+.0f}\n")

    def _clock(self, number: int) -> Path:
        return self.place / f"clock-w{number}"

    def signal_worker(self, number: int, what: signal.Signals) -> None:
        for pid in family(self.workers[number]):
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def living_pids(self) -> set[int]:
        return {pid for worker in self.workers.values() if worker.lives for pid in family(worker)}

    def rounds(self) -> int:
        """How many rounds of reconcile the workers say they have carried out."""
        logs = (self.place / "home").glob("w*.log")
        return sum(len(_ROUND.findall(log.read_text(errors="replace"))) for log in logs)

    # ── jobs ──

    def plan(self, jobs: Sequence[Job]) -> subprocess.Popen[str]:
        """Plan from another process, as a caller does; planning again what is there does no harm."""
        asked = self.place / f"asked-{len(list(self.place.glob('asked-*')))}.jsonl"
        asked.write_text("".join(json.dumps(job.request(self.origin.url)) + "\n" for job in jobs))
        argv = [sys.executable, "-c", _PLAN]
        with asked.open() as lines, (self.place / "planning.log").open("a") as log:
            return subprocess.Popen(
                argv, stdin=lines, stdout=log, stderr=log, env=self.fleet.env, cwd=self.fleet.cwd, text=True
            )

    def ended(self) -> int:
        """How many jobs are at their end, asked directly and not over the link."""
        found = self.fleet.sql(
            "SELECT count(*) AS n FROM jobs WHERE status IN ('completed', 'skipped', 'failed', 'canceled')"
        )
        return int(found[0].n)

    # ── messages ──

    def in_the_broker(self) -> set[str]:
        """The jobs of which a message waits in a queue."""
        return {
            json.loads(base64.b64decode(json.loads(message)["body"]))[0][0]
            for queue in QUEUES
            for message in self.line.lrange(queue, 0, -1)
        }

    def send_again(self, seed: int, count: int) -> int:
        """Chains of jobs in any state, from any stage on, of this run and of older ones; copies of what waits."""
        draw = random.Random(seed)
        rows = self.fleet.sql("SELECT job_id, run FROM artifact_jobs WHERE run > 0 ORDER BY random() LIMIT :n", n=count)
        for row in rows:
            stages = flow.STAGES[draw.randrange(len(flow.STAGES)) :]
            run = draw.randint(1, row.run)
            links = [
                self._sender.signature(
                    f"dlpipe.{one.name}", args=(str(row.job_id), run), immutable=True, queue=one.queue.value
                )
                for one in stages
            ]
            chain(*links, app=self._sender).apply_async(retry=False)
        copied = 0
        for queue in QUEUES:
            for message in self.line.lrange(queue, 0, count - 1):
                self.line.rpush(queue, message)
                copied += 1
        return len(rows) + copied

    def lose_messages(self) -> int:
        lost = 0
        for queue in QUEUES:
            lost += int(self.line.llen(queue))
            self.line.delete(queue)
        return lost

    def leases(self) -> dict[str, str]:
        """Who holds which job, as Redis has it."""
        keys = [key.decode() for key in self.line.scan_iter("dlpipe:lease:*", count=1000)]
        tokens = self.line.mget(keys) if keys else []
        return {
            key.rpartition(":")[2]: token.decode() for key, token in zip(keys, tokens, strict=True) if token is not None
        }

    def staged(self) -> list[Path]:
        """What lies in the staging folders."""
        return [path for path in (self.fleet.home / "store" / ".staging").rglob("*") if not path.is_dir()]

    def rows(self) -> dict[str, Any]:
        """Every job that is not at its end."""
        found = self.fleet.sql(
            "SELECT t.* FROM artifact_jobs t JOIN jobs j ON j.job_id = t.job_id"
            " WHERE j.status IN ('pending', 'processing')"
        )
        return {str(row.job_id): row for row in found}


def family(process: Process) -> list[int]:
    """The process and its children."""
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return [process.pid, *map(int, listed.stdout.split())]
