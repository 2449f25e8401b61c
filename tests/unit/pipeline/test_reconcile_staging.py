"""The walk over staging with odd things in its way: each is passed over, and those behind it are done. HEAL-4."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.round import Report
from dlpipe.store import LocalStaging
from tests import forged
from tests.world import World

URL = "http://files.example/a.bin"
TENANTS = ("a", "m", "z")


@pytest.fixture
def later(world: World) -> World:
    """As of a day from now, so that all that lies there is old."""
    staging = LocalStaging(world.root, clock=lambda: time.time() + 86_400)
    world.deps = replace(world.deps, staging=staging)
    return world


def lay(world: World) -> None:
    """Parts of three tenants that no job wants, and whose sidecars name no job."""
    for tenant in TENANTS:
        part = forged.forge(world.root, URL, b"left", tenant=tenant)
        part.with_suffix(".json").write_bytes(b"torn")


def walked(world: World) -> Report:
    found = reconcile(world.deps)
    assert world.sql("SELECT position FROM cursors WHERE name = 'reconcile.staging'") in ([], [("",)])
    return found


def left(world: World, *tenants: str) -> list[str]:
    return [name for name in world.staged() if name.split("/")[0] in (tenants or TENANTS) and name.endswith(".part")]


@pytest.mark.parametrize("kind", forged.KINDS)
@pytest.mark.timeout(30)
def test_what_stands_in_a_tenants_place_hides_no_other_tenant(later: World, kind: Callable[[Path], None]) -> None:
    lay(later)
    (later.root / ".staging" / "b").parent.mkdir(exist_ok=True)
    kind(later.root / ".staging" / "b")
    found = walked(later)
    is_folder = (later.root / ".staging" / "b").is_dir() and not (later.root / ".staging" / "b").is_symlink()
    assert (found.parts_removed, found.unfinished) == (3, 0 if is_folder else 1)
    assert left(later) == []


@pytest.mark.parametrize("suffix", [".part", ".json"])
@pytest.mark.parametrize("kind", forged.KINDS)
@pytest.mark.timeout(30)
def test_what_is_no_file_is_told_and_hides_no_other_part(
    later: World, kind: Callable[[Path], None], suffix: str
) -> None:
    lay(later)
    odd = forged.path_of(later.root, URL, "m").with_suffix(suffix)
    kind(odd)
    found = walked(later)
    assert (found.parts_removed, found.unfinished, left(later, "a", "z")) == (2, 1, [])
    assert [one.did for one in found.findings if one.kind == "unfinished"] == ["staging_no_file"]
    assert os.path.lexists(odd)


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"a\nb", b"\x1b[2J", "\u202etxt".encode(), b"\xff" * 255, b"\xff.01234567.tmp", b"0" * 16]
)
def test_a_name_that_the_ledger_cannot_hold_hides_no_other_part(later: World, name: bytes) -> None:
    lay(later)
    for tenant in (b"a", b"m"):
        Path(os.fsdecode(os.path.join(os.fsencode(later.root), b".staging", tenant, name))).write_bytes(b"x")
    (later.root / ".staging" / os.fsdecode(name)).mkdir()
    assert walked(later).parts_removed == 3
    assert left(later) == []


def test_pages_that_end_at_odd_names_go_on_behind_them(later: World) -> None:
    names = [b"\xff\xfe", b"a\nb", b"\\udcff", "é".encode(), b"n.01234567.tmp"]
    folder = os.path.join(os.fsencode(later.root), b".staging", b"a")
    os.makedirs(folder)
    for name in names:
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(b"x")
    forged.fifo(later.root / ".staging" / "b")
    lay(later)
    seen: list[str] = []
    for _ in range(20):
        page = later.deps.staging.walk(seen[-1] if seen else "", 1)
        if not page:
            break
        seen.append(page[0].path)
    assert len(seen) == len(set(seen)) == len(names) + 1 + 3
    assert all(path.isascii() and path.isprintable() for path in seen)


def test_a_part_that_may_not_be_removed_hides_no_other_part(later: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(later)
    opened = os.open
    forbidden = forged.path_of(later.root, URL, "a").name

    def refuse(path: str, *arguments: int, dir_fd: int | None = None) -> int:
        if path == forbidden and os.readlink(f"/proc/self/fd/{dir_fd}").endswith("/a"):
            raise PermissionError(13, "no")
        return opened(path, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    found = walked(later)
    assert (found.parts_removed, found.unfinished) == (2, 1)
    assert len(left(later)) == 1


@pytest.mark.parametrize("job", ["\0", "a" * 300, "'; DROP TABLE jobs", "\ud800", "not-a-uuid"])
def test_a_job_that_cannot_be_one_hides_no_other_part(later: World, job: str) -> None:
    lay(later)
    part = forged.forge(later.root, URL, b"left", tenant="n")
    forged.restate(part, job_id=job)
    assert walked(later).parts_removed >= 3
    assert left(later) == []
