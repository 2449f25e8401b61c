"""Jobs that ended are archived, then deleted; what they registered stays (OPS-8, PLAN-2, JOB-3), on both engines."""

from __future__ import annotations

import csv
import fcntl
import gzip
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import DlpipeError
from dlpipe.core.model import Scope
from dlpipe.core.purging import ENDED, ArchiveFile, PurgeFilter
from dlpipe.core.states import State, Status
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import after
from dlpipe.db.schema import jobs
from dlpipe.pipeline import purge as purging
from dlpipe.pipeline.purge import Volume
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.store.archive import FileArchive
from tests.checker import assert_clean, findings
from tests.finished import OTHER, SITE, A, B, Finished
from tests.ledgers import FOREIGN, everything

DAY = 86_400.0
OLD = PurgeFilter(90 * DAY)
OWN = Scope()


@pytest.fixture
def done(database: SqlDatabase, tmp_path: Path) -> Finished:
    return Finished(database, tmp_path)


@pytest.fixture
def archive(tmp_path: Path) -> FileArchive:
    return FileArchive(tmp_path / "archive")


def age(done: Finished, *job_ids: str, days: float = 100) -> None:
    """As if nothing had happened to these jobs, or to any, for so long."""
    long_ago = after(-days * DAY)
    change = sa.update(jobs).values(created_at=long_ago, updated_at=long_ago)
    with done.database.engine.begin() as connection:
        connection.execute(change.where(jobs.c.job_id.in_(job_ids)) if job_ids else change)


def purge(done: Finished, archive: FileArchive, only: PurgeFilter = OLD, **how: Any) -> list[Volume]:
    return list(purging.purge(done.world.deps, how.pop("scope", OWN), only, archive, **how))


def archived(archive: FileArchive) -> list[Mapping[str, Any]]:
    return [
        json.loads(line)
        for file in sorted(archive.directory.glob("*.jsonl.gz"))
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]


def job_ids(done: Finished) -> set[str]:
    return {str(row.job_id) for row in done.sql("SELECT job_id FROM jobs")}


def test_only_old_jobs_of_the_owner_at_their_end_go(done: Finished, archive: FileArchive) -> None:
    waiting = done.world.plan(f"{SITE}waiting")
    due = done.known
    with done.database.write() as unit:
        unit.owned(OWN).refresh(due)
    age(done)
    age(done, done.large, days=80)
    (volume,) = purge(done, archive)
    assert job_ids(done) == {waiting, due, done.large, done.twin}
    assert (volume.purged, volume.kept) == (4, 0)
    assert {row["job_id"] for row in archived(archive)} == {done.fetched, done.gone, done.canceled, done.followed}


def test_what_a_job_registered_stays_and_all_else_of_it_goes(done: Finished, archive: FileArchive) -> None:
    before = everything(done.database)
    age(done)
    purge(done, archive)
    purge(done, archive, scope=OTHER)
    left = everything(done.database)
    for table in ("artifacts", "hash_index", "url_index", "media_assets", "books"):
        assert left[table] == before[table] != [], table
    for table in "jobs artifact_jobs artifact_ops job_artifacts manifest download_jobs download_files".split():
        assert left[table] == [] != before[table], table
    assert len(left["purged_jobs"]) == 7
    with done.database.read() as unit:
        (uuid,) = {row.artifact_uuid for row in unit.registry.artifacts_after("", 99) if row.scope == OTHER}
        record = unit.owned(OTHER).artifact(uuid)
    assert record is not None
    assert done.world.deps.store.is_right(record.storage_pointer, record.sha256, record.byte_size)


def test_the_archive_has_every_row_of_a_job(done: Finished, archive: FileArchive) -> None:
    before = everything(done.database)
    age(done)
    purge(done, archive)
    purge(done, archive, scope=OTHER)
    rows = archived(archive)
    assert len(rows) == len(before["jobs"])
    for nested, table in (("ops", "artifact_ops"), ("results", "job_artifacts"), ("manifest", "manifest"),
                          ("files", "download_files")):  # fmt: skip
        assert sum(len(row[nested]) for row in rows) == len(before[table]), table
    by_id = {row["job_id"]: row for row in rows}
    fetched = by_id[done.fetched]
    assert fetched["detail"]["canonical_url"] == f"{SITE}a.pdf"
    assert [op["op_type"] for op in fetched["ops"]] == ["HEAD", "RESUME", "STREAM", "FINALIZE", "INDEX", "DEDUPE"]
    assert by_id[done.gone]["error_code"] is not None
    assert by_id[done.followed]["detail"]["status"] == "completed"


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_other_formats_hold_the_same_jobs(done: Finished, tmp_path: Path, format_: str) -> None:
    if format_ == "parquet":
        pytest.importorskip("pyarrow")
    age(done)
    archive = FileArchive(tmp_path / "archive", format_)
    (volume,) = purge(done, archive)
    (file,) = archive.directory.iterdir()
    assert file.name == volume.file.name
    if format_ == "csv":
        with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
            rows: list[dict[str, Any]] = list(csv.DictReader(text))
    else:
        parquet = importlib.import_module("pyarrow.parquet")

        rows = parquet.ParquetFile(file).read().to_pylist()
    assert len(rows) == volume.file.rows == volume.purged == 6
    (fetched,) = [row for row in rows if row["job_id"] == done.fetched]
    assert json.loads(fetched["detail"])["canonical_url"] == f"{SITE}a.pdf"
    assert len(json.loads(fetched["ops"])) == 6


def test_the_archive_is_for_its_owner_only(done: Finished, archive: FileArchive) -> None:
    age(done)
    purge(done, archive)
    (file,) = archive.directory.iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_a_status_can_be_named(done: Finished, archive: FileArchive) -> None:
    age(done)
    purge(done, archive, replace(OLD, statuses=(Status.FAILED,)))
    assert {row["job_id"] for row in archived(archive)} == {done.gone}


def test_a_rehearsal_counts_and_changes_nothing(done: Finished) -> None:
    age(done)
    before = everything(done.database)
    told = purging.rehearse(done.world.deps, OWN, OLD)
    assert told == {Status.COMPLETED: 3, Status.SKIPPED: 1, Status.FAILED: 1, Status.CANCELED: 1}
    assert set(told) <= set(ENDED)
    assert everything(done.database) == before


def test_many_jobs_become_many_files_and_each_is_met_once(done: Finished, archive: FileArchive) -> None:
    age(done)
    volumes = purge(done, archive, volume=2)
    assert [volume.file.rows for volume in volumes] == [2, 2, 2]
    rows = archived(archive)
    assert len({row["job_id"] for row in rows}) == len(rows) == 6


class Meddling:
    """An archive during whose writing somebody does something."""

    def __init__(self, archive: FileArchive, does: Any) -> None:
        self._archive, self._does = archive, does

    def write(self, scope: Scope, rows: Iterator[Mapping[str, Any]]) -> Any:
        file = self._archive.write(scope, rows)
        self._does()
        return file


def test_a_job_that_was_taken_up_meanwhile_stays(done: Finished, archive: FileArchive) -> None:
    def retried() -> None:
        with done.database.write() as unit:
            unit.owned(OWN).retry(done.gone)
        done.world.drive()
        assert done.world.state(done.gone) is State.FAILED  # again at an end, and not as it was archived

    age(done)
    (volume,) = purging.purge(done.world.deps, OWN, OLD, Meddling(archive, retried))  # type: ignore[arg-type]
    assert (volume.purged, volume.kept) == (5, 1)
    assert done.gone in job_ids(done)


def test_a_broken_archive_deletes_nothing(done: Finished, archive: FileArchive) -> None:
    def unreadable() -> None:
        raise OSError(28, "No space left on device")

    age(done)
    before = everything(done.database)
    with pytest.raises(OSError, match="No space"):
        list(purging.purge(done.world.deps, OWN, OLD, Meddling(archive, unreadable)))  # type: ignore[arg-type]
    assert everything(done.database) == before


# ── afterwards ────────────────────────────────────────────────────────────────────────────────────


def test_a_purged_world_is_whole_and_its_damage_is_found(done: Finished, archive: FileArchive) -> None:
    lost, damaged, row = done.path(done.fetched), done.path(done.large), done.path(done.twin)
    age(done)
    purge(done, archive)
    purge(done, archive, scope=OTHER)
    assert_clean(done.url, done.root)
    report = reconcile(done.world.deps)
    assert not any(report.counts().values()), report
    lost.unlink()
    done.write(damaged, b"x" * damaged.stat().st_size)
    found = {(one.code, one.path) for one in findings(done.url, done.root)}
    name = str(lost.relative_to(done.root))
    assert found == {("file_missing", name), ("file_damaged", str(damaged.relative_to(done.root)))}
    assert reconcile(done.world.deps).counts()["files_missing"] == 2  # two artifacts, one file
    done.plant("DELETE FROM purged_jobs WHERE job_id = :job", job=done.twin)
    assert "artifact_without_job" in {one.code for one in findings(done.url, done.root)}
    assert row.exists()


def test_planned_again_it_is_the_same_job_and_its_file_the_same_artifact(done: Finished, archive: FileArchive) -> None:
    with done.database.read() as unit:
        (before,) = unit.owned(OWN).artifacts_of(done.fetched)
        fence = unit.backlog.get(done.fetched).fence  # type: ignore[union-attr]
    age(done)
    purge(done, archive)
    requests = len(done.world.source.asked) if hasattr(done.world.source, "asked") else 0
    again = done.world.fetch(f"{SITE}a.pdf", work_id="w")
    assert again == done.fetched
    assert done.world.state(again) is State.SKIPPED_DUPLICATE  # the index knows the URL
    assert not requests or len(done.world.source.asked) == requests
    assert done.world.artifacts(again) == [before]
    assert done.world.row(again).fence > fence
    assert_clean(done.url, done.root)


def test_other_bytes_under_a_url_that_was_purged_are_another_artifact(done: Finished, archive: FileArchive) -> None:
    (before,) = done.world.artifacts(done.known)
    age(done)
    purge(done, archive)
    done.world.source.put(f"{SITE}a.pdf", b"news", content_type="application/pdf")
    done.sql("DELETE FROM url_index WHERE canonical_url = :url", url=f"{SITE}a.pdf")
    changed = done.world.fetch(f"{SITE}a.pdf", work_id="w")
    assert done.world.state(changed) is State.DEDUPED
    known = done.world.fetch(f"{SITE}a.pdf", work_id="w", artifact_id="again")
    assert known == done.known
    (now,) = done.world.artifacts(known)
    assert now.artifact_uuid != before.artifact_uuid
    assert (now.byte_size, before.byte_size) == (len(b"news"), len(A))
    assert_clean(done.url, done.root)


def test_a_holder_from_an_earlier_life_finds_its_fence_gone(done: Finished, archive: FileArchive) -> None:
    old = done.world.row(done.gone).fence
    age(done)
    purge(done, archive)
    assert done.world.plan(f"{SITE}nothing") == done.gone
    assert done.world.row(done.gone).fence == old


def test_a_tombstone_says_where_the_record_is(done: Finished, archive: FileArchive) -> None:
    age(done)
    (volume,) = purge(done, archive)
    with done.database.read() as unit:
        left = unit.owned(OWN).tombstone(done.gone)
        assert unit.owned(OTHER).tombstone(done.gone) is None
    assert left is not None
    assert (left.status, left.archive, left.archive_sha256) == (Status.FAILED, volume.file.name, volume.file.sha256)


@pytest.mark.parametrize("scope", FOREIGN)
def test_what_is_of_another_can_neither_be_seen_nor_purged(done: Finished, scope: Scope) -> None:
    done.sql("DELETE FROM manifest WHERE job_id = :job", job=done.twin)  # which is of one of them
    done.sql("DELETE FROM job_artifacts WHERE job_id = :job", job=done.twin)
    done.sql("DELETE FROM artifact_ops WHERE job_id = :job", job=done.twin)
    done.sql("DELETE FROM artifact_jobs WHERE job_id = :job", job=done.twin)
    done.sql("DELETE FROM jobs WHERE job_id = :job", job=done.twin)
    age(done)
    file = ArchiveFile("a", "0" * 64, 6, 1)
    with done.database.read() as unit:
        mine = unit.owned(OWN).expired(OLD, 99)
    before = everything(done.database)
    with done.database.write() as unit:
        assert unit.owned(scope).expired(OLD, 99) == []
        assert unit.owned(scope).count_expired(OLD) == {}
        assert unit.owned(scope).purge(mine, file, retire=True) == []
    assert everything(done.database) == before
    with done.database.write() as unit:
        assert len(unit.owned(OWN).purge(mine, file, retire=True)) == 6
        assert unit.owned(OWN).tombstone(done.gone) is not None
        assert unit.owned(scope).tombstone(done.gone) is None
        assert unit.owned(OWN).tombstone("x") is None


def test_a_job_that_somebody_holds_stays(done: Finished) -> None:
    """Read as at its end, and claimed for a further run before it was deleted."""
    age(done)
    with done.database.read() as unit:
        mine = unit.owned(OWN).expired(OLD, 99)
    with done.database.write() as unit:
        unit.owned(OWN).refresh(done.fetched)
        assert done.fetched not in unit.owned(OWN).purge(mine, ArchiveFile("a", "0" * 64, 6, 1), retire=False)


def test_a_file_whose_writer_died_is_cleared_away_and_one_being_written_is_not(archive: FileArchive) -> None:
    archive.directory.mkdir()
    dead, alive = (archive.directory / f".dlpipe-{name}.tmp" for name in ("dead", "alive"))
    for file in (dead, alive):
        file.write_bytes(b"half")
    with alive.open("rb") as stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
        archive.write(OWN, [])
    assert (dead.exists(), alive.exists()) == (False, True)


def test_an_archive_that_cannot_be_read_back_gets_no_name(
    archive: FileArchive, done: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_count", lambda _: 5)
    age(done)
    before = everything(done.database)
    with pytest.raises(DlpipeError, match="archive_unreadable"):
        purge(done, archive)
    assert list(archive.directory.iterdir()) == []
    assert everything(done.database) == before


def test_results_that_a_refresh_replaced_are_given_up_when_asked(done: Finished) -> None:
    def refreshed(body: bytes) -> None:
        done.world.source.put(f"{SITE}b", body, etag=f'"{len(body)}"')
        with done.database.write() as unit:
            unit.owned(OWN).refresh(done.large)
        done.world.drive()

    def retired() -> list[bool]:
        return [record.retired_at is not None for record in done.world.artifacts(done.large)]

    def give_up(scope: Scope = OWN) -> int:
        age(done)
        with done.database.write() as unit:
            found = unit.owned(scope).retire_superseded(OLD, 9)
        return len(found)

    assert give_up() == 0
    refreshed(b"second")
    assert [give_up(scope) for scope in FOREIGN] == [0, 0]
    assert (give_up(), retired()) == (1, [True, False])
    assert give_up() == 0
    assert purging.retire_superseded(done.world.deps, OWN, OLD) == 0
    assert_clean(done.url, done.root)
    refreshed(B)  # the first bytes again: their record is the newest, and wanted
    assert retired() == [False, False]
    assert (give_up(), retired()) == (1, [False, True])
    assert_clean(done.url, done.root)


def test_what_a_purged_job_left_in_staging_goes_like_that_of_any_other(done: Finished, archive: FileArchive) -> None:
    done.world.source.put(f"{SITE}half", B)
    job = done.world.plan(f"{SITE}half")
    done.world.run_to("finalize", job)
    with done.database.write() as unit:
        unit.owned(OWN).cancel(job)
    age(done)
    purge(done, archive)
    assert len(done.world.staged()) == 2
    done.world.policy(heal=replace(done.world.deps.policy.heal, part_age_s=0.0))
    report = reconcile(done.world.deps)
    assert (report.parts_removed > 0, report.parts_unknown, done.world.staged()) == (True, 0, [])
    assert_clean(done.url, done.root)
