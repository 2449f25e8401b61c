"""PostgreSQL ends for good in the middle of the work, and a standby takes its place; both stand in the address. OPS-3.

With a synchronous standby nothing is lost; one that lags behind has forgotten what the last results were.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import make_url

from dlpipe.core.errors import LedgerUnavailable
from tests import postgres as servers
from tests.fleet import QUICK, REPOSITORY, Fleet
from tests.postgres import Postgres, require
from tests.servers import Valkey, wait_until
from tests.shelf import Shelf
from tests.webserver import WebServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.own_engines("two servers of its own, of which one takes the place of the other", "ledger"),
]

PASSWORD = "n0t-t0-be-t0ld"
GOOD = 6
PATIENT = {
    **QUICK,
    "DLPIPE_LEASE_TTL_S": "6",
    "DLPIPE_LEASE_RENEW_S": "1",
    "DLPIPE_DATABASE_CONNECT_S": "2",
    "DLPIPE_DATABASE_STATEMENT_S": "6",
    "DLPIPE_DATABASE_LOCK_S": "3",
    "DLPIPE_RETRY_CAP_S": "1",
}


class Pair:
    """A server that writes, and a standby that gets all that it writes, until `lag`."""

    def __init__(self, place: Path) -> None:
        self.first = Postgres(place / "first")
        try:
            folder = place / "second"
            folder.mkdir()
            copy = [
                str(servers.programs() / "pg_basebackup"), "-h", str(self.first.socket_dir), "-U", "postgres",
                "-D", str(folder / "data"), "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
            ]  # fmt: skip
            if os.geteuid() == 0:
                shutil.chown(folder, servers._NOBODY, servers._NOBODY)
            subprocess.run(copy, cwd=place, capture_output=True, check=True, timeout=60, **servers._identity())
            self.second = Postgres(folder)
            # From now on a commit counts when both have it.
            self.tell(self.first, "ALTER SYSTEM SET synchronous_standby_names = '*'")
            wait_until(self.in_step, "the standby to be in step")
        except BaseException:
            self.first.stop()
            raise

    def tell(self, server: Postgres, text: str) -> None:
        with server.connect() as admin:
            admin.execute(text.encode())
            admin.execute("SELECT pg_reload_conf()")

    def in_step(self) -> bool:
        with self.first.connect() as admin:
            return admin.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone() is not None

    def lag(self) -> None:
        """What is committed from now on, the standby never hears of."""
        self.tell(self.first, "ALTER SYSTEM SET synchronous_standby_names = ''")
        self.tell(self.second, "ALTER SYSTEM SET primary_conninfo = ''")

        def apart() -> bool:
            with self.first.connect() as admin:
                return admin.execute("SELECT 1 FROM pg_stat_replication").fetchone() is None

        wait_until(apart, "the standby to hear nothing any more")

    def promote(self) -> None:
        with self.second.connect() as admin:
            assert admin.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    def url(self, name: str) -> str:
        """As operations.md has it."""
        hosts = "&".join(f"host={quote(str(server.socket_dir))}" for server in (self.first, self.second))
        return f"postgresql+psycopg://postgres:{PASSWORD}@/{name}?{hosts}&target_session_attrs=read-write"

    def stop(self) -> None:
        self.second.stop()
        self.first.stop()


@pytest.fixture
def pair() -> Iterator[Pair]:
    require()
    with tempfile.TemporaryDirectory(prefix="dlpipe-pair-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)  # PostgreSQL is run as nobody by root
        both = Pair(Path(directory))
        try:
            yield both
        finally:
            both.stop()


def dlpipe(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dlpipe", *words]
    return subprocess.run(argv, env=fleet.env, cwd=REPOSITORY, capture_output=True, text=True, timeout=90)


def done(fleet: Fleet) -> int:
    with suppress(LedgerUnavailable):
        return fleet.done()
    return 0


def under_way(fleet: Fleet) -> int:
    return int(fleet.sql("SELECT count(*) AS n FROM artifact_ops WHERE state = 'started'")[0].n)


@pytest.mark.parametrize("standby", ["in step", "behind"])
def test_a_standby_takes_over_in_the_middle_and_all_jobs_end_once(
    standby: str, pair: Pair, broker: Valkey, tmp_path: Path, broker_settings: Mapping[str, str], shelf: Shelf
) -> None:
    with broker.client() as client:
        client.flushall()
    name = str(make_url(pair.first.create_database()).database)
    settings = {**PATIENT, **broker_settings, **shelf.settings, "DLPIPE_DATABASE_URL": pair.url(name)}
    with WebServer() as web, Fleet(tmp_path / "home", broker, shelf, **settings) as fleet:
        assert dlpipe(fleet, "migrate").returncode == 0

        def some(word: str) -> dict[str, bytes]:
            return {web.put(f"/{word}-{n}", body): body for n in range(GOOD) if (body := os.urandom(4_000 + n))}

        before, between, after = some("before"), some("between"), some("after")
        held = web.put("/held", held_body := os.urandom(400_000), hold_at=200_000)
        workers = [fleet.worker("w1"), fleet.worker("w2", pool="prefork", size=2)]
        fleet.beat()
        fleet.plan([*before, *between])
        fleet.until(lambda: done(fleet) >= 2, "some jobs to end", workers[0])
        if standby == "behind":
            pair.lag()
        fleet.plan([held])
        fleet.until(lambda: web.sent("/held") >= 200_000, "a stream to be half-way", workers[0])
        fleet.until(lambda: done(fleet) >= GOOD, "more jobs to end", workers[0])
        pair.first.kill()
        fleet.until(lambda: all(worker.says("did not answer") for worker in workers), "both to notice", workers[0])
        pair.promote()
        if standby == "behind":  # as whoever plans would: it answers what it has
            planned = fleet.python(
                "import json, sys\nfrom dlpipe import plan_many\n"
                "print(plan_many({'url': url} for url in json.load(sys.stdin)).refused_count)",
                f'["{held}"]',
            )
            assert planned.strip() == "0"
        web.release("/held")
        fleet.plan(list(after))
        bodies = {**before, **between, **after, held: held_body}
        fleet.until(lambda: done(fleet) == len(bodies), "all jobs to end", within_s=120)
        assert all(worker.lives for worker in workers)
        fleet.until(lambda: fleet.staged() == [], "parts that nobody wants to go")
        fleet.until(lambda: under_way(fleet) == 0, "a round to mark what a forgotten fence stood in the way of")
        fleet.assert_each_once(bodies)
        for process in fleet.processes:
            process.stop()
        checked = dlpipe(fleet, "verify", "--strict", "--json")
        assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr
        said = "".join(process.log.read_text(errors="replace") for process in fleet.processes)
        assert PASSWORD not in said
