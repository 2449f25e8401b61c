"""One row for a job of any kind and one of its kind, whatever becomes of it, on both engines (JOB-1, JOB-2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import dlpipe
from dlpipe.core import keys
from dlpipe.core.downloads import JOB_TYPE_TORRENT
from dlpipe.core.model import JOB_TYPE_ARTIFACT
from dlpipe.core.states import Status
from dlpipe.core.torrents import DownloadStatus
from dlpipe.db import SqlDatabase
from dlpipe.db.download_schema import download_jobs
from dlpipe.db.schema import artifact_jobs, jobs
from tests.contract.test_torrents_db import in_state
from tests.ledgers import OWN, looking
from tests.torrent_world import TorrentWorld
from tests.world import World

URL, GONE = "http://files.example/a.pdf", "http://files.example/gone"
HAD = set(
    "job_id tenant_id project_id job_type status progress idempotency_key request_id error_code error_message_safe "
    "error_debug_id created_at updated_at completed_at failed_at".split()
)


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path) -> World:
    made = World(database, tmp_path / "store")
    made.source.put(URL, b"%PDF-bytes", content_type="application/pdf")
    return made


def rows(database: SqlDatabase, job_id: str) -> tuple[sa.RowMapping, int, int]:
    """The job's own row, and how many it has in the table of each kind."""
    with looking(database) as connection:
        row = connection.execute(sa.select(jobs).where(jobs.c.job_id == job_id)).mappings().one()
        kinds = [
            connection.scalar(sa.select(sa.func.count()).select_from(kind).where(kind.c.job_id == job_id)) or 0
            for kind in (artifact_jobs, download_jobs)
        ]
    return row, kinds[0], kinds[1]


def waiting(world: World) -> str:
    return world.plan(URL, request_id="r-7")


def at_work(world: World) -> str:
    job = waiting(world)
    world.run("head", job)
    return job


def done(world: World) -> str:
    return world.fetch(URL, request_id="r-7")


def known(world: World) -> str:
    world.fetch(URL)
    return world.fetch(URL, work_id="another", request_id="r-7")


def failed(world: World) -> str:
    return world.fetch(GONE, request_id="r-7")


def canceled(world: World) -> str:
    job = waiting(world)
    with world.database.write() as unit:
        unit.owned(OWN).cancel(job)
    return job


LIVES: dict[Status, Callable[[World], str]] = {
    Status.PENDING: waiting,
    Status.PROCESSING: at_work,
    Status.COMPLETED: done,
    Status.SKIPPED: known,
    Status.FAILED: failed,
    Status.CANCELED: canceled,
}


def test_every_status_has_a_life_that_leads_to_it() -> None:
    assert set(LIVES) == set(Status)
    assert {column.name for column in jobs.columns} == HAD


@pytest.mark.parametrize("status", list(Status))
def test_a_file_has_one_row_in_each_table_that_says_how_it_stands(world: World, status: Status) -> None:
    job = LIVES[status](world)
    row, own, other = rows(world.database, job)
    assert (own, other, row["job_type"], row["status"]) == (1, 0, JOB_TYPE_ARTIFACT, status.value)
    assert (row["tenant_id"], row["project_id"], row["request_id"]) == ("default", "default", "r-7")
    view = world.view(job)
    key = keys.job_key("default", "default", view.work_id, view.artifact_id, GONE if status is Status.FAILED else URL)
    assert (row["idempotency_key"], keys.job_id(key)) == (key, job)
    ended = status in (Status.COMPLETED, Status.SKIPPED)
    assert (row["completed_at"] is not None, row["failed_at"] is not None) == (ended, status is Status.FAILED)
    assert row["created_at"] <= row["updated_at"]
    assert (row["progress"] == 100) == ended
    error = (row["error_code"], row["error_message_safe"] is not None, row["error_debug_id"] is not None)
    assert error == (("http_404", True, True) if status is Status.FAILED else (None, False, False))
    assert len(view.artifacts) == ended
    for name in HAD - {"idempotency_key", "tenant_id", "project_id"}:
        assert getattr(view, name) == row[name], name


DOWNLOADS = {
    "queued": Status.PENDING,
    "downloading": Status.PROCESSING,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
    "canceled": Status.CANCELED,
}


@pytest.mark.parametrize("state", DOWNLOADS)
def test_a_torrent_has_one_row_in_each_table_that_says_how_it_stands(
    database: SqlDatabase, tmp_path: Path, state: str
) -> None:
    TorrentWorld(database, tmp_path)
    job = in_state(database, DownloadStatus(state))
    row, other, own = rows(database, job)
    assert (own, other, row["job_type"], row["status"]) == (1, 0, JOB_TYPE_TORRENT, DOWNLOADS[state].value)
    assert (row["completed_at"] is not None, row["failed_at"] is not None) == (state == "completed", state == "failed")
    assert (row["error_code"] is not None) == (state == "failed")
    with database.read() as unit:
        view = unit.owned(OWN).get(job)
    assert view is not None
    for name in HAD - {"idempotency_key", "tenant_id", "project_id"}:
        assert getattr(view, name) == row[name], name


def test_jobs_of_both_kinds_are_one_list(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dlpipe import tasks

    monkeypatch.setattr(tasks, "deps", lambda: world.deps)
    file, torrent = waiting(world), in_state(world.database, DownloadStatus.QUEUED)
    told: dict[str, Any] = {job.job_id: job.job_type for job in dlpipe.list_jobs(status="pending")}
    assert told == {file: JOB_TYPE_ARTIFACT, torrent: JOB_TYPE_TORRENT}
    assert dlpipe.count_jobs("status")[0].jobs == 2


def test_a_job_knows_what_it_has_brought_and_what_it_went_by(world: World) -> None:
    """Results come from every run; inputs are the stored files of its replays, each once."""
    job = done(world)
    (first,) = world.view(job).artifacts
    assert world.view(job).inputs == ()
    for _ in range(2):
        with world.database.write() as unit:
            unit.owned(OWN).replay(job, "stream")
        world.drive()
        assert (world.view(job).artifacts, world.view(job).inputs) == ((first,), (first,))
    world.source.put(URL, b"%PDF-news", etag='"news"')
    with world.database.write() as unit:
        unit.owned(OWN).refresh(job)
    world.drive()
    (_, second) = world.view(job).artifacts
    with world.database.write() as unit:
        unit.owned(OWN).replay(job, "index")
    world.drive()
    view = world.view(job)
    assert (view.status, view.artifacts, view.inputs) == (Status.COMPLETED, (first, second), (first, second))
