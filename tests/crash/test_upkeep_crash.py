"""A purge, a collection and a backfill are killed at every named point; a repeat goes on, and nothing is lost."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlpipe.db import SqlDatabase
from tests.checker import assert_clean
from tests.crash.conftest import Kill
from tests.crash.test_crash_points import points_in_the_source
from tests.crash.upkeep_child import UpkeepSite, die, work
from tests.ledgers import everything
from tests.world import World, sha256

pytestmark = pytest.mark.crash

JOBS = 9
POINTS = {
    "purge": {"purge.written": (1, 2), "purge.archived": (1, 2), "purge.deleting": (1, 2, 3), "purge.deleted": (1, 3)},
    "gc": {"gc.forgotten": (1,), "gc.moved": (1, 2), "gc.trashed": (1,), "gc.removed": (1, 2)},
    "backfill": {"backfill.brought": (1, 3), "backfill.recording": (1,), "backfill.recorded": (1,)},
}
CASES = [(what, point, n) for what, points in POINTS.items() for point, numbers in points.items() for n in numbers]


def test_every_crash_point_of_upkeep_has_a_case() -> None:
    named = {name for name in points_in_the_source() if name.startswith(tuple(f"{what}." for what in POINTS))}
    assert named == {point for points in POINTS.values() for point in points}


@pytest.fixture
def site(database: SqlDatabase, tmp_path: Path) -> UpkeepSite:
    return UpkeepSite(database.url.render_as_string(hide_password=False), tmp_path, 0.0)


@pytest.fixture
def world(database: SqlDatabase, site: UpkeepSite) -> World:
    made = World(database, site.root)
    for number in range(JOBS):
        url = f"https://example.org/{number}"
        made.source.put(url, bytes([number]) * 100)
    return made


def archived(site: UpkeepSite) -> dict[str, dict[str, Any]]:
    files = sorted(site.archives.glob("*.jsonl.gz")) if site.archives.exists() else []
    rows = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    return {row["job_id"]: row for row in rows}


def later(site: UpkeepSite) -> UpkeepSite:
    return replace(site, now=time.time() + 3_600)


@pytest.mark.parametrize(("what", "point", "number"), [case for case in CASES if case[0] == "purge"])
def test_a_killed_purge_loses_no_row(
    world: World, site: UpkeepSite, kill: Kill, what: str, point: str, number: int
) -> None:
    for n in range(JOBS):
        world.fetch(f"https://example.org/{n}")
    before = everything(world.database)
    kill(die, site, what, point, number)
    # Whoever is gone is in a whole archive, with all of his ops; whoever is there is there with all of them.
    there = {str(row.job_id) for row in world.sql("SELECT job_id FROM jobs")}
    held = archived(site)
    assert {str(row[0]) for row in before["jobs"]} - there <= held.keys()
    for job_id in held:
        assert len(held[job_id]["ops"]) == 6, "archived without its ops"
    for job_id in there:
        assert len(world.ops(job_id)) == 6, "half deleted"
    assert_clean(site.database_url, site.root)
    work(site, what)
    assert world.sql("SELECT job_id FROM jobs") == world.sql("SELECT op_key FROM artifact_ops") == []
    assert len(archived(site)) == JOBS == len(world.sql("SELECT job_id FROM purged_jobs"))
    assert [file.name for file in site.archives.iterdir() if file.suffix == ".tmp"] == []
    assert_clean(site.database_url, site.root)


@pytest.mark.parametrize(("what", "point", "number"), [case for case in CASES if case[0] == "gc"])
def test_a_killed_collection_takes_nothing_that_is_wanted(
    world: World, site: UpkeepSite, kill: Kill, what: str, point: str, number: int
) -> None:
    for n in range(4):
        world.fetch(f"https://example.org/{n}")
    work(site, "purge")
    kept = [world.fetch(f"https://example.org/{n}") for n in (0, 5)]  # one is wanted again, and one is new
    if point == "gc.removed":
        work(later(site), "gc")
    kill(die, later(site), what, point, number)
    assert_clean(site.database_url, site.root)
    work(later(site), what)
    work(replace(site, now=time.time() + 7_200), what)
    wanted = {bytes([0]) * 100, bytes([5]) * 100}
    assert {sha256(data) for data in world.blobs().values()} == {sha256(data) for data in wanted}
    assert all(world.artifacts(job_id) for job_id in kept)
    assert_clean(site.database_url, site.root)


@pytest.mark.parametrize(("what", "point", "number"), [case for case in CASES if case[0] == "backfill"])
def test_a_killed_backfill_goes_on_when_it_is_repeated(
    world: World, site: UpkeepSite, kill: Kill, what: str, point: str, number: int
) -> None:
    site.attic.mkdir()
    for n in range(5):
        (site.attic / str(n)).write_bytes(bytes([n]) * 100)
    site = replace(site, rows=tuple((f"https://example.org/{n}", str(n)) for n in range(5)))
    kill(die, site, what, point, number)
    assert_clean(site.database_url, site.root, strict=False)  # a file that was just placed has no row yet
    work(site, what)
    assert len(world.sql("SELECT job_id FROM jobs WHERE status = 'completed'")) == 5
    assert len(world.blobs()) == 5
    assert [path.read_bytes() for path in sorted(site.attic.iterdir())] == [bytes([n]) * 100 for n in range(5)]
    assert [name for name in world.staged() if name.endswith(".part")] == []
