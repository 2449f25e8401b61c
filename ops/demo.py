"""The pipeline at work on this machine, in under a minute: `make demo` (ARGS=--keep leaves everything there).

Nothing here is canned: real commands run as processes of their own, a worker is really killed, and every figure is
read from the ledger, from the web server's log, or from a clock.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from ops import demo_check
from ops.demo_server import DemoServer, Sent

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
LARGE = "/survey/survey.tar"
LARGE_BYTES = 48 * MIB
LARGE_RATE = 4 * MIB
KILL_AT = 0.4
LONGEST_WAIT_S = 90.0
STAGES = ("head", "resume_decide", "stream", "finalize", "index", "dedupe")

T = TypeVar("T")


class DemoFailed(Exception):
    """Something that should have happened did not."""


# ── what is on the web server, and what is asked for ──────────────────────────────────────────────


def make_origin(origin: Path) -> list[dict[str, str]]:
    """Write the files and answer what to plan: two dozen requests, some for the same bytes in different ways."""
    chance = random.Random(2)  # the same files each time
    asked: list[dict[str, str]] = []

    def ask(work: str, path: str, content: bytes | None = None, project: str = "papers") -> None:
        if content is not None:
            file = origin / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        asked.append({"work_id": work, "project_id": project, "path": path})

    papers = [b"%PDF-1.7\n" + chance.randbytes(chance.randrange(40_000, 1_500_000)) for _ in range(12)]
    for n, content in enumerate(papers, start=1):
        ask(f"paper-{n:02}", f"/journal/paper-{n:02}.pdf", content)
    for n in (1, 2, 3):  # the same bytes from another address, for the same project
        ask(f"paper-{n:02}-preprint", f"/preprints/{n}.pdf", papers[n - 1])
    for n in (1, 2):  # the same bytes under two extensions
        content = b"id,value\n" + chance.randbytes(200_000).hex().encode()
        ask(f"table-{n}", f"/data/table-{n}.csv", content)
        ask(f"table-{n}-text", f"/data/table-{n}.txt", content)
    for n in (4, 5):  # the same bytes for another project
        ask(f"reading-{n}", f"/course/reading-{n}.pdf", papers[n - 1], project="teaching")
    ask("reading-6", "/journal/paper-06.pdf", project="teaching")  # the same address, for two projects
    ask("review-7", "/journal/paper-07.pdf")  # the same address, for two works
    ask("survey", LARGE, chance.randbytes(LARGE_BYTES))
    return asked


def write_csv(file: Path, requests: list[dict[str, str]], base: str) -> None:
    with file.open("w", newline="") as stream:
        out = csv.DictWriter(stream, ["url", "work_id", "artifact_id", "project_id", "media_type"])
        out.writeheader()
        for asked in requests:
            out.writerow(
                {
                    "url": base + asked["path"],
                    "work_id": asked["work_id"],
                    "artifact_id": "fulltext",
                    "project_id": asked["project_id"],
                    "media_type": "application/pdf" if asked["path"].endswith(".pdf") else "",
                }
            )


# ── looking on ────────────────────────────────────────────────────────────────────────────────────


class Ledger:
    """Reads the data directory's ledger from outside, as anybody with the sqlite3 program could."""

    def __init__(self, home: Path) -> None:
        self._file = home / "ledger.db"

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=10)) as db:
            db.row_factory = sqlite3.Row
            return db.execute(query, values).fetchall()

    def job_of(self, path: str) -> sqlite3.Row:
        found = self.rows("SELECT * FROM jobs JOIN artifact_jobs USING (job_id) WHERE canonical_url LIKE ?", f"%{path}")
        return found[0]

    def finished_ops(self) -> set[tuple[object, ...]]:
        return {tuple(row) for row in self.rows("SELECT * FROM artifact_ops WHERE state = 'finished'")}


class Teller:
    """Prints what happens with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._began

    def __call__(self, text: str) -> None:
        print(f"{self.passed_s:6.1f} s  {text}", flush=True)


def wait_for(look: Callable[[], T | None], what: str, process: subprocess.Popen[bytes] | None = None) -> T:
    """Look until there is an answer; DemoFailed when it takes too long, or the process that brings it has ended."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while True:
        found = look()
        if found is not None:
            return found
        if process is not None and process.poll() is not None:
            raise DemoFailed(f"dlpipe fetch ended with status {process.returncode} before {what}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"not within {LONGEST_WAIT_S:.0f} s: {what}")
        time.sleep(0.02)


def mib(count: float) -> str:
    return f"{count / MIB:.1f} MiB"


# ── the story ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Kill:
    """What the killed worker was in the middle of, and how it went on."""

    worker: str
    pid: int
    at: float
    sent_before: int
    offset: int = 0
    healed_after_s: float = 0.0


class Demo:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "data"
        self.origin = base / "origin"
        self.works = base / "works.csv"
        self.tell = Teller()
        self.ledger = Ledger(self.home)
        self.server: DemoServer
        self.fetch: subprocess.Popen[bytes] | None = None
        self.doubled = 0
        # Not the caller's settings: what is shown is the embedded default, in a directory of its own.
        foreign = ("DLPIPE_", "CELERY_", "FLOWER_")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {
            "DLPIPE_HOME": str(self.home),
            "DLPIPE_ALLOW_PRIVATE": "1",  # the web server is on this machine
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def run(self) -> bool:
        requests = make_origin(self.origin)
        self.server = DemoServer(self.origin, {LARGE: LARGE_RATE})
        self.server.start()
        write_csv(self.works, requests, self.server.url)
        served = len(self.server.files)
        self.tell(f"a web server on this machine has {served} files; one is slow: {LARGE_BYTES // MIB} MiB in 12 s")
        planned = self._dlpipe("plan", "-i", str(self.works))
        self.tell(f"dlpipe plan -i works.csv: {planned.stdout.decode().strip()}")
        self._start_fetch()
        kill = self._kill_a_worker()
        self._watch_it_heal(kill)
        before = self._send_everything_again()
        self._await_end(len(requests))
        again_s, again_sent = self._fetch_again(len(requests))
        self.server.stop()
        self._table(requests, kill)
        print("\nLooked at from outside, with sqlite3 and hashlib only:")
        good = demo_check.report(demo_check.check(self.home, self.origin))
        own = [
            self._nothing_sent_twice(kill),
            demo_check.Finding(
                f"{self.doubled} messages sent a second time changed nothing that was recorded",
                () if before.issubset(self.ledger.finished_ops()) else ("a finished op has changed",),
            ),
            demo_check.Finding(
                f"the same fetch again took {again_s:.1f} s and asked the web server nothing",
                () if again_sent == 0 else (f"it sent {again_sent} requests",),
            ),
        ]
        return demo_check.report(iter(own)) and good

    def _dlpipe(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "dlpipe", *words], cwd=self.base, env=self.env, capture_output=True, check=False
        )
        if done.returncode:
            raise DemoFailed(f"dlpipe {words[0]} ended with {done.returncode}: {done.stderr.decode().strip()}")
        return done

    def _start_fetch(self) -> None:
        with (self.base / "fetch.out").open("wb") as out, (self.base / "fetch.err").open("wb") as err:
            self.fetch = subprocess.Popen(
                [sys.executable, "-m", "dlpipe", "fetch", "-i", str(self.works), "--json"],
                cwd=self.base, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        self.tell("dlpipe fetch -i works.csv --json: starts a private Redis, workers, a scheduler")

    def _kill_a_worker(self) -> Kill:
        """Kill -9 the process that streams the large file, once the file is part-way."""

        def holder() -> tuple[str, int] | None:
            job = self.ledger.job_of(LARGE)
            if job["state"] != "STREAMING" or self.server.body_bytes(LARGE) < KILL_AT * LARGE_BYTES:
                return None
            services = json.loads((self.home / "run" / "stack.json").read_text())["services"]
            # An owner is spelled <node>.<pid>.<start time>.<token>.
            pid = int((job["lease_owner"] or "-.0").split(".")[1])
            return next(((name, pid) for name, known in services.items() if known == pid), None)

        worker, pid = wait_for(holder, "a worker is part-way through the large file", self.fetch)
        os.kill(pid, signal.SIGKILL)
        kill = Kill(worker, pid, time.monotonic(), self.server.body_bytes(LARGE))
        done = sum(
            row[0] for row in self.ledger.rows("SELECT count(*) FROM jobs WHERE status IN ('completed','skipped')")
        )
        self.tell(
            f"{done} files are done, the large one is at {mib(kill.sent_before)} of {mib(LARGE_BYTES)}: "
            f"kill -9 {pid} ({worker}, which streams it)"
        )
        return kill

    def _watch_it_heal(self, kill: Kill) -> None:
        """Wait until bytes flow again, by the web server's log."""

        def goes_on() -> Sent | None:
            later = [sent for sent in list(self.server.log) if sent.path == LARGE and sent.start and sent.body_bytes]
            return later[-1] if later else None

        kill.offset = wait_for(goes_on, "the large file is asked for again", self.fetch).start
        kill.healed_after_s = time.monotonic() - kill.at
        self.tell(f"{kill.healed_after_s:.1f} s after the kill, bytes flow again, from byte {kill.offset:,} on")

    def _send_everything_again(self) -> set[tuple[object, ...]]:
        """Send each message a second time, while work goes on; answer the finished ops as they were before."""
        # Read here and not at the top: it takes its settings from the environment, once.
        os.environ.clear()
        os.environ.update(self.env)
        from dlpipe import app

        before = self.ledger.finished_ops()
        jobs = self.ledger.rows("SELECT job_id, run FROM artifact_jobs")
        ids = [
            app.send_task(f"dlpipe.{stage}", args=(job["job_id"], job["run"])).id for job in jobs for stage in STAGES
        ]
        wanted = set(ids)
        logs = [self.home / "log" / f"worker{n}.log" for n in (1, 2)]

        def answered() -> Counter[str] | None:
            over = self.fetch is None or self.fetch.poll() is not None
            text = "".join(log.read_text(errors="replace") for log in logs)
            # Task dlpipe.head[<id>] succeeded in 0.01s: 'replayed: DEDUPED'
            found = re.findall(r"Task dlpipe\.\w+\[([0-9a-f-]{36})\] succeeded in \S+ '(\w+)", text)
            outcomes = Counter(outcome for task_id, outcome in found if task_id in wanted)
            return outcomes if over or outcomes.total() == len(ids) else None

        outcomes = wait_for(answered, "the doubled messages were answered")
        told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
        self.tell(f"all {len(ids)} stage messages sent again, by hand; the workers' answers: {told}")
        self.doubled = len(ids)
        return before

    def _await_end(self, wanted: int) -> None:
        assert self.fetch is not None
        code = wait_for(self.fetch.poll, "dlpipe fetch ends")
        records = [json.loads(line) for line in (self.base / "fetch.out").read_text().splitlines()]
        told = Counter(record["status"] for record in records)
        self.tell(f"dlpipe fetch ended with status {code}: " + ", ".join(f"{n} {what}" for what, n in told.items()))
        if code or len(records) != wanted:
            raise DemoFailed(f"dlpipe fetch: status {code}, {len(records)} of {wanted} records")

    def _fetch_again(self, wanted: int) -> tuple[float, int]:
        asked, began = len(self.server.log), time.monotonic()
        again = self._dlpipe("fetch", "-i", str(self.works), "--json")
        took = time.monotonic() - began
        records = [json.loads(line) for line in again.stdout.splitlines()]
        if [r["status"] for r in records] != ["skipped"] * wanted:
            raise DemoFailed("the second fetch did not skip what is there")
        self.tell(f"the same fetch again: {len(records)} skipped")
        return took, len(self.server.log) - asked

    # ── what came of it ───────────────────────────────────────────────────────────────────────────

    def _nothing_sent_twice(self, kill: Kill) -> demo_check.Finding:
        """The web server's log against the ledger: what it sent is what was written, and the killed worker's tail."""
        bad = []
        written: Counter[str] = Counter()
        runs: Counter[str] = Counter()
        for row in self.ledger.rows(
            "SELECT canonical_url, j.run, m.bytes_written FROM artifact_jobs j JOIN manifest m USING (job_id)"
        ):
            path = urlsplit(row["canonical_url"]).path
            written[path] += row["bytes_written"]
            runs[path] = max(runs[path], row["run"])
        for path, count in written.items():
            sent = self.server.body_bytes(path)
            if path != LARGE and sent != count and runs[path] == 1:
                bad.append(f"{path}: {sent} bytes sent, {count} written")
        again = self.server.body_bytes(LARGE) - LARGE_BYTES
        if not 0 <= again < kill.offset:
            bad.append(f"{again} bytes of the large file were sent again, and only {kill.offset} kept")
        return demo_check.Finding("the web server's log agrees with the ledger about every byte", tuple(bad))

    def _table(self, requests: list[dict[str, str]], kill: Kill) -> None:
        actions = Counter(row[0] for row in self.ledger.rows("SELECT dedupe_action FROM manifest"))
        known = self.ledger.rows("SELECT count(*) FROM artifact_jobs WHERE state = 'SKIPPED_DUPLICATE'")[0][0]
        names = [p for p in (self.home / "store").rglob("*") if p.is_file() and ".staging" not in p.parts]
        inodes = {p.stat().st_ino: p.stat().st_size for p in names}
        sent = sum(self.server.body_bytes(path) for path in self.server.files)
        asked_for = sum((self.origin / asked["path"].lstrip("/")).stat().st_size for asked in requests)
        again = self.server.body_bytes(LARGE) - LARGE_BYTES
        projects = len({asked["project_id"] for asked in requests})
        in_place = actions["skipped"] - known
        rows = {
            "planned": f"{len(requests)} files for {projects} projects, {mib(asked_for)}",
            "fetched": f"{mib(sent)} by the web server's own log",
            "resumed": f"{Path(LARGE).name} from byte {kill.offset:,} of {LARGE_BYTES:,}; {again:,} sent twice",
            "de-duplicated": f"{actions['hardlink']} hardlinked, {in_place} in their place, {known} known by address",
            "stored": f"{len(names)} names for {len(inodes)} files, {mib(sum(inodes.values()))}",
            "healed": f"{kill.healed_after_s:.1f} s from the kill to the next byte",
            "took": f"{self.tell.passed_s:.1f} s",
        }
        print()
        for name, text in rows.items():
            print(f"  {name:14} {text}")


def end_by_signal(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def finish(demo: Demo, command: str, good: bool, keep: bool) -> None:
    """End what still runs, say where things are, and what to do next."""
    if demo.fetch is not None and demo.fetch.poll() is None:
        demo.fetch.terminate()
        try:
            demo.fetch.wait(20)
        except subprocess.TimeoutExpired:
            demo.fetch.kill()  # its workers and its Redis die with it
            demo.fetch.wait()
    if good and not keep:
        shutil.rmtree(demo.base, ignore_errors=True)
        print(f"\nAll of it holds. {demo.base} is removed; `make demo ARGS=--keep` leaves it there.")
    else:
        print(
            f"\n{'All of it holds. ' if good else 'This did not go as it should. '}Everything is still in {demo.base}:"
        )
        print(f"  {demo.home / 'log'}, {demo.base / 'fetch.err'}, {demo.home / 'ledger.db'}")
        print(f"  DLPIPE_HOME={demo.home} {command} jobs --project papers")
    if good:
        print("\nTo go on:")
        print(f"  {command} fetch https://example.org/ --out ./files")
        print(f"  {command} jobs")
        print(f"  {command} --help")


def _command() -> str:
    """The dlpipe command as it can be typed here."""
    beside = Path(sys.executable).with_name("dlpipe")
    if not beside.exists():
        return f"{sys.executable} -m dlpipe"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)


def main() -> int:
    options: Any = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--keep", action="store_true", help="leave the data directory there")
    keep: bool = options.parse_args().keep
    signal.signal(signal.SIGTERM, end_by_signal)
    base = Path(tempfile.mkdtemp(prefix="dlpipe-demo-")).resolve()
    print(f"Everything happens in {base}\n", flush=True)
    command = _command()
    os.chdir(base)  # a dlpipe.toml of the caller's folder is not ours
    demo, good = Demo(base), False
    try:
        good = demo.run()
    except DemoFailed as error:
        print(f"\nfailed: {error}")
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # what runs is ended first, and that takes a few seconds
        print("\ninterrupted")
        return 130
    finally:
        finish(demo, command, good, keep)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
