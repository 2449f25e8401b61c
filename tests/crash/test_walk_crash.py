"""Reconcile is killed wherever its walks change something: the next rounds end as if nothing had been (HEAL-3, HEAL-4).

One world is hurt in every way that a walk heals. A dry run says which points a round passes there.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dlpipe.core import crash
from dlpipe.core.model import Fault
from dlpipe.db import SqlDatabase
from dlpipe.pipeline.reconcile import reconcile
from tests.checker import findings
from tests.crash.test_crash_points import points_in_the_source
from tests.world import World, sha256

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SITE = "http://files.example/"
BODIES = {name: name.encode() * 1000 for name in ("gone", "short", "back", "whole")}
STRANGER, WRONG = b"nobody knows me", b"my name is another"
SURVIVED = 7


@contextmanager
def world_at(place: Path) -> Iterator[World]:
    database = SqlDatabase(f"sqlite:///{place / 'ledger.db'}")
    world = World(database, place / "store")
    for name, body in BODIES.items():
        world.source.put(SITE + name, body)
    world.policy(heal=replace(world.deps.policy.heal, grace_s=0.0, part_age_s=0.0))
    try:
        yield world
    finally:
        database.close()


@pytest.fixture
def hurt(tmp_path: Path, sqlite_template: Path) -> Path:
    """A file is missing, one damaged, one marked and back; two are known to no row; and what is staged nobody wants."""
    place = tmp_path / "hurt"
    place.mkdir()
    shutil.copy(sqlite_template, place / "ledger.db")
    with world_at(place) as world:
        jobs = {name: world.fetch(SITE + name) for name in BODIES}
        path = {
            name: Path(world.deps.store.path(world.artifacts(job)[0].storage_pointer)) for name, job in jobs.items()
        }
        path["gone"].unlink()
        path["short"].unlink()
        path["short"].write_bytes(b"short")
        path["short"].chmod(0o444)
        with world.database.write() as unit:
            unit.registry.add_fault(world.artifacts(jobs["back"])[0].artifact_uuid, Fault.MISSING)
        for name, data in ((sha256(STRANGER), STRANGER), (sha256(b"another"), WRONG)):
            stray = world.root / "default" / "default" / name[:2] / name
            stray.parent.mkdir(exist_ok=True)
            stray.write_bytes(data)
            stray.chmod(0o444)
        staging = world.root / ".staging" / "default"
        staging.mkdir(parents=True, exist_ok=True)
        (staging / f"{'0' * 16}.part").write_bytes(b"x")
        (staging / f"copy.{'0' * 8}.tmp").write_bytes(b"x")
        with world.database.write() as unit:  # a walk that was in the middle, and now comes to its end
            unit.cursors.put("reconcile.staging", "a/b")
    return place


@dataclass(frozen=True)
class Outcome:
    """What there is in the end, and what is wrong with it."""

    store: dict[str, bytes]
    aside: list[bytes]
    """Files that were set aside, wherever."""
    staged: list[str]
    wrong: list[str]


def healed(place: Path) -> Outcome:
    with world_at(place) as world:
        for _ in range(3):
            for row in world.sql("SELECT job_id FROM artifact_jobs"):
                world.age(row.job_id)  # a message that was never sent is missed after a while
            reconcile(world.deps)
            world.drive()
        assert not any(reconcile(world.deps).counts().values())
        url = world.database.url.render_as_string(hide_password=False)
        files = [path for path in world.root.rglob("*") if path.is_file()]
        names = {str(path.relative_to(world.root)): path for path in files}
        store = {name: path.read_bytes() for name, path in names.items() if not name.startswith(".")}
        return Outcome(
            {name: data for name, data in store.items() if ".damaged-" not in name},
            sorted(path.read_bytes() for name, path in names.items() if ".damaged-" in name or ".quarantine/" in name),
            world.staged(),
            [str(one) for one in findings(url, world.root)],
        )


def killed_at(place: Path, point: str, time: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            passed: Counter[str] = Counter()

            def die(name: str) -> None:
                passed[name] += 1
                if (name, passed[name]) == (point, time):
                    os.kill(os.getpid(), signal.SIGKILL)

            with world_at(place) as world:
                crash.arm(die)
                for _ in range(2):
                    reconcile(world.deps)
        finally:
            os._exit(SURVIVED)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"it lived on: {status}"


@pytest.mark.timeout(300)
def test_wherever_a_walk_is_killed_the_next_rounds_heal_all(hurt: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(hurt, tmp_path / name, symlinks=True))

    passed: Counter[str] = Counter()
    with world_at(copy("dry")) as world:
        crash.arm(lambda name: passed.update([name]))
        try:
            for _ in range(2):
                reconcile(world.deps)
        finally:
            crash.arm(None)
    assert {name for name in passed if name.startswith("heal.")} == {
        name for name in points_in_the_source() if name.startswith("heal.")
    }
    expected = healed(copy("unharmed"))
    assert sorted(expected.store.values()) == sorted([*BODIES.values(), STRANGER])
    assert (expected.aside, expected.staged, expected.wrong) == ([WRONG, b"short"], [], [])
    for number, (point, times) in enumerate(passed.items()):
        for time in sorted({1, times}):
            place = copy(f"cell-{number}-{time}")
            killed_at(place, point, time)
            assert healed(place) == expected, f"killed at {point} for the {time}. time"
