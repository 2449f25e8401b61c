"""Random histories of a download job, with time passed in: no illegal step, no wrong clock, no outage that fails."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dlpipe.core import torrents
from dlpipe.core.seen import SEEN
from dlpipe.core.torrents import (
    ACTIVE,
    MISSING_EXTERNAL_JOB,
    TERMINAL,
    Change,
    DownloadStatus,
    Torrent,
    TorrentPolicy,
    applied,
    decide,
    may_become,
)
from tests.torrent_jobs import NOON, job, torrent

Q, D, C, F, X = DownloadStatus
POLICY = TorrentPolicy()


class Histories(RuleBasedStateMachine):
    """A job, a client that does anything, and a second opinion on the clock kept in plain numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.job = job(Q)
        self.statuses = [self.job.status]
        self.absent_s: int | None = None
        """Whole seconds since it was first missed, as long as nobody saw it and no outage came between."""

    @initialize(status=st.sampled_from([Q, D]))
    def begin(self, status: DownloadStatus) -> None:
        self.job = job(status)
        self.statuses = [status]

    @rule(seconds=st.sampled_from([0, 1, 15, 29, 30, 31, 59, 60, 61, 600]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        if self.absent_s is not None:
            self.absent_s += seconds

    @rule(name=st.sampled_from([*sorted(SEEN), "odd"]), done=st.integers(0, 100))
    def seen_in(self, name: str, done: int) -> None:
        if self.job.status in ACTIVE:
            self.absent_s = None
        self._look(torrent(name, done), outage=False)

    @rule()
    def not_found(self) -> None:
        was, absent = self.job, self.absent_s
        self._look(None, outage=False)
        if was.status in TERMINAL:
            return
        if absent is None:
            self.absent_s = 0
        failed = self.job.status is F
        assert failed == (absent is not None and absent >= 60)
        if failed:
            assert self.job.failure_reason == MISSING_EXTERNAL_JOB

    @rule(name=st.sampled_from([None, *sorted(SEEN)]))
    def outage(self, name: str | None) -> None:
        before = self.job.status
        self._look(torrent(name) if name else None, outage=True)
        assert self.job.status is before
        if before in ACTIVE:
            self.absent_s = None

    @rule()
    def cancel(self) -> None:
        self._record(torrents.cancel(self.job))

    @rule()
    def give_up(self) -> None:
        self._record(torrents.give_up(self.job, "torrent_refused", "no"))

    def _look(self, observed: Torrent | None, outage: bool) -> None:
        changes = decide(self.job, observed, outage, self.now, POLICY)
        assert changes
        for change in changes:
            self._record(change)

    def _record(self, change: Change) -> None:
        before = self.job
        self.job = applied(before, change, self.now)
        if before.status in TERMINAL:
            assert self.job == before
        if self.job.status is not before.status:
            self.statuses.append(self.job.status)
        assert self.job.row_version == before.row_version + (self.job is not before)

    @invariant()
    def every_step_is_one_of_the_table(self) -> None:
        for source, target in zip(self.statuses, self.statuses[1:], strict=False):
            assert may_become(source, target)
        assert (self.job.completed_at_utc is not None) == (self.job.status is C)
        assert (self.job.failure_reason is not None) == (self.job.status is F)

    @invariant()
    def the_clock_runs_exactly_while_it_is_missing(self) -> None:
        if self.job.status in ACTIVE:
            since = self.job.first_not_found_at_utc
            assert (since is None) == (self.absent_s is None)
            if since is not None and self.absent_s is not None:
                assert self.now - since == timedelta(seconds=self.absent_s)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
