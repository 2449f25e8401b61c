"""What becomes of silent holders, lost files, stray files and old parts (HEAL-2 to HEAL-5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlpipe.core.model import Fault
from dlpipe.core.recovery import (
    Adopt,
    ClearMirror,
    GiveUp,
    HolderFacts,
    LeaveIt,
    Lost,
    Mended,
    NeedHash,
    RegisteredFacts,
    Remove,
    Requeue,
    SetApart,
    StagedFacts,
    StoredFacts,
    after_silence,
    believable,
    judge_registered,
    judge_staged,
    judge_stored,
)
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import State

RETRY = RetryPolicy(max_attempts=3, base_s=2.0, cap_s=300.0, server_cap_s=3600.0)
GONE = HolderFacts(State.STREAMING, run_due=False, attempts=0, owner_dead=False, ran_out=True, live=False)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (GONE, Requeue()),  # by both clocks
        (replace(GONE, live=True), LeaveIt("live in Redis")),
        (replace(GONE, ran_out=False), LeaveIt("held")),  # Redis may have lost everything
        (replace(GONE, ran_out=False, live=True), LeaveIt("held")),
        (replace(GONE, owner_dead=True, ran_out=False, live=True), Requeue()),  # no need to wait for the dead
        (replace(GONE, state=State.DEDUPED), ClearMirror()),  # nobody was lost
        (replace(GONE, state=State.CANCELED), ClearMirror()),
        (replace(GONE, state=State.FAILED), ClearMirror()),
        (replace(GONE, run_due=True), ClearMirror()),
        (replace(GONE, state=State.DEDUPED, live=True), LeaveIt("live in Redis")),
        (replace(GONE, attempts=1), Requeue()),
    ],
)
def test_a_holder_is_gone_when_row_and_redis_say_so_or_its_process_is_dead(facts: HolderFacts, verdict: object) -> None:
    assert after_silence(facts, "d", RETRY) == verdict


def test_a_job_whose_holders_are_lost_again_and_again_ends() -> None:
    verdict = after_silence(replace(GONE, attempts=2), "d", RETRY)
    assert isinstance(verdict, GiveUp)
    assert (verdict.write.code, verdict.write.due_after_s) == ("attempts_exhausted", None)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (RegisteredFacts(7, 7, marked=False), LeaveIt("there")),
        (RegisteredFacts(7, None, marked=False), Lost(Fault.MISSING)),
        (RegisteredFacts(7, 6, marked=False), Lost(Fault.DAMAGED)),  # no need to read it
        (RegisteredFacts(7, 7, marked=False, right=False), Lost(Fault.DAMAGED)),
        (RegisteredFacts(7, 7, marked=False, right=True), LeaveIt("there")),
        (RegisteredFacts(7, None, marked=True), LeaveIt("marked")),  # lost once, not every round
        (RegisteredFacts(7, 6, marked=True), LeaveIt("marked")),
        (RegisteredFacts(7, 7, marked=True), NeedHash()),  # its size says nothing of its bytes
        (RegisteredFacts(7, 7, marked=True, right=False), LeaveIt("marked")),
        (RegisteredFacts(7, 7, marked=True, right=True), Mended()),
        (RegisteredFacts(0, 0, marked=False), LeaveIt("there")),  # an empty file is one
    ],
)
def test_a_registered_file_is_lost_once_and_mended_only_when_its_bytes_are_right(
    facts: RegisteredFacts, verdict: object
) -> None:
    assert judge_registered(facts) == verdict


@pytest.mark.parametrize(
    ("looked_at", "missing", "at_most", "believed"),
    [
        (0, 0, 0, True),
        (3, 3, 100, True),  # a small store that lost all
        (100, 100, 100, True),
        (101, 101, 100, False),  # all of many: not mounted
        (2000, 1001, 100, False),
        (2000, 1000, 100, True),  # half of them are there, so the disk is
        (2000, 2000, 2000, True),  # the operator has said so
        (1, 1, 0, False),
    ],
)
def test_many_missing_files_at_once_are_a_disk_that_is_not_mounted(
    looked_at: int, missing: int, at_most: int, believed: bool
) -> None:
    assert believable(looked_at, missing, at_most) is believed


STRAY = StoredFacts(ours=True, named=True, known=False, age_s=100.0)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (STRAY, NeedHash()),
        (replace(STRAY, right=True), Adopt()),
        (replace(STRAY, right=False), SetApart()),
        (replace(STRAY, named=False), SetApart()),
        (replace(STRAY, known=True), LeaveIt("known")),
        (replace(STRAY, known=True, right=False), LeaveIt("known")),  # damage is for the walk over rows
        (replace(STRAY, age_s=99.9), LeaveIt("young")),
        (replace(STRAY, age_s=99.9, named=False), LeaveIt("young")),
        (replace(STRAY, age_s=-50.0), LeaveIt("young")),  # a clock that is behind
        (replace(STRAY, ours=False, named=False), LeaveIt("foreign")),
    ],
)
def test_a_stray_file_is_adopted_when_its_name_is_its_hash_else_set_apart(facts: StoredFacts, verdict: object) -> None:
    assert judge_stored(facts, grace_s=100.0) == verdict


OLD = StagedFacts(part=True, temporary=False, age_s=3600.0, vouched=True, job_known=True, wanted=False, leased=False)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (OLD, Remove("unwanted")),
        (replace(OLD, age_s=3599.0), LeaveIt("young")),
        (replace(OLD, wanted=True), LeaveIt("wanted")),
        (replace(OLD, leased=True), LeaveIt("leased")),
        (replace(OLD, job_known=False), LeaveIt("unknown job")),  # a lost database, or another one's store
        (replace(OLD, vouched=False, job_known=False), Remove("nothing vouches for it")),
        (replace(OLD, vouched=False, job_known=False, wanted=True), LeaveIt("wanted")),
        (replace(OLD, part=False, temporary=True, vouched=False, job_known=False), Remove("temporary")),
        (replace(OLD, part=False, temporary=True, age_s=0.0), LeaveIt("young")),
        (replace(OLD, part=False), LeaveIt("foreign")),
    ],
)
def test_only_old_parts_that_are_known_to_be_unwanted_are_removed(facts: StagedFacts, verdict: object) -> None:
    assert judge_staged(facts, age_s=3600.0) == verdict
