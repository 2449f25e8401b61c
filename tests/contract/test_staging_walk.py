"""The port Staging, looked at as a whole: what lies there, and its removal under its own lock (HEAL-4)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dlpipe.core.layout import part_slug
from dlpipe.core.ports import Staged, Staging
from dlpipe.store import LocalStaging
from tests.parts import URL, brought, claim, facts
from tests.world import staged

HOUR = 3_600.0
SLUG = part_slug("t", URL)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """As it will be two hours from now."""
    return LocalStaging(tmp_path, clock=lambda: time.time() + 2 * HOUR)


def walked(staging: Staging, page: int = 1000) -> list[Staged]:
    found: list[Staged] = []
    after = ""
    while True:
        some = staging.walk(after, page)
        found += some
        if len(some) < page:
            return found
        after = some[-1].path


def left(tmp_path: Path, tenant: str = "t", url: str = URL, job: str = "job") -> None:
    """A part that its holder left behind in the middle."""
    with LocalStaging(tmp_path).claim(tenant, url, job, 1) as part:
        part.begin(facts(100))
        part.write(b"abc")
        part.flush()


def lay(tmp_path: Path, name: str, data: bytes = b"x") -> None:
    (tmp_path / ".staging" / "t").mkdir(parents=True, exist_ok=True)
    (tmp_path / ".staging" / "t" / name).write_bytes(data)


def test_a_part_and_its_sidecar_are_one_with_the_job_that_held_it_last(staging: Staging, tmp_path: Path) -> None:
    left(tmp_path, job="mine")
    (found,) = walked(staging)
    assert (found.path, found.part, found.temporary, found.job_id) == (f"t/{SLUG}", SLUG, False, "mine")
    assert 2 * HOUR - 1 <= found.age_s <= 2 * HOUR + 120


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_all_that_lies_there_is_seen_once_whatever_the_pages_are(staging: Staging, tmp_path: Path, page: int) -> None:
    for tenant in ("t", "u", "u-2"):
        for number in range(3):
            left(tmp_path, tenant, f"{URL}?{number}")
    found = [one.path for one in walked(staging, page)]
    assert len(found) == len(set(found)) == 9


def test_temporary_names_are_told_from_parts_and_from_what_is_somebody_elses(staging: Staging, tmp_path: Path) -> None:
    names = {
        f"{SLUG}.part.0123abcd.new": True,
        f"{SLUG}.json.4711.12": True,
        "adopted.0123abcd.tmp": True,
        f"{'ab' * 32}.0123abcd.tmp": True,
        "notes.txt": False,
        "notes.tmp": False,
    }
    for name in names:
        lay(tmp_path, name)
    found = walked(staging)
    assert {one.path: one.temporary for one in found} == {f"t/{name}": is_one for name, is_one in names.items()}
    assert {one.part for one in found} == {None}


def test_a_torn_sidecar_names_no_job(staging: Staging, tmp_path: Path) -> None:
    left(tmp_path)
    lay(tmp_path, f"{SLUG}.json", b'{"body": "')
    (found,) = walked(staging)
    assert (found.part, found.job_id) == (SLUG, None)


@pytest.mark.parametrize("gone", [None, ".part", ".json"])
def test_an_old_part_is_removed_with_its_sidecar(staging: Staging, tmp_path: Path, gone: str | None) -> None:
    left(tmp_path)
    if gone:
        (tmp_path / ".staging" / "t" / f"{SLUG}{gone}").unlink()
    (found,) = walked(staging)
    assert staging.discard(found, HOUR) is True
    assert staged(tmp_path) == []
    assert staging.discard(found, HOUR) is False


def test_a_temporary_file_is_removed(staging: Staging, tmp_path: Path) -> None:
    lay(tmp_path, "adopted.0123abcd.tmp")
    (found,) = walked(staging)
    assert staging.discard(found, 3 * HOUR) is False  # too young
    assert staging.discard(found, HOUR) is True
    assert staged(tmp_path) == []


def test_a_part_that_somebody_holds_stays(staging: Staging, tmp_path: Path) -> None:
    with brought(tmp_path):
        (found,) = walked(staging)
        assert staging.discard(found, HOUR) is False
        assert len(staged(tmp_path)) == 2
    assert staging.discard(found, HOUR) is True


def test_a_part_that_was_touched_since_it_was_looked_at_stays(tmp_path: Path) -> None:
    now = LocalStaging(tmp_path)
    left(tmp_path)
    (seen,) = LocalStaging(tmp_path, clock=lambda: time.time() + 2 * HOUR).walk("", 9)
    assert now.discard(seen, HOUR) is False  # by its own look it is young
    left(tmp_path, job="another")
    later = LocalStaging(tmp_path, clock=lambda: time.time() + 2 * HOUR)
    assert later.discard(seen, HOUR) is False  # somebody else's by now
    assert len(staged(tmp_path)) == 2


def test_who_comes_after_a_removal_starts_anew(staging: Staging, tmp_path: Path) -> None:
    left(tmp_path)
    (found,) = walked(staging)
    assert staging.discard(found, HOUR) is True
    with claim(LocalStaging(tmp_path)) as part:
        assert (part.facts, part.offset) == (None, 0)


def test_a_symlink_is_nobodys_part(staging: Staging, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    (tmp_path / ".staging" / "t").mkdir(parents=True)
    os.symlink(outside, tmp_path / ".staging" / "t" / f"{SLUG}.part")
    (found,) = walked(staging)
    assert (found.part, found.temporary) == (None, False)
    assert outside.read_bytes() == b"precious"
