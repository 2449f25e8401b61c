"""The rows of downloads, on SQLite and PostgreSQL (TORRENT-1…4, 6, 7; JOB-2, JOB-5)."""

from __future__ import annotations

import multiprocessing
import threading
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dlpipe.core.downloads import DownloadSpec, Look, Removal, Trouble
from dlpipe.core.model import Scope
from dlpipe.core.states import Status
from dlpipe.core.torrents import (
    ACTIVE,
    TABLE,
    TERMINAL,
    Begin,
    Complete,
    DownloadJob,
    DownloadStatus,
    Fail,
    Movement,
    NotFoundSince,
    applied,
)
from dlpipe.db import SqlDatabase
from tests.ledgers import FOREIGN, OWN, UNKNOWN, everything
from tests.torrent_world import START, TorrentWorld, info_hash, magnet

SOON = START + timedelta(seconds=60)


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path) -> TorrentWorld:
    return TorrentWorld(database, tmp_path)


def spec(number: int = 1, scope: Scope = OWN, **fields: Any) -> DownloadSpec:
    made = DownloadSpec(scope, "u", f"b{number}", "ebook", magnet(number))
    return replace(made, **fields)


def start(database: SqlDatabase, wanted: DownloadSpec) -> tuple[str, str]:
    with database.write() as unit:
        answer = unit.torrents.start(wanted, str(uuid.uuid4()), SOON, START)
    return answer.job_id, answer.outcome


def read(database: SqlDatabase, job_id: str) -> DownloadJob:
    with database.read() as unit:
        found = unit.torrents.work(job_id)
    assert found is not None
    return found.job


def followed(database: SqlDatabase, number: int = 1, scope: Scope = OWN) -> str:
    job_id, _ = start(database, spec(number, scope))
    with database.write() as unit:
        assert unit.torrents.enqueued(read(database, job_id), info_hash(number), START)
    return job_id


def change(database: SqlDatabase, before: DownloadJob, *changes: Any, at: datetime = START) -> bool:
    after = before
    for one in changes:
        after = applied(after, one, at)
    with database.write() as unit:
        return unit.torrents.change(before, after, Trouble("why", "because", "d1"))


def in_state(database: SqlDatabase, state: DownloadStatus, number: int = 1) -> str:
    job_id = followed(database, number)
    ways: dict[DownloadStatus, tuple[Any, ...]] = {
        DownloadStatus.QUEUED: (),
        DownloadStatus.DOWNLOADING: (Begin(),),
        DownloadStatus.COMPLETED: (Begin(), Complete()),
        DownloadStatus.FAILED: (Fail("broken", "it broke"),),
    }
    if state is DownloadStatus.CANCELED:
        with database.write() as unit:
            assert unit.torrents.cancel(OWN, job_id, Removal.KEEP, START) is state
    elif ways[state]:
        assert change(database, read(database, job_id), *ways[state])
    assert read(database, job_id).status is state
    return job_id


# ── start ─────────────────────────────────────────────────────────────────────────────────────────


def test_start_again_while_active_answers_the_same_job(world: TorrentWorld) -> None:
    database = world.database
    first, outcome = start(database, spec())
    assert outcome == "created"
    before = everything(database)
    assert start(database, spec(source_url=magnet(7))) == (first, "known")
    assert everything(database) == before  # no row in `jobs` is left behind either
    assert change(database, read(database, first), Begin())
    assert start(database, spec()) == (first, "known")


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_start_again_after_the_end_makes_a_new_job(world: TorrentWorld, state: DownloadStatus) -> None:
    ended = in_state(world.database, state)
    again, outcome = start(world.database, spec())
    assert outcome == "created"
    assert again != ended
    assert read(world.database, ended).status is state


def test_other_user_book_medium_tenant_or_project_is_another_download(world: TorrentWorld) -> None:
    specs = [
        spec(), spec(user_id="v"), spec(2), spec(media_type="audiobook"), *(spec(scope=scope) for scope in FOREIGN),
    ]  # fmt: skip
    assert [start(world.database, one)[1] for one in specs] == ["created"] * len(specs)


def test_the_index_refuses_a_second_active_row_whoever_writes_it(world: TorrentWorld) -> None:
    one, _ = start(world.database, spec())
    two, _ = start(world.database, spec(2))
    with pytest.raises(IntegrityError), world.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE download_jobs SET book_id='b1' WHERE job_id=:job"), {"job": two})
    assert read(world.database, one).book_id == "b1"


def starter(url: str, gate: Any, answers: Any, count: int) -> None:
    """In a process of its own: start the same downloads as the others, at the same moment."""
    database = SqlDatabase(url)
    gate.wait(60)
    answers.put([start(database, spec(number))[0] for number in range(count)])
    database.close()


@pytest.fixture(scope="module")
def context() -> SpawnContext:
    return multiprocessing.get_context("spawn")


@pytest.mark.slow
def test_two_processes_that_start_the_same_get_the_same_jobs(world: TorrentWorld, context: SpawnContext) -> None:
    url, count = world.database.url.render_as_string(hide_password=False), 30
    gate, answers = context.Barrier(3), context.Queue()
    processes = [context.Process(target=starter, args=(url, gate, answers, count)) for _ in range(3)]
    for process in processes:
        process.start()
    one, *others = [answers.get(timeout=100) for _ in processes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
        process.close()
    assert all(other == one for other in others)
    assert len(set(one)) == count
    assert world.sql("SELECT count(*) FROM download_jobs") == world.sql("SELECT count(*) FROM jobs") == [(count,)]


# ── compare and set ───────────────────────────────────────────────────────────────────────────────


def test_change_with_an_older_version_changes_nothing(world: TorrentWorld) -> None:
    database = world.database
    job_id = followed(database)
    old = read(database, job_id)
    assert change(database, old, NotFoundSince(START))
    before = everything(database)
    assert not change(database, old, Begin())
    assert not change(database, old, Fail("broken", "it broke"))
    with database.write() as unit:
        assert not unit.torrents.enqueued(old, info_hash(2), START)
        assert not unit.torrents.complete(old, applied(applied(old, Begin(), START), Complete(), START), "/x")
    assert everything(database) == before


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_what_has_ended_never_changes_even_with_the_right_version(world: TorrentWorld, state: DownloadStatus) -> None:
    database = world.database
    job_id = in_state(database, state)
    before = everything(database)
    job = read(database, job_id)
    for wanted in DownloadStatus:
        with database.write() as unit:
            assert not unit.torrents.change(job, replace(job, status=wanted, row_version=job.row_version + 1))
    with database.write() as unit:
        unit.torrents.cancel(OWN, job_id, Removal.REMOVE, START)
        unit.torrents.put_back(job_id)
        unit.torrents.later(job_id, START, Trouble("why", "because", "d"))
        assert not unit.torrents.hand_over(job_id, START)
        unit.torrents.mark_checked([Look(job_id, 1, 2, Movement(1, START))], START)
    assert everything(database) == before


def test_of_many_that_change_the_same_version_one_wins(world: TorrentWorld) -> None:
    database = world.database
    job_id = followed(database)
    old = read(database, job_id)
    gate, won = threading.Barrier(6), []

    def work() -> None:
        gate.wait(20)
        won.append(change(database, old, Begin()))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won) == [False] * 5 + [True]
    assert read(database, job_id).row_version == old.row_version + 1


@pytest.mark.parametrize(("source", "target"), TABLE)
def test_the_canonical_row_follows_every_step_of_the_table(
    world: TorrentWorld, source: DownloadStatus, target: DownloadStatus
) -> None:
    database = world.database
    job_id = in_state(database, source)
    job = read(database, job_id)
    match target:
        case DownloadStatus.CANCELED:
            with database.write() as unit:
                unit.torrents.cancel(OWN, job_id, Removal.KEEP, START)
        case DownloadStatus.FAILED:
            assert change(database, job, Fail("broken", "it broke"))
        case DownloadStatus.COMPLETED:
            assert change(database, job, Complete())
        case _:
            assert change(database, job, Begin())
    row = world.job(job_id)
    expected = {
        "downloading": Status.PROCESSING, "completed": Status.COMPLETED, "failed": Status.FAILED,
        "canceled": Status.CANCELED,
    }  # fmt: skip
    assert row.status == expected[target]
    assert (row.progress == 100, row.completed_at is not None) == (target == "completed", target == "completed")
    assert (row.failed_at is not None, row.error_code) == (target == "failed", "why" if target == "failed" else None)
    assert world.row(job_id).due_at_utc is None


# ── what is looked at ─────────────────────────────────────────────────────────────────────────────


def test_to_check_takes_the_longest_unchecked_of_what_the_client_knows(world: TorrentWorld) -> None:
    database = world.database
    start(database, spec(9))  # not handed over yet: the client cannot be asked
    in_state(database, DownloadStatus.FAILED, 8)
    ids = [followed(database, number) for number in range(4)]
    with database.write() as unit:
        for age, job_id in ((10, ids[2]), (30, ids[0]), (20, ids[3])):
            unit.torrents.mark_checked([Look(job_id, None, None, None)], START - timedelta(seconds=age))
        found = [one.job.job_id for one in unit.torrents.to_check(3)]
    assert found == [ids[1], ids[0], ids[3]]


def test_mark_checked_keeps_what_was_seen_and_raises_no_version(world: TorrentWorld) -> None:
    database = world.database
    job_id = in_state(database, DownloadStatus.DOWNLOADING)
    before = read(database, job_id)
    with database.write() as unit:
        unit.torrents.mark_checked([Look(job_id, 41, 1000, Movement(410, START))], START)
        unit.torrents.mark_checked([Look(job_id, None, None, Movement(410, START))], SOON)
        (found,) = unit.torrents.again([job_id])
    assert found.job == replace(before, checked_at_utc=SOON)
    assert found.movement == Movement(410, START)
    assert (world.row(job_id).size_bytes, world.job(job_id).progress) == (1000, 41)


def test_a_round_does_not_wait_for_a_row_that_another_one_holds(postgres_url: str) -> None:
    """Two that waited for each other's rows would be a deadlock. SQLite has one writer at a time anyway."""
    database = SqlDatabase(postgres_url)
    held, free = followed(database, 1), followed(database, 2)
    looks = [Look(job_id, None, None, None) for job_id in (held, free)]
    with database.write() as other:
        other.torrents.mark_checked(looks[:1], START)
        with database.write() as unit:
            unit.torrents.mark_checked(looks, SOON)
    assert [read(database, job_id).checked_at_utc for job_id in (held, free)] == [START, SOON]
    database.close()


def test_an_outage_changes_no_job_and_the_answer_after_it_clears_every_clock(world: TorrentWorld) -> None:
    database = world.database
    ids = [followed(database, number) for number in range(3)]
    for job_id in ids[:2]:
        assert change(database, read(database, job_id), NotFoundSince(START))
    before = [read(database, job_id) for job_id in ids]
    with database.write() as unit:
        assert not unit.torrents.answered("qbittorrent", START, 45)
        assert not unit.torrents.answered("qbittorrent", START + timedelta(seconds=45), 45)
        unit.torrents.outage("qbittorrent", START + timedelta(seconds=46))
        unit.torrents.outage("qbittorrent", START + timedelta(seconds=47))
    assert [read(database, job_id) for job_id in ids] == before
    with database.write() as unit:
        assert unit.torrents.answered("qbittorrent", START + timedelta(seconds=48), 45)
        assert not unit.torrents.answered("qbittorrent", START + timedelta(seconds=49), 45)
    after = [read(database, job_id) for job_id in ids]
    assert [job.first_not_found_at_utc for job in after] == [None] * 3
    assert [job.row_version for job in after] == [before[0].row_version + 1, before[1].row_version + 1, 1]


def test_a_gap_in_which_nobody_looked_is_as_an_outage(world: TorrentWorld) -> None:
    database = world.database
    job_id = followed(database)
    with database.write() as unit:
        unit.torrents.answered("qbittorrent", START, 45)
    assert change(database, read(database, job_id), NotFoundSince(START))
    with database.write() as unit:
        assert unit.torrents.answered("qbittorrent", START + timedelta(seconds=45.001), 45)
    assert read(database, job_id).first_not_found_at_utc is None


# ── work that is due ──────────────────────────────────────────────────────────────────────────────


def test_due_work_is_taken_once_until_it_is_due_again(world: TorrentWorld) -> None:
    database = world.database
    job_id, _ = start(database, spec())
    in_state(database, DownloadStatus.FAILED, 2)
    with database.write() as unit:
        assert unit.torrents.take_due(10, START, SOON) == []
        assert [one.job.job_id for one in unit.torrents.take_due(10, SOON, SOON + timedelta(seconds=60))] == [job_id]
        assert unit.torrents.take_due(10, SOON, SOON) == []


def test_a_complete_torrent_is_handed_over_once(world: TorrentWorld) -> None:
    database = world.database
    job_id = in_state(database, DownloadStatus.DOWNLOADING)
    with database.write() as unit:
        assert unit.torrents.hand_over(job_id, START)
        assert not unit.torrents.hand_over(job_id, SOON)
        unit.torrents.later(job_id, SOON, Trouble("no_space", "the disk is full", "d2"))
    assert (world.row(job_id).attempts, world.job(job_id).error_code) == (1, "no_space")
    assert world.job(job_id).status == Status.PROCESSING
    with database.write() as unit:
        unit.torrents.put_back(job_id)
        assert unit.torrents.hand_over(job_id, SOON)


# ── the library ───────────────────────────────────────────────────────────────────────────────────


def test_completion_makes_the_asset_available_and_leaves_its_source_url(world: TorrentWorld) -> None:
    database = world.database
    world.sql(
        "INSERT INTO media_assets (asset_id, tenant_id, project_id, user_id, book_id, media_type, available, "
        "source_url, updated_at) SELECT :id, 'default', 'default', 'u', 'b1', 'ebook', :no, "
        "'https://shop.example/b1', created_at "
        "FROM jobs WHERE job_id = :job",
        id=str(uuid.uuid4()), no=False, job=followed(database, 5),
    )  # fmt: skip
    job_id = in_state(database, DownloadStatus.DOWNLOADING)
    job = read(database, job_id)
    with database.write() as unit:
        assert unit.torrents.complete(job, applied(job, Complete(), START), "/media/b1.epub")
    (asset,) = world.sql("SELECT * FROM media_assets")
    assert (bool(asset.available), asset.local_path) == (True, "/media/b1.epub")
    assert (asset.source_url, str(asset.job_id)) == ("https://shop.example/b1", job_id)
    assert [book.state for book in world.sql("SELECT * FROM books")] == ["Library"]


def test_a_book_without_an_available_asset_is_in_the_archive(world: TorrentWorld) -> None:
    from dlpipe.db.library import recompute_book

    database = world.database
    job_id = in_state(database, DownloadStatus.DOWNLOADING)
    job = read(database, job_id)
    with database.write() as unit:
        unit.torrents.complete(job, applied(job, Complete(), START), "/media/b1.epub")
    assert world.sql("SELECT state FROM books") == [("Library",)]
    world.sql("UPDATE media_assets SET available = :no", no=False)
    with database.engine.begin() as connection:
        recompute_book(connection, job)
    assert world.sql("SELECT state FROM books") == [("Archive",)]


def test_completions_of_two_media_of_one_book_at_once_agree(world: TorrentWorld) -> None:
    database = world.database
    ids = []
    for medium in ("ebook", "audiobook"):
        job_id, _ = start(database, spec(media_type=medium))
        with database.write() as unit:
            unit.torrents.enqueued(read(database, job_id), info_hash(), START)
        assert change(database, read(database, job_id), Begin())
        ids.append(job_id)
    gate, done = threading.Barrier(2), []

    def work(job_id: str) -> None:
        job = read(database, job_id)
        gate.wait(20)
        with database.write() as unit:
            done.append(unit.torrents.complete(job, applied(job, Complete(), START), f"/{job.media_type}"))

    threads = [threading.Thread(target=work, args=(job_id,)) for job_id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [True, True]
    assert world.sql("SELECT state FROM books") == [("Library",)]
    assert world.sql("SELECT count(*) FROM media_assets") == [(2,)]


# ── owners ────────────────────────────────────────────────────────────────────────────────────────


def test_cancel_works_from_every_active_state_and_remembers_the_removal(world: TorrentWorld) -> None:
    database = world.database
    for number, state in enumerate(sorted(ACTIVE), start=1):
        job_id = in_state(database, state, number)
        with database.write() as unit:
            assert unit.torrents.cancel(OWN, job_id, Removal.REMOVE_WITH_FILES, START) is DownloadStatus.CANCELED
            (wish,) = unit.torrents.to_remove(10)
            assert (wish.job_id, wish.external_job_id, wish.with_files) == (job_id, info_hash(number), True)
            unit.torrents.removed(job_id)
            assert unit.torrents.to_remove(10) == []
            # A second wish finds it at its end.
            assert unit.torrents.cancel(OWN, job_id, Removal.REMOVE, START) is DownloadStatus.CANCELED
            assert unit.torrents.to_remove(10) == []


@pytest.mark.parametrize("state", sorted(DownloadStatus))
def test_a_torrent_is_wanted_while_another_job_follows_or_rests_on_it(
    world: TorrentWorld, state: DownloadStatus
) -> None:
    database = world.database
    in_state(database, state)
    job_id, _ = start(database, spec(user_id="v"))
    with database.write() as unit:
        unit.torrents.enqueued(read(database, job_id), info_hash(), START)
        unit.torrents.cancel(OWN, job_id, Removal.REMOVE, START)
        (wish,) = unit.torrents.to_remove(10)
        wanted = {*ACTIVE, DownloadStatus.COMPLETED}
        assert unit.torrents.wanted_by_others(wish) is (state in wanted)


@pytest.mark.parametrize("scope", FOREIGN)
def test_a_foreign_id_answers_exactly_like_an_unknown_one(world: TorrentWorld, scope: Scope) -> None:
    database = world.database
    job_id = followed(database)
    before = everything(database)
    with database.write() as unit:
        for asked in (job_id, UNKNOWN, "nonsense", "' OR 1=1 --"):
            assert unit.torrents.get(scope, asked) is None
            assert unit.torrents.cancel(scope, asked, Removal.REMOVE, START) is None
            assert unit.torrents.list_(scope, None, 10, asked) == []
        assert unit.torrents.list_(scope, None, 10, None) == []
    assert everything(database) == before
    with database.read() as unit:
        assert unit.torrents.get(OWN, job_id) is not None


def test_lists_go_page_by_page_newest_first(world: TorrentWorld) -> None:
    database = world.database
    ids: list[str] = []
    for number in range(5):
        with database.write() as unit:
            answer = unit.torrents.start(spec(number), str(uuid.uuid4()), SOON, START + timedelta(seconds=number))
        ids.insert(0, answer.job_id)
    with database.read() as unit:
        first = unit.torrents.list_(OWN, None, 3, None)
        rest = unit.torrents.list_(OWN, None, 3, first[-1].job_id)
        assert [view.job_id for view in [*first, *rest]] == ids
        assert unit.torrents.list_(OWN, DownloadStatus.FAILED, 3, None) == []


def test_a_view_shows_no_pass_key(world: TorrentWorld) -> None:
    url = magnet() + "&dn=A+Book&tr=https%3A%2F%2Ftracker.example%2Fpasskey123%2Fannounce&ws=https%3A%2F%2Fx%2Fkey"
    job_id, _ = start(world.database, spec(source_url=url))
    view = world.view(job_id)
    assert view is not None
    assert view.source_shown == magnet() + "&dn=A+Book"
