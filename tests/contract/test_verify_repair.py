"""`dlpipe verify --repair`: what was lost comes back through the ordinary machinery. OPS-6, HEAL-3."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.db import SqlDatabase
from dlpipe.pipeline import repair
from tests.checker import assert_clean, findings
from tests.finished import Finished


@pytest.fixture
def done(database: SqlDatabase, tmp_path: Path) -> Finished:
    return Finished(database, tmp_path)


def repaired(done: Finished) -> repair.Repair:
    wrong = findings(done.url, done.root)
    assert {one.code for one in wrong} <= {"file_missing", "file_size", "file_damaged"}
    accused = [repair.Accused(one.job_id or "", f"local:{one.path}") for one in wrong]
    outcome = repair.bring_again(done.world.deps, accused, registered=5)
    repair.rounds(done.world.deps)
    return outcome


def test_a_missing_file_is_fetched_again(done: Finished) -> None:
    path = done.path(done.large)
    path.unlink()
    outcome = repaired(done)
    assert (outcome.jobs_reopened, outcome.artifacts_marked, outcome.left_alone) == (1, 1, 0)
    done.world.drive()
    assert_clean(done.url, done.root, strict=False)
    repair.rounds(done.world.deps)
    assert_clean(done.url, done.root)
    assert path.is_file()


@pytest.mark.parametrize("data", [b"short", b"c" * 70_000], ids=["cut", "changed"])
def test_wrong_bytes_are_set_aside_and_the_right_ones_come(done: Finished, data: bytes) -> None:
    path = done.path(done.large)
    right = path.read_bytes()
    done.write(path, data)
    assert repaired(done).jobs_reopened == 1
    done.world.drive()
    repair.rounds(done.world.deps)
    assert_clean(done.url, done.root)
    assert path.read_bytes() == right


def test_a_file_that_is_right_after_all_is_left_alone(done: Finished) -> None:
    accused = repair.Accused(done.large, "local:" + str(done.path(done.large).relative_to(done.root)))
    before = done.world.everything()
    outcome = repair.bring_again(done.world.deps, [accused], registered=5)
    assert outcome == repair.Repair(left_alone=1)
    assert done.world.everything() == before


def test_a_store_that_is_empty_all_at_once_is_not_taken_for_lost(done: Finished) -> None:
    done.world.policy(heal=replace(done.world.deps.policy.heal, max_missing=2))
    for job in (done.fetched, done.twin, done.large):
        done.path(job).unlink()
    before = done.world.everything()
    wrong = [one for one in findings(done.url, done.root) if one.path]
    accused = [repair.Accused(one.job_id or "", f"local:{one.path}") for one in wrong]
    assert repair.bring_again(done.world.deps, accused, registered=5).refused
    assert done.world.everything() == before


def test_a_file_that_two_jobs_share_comes_back_for_both(done: Finished) -> None:
    """One fetched it, the other was skipped, as its URL was known."""
    assert done.path(done.fetched) == done.path(done.known)
    done.path(done.fetched).unlink()
    assert repaired(done).jobs_reopened == 2
    done.world.drive()
    repair.rounds(done.world.deps)
    done.world.drive()
    assert_clean(done.url, done.root)
