"""What completion records, and what keeps it from recording (TORRENT-7)."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import Retryable, TorrentOutage
from dlpipe.core.torrents import TorrentFile
from dlpipe.pipeline import torrents
from tests.torrent_world import TorrentWorld, content, info_hash
from tests.world import DEFAULT, blobs, sha256, staged

BOOK = {"A Book/one.mp3": content(11), "A Book/two.mp3": content(12), "A Book/cover.jpg": content(13, 900)}


def complete(torrent: TorrentWorld, number: int = 1, files: dict[str, bytes] | None = None, **fields: Any) -> str:
    """A download whose torrent is complete and whose files are due to be registered."""
    job_id = torrent.downloading(number, **fields)
    torrent.finish(number, files)
    torrent.sync(15)
    assert torrent.messages.queue == [("register", job_id)]
    return job_id


def recorded(torrent: TorrentWorld) -> dict[str, int]:
    tables = ("media_assets", "books", "artifacts", "job_artifacts", "download_files", "manifest", "hash_index")
    return {table: torrent.sql(f"SELECT count(*) FROM {table}")[0][0] for table in tables}


NOTHING = dict.fromkeys(
    ("media_assets", "books", "artifacts", "job_artifacts", "download_files", "manifest", "hash_index"), 0
)


def test_every_file_is_an_artifact_like_any_other(torrent: TorrentWorld) -> None:
    job_id = complete(torrent, files=BOOK)
    assert torrent.drive() == ["completed: 3 files"]
    view = torrent.view(job_id)
    assert view is not None
    assert {file.path: file.sha256 for file in view.files} == {path: sha256(data) for path, data in BOOK.items()}
    artifacts = torrent.artifacts(job_id)
    assert [artifact.artifact_uuid for artifact in artifacts] == [file.artifact_uuid for file in view.files]
    store = torrent.deps.base.store
    assert [Path(store.path(artifact.storage_pointer)).read_bytes() for artifact in artifacts] == [
        BOOK[file.path] for file in view.files
    ]
    assert [artifact.content_type for artifact in artifacts] == ["image/jpeg", "audio/mpeg", "audio/mpeg"]
    assert set(blobs(torrent.root / "store").values()) == set(BOOK.values())
    assert recorded(torrent) == {**dict.fromkeys(NOTHING, 3), "media_assets": 1, "books": 1}
    actions = {row.dedupe_action for row in torrent.sql("SELECT dedupe_action FROM manifest")}
    assert actions <= {"hardlink", "reflink"}
    for path, data in BOOK.items():  # it goes on seeding
        assert (torrent.saved / path).read_bytes() == data


def test_the_asset_is_available_and_the_book_in_the_library(torrent: TorrentWorld) -> None:
    job_id = complete(torrent, files=BOOK)
    torrent.drive()
    (asset,) = torrent.sql("SELECT * FROM media_assets")
    assert (asset.user_id, asset.book_id, asset.media_type) == ("u", "b1", "ebook")
    assert (bool(asset.available), asset.local_path) == (True, str(torrent.saved / "A Book"))
    assert (asset.source_url, asset.job_id) == (torrent.row(job_id).source_url, job_id)
    assert torrent.sql("SELECT user_id, book_id, state FROM books") == [("u", "b1", "Library")]
    job = torrent.job(job_id)
    assert (job.status, job.progress, job.error_code) == ("completed", 100, None)


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({"one.epub": b"1"}, "one.epub"),
        ({"A Book/one.epub": b"1"}, "A Book/one.epub"),
        ({"one.epub": b"1", "two.epub": b"2"}, ""),
    ],
)
def test_the_local_path_is_the_file_or_the_folder_that_holds_all(
    torrent: TorrentWorld, files: dict[str, bytes], path: str
) -> None:
    complete(torrent, files=files)
    torrent.drive()
    assert torrent.sql("SELECT local_path FROM media_assets") == [(str(torrent.saved / path),)]


def test_a_client_that_sees_the_folder_under_another_path(torrent: TorrentWorld) -> None:
    torrent.policy(save_path="/downloads", local_path=str(torrent.saved))
    job_id = torrent.downloading()
    held = torrent.client.held[info_hash()]
    held.torrent = replace(held.torrent, save_path=str(torrent.saved / "books"))
    torrent.finish()
    held.torrent = replace(held.torrent, save_path="/downloads/books")
    torrent.sync(15)
    assert torrent.drive() == ["completed: 1 files"]
    assert torrent.sql("SELECT local_path FROM media_assets") == [(str(torrent.saved / "books/book1.epub"),)]
    assert torrent.state(job_id) == "completed"


def test_files_that_were_not_wanted_are_not_registered(torrent: TorrentWorld) -> None:
    job_id = complete(torrent, files=BOOK)
    held = torrent.client.held[info_hash()]
    held.files = (*held.files, TorrentFile("A Book/sample.nfo", 5000, False))
    assert torrent.drive() == ["completed: 3 files"]
    assert len(torrent.artifacts(job_id)) == 3


def test_the_same_bytes_of_two_torrents_are_one_blob(torrent: TorrentWorld) -> None:
    complete(torrent, 1, files={"a.epub": content(1)})
    torrent.drive()
    second = complete(torrent, 2, files={"b.epub": content(1)})
    torrent.drive()
    other = complete(torrent, 3, files={"c.epub": content(1)}, project_id="elsewhere")
    torrent.drive()
    actions = [row.dedupe_action for row in torrent.sql("SELECT dedupe_action FROM manifest ORDER BY created_at")]
    assert actions[1:] == ["skipped", "hardlink"]
    (mine,) = torrent.artifacts(second)
    found = torrent.sql("SELECT storage_pointer FROM artifacts WHERE created_by_job_id = :job", job=other)
    store = torrent.deps.base.store
    assert os.path.samefile(store.path(mine.storage_pointer), store.path(found[0].storage_pointer))
    assert recorded(torrent)["hash_index"] == 1


def test_an_earlier_copy_that_is_damaged_is_not_shared_and_loses_its_place(torrent: TorrentWorld) -> None:
    torrent.policy(sharing=Sharing.COPY)
    first = complete(torrent, 1, files={"a.epub": content(1)})
    torrent.drive()
    (artifact,) = torrent.artifacts(first)
    path = Path(torrent.deps.base.store.path(artifact.storage_pointer))
    path.chmod(0o644)
    path.write_bytes(b"rotten")
    complete(torrent, 2, files={"b.epub": content(1)}, project_id="elsewhere")
    torrent.drive()
    (row,) = torrent.sql("SELECT pointer FROM hash_index")
    assert "elsewhere" in row.pointer
    assert Path(torrent.deps.base.store.path(row.pointer)).read_bytes() == content(1)


def test_two_equal_files_of_one_torrent_are_two_artifacts_of_one_blob(torrent: TorrentWorld) -> None:
    job_id = complete(torrent, files={"x/a.epub": b"same", "x/b.epub": b"same"})
    assert torrent.drive() == ["completed: 2 files"]
    assert len({artifact.artifact_uuid for artifact in torrent.artifacts(job_id)}) == 2
    assert len(blobs(torrent.root / "store")) == 1


def test_registering_twice_changes_nothing(torrent: TorrentWorld) -> None:
    job_id = complete(torrent, files=BOOK)
    torrent.drive()
    before = recorded(torrent), torrent.row(job_id)
    assert torrent.register(job_id) == "dropped: nothing to register"
    assert (recorded(torrent), torrent.row(job_id)) == before


def test_progress_is_shown_while_files_are_hashed(torrent: TorrentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = complete(torrent, files=BOOK)
    total = sum(map(len, BOOK.values()))
    reported: list[tuple[int, int | None]] = []
    monkeypatch.setattr(torrent.deps.base.progress, "report", lambda job, done, of: reported.append((done, of)))
    torrent.register(job_id)
    assert reported[-1] == (total, total)
    assert len(reported) == 3


# ── what keeps it from recording ──────────────────────────────────────────────────────────────────


def test_a_job_that_somebody_holds_is_left_to_him(torrent: TorrentWorld) -> None:
    job_id = complete(torrent)
    with torrent.deps.base.leases.hold(job_id):
        assert torrent.drive() == ["dropped: lease_busy"]
        assert torrents.send_due(torrent.deps, torrent.now + timedelta(seconds=61)) == 0  # and nobody else is told
    assert torrents.send_due(torrent.deps, torrent.now + timedelta(seconds=122)) == 1
    assert torrent.drive() == ["completed: 1 files"]


def test_a_recheck_that_begins_meanwhile_puts_it_back(torrent: TorrentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = complete(torrent)
    real = torrent.deps.base.store.adopt

    def adopt(*arguments: Any) -> Any:
        found = real(*arguments)
        torrent.client.say(info_hash(), "checkingUP")
        return found

    monkeypatch.setattr(torrent.deps.base.store, "adopt", adopt)
    assert torrent.drive() == ["dropped: not complete any more; it is followed on"]
    assert (torrent.state(job_id), torrent.row(job_id).due_at_utc, recorded(torrent)) == ("downloading", None, NOTHING)
    monkeypatch.setattr(torrent.deps.base.store, "adopt", real)
    torrent.sync(15)
    assert torrent.messages.queue == []
    torrent.client.say(info_hash(), "stalledUP")
    torrent.sync(15)
    assert torrent.drive() == ["completed: 1 files"]


def test_a_change_by_the_sync_round_meanwhile_does_not_undo_the_work(
    torrent: TorrentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = complete(torrent)
    real = torrent.deps.base.store.adopt

    def adopt(*arguments: Any) -> Any:
        held = torrent.client.remove(info_hash())
        assert torrent.sync(15).missing == 1
        torrent.client.put_back(held)
        return real(*arguments)

    monkeypatch.setattr(torrent.deps.base.store, "adopt", adopt)
    assert torrent.register(job_id) == "completed: 1 files"
    assert torrent.row(job_id).first_not_found_at_utc is None


def test_canceled_in_the_middle_stays_canceled_and_records_nothing(
    torrent: TorrentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = complete(torrent)
    real = torrent.client.files

    def files(name: str) -> Any:
        found = real(name)
        with torrent.database.write() as unit:
            unit.torrents.cancel(DEFAULT, job_id, torrent.deps.policy.removal, torrent.now)
        return found

    monkeypatch.setattr(torrent.client, "files", files)
    assert torrent.drive() == ["dropped: the job moved on meanwhile"]
    assert (torrent.state(job_id), recorded(torrent)) == ("canceled", NOTHING)


def test_an_outage_in_the_middle_is_waited_out(torrent: TorrentWorld) -> None:
    job_id = complete(torrent)
    torrent.client.outage = TorrentOutage("gone")
    assert torrent.drive() == ["postponed: torrent_outage"]
    assert (torrent.state(job_id), recorded(torrent)) == ("downloading", NOTHING)
    assert torrent.job(job_id).error_code == "torrent_outage"
    torrent.client.outage = None
    torrents.send_due(torrent.deps, torrent.now + timedelta(hours=1))
    assert torrent.drive() == ["completed: 1 files"]
    assert torrent.job(job_id).error_code is None


def test_a_download_folder_that_is_not_mounted_is_waited_for(torrent: TorrentWorld) -> None:
    job_id = complete(torrent)
    torrent.saved.rename(torrent.root / "away")
    for _ in range(30):  # however long it takes: its bytes are safe where they are
        assert torrent.register(job_id) == "postponed: torrent_file_missing"
    (torrent.root / "away").rename(torrent.saved)
    assert torrent.register(job_id) == "completed: 1 files"


def test_a_download_folder_that_is_never_mounted_ends_the_download(torrent: TorrentWorld) -> None:
    torrent.policy(register_attempts=30)
    job_id = complete(torrent)
    torrent.saved.rename(torrent.root / "away")
    for _ in range(29):
        assert torrent.register(job_id) == "postponed: torrent_file_missing"
    assert torrent.register(job_id) == "failed: torrent_file_missing"
    assert torrent.row(job_id).failure_reason == "torrent_file_missing"


def test_files_outside_the_download_folder_are_not_read(torrent: TorrentWorld, tmp_path: Path) -> None:
    job_id = complete(torrent)
    held = torrent.client.held[info_hash()]
    for elsewhere in (str(tmp_path), "/etc", str(torrent.saved) + "2"):
        held.torrent = replace(held.torrent, save_path=elsewhere)
        assert torrent.register(job_id) in ("failed: outside_save_path", "dropped: nothing to register")
    assert torrent.row(job_id).failure_reason == "outside_save_path"
    assert blobs(torrent.root / "store") == {}


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret"])
def test_a_file_name_that_leads_out_of_the_folder_fails_the_job(torrent: TorrentWorld, path: str) -> None:
    (torrent.root / "secret").write_bytes(b"secret")
    job_id = complete(torrent)
    torrent.client.held[info_hash()].files = (TorrentFile(path, 6, True),)
    assert torrent.drive() == ["failed: file_refused"]
    assert (torrent.row(job_id).failure_reason, recorded(torrent)) == ("file_refused", NOTHING)


def test_too_many_files_are_refused(torrent: TorrentWorld) -> None:
    torrent.policy(max_files=2)
    complete(torrent, files=BOOK)
    assert torrent.drive() == ["failed: too_many_files"]
    assert staged(torrent.root / "store") == []


def test_an_unexpected_error_is_noted_and_tried_again(torrent: TorrentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = complete(torrent)
    real = torrent.deps.base.store.adopt

    def adopt(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(torrent.deps.base.store, "adopt", adopt)
    assert torrent.drive() == ["postponed: internal_error"]
    assert torrent.job(job_id).error_message_safe == "an unexpected ZeroDivisionError"
    monkeypatch.setattr(torrent.deps.base.store, "adopt", real)
    assert torrent.register(job_id) == "completed: 1 files"


def test_pauses_grow_and_end_at_the_cap(torrent: TorrentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = complete(torrent)

    def files(_: str) -> Any:
        raise Retryable("not now", code="no_space")

    monkeypatch.setattr(torrent.client, "files", files)
    waits = []
    for _ in range(10):
        with torrent.database.read() as unit:
            before = unit.torrents.clock()
        torrent.register(job_id)
        with torrent.database.read() as unit:
            found = unit.torrents.work(job_id)
        assert found is not None
        assert found.due_at_utc is not None
        waits.append(round((found.due_at_utc - before).total_seconds()))
    assert waits[:6] == sorted(waits[:6])
    assert 3 <= waits[0] <= 6
    assert 449 <= waits[-1] <= 460
