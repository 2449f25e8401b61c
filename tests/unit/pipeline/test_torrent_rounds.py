"""Random histories of torrents, outages and rounds, against a model that is written on its own (TORRENT-1, 4, 5)."""

from __future__ import annotations

import shutil
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dlpipe.core.errors import TorrentOutage
from dlpipe.core.seen import SEEN, Seen
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import torrents
from tests.fakes.torrents import Held
from tests.torrent_world import TorrentWorld, info_hash
from tests.world import DEFAULT

NUMBERS = st.integers(min_value=0, max_value=3)
# Mostly words that end nothing, so that histories grow old enough for the grace to matter.
STATES = st.sampled_from(["downloading", "stalledDL", "checkingDL"] * 6 + [*SEEN, "fromTheFuture"])
TIMES = st.sampled_from([0.0, 1.0, 15.0, 15.0, 29.999, 30.0, 30.0, 44.9, 45.0, 45.001, 60.0, 3600.0])
OUTAGES = st.sampled_from([False, False, False, True])
GRACE, GAP = timedelta(seconds=60), timedelta(seconds=45)
ALLOWED = {
    "queued": {"queued", "downloading", "failed", "canceled"},
    "downloading": {"downloading", "completed", "failed", "canceled"},
}
ENDED = {"completed", "failed", "canceled"}


class Rounds(RuleBasedStateMachine):
    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        root = Path(self.directory.name)
        file = shutil.copyfile(self.template, root / "ledger.db")
        self.database = SqlDatabase(f"sqlite:///{file}")
        self.world = TorrentWorld(self.database, root)
        self.client = self.world.client
        self.jobs: dict[str, int] = {}
        self.rows: dict[str, Any] = {}
        self.taken_away: dict[int, Held] = {}
        # The model: since when each job's torrent is known to be away, and when the client last answered.
        self.away_since: dict[str, datetime] = {}
        self.answered: datetime | None = None
        self.outage_seen = False

    @initialize()
    def some_are_under_way(self) -> None:
        for number in range(4):
            self.jobs[self.world.downloading(number)] = number
        self.rows, self.answered = self.seen(), self.world.now

    # ── what people and the client do ──

    @rule(number=NUMBERS)
    def start(self, number: int) -> None:
        answer = self.world.start(number)
        active = [job for job, of in self.jobs.items() if of == number and self.rows[job].status not in ENDED]
        assert [answer.job_id] == active if active else answer.job_id not in self.jobs
        self.jobs[answer.job_id] = number

    @rule()
    def work(self) -> None:
        self.world.drive()

    @rule()
    def lose_messages(self) -> None:
        self.world.messages.queue.clear()

    @rule()
    def send_again(self) -> None:
        torrents.send_due(self.world.deps, self.world.now + timedelta(hours=1))

    @rule(number=NUMBERS, state=STATES, done=st.integers(min_value=0, max_value=2))
    def say(self, number: int, state: str, done: int) -> None:
        if info_hash(number) in self.client.held:
            if SEEN.get(state) is Seen.COMPLETE:
                self.world.finish(number, {f"{number}.epub": b"x" * (number + 1)}, state)
            else:
                self.client.say(info_hash(number), state, done)

    @rule(number=NUMBERS)
    def take_away(self, number: int) -> None:
        if info_hash(number) in self.client.held:
            self.taken_away[number] = self.client.remove(info_hash(number))

    @rule(number=NUMBERS)
    def put_back(self, number: int) -> None:
        if number in self.taken_away and info_hash(number) not in self.client.held:
            self.client.put_back(self.taken_away.pop(number))

    @rule(down=st.booleans())
    def outage(self, down: bool) -> None:
        self.client.outage = TorrentOutage("away") if down else None

    @precondition(lambda self: self.jobs)
    @rule(at=st.integers(min_value=0, max_value=40))
    def cancel(self, at: int) -> None:
        job_id = dict(enumerate(self.jobs)).get(at)  # rarely there, or nothing would grow old
        if job_id is not None:
            torrents.cancel(self.world.deps, DEFAULT, job_id)

    # ── the round, and what it must come to ──

    @rule(passed_s=TIMES)
    def one_more(self, passed_s: float) -> None:
        self.one_round(passed_s)

    @rule(number=NUMBERS, steps=st.lists(st.tuples(TIMES, OUTAGES), min_size=2, max_size=8))
    def absence(self, number: int, steps: list[tuple[float, bool]]) -> None:
        """A torrent is away for a while, in which the client is, too, now and then."""
        self.outage(False)
        self.take_away(number)
        self.one_round(15.0)
        for passed_s, down in steps:
            self.every_step_is_of_the_table()
            self.outage(down)
            self.one_round(passed_s)

    def one_round(self, passed_s: float) -> None:
        followed = {
            job: row for job, row in self.rows.items() if row.status not in ENDED and row.external_job_id is not None
        }
        self.world.sync(passed_s)
        now = self.world.now
        after = self.seen()
        if self.client.outage is not None:
            assert after == self.rows, "an outage changed a job"
            self.outage_seen = self.outage_seen or bool(followed)
            return
        if not followed:
            return
        if self.outage_seen or (self.answered is not None and now - self.answered > GAP):
            self.away_since.clear()
        self.answered, self.outage_seen = now, False
        for job in followed:
            there = info_hash(self.jobs[job]) in self.client.held
            since = None if there else self.away_since.setdefault(job, now)
            if there:
                self.away_since.pop(job, None)
            overdue = since is not None and now - since >= GRACE
            reason = after[job].failure_reason
            assert (reason == "missing_external_job") == overdue, f"{job}: away since {since}, now {now}: {reason}"
            if not overdue:
                # To the millisecond, which is what SQLite keeps.
                assert after[job].first_not_found_at_utc == (None if since is None else since)

    @invariant()
    def every_step_is_of_the_table(self) -> None:
        after = self.seen()
        for job, row in self.rows.items():
            if row.status in ENDED:
                assert after[job].changes == row.changes, "what had ended changed"
            else:
                assert after[job].status in ALLOWED[row.status]
        for row in after.values():
            assert row.job_status == {
                "queued": "pending", "downloading": "processing", "completed": "completed", "failed": "failed",
                "canceled": "canceled",
            }[row.status]  # fmt: skip
        assets = self.world.sql("SELECT count(*) FROM media_assets")[0][0]
        books = {row.book for row in after.values() if row.status == "completed"}
        assert assets == len(books)
        self.rows = after

    def seen(self) -> dict[str, Any]:
        with self.database.read() as unit:
            found = unit.torrents.again(sorted(self.jobs))
            views = [unit.torrents.get(DEFAULT, one.job.job_id) for one in found]
        return {
            one.job.job_id: Row(one.job, view.status.value)
            for one, view in zip(found, views, strict=True)
            if view is not None
        }

    def teardown(self) -> None:
        self.database.close()
        self.directory.cleanup()


class Row:
    """What of a job must not change by itself: all but when it was looked at."""

    def __init__(self, job: Any, job_status: str) -> None:
        self.status: str = job.status.value
        self.external_job_id: str | None = job.external_job_id
        self.first_not_found_at_utc: datetime | None = job.first_not_found_at_utc
        self.failure_reason: str | None = job.failure_reason
        self.book: str = job.book_id
        self.job_status = job_status
        self.changes = (job.status, job.row_version, job.updated_at_utc, job.completed_at_utc, job.failure_reason)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.changes)


@pytest.fixture
def machine(sqlite_template: Path) -> type[Rounds]:
    Rounds.template = sqlite_template
    return Rounds


@pytest.mark.slow
def test_rounds_over_random_histories(machine: type[Rounds]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=20,
            # A failing history is printed as it was; making it smaller takes longer than reading it.
            phases=[Phase.generate],
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
