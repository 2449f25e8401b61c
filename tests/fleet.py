"""Real workers, a real scheduler and a real broker, as a user would start them; each is ended by its pid."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import sqlalchemy as sa
from celery import Celery
from kombu.pools import connections, producers

from dlpipe import defaults
from dlpipe.db import SqlDatabase
from dlpipe.db.engine import is_busy
from dlpipe.embedded.process import birth
from dlpipe.embedded.tether import tethered
from dlpipe.settings import load
from tests.forks import Forked, Forks, forks
from tests.servers import Valkey, state_of, wait_until
from tests.shelf import Folder, Shelf
from tests.world import sha256, staged

REPOSITORY = Path(__file__).resolve().parents[1]
QUICK = {
    "DLPIPE_LEASE_TTL_S": "2",
    "DLPIPE_LEASE_RENEW_S": "0.5",
    "DLPIPE_HEAL_EVERY_S": "1",
    "DLPIPE_DISPATCH_EVERY_S": "0.5",
    "DLPIPE_DISPATCH_LOST_AFTER_S": "2",
    "DLPIPE_RETRY_BASE_S": "0.1",
    "DLPIPE_NET_READ_S": "300",  # gates are shut for as long as a test wants
}
END_S = 20.0
_PLAN = """
import json, sys
from dlpipe import plan_many
summary = plan_many(json.loads(line) for line in sys.stdin)
print(json.dumps({"created": summary.created, "refused": summary.refused_count}))
"""


class Process:
    """One child; its output is in a file."""

    def __init__(self, name: str, argv: list[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name, self.log = name, log
        self._child: Forked | subprocess.Popen[bytes]
        with log.open("ab") as out:
            if Forks.fit(argv, env, cwd):
                self._child = forks().start(argv, env, cwd, out.fileno())
            else:
                self._child = subprocess.Popen(
                    tethered(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
        self.pid = self._child.pid

    @property
    def lives(self) -> bool:
        return self._child.poll() is None

    def says(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        """All of its threads: SIGSTOP comes to one after the other."""
        try:
            return all(state_of(int(task)) == "T" for task in os.listdir(f"/proc/{self.pid}/task"))
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            return False

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._child.wait(END_S)

    def ended_with(self, number: signal.Signals, within_s: float) -> int | None:
        """Its exit status after that signal; None when it did not end in time and had to be killed."""
        self.send(number)
        try:
            return self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def stop(self) -> None:
        """Warm shutdown, as an operator does it."""
        if self.lives:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)
            try:
                self._child.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()


class Fleet:
    """On the broker, its own SQLite and its own folder, unless the settings name others; the shelf is as they say."""

    def __init__(self, home: Path, broker: Valkey, shelf: Shelf | None = None, /, **settings: str) -> None:
        self.home, self.broker, self.shelf = home, broker, shelf or Folder()
        home.mkdir(parents=True, exist_ok=True)
        self.env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(home),
            "DLPIPE_HOME": str(home),
            "DLPIPE_ALLOW_PRIVATE": "1",
            "DLPIPE_BROKER_URL": f"redis+socket://{broker.socket}?virtual_host=0",
            "DLPIPE_REDIS_URL": f"unix://{broker.socket}?db=0",
            "PYTHONWARNINGS": "ignore",
            **settings,
        }
        self.cwd = REPOSITORY
        self.processes: list[Process] = []
        self.database = SqlDatabase(settings.get("DLPIPE_DATABASE_URL", f"sqlite:///{home / 'ledger.db'}"))
        self._looks: Celery | None = None

    # ── starting ──

    def celery(self, name: str, *words: str, within: Sequence[str] = (), **env: str) -> Process:
        """`within`: a command that runs another one, as `ip netns exec` does."""
        argv = [*within, sys.executable, "-m", "celery", "-A", "dlpipe", *words]
        process = Process(name, argv, {**self.env, **env}, self.cwd, self.home / f"{name}.log")
        self.processes.append(process)
        return process

    def worker(
        self, name: str, *more: str, pool: str = "threads", size: int = 4, within: Sequence[str] = (), **env: str
    ) -> Process:
        """A worker that is ready to take work when this returns."""
        process = self.celery(
            name, "worker", "-P", pool, "-c", str(size), "-n", f"{name}@test", "-l", "INFO",
            "--without-gossip", "--without-mingle", *more, within=within, **env,
        )  # fmt: skip
        self.until(lambda: process.says("ready."), f"worker {name} to be ready", process)
        return process

    def beat(self) -> Process:
        return self.celery("beat", "beat", "-s", str(self.home / "schedule"), "-l", "INFO")

    def python(self, code: str, text: str = "") -> str:
        """Run a piece of code in a plain Python process; answers what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=text, env=self.env, cwd=self.cwd, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def plan(self, urls: list[str], **fields: Any) -> None:
        """Plan from another process, as a caller does."""
        lines = "".join(json.dumps({"url": url, **fields}) + "\n" for url in urls)
        assert json.loads(self.python(_PLAN, lines)) == {"created": len(urls), "refused": 0}

    # ── looking ──

    def sql(self, text: str, **values: Any) -> list[Any]:
        with self.database.read() as unit:
            return list(unit._connection.execute(sa.text(text), values).all())

    def states(self) -> dict[str, int]:
        found = self.sql("SELECT state, count(*) AS n FROM artifact_jobs GROUP BY state")
        return {row.state: row.n for row in found}

    def done(self) -> int:
        return self.states().get("DEDUPED", 0)

    def job(self, url: str) -> Any:
        return self.sql("SELECT * FROM artifact_jobs WHERE request_url = :url", url=url)[0]

    def job_id(self, url: str) -> str:
        """As callers and messages have it; engines have types of their own."""
        return str(self.job(url).job_id)

    def waiting(self) -> int:
        """How many messages for stages lie in the broker and were given to nobody."""
        from dlpipe.celery import CeleryPublisher  # it reads settings

        if self._looks is None:
            self._looks = Celery("looks", set_as_current=False)
            self._looks.config_from_object(defaults.config(load(self.env).settings))
        found = CeleryPublisher(self._looks).waiting()
        assert found is not None, "the broker does not answer"
        return sum(queue.messages for queue in found)

    def blobs(self) -> dict[str, bytes]:
        """The finished files by their names."""
        return self.shelf.contents(self.home / "store")

    def staged(self) -> list[str]:
        return staged(self.home / "store")

    def ledger(self) -> dict[str, list[Any]]:
        """All that must not change when a late worker comes back."""
        tables = "jobs artifact_jobs artifact_ops artifacts job_artifacts hash_index url_index manifest".split()
        return {table: sorted(map(repr, self.sql(f"SELECT * FROM {table}"))) for table in tables}

    def until(self, condition: Any, what: str, process: Process | None = None, within_s: float = 90.0) -> None:
        """Wait; when it does not come, say where everything stands."""

        def look() -> bool:
            if process is not None and not process.lives:
                raise RuntimeError(f"{process.name} ended:\n{process.log.read_text()[-3000:]}")
            return bool(condition())

        try:
            wait_until(look, what, within_s)
        except TimeoutError as error:
            file = self.database.sqlite_file
            states = self.states() if file is None or file.exists() else {}
            logs = "".join(f"\n── {p.name} ──\n{p.log.read_text()[-1500:]}" for p in self.processes)
            raise TimeoutError(f"{error}; {states}{logs}") from None

    def _ledger_is_free(self) -> bool:
        """Nobody is in the middle of writing into it."""
        file = self.database.sqlite_file
        try:
            if file is None:
                with self.database.engine.connect() as connection:
                    connection.execute(sa.text("SELECT 1 FROM artifact_jobs FOR UPDATE NOWAIT"))
            else:
                with closing(sqlite3.connect(file, timeout=0.0, isolation_level=None)) as connection:
                    connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        except sa.exc.OperationalError as error:
            if not isinstance(error.orig, psycopg.errors.LockNotAvailable):
                raise
            return False
        return True

    def freeze(self, process: Process) -> None:
        """SIGSTOP, but not while it writes jobs into the ledger: on SQLite that stops everybody (docs/faults.md).

        For a worker of threads: the children of another one are not stopped.
        """

        def froze() -> bool:
            process.send(signal.SIGSTOP)
            self.until(lambda: process.is_stopped, f"{process.name} to stand still", process)
            if self._ledger_is_free():
                return True
            process.send(signal.SIGCONT)
            return False

        self.until(froze, f"a moment at which {process.name} writes nothing", process)

    def assert_each_once(self, bodies: Mapping[str, bytes]) -> None:
        """Every URL's job is done, every effect recorded once, every file right, and nothing is left over."""
        assert self.states() == {"DEDUPED": len(bodies)}
        rows = self.sql(
            "SELECT j.request_url AS url, a.sha256, a.byte_size, a.storage_pointer FROM artifact_jobs j"
            " JOIN artifacts a ON a.created_by_job_id = j.job_id"
        )
        assert sorted((row.url, row.sha256) for row in rows) == sorted(
            (url, sha256(body)) for url, body in bodies.items()
        )
        for op in ("FINALIZE", "INDEX", "DEDUPE"):
            counts = self.sql(
                "SELECT state, count(*) AS n, count(DISTINCT job_id) AS jobs FROM artifact_ops"
                " WHERE op_type = :op GROUP BY state",
                op=op,
            )
            assert [(row.state, row.n, row.jobs) for row in counts] == [("finished", len(bodies), len(bodies))]
        assert self.sql("SELECT count(*) AS n FROM manifest")[0].n == len(bodies)
        assert sorted(map(sha256, self.blobs().values())) == sorted({sha256(b) for b in bodies.values()})
        assert self.staged() == []

    # ── ending ──

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self.processes):
            process.stop()
        if self._looks is not None:
            disconnect(self._looks)
        self.database.close()


def disconnect(app: Celery) -> None:
    """Close its connections too; by itself it leaves that to whoever collects the garbage."""
    pool: Any = app.pool
    pool.force_close_all()
    for group in (connections, producers):  # kept for all apps of the process, by their brokers' addresses
        for broker in [broker for broker, kept in group.items() if pool in (kept, getattr(kept, "connections", None))]:
            group.pop(broker)
    app.close()


def is_gone(pid: int) -> bool:
    return birth(pid) is None
