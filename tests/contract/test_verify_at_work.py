"""The checker takes no work for damage, changes nothing, and stays small. OPS-6."""

from __future__ import annotations

import shutil
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dlpipe.core import crash
from dlpipe.core.model import Scope, job_spec
from dlpipe.db import SqlDatabase
from dlpipe.net.urls import parse
from dlpipe.verify import DatabaseTrouble, StoreMissing, check, schema_version
from dlpipe.verify.ledger import Ledger
from tests.checker import assert_clean, findings
from tests.finished import SITE, Finished
from tests.world import World, sha256, some_bytes

HOURS_AGO = {"sqlite": "(strftime('%s', 'now') - 7200) * 1000", "postgresql": "now() - interval '2 hours'"}
STAGES = ("head", "resume_decide", "stream", "finalize", "index", "dedupe")


@pytest.fixture
def done(database: SqlDatabase, tmp_path: Path) -> Finished:
    return Finished(database, tmp_path)


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path) -> World:
    return World(database, tmp_path / "store")


def url(world: World) -> str:
    return world.database.url.render_as_string(hide_password=False)


@pytest.fixture
def at_every_crash_point() -> Iterator[list[tuple[str, list[str]]]]:
    """What the checker says at each named point of a stage, in the middle of it."""
    seen: list[tuple[str, list[str]]] = []
    yield seen
    crash.arm(lambda _name: None)


@pytest.mark.slow
def test_work_is_never_taken_for_damage(world: World, at_every_crash_point: list[tuple[str, list[str]]]) -> None:
    """Looked at from another connection at every point where a worker might die."""

    def look(name: str) -> None:
        found = findings(url(world), world.root, strict=False)
        at_every_crash_point.append((name, [str(one) for one in found]))

    crash.arm(look)
    for number, name in enumerate(("a", "b", "a")):
        world.source.put(f"{SITE}{name}{number}", some_bytes(1_000 + len(name)) if number < 2 else some_bytes(1_001))
        world.fetch(f"{SITE}{name}{number}", project_id=f"p{number}")
    world.fetch(f"{SITE}a0", project_id="elsewhere")
    names = {name for name, _ in at_every_crash_point}
    assert {f"{stage}.{point}" for stage in STAGES for point in ("claimed", "performed", "recorded")} <= names
    assert {"finalize.after_link", "dedupe.after_rename", "stream.chunk"} <= names
    assert [(name, said) for name, said in at_every_crash_point if said] == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_died_is_left_to_reconcile(world: World, stage: str) -> None:
    world.source.put(f"{SITE}a", some_bytes(5_000))
    job = world.plan(f"{SITE}a")
    world.run_to(stage, job)
    world.leave_claimed(stage, job)
    assert findings(url(world), world.root, strict=False) == []
    world.expire(job)  # an hour ago: by now reconcile should have been there
    assert {one.code for one in findings(url(world), world.root, strict=False)} == {"lease_stale"}


def test_what_was_canceled_after_hours_is_left_to_reconcile_for_a_while(world: World) -> None:
    """Its op began long ago, and was overtaken this moment."""
    world.source.put(f"{SITE}a", some_bytes(5_000))
    job = world.plan(f"{SITE}a")
    world.run_to("stream", job)
    world.leave_claimed("stream", job)
    with world.database.engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE artifact_ops SET started_at = {HOURS_AGO[connection.dialect.name]}"))
    with world.database.write() as unit:
        unit.owned(Scope("default", "default")).cancel(job)
    assert findings(url(world), world.root, strict=False) == []
    with world.database.engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE jobs SET updated_at = {HOURS_AGO[connection.dialect.name]}"))
    assert {one.code for one in findings(url(world), world.root, strict=False)} == {"op_unfinished"}


def test_in_strict_eyes_nothing_may_be_under_way(world: World) -> None:
    world.source.put(f"{SITE}a", some_bytes(5_000))
    job = world.plan(f"{SITE}a")
    world.run_to("finalize", job)
    world.leave_claimed("finalize", job)
    assert {one.code for one in findings(url(world), world.root)} == {"lease_stale", "job_unfinished"}


# ── it only reads ─────────────────────────────────────────────────────────────────────────────────


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        found[str(path)] = (about.st_mode, about.st_mtime_ns, data)
    return found


def test_nothing_is_changed_by_looking(done: Finished, tmp_path: Path) -> None:
    done.database.close()
    rows = done.world.everything()
    done.database.close()
    files = tree(tmp_path)
    done_url = done.url
    assert_clean(done_url, done.root)
    assert tree(tmp_path) == files
    assert done.world.everything() == rows


def test_its_connections_refuse_to_write(database: SqlDatabase) -> None:
    ledger = Ledger(database.url.render_as_string(hide_password=False))
    with ledger.snapshot() as now:
        connection = now._connection.execution_options(stream_results=False)
        with pytest.raises(sa.exc.DBAPIError, match=r"(?i)read-?\s?only"):
            connection.execute(sa.text("DELETE FROM jobs"))
    ledger.close()


def test_a_database_that_may_only_be_read_is_checked(sqlite_url: str, tmp_path: Path) -> None:
    database = SqlDatabase(sqlite_url)
    done = Finished(database, tmp_path)
    database.close()
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file = folder / "ledger.db"
    file.write_bytes((tmp_path / "ledger.db").read_bytes())
    file.chmod(0o444)
    folder.chmod(0o555)
    assert_clean(f"sqlite:///{file}", done.root)
    assert [path.name for path in folder.iterdir()] == ["ledger.db"]
    folder.chmod(0o755)


def test_a_writer_who_comes_while_a_database_at_rest_is_read_is_noticed(sqlite_url: str) -> None:
    database = SqlDatabase(sqlite_url)
    ledger = Ledger(sqlite_url)

    def write() -> None:
        with database.engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO books VALUES ('t', 'p', 'u', 'b', 'Archive', 1)"))
        database.close()  # the last one out puts everything into the file

    with pytest.raises(DatabaseTrouble, match="began to write"), ledger.snapshot():
        write()
    ledger.close()


def test_a_snapshot_sees_one_moment(world: World) -> None:
    ledger = Ledger(url(world))
    world.plan(f"{SITE}a")
    with ledger.snapshot() as now:
        before = now.sizes()
        world.plan(f"{SITE}b")
        assert now.sizes() == before
    ledger.close()


# ── it stays small ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_ten_times_the_rows_and_files_take_no_more_memory(tmp_path: Path, sqlite_template: Path) -> None:
    peaks = []
    for count in (1_500, 15_000):
        database = SqlDatabase(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / f'{count}.db')}")
        root = tmp_path / f"store{count}"
        specs = [job_spec(parse, url=f"{SITE}{number}", work_id="w") for number in range(count)]
        with database.write() as unit:
            unit.jobs.plan_if_absent(specs)
        del specs
        for number in range(count):
            name = sha256(b"%d" % number)
            folder = root / "default" / "default" / name[:2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"%d" % number)
        database.close()
        tracemalloc.start()
        seen = sum(1 for _ in check(f"sqlite:///{tmp_path / f'{count}.db'}", root))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert seen == count, "each file may be written to, which is told, and not kept"
    assert peaks[1] < 1.5 * peaks[0], peaks


# ── what it refuses ───────────────────────────────────────────────────────────────────────────────


def test_a_store_that_is_not_mounted_is_no_store_of_lost_files(done: Finished) -> None:
    done.root.rename(done.root.with_name("away"))
    with pytest.raises(StoreMissing):
        list(check(done.url, done.root))


def test_where_there_is_no_ledger_none_is_made(tmp_path: Path, empty_url: str) -> None:
    assert schema_version(empty_url) == (None, None)
    assert schema_version(f"sqlite:///{tmp_path / 'none.db'}") == (None, None)
    assert not (tmp_path / "none.db").exists()


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_was_linked_and_is_apart_is_a_note(done: Finished) -> None:
    path = done.path(done.twin)
    done.write(path, path.read_bytes())
    (note,) = findings(done.url, done.root, notes=True)
    assert (note.code, note.path) == ("link_apart", str(path.relative_to(done.root)))


def test_what_was_set_aside_is_a_note(done: Finished) -> None:
    path = done.path(done.large)
    done.write(path.with_name(f"{path.name}.damaged-01234567"), b"not that")
    (note,) = findings(done.url, done.root, notes=True)
    assert note.code == "set_aside"


def test_known_bytes_that_no_artifact_names_are_a_note(done: Finished) -> None:
    data = done.path(done.large).read_bytes()
    done.write(done.root / "default" / "third" / sha256(data)[:2] / sha256(data), data)
    (note,) = findings(done.url, done.root, notes=True)
    assert note.code == "file_spare"
