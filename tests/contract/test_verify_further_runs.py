"""Further runs leave rows that a first one would not: the checker accuses none, and healing goes by the newest (OPS-6).

On both engines.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.core.model import Fault, Scope
from dlpipe.core.states import State
from dlpipe.core.wishes import Wish
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import backfill
from dlpipe.pipeline.backfill import Line
from dlpipe.pipeline.reconcile import reconcile
from tests.checker import assert_clean, findings
from tests.world import World, some_bytes

URL, TWIN = "http://files.example/a.bin", "http://files.example/twin"
FIRST, SECOND = some_bytes(3_000), some_bytes(3_001)


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path) -> World:
    made = World(database, tmp_path / "store")
    made.source.put(URL, FIRST)
    made.source.put(TWIN, FIRST)
    return made


def grant(world: World, wish: Wish, job: str) -> None:
    with world.database.write() as unit:
        assert unit.owned(Scope()).grant(wish, [job]) == [job]


def refreshed(world: World, job: str, body: bytes) -> None:
    world.source.put(URL, body, etag=f'"{len(body)}"')
    grant(world, Wish.REFRESH, job)
    world.drive()


def url_of(world: World) -> str:
    return world.database.url.render_as_string(hide_password=False)


def clean(world: World) -> None:
    reconcile(world.deps)
    assert_clean(url_of(world), world.root)


@pytest.mark.parametrize("upto", ["resume_decide", "stream", "finalize"])
def test_a_backfilled_job_whose_refresh_was_taken_back_is_as_it_was(world: World, tmp_path: Path, upto: str) -> None:
    (tmp_path / "old").write_bytes(SECOND)
    line = Line(1, {"url": URL, "path": "old"})
    (done,) = backfill.backfill(world.deps, Scope(), str(tmp_path), [line])
    job = done.job_id  # type: ignore[union-attr]
    grant(world, Wish.REFRESH, job)
    world.run_to(upto, job)
    grant(world, Wish.CANCEL, job)
    world.policy(heal=replace(world.deps.policy.heal, part_age_s=0.0))
    assert world.state(job) is State.DEDUPED
    clean(world)


def test_a_file_brought_again_may_share_with_others_than_the_first_time(world: World) -> None:
    """Both have the bytes of one file, and it is damaged: the one who comes first has nobody to share with any more."""
    first, second = world.fetch(URL), world.fetch(TWIN)
    (one,), (other,) = world.artifacts(first), world.artifacts(second)
    path = Path(world.deps.store.path(other.storage_pointer))
    assert path.stat().st_ino == Path(world.deps.store.path(one.storage_pointer)).stat().st_ino
    path.chmod(0o644)
    path.write_bytes(bytes(len(FIRST)))
    path.chmod(0o444)
    assert reconcile(world.deps).jobs_reopened == 2
    for job in (second, first):
        for stage in ("head", "resume_decide", "stream", "finalize", "index", "dedupe"):
            world.run(stage, job, 2)
    assert [world.state(job) for job in (first, second)] == [State.DEDUPED] * 2
    clean(world)


def test_the_first_bytes_that_are_the_newest_again_are_missed_and_brought_again(world: World) -> None:
    job = world.fetch(URL)
    (artifact,) = world.artifacts(job)
    refreshed(world, job, SECOND)
    refreshed(world, job, FIRST)
    path = Path(world.deps.store.path(artifact.storage_pointer))
    path.unlink()
    assert reconcile(world.deps).jobs_reopened == 1
    world.drive()
    assert path.read_bytes() == FIRST
    clean(world)


def test_the_first_bytes_that_are_the_newest_again_are_no_earlier_result(world: World) -> None:
    """Marked as missing, they are missing all the same."""
    job = world.fetch(URL)
    (artifact,) = world.artifacts(job)
    refreshed(world, job, SECOND)
    refreshed(world, job, FIRST)
    Path(world.deps.store.path(artifact.storage_pointer)).unlink()
    with world.database.write() as unit:
        assert unit.registry.add_fault(artifact.artifact_uuid, Fault.MISSING)
    assert [one.code for one in findings(url_of(world), world.root, notes=True)] == ["file_missing"]
