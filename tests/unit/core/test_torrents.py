"""Decisions about download jobs: the whole table, every word of the client, the grace to the second."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import product

import pytest

from dlpipe.core import torrents
from dlpipe.core.seen import SEEN
from dlpipe.core.torrents import (
    ACTIVE,
    MISSING_EXTERNAL_JOB,
    MISSING_FILES,
    TABLE,
    TERMINAL,
    TORRENT_ERROR,
    Begin,
    Cancel,
    Change,
    ClockStopped,
    Complete,
    DownloadJob,
    DownloadStatus,
    Fail,
    FoundAgain,
    Movement,
    NotFoundSince,
    Nothing,
    Stalled,
    Torrent,
    TorrentPolicy,
    UnknownState,
    applied,
    decide,
    origins,
)
from tests.torrent_jobs import NOON, job, torrent

Q, D, C, F, X = DownloadStatus
POLICY = TorrentPolicy()
GRACE = timedelta(seconds=60)
TICK = timedelta(microseconds=1)


def look(one: DownloadJob, observed: Torrent | None, now: datetime = NOON, outage: bool = False) -> tuple[Change, ...]:
    return decide(one, observed, outage, now, POLICY)


# The table.


def test_the_table_is_the_one_of_the_specification() -> None:
    assert set(TABLE) == {(Q, D), (Q, F), (Q, X), (D, C), (D, F), (D, X)}  # TORRENT-1
    assert {Q, D} == ACTIVE
    assert {C, F, X} == TERMINAL
    assert origins(C) == {D}
    assert origins(F) == origins(X) == {Q, D}
    assert origins(Q) == frozenset()


CHANGES: tuple[Change, ...] = (
    Begin(), Complete(), Fail("x", "y"), Cancel(), NotFoundSince(NOON), FoundAgain(), ClockStopped(),
    UnknownState("odd"), Stalled(NOON), Nothing(),
)  # fmt: skip


@pytest.mark.parametrize(("source", "change"), list(product(DownloadStatus, CHANGES)))
def test_a_change_is_applied_where_the_table_has_it_and_nowhere_else(source: DownloadStatus, change: Change) -> None:
    before = job(source)
    target = torrents.target(change)
    if target is not None and (source, target) not in TABLE:
        with pytest.raises(ValueError, match="cannot become"):
            applied(before, change, NOON)
        return
    after = applied(before, change, NOON)
    assert after.status is (target or source)
    if isinstance(change, UnknownState | Stalled | Nothing):
        assert after is before
    else:
        assert (after.row_version, after.updated_at_utc) == (8, NOON)


def test_what_a_change_writes() -> None:
    absent = job(D, NOON - timedelta(seconds=5))
    assert applied(job(D), Complete(), NOON).completed_at_utc == NOON
    assert applied(job(D), Fail("why", "for people"), NOON).failure_reason == "why"
    assert applied(job(D), NotFoundSince(NOON), NOON).first_not_found_at_utc == NOON
    assert applied(absent, FoundAgain(), NOON).first_not_found_at_utc is None
    assert applied(absent, ClockStopped(), NOON).first_not_found_at_utc is None
    assert applied(absent, Begin() if absent.status is Q else Cancel(), NOON).completed_at_utc is None


# The client's words.

# serialize_torrent.cpp of 4.5.2 and 5.3.0; the documentation of 4.1 adds the last two.
NAMES_4_5 = (
    "error missingFiles uploading pausedUP queuedUP stalledUP checkingUP forcedUP downloading metaDL forcedMetaDL"
    " pausedDL queuedDL stalledDL checkingDL forcedDL checkingResumeData moving unknown"
).split()
NAMES_5 = [name.replace("paused", "stopped") for name in NAMES_4_5]
DOCUMENTED = ["allocating", "queuedForChecking"]


def test_the_map_has_every_name_that_any_version_reports_and_no_other() -> None:
    assert set(SEEN) == {*NAMES_4_5, *NAMES_5, *DOCUMENTED}


AT_WORK, ENDED, UNCHANGED = ((Begin(),), (Nothing(),)), ((Begin(), Complete()), (Complete(),)), ((Nothing(),),) * 2
FAILS = {"error": TORRENT_ERROR, "missingFiles": MISSING_FILES}
EXPECTED = {
    **dict.fromkeys("downloading forcedDL metaDL forcedMetaDL stalledDL queuedDL allocating".split(), AT_WORK),
    **dict.fromkeys("uploading forcedUP queuedUP stalledUP pausedUP stoppedUP".split(), ENDED),
    **dict.fromkeys("pausedDL stoppedDL checkingDL checkingUP checkingResumeData moving".split(), UNCHANGED),
    "queuedForChecking": UNCHANGED,
}


@pytest.mark.parametrize("name", sorted(SEEN))
def test_what_each_name_makes_of_a_queued_and_of_a_downloading_job(name: str) -> None:
    found = look(job(Q), torrent(name)), look(job(D), torrent(name))
    if name == "unknown":
        assert found == ((UnknownState("unknown"),),) * 2
    elif name in FAILS:
        for changes in found:
            assert [change.code for change in changes if isinstance(change, Fail)] == [FAILS[name]]
            assert len(changes) == 1
    else:
        assert found == EXPECTED[name]


@pytest.mark.parametrize("name", ["", "seedingForTheNextDecade", "StalledDL"])
def test_a_name_that_nobody_knows_changes_nothing_and_is_reported(name: str) -> None:
    assert look(job(D), torrent(name)) == (UnknownState(name),)


@pytest.mark.parametrize(("status", "name"), list(product(sorted(TERMINAL), sorted(SEEN))))
def test_a_job_that_has_ended_stays_as_it_is_whatever_the_client_says(status: DownloadStatus, name: str) -> None:
    assert look(job(status), torrent(name)) == (Nothing(),)
    assert look(job(status), None) == (Nothing(),)
    assert look(job(status, NOON - 2 * GRACE), None) == (Nothing(),)
    assert look(job(status, NOON - 2 * GRACE), None, outage=True) == (Nothing(),)


def test_complete_at_the_first_look_is_two_steps_and_not_a_jump() -> None:
    changes = look(job(Q), torrent("stalledUP"))
    assert changes == (Begin(), Complete())
    after = job(Q)
    for change in changes:
        after = applied(after, change, NOON)
    assert (after.status, after.row_version) == (C, 9)


def test_a_completed_job_that_is_checked_again_stays_completed() -> None:
    for name in ("checkingUP", "checkingDL", "stalledDL", "missingFiles"):
        assert look(job(C), torrent(name)) == (Nothing(),)


def test_with_every_file_deselected_nothing_is_complete() -> None:
    assert look(job(D), torrent("uploading", progress=0.0)) == (Nothing(),)
    assert look(job(Q), torrent("stalledUP", progress=0.999)) == (Nothing(),)


def test_a_job_that_was_never_handed_over_is_not_missing() -> None:
    assert look(job(Q, external=None), None) == (Nothing(),)


# The grace, to the second (TORRENT-5).


@pytest.mark.parametrize("status", [Q, D])
def test_not_found_starts_the_clock_and_its_end_fails_the_job(status: DownloadStatus) -> None:
    assert look(job(status), None) == (NotFoundSince(NOON),)
    absent = job(status, NOON)
    for early in (NOON, NOON + TICK, NOON + GRACE - TICK, NOON - timedelta(seconds=3)):
        assert look(absent, None, early) == (Nothing(),)
    for late in (NOON + GRACE, NOON + GRACE + TICK, NOON + timedelta(days=3)):
        [change] = look(absent, None, late)
        assert isinstance(change, Fail)
        assert change.code == MISSING_EXTERNAL_JOB


def test_the_grace_is_what_the_policy_says() -> None:
    policy = TorrentPolicy(grace_s=1.5)
    late = NOON + timedelta(seconds=1.5)
    assert decide(job(D, NOON), None, False, late - TICK, policy) == (Nothing(),)
    assert isinstance(decide(job(D, NOON), None, False, late, policy)[0], Fail)


@pytest.mark.parametrize("name", ["stalledDL", "stoppedDL", "moving", "odd", "stalledUP", "error"])
def test_found_again_clears_the_clock_before_anything_else_even_after_the_grace(name: str) -> None:
    first, *rest = look(job(D, NOON), torrent(name), NOON + 10 * GRACE)
    assert first == FoundAgain()
    assert tuple(rest) == tuple(c for c in look(job(D), torrent(name), NOON + 10 * GRACE) if c != Nothing())


@pytest.mark.parametrize("status", [Q, D])
@pytest.mark.parametrize("observed", [None, torrent("error"), torrent("stalledUP")])
def test_in_an_outage_nothing_is_believed_and_no_clock_runs(status: DownloadStatus, observed: Torrent | None) -> None:
    assert look(job(status), observed, outage=True) == (Nothing(),)
    absent = job(status, NOON)
    assert look(absent, observed, NOON + GRACE, outage=True) == (ClockStopped(),)
    afterwards = applied(absent, ClockStopped(), NOON + GRACE)
    assert look(afterwards, None, NOON + GRACE) == (NotFoundSince(NOON + GRACE),)


# Stalls, for people.


def test_a_stall_is_told_by_bytes_and_fails_no_job_for_a_month() -> None:
    watched = torrents.watch(None, torrent("downloading", 40), NOON)
    assert watched == Movement(40, NOON)
    # The words change, the bytes do not.
    assert torrents.watch(watched, torrent("stalledDL", 40), NOON + GRACE) == watched
    assert torrents.watch(watched, torrent("stalledDL", 41), NOON + GRACE) == Movement(41, NOON + GRACE)
    late = NOON + timedelta(seconds=POLICY.stall_s)
    assert decide(job(D), torrent("downloading", 40), False, late - TICK, POLICY, watched) == (Nothing(),)
    assert decide(job(D), torrent("downloading", 40), False, late, POLICY, watched) == (Stalled(NOON),)
    assert decide(job(Q), torrent("metaDL"), False, late, POLICY, watched) == (Begin(), Stalled(NOON))
    month = NOON + timedelta(seconds=POLICY.stalled_max_s)
    assert decide(job(D), torrent("stalledDL", 40), False, month - TICK, POLICY, watched) == (Stalled(NOON),)
    (fail,) = decide(job(D), torrent("stalledDL", 40), False, month, POLICY, watched)
    assert isinstance(fail, Fail)
    assert (fail.code, fail.message) == ("torrent_stalled", "no byte of the torrent has come for 30 days")


@pytest.mark.parametrize("name", ["queuedDL", "stoppedDL", "pausedDL", "checkingDL", "moving", "stalledUP", "error"])
def test_what_is_not_at_work_does_not_stall(name: str) -> None:
    assert torrents.watch(Movement(40, NOON), torrent(name, 40), NOON + GRACE) is None
    assert torrents.watch(Movement(40, NOON), None, NOON + GRACE) is None


# What people ask for.


@pytest.mark.parametrize("status", DownloadStatus)
def test_cancel_and_giving_up_end_what_is_active_and_nothing_else(status: DownloadStatus) -> None:
    active = status in ACTIVE
    assert torrents.cancel(job(status)) == (Cancel() if active else Nothing())
    assert torrents.give_up(job(status), "refused", "no") == (Fail("refused", "no") if active else Nothing())
