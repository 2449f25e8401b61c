"""`dlpipe verify` tells each kind of damage by its own code, and takes no work for damage. OPS-6."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dlpipe.core.layout import part_slug
from dlpipe.core.model import Fault
from dlpipe.db import SqlDatabase
from dlpipe.verify import FINDINGS, Options, StoreNotOurs, check
from tests.checker import assert_clean, findings
from tests.finished import SITE, A, Finished
from tests.world import sha256

Plant = Callable[[Finished], object]
PLANTS: dict[str, list[Plant]] = {}


@pytest.fixture
def done(database: SqlDatabase, tmp_path: Path) -> Finished:
    return Finished(database, tmp_path)


STRICT: set[Plant] = set()
"""Damage that only counts when nothing is running."""


def plants(code: str, *, strict: bool = False) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        PLANTS.setdefault(code, []).append(plant)
        if strict:
            STRICT.add(plant)
        return plant

    return note


# ── the files of the store ────────────────────────────────────────────────────────────────────────


@plants("file_missing")
def a_file_was_removed(done: Finished) -> None:
    done.path(done.fetched).unlink()


@plants("file_missing")
def a_file_of_a_torrent_was_removed(done: Finished) -> None:
    done.path(done.followed).unlink()


@plants("file_size")
def a_file_was_cut(done: Finished) -> None:
    done.write(done.path(done.large), b"short")


@plants("file_damaged")
def a_bit_flipped(done: Finished) -> None:
    path = done.path(done.large)
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    done.write(path, bytes(data))


@plants("file_writable")
def the_mode_was_changed(done: Finished) -> None:
    done.path(done.large).chmod(0o644)


@plants("file_not_plain")
def a_symlink_stands_for_a_file(done: Finished) -> None:
    path = done.path(done.large)
    elsewhere = done.root.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@plants("file_not_plain")
def a_symlink_stands_for_a_folder(done: Finished) -> None:
    (done.root / "default" / "link").symlink_to(done.root)


@plants("file_unknown", strict=True)
def a_right_file_without_a_row(done: Finished) -> None:
    data = b"nobody asked for this"
    done.write(done.root / "default" / "default" / sha256(data)[:2] / sha256(data), data)


@plants("file_unknown", strict=True)
def a_known_file_of_another_tenant(done: Finished) -> None:
    done.write(done.root / "somebody" / "default" / sha256(A)[:2] / sha256(A), A)


@plants("mark_wrong", strict=True)
def a_file_that_is_right_is_marked(done: Finished) -> None:
    artifact = _artifact(done, done.large)
    with done.database.write() as unit:
        assert unit.registry.add_fault(artifact, Fault.MISSING)


@plants("name_not_hash")
def other_bytes_without_a_row(done: Finished) -> None:
    done.write(done.root / "default" / "default" / "ab" / ("ab" * 32), b"not that")


@plants("name_not_hash")
def a_file_of_any_name(done: Finished) -> None:
    done.write(done.root / "default" / "README.txt", b"hello")


# ── the staging folder ────────────────────────────────────────────────────────────────────────────


@plants("stray_part")
def a_part_that_nobody_wants_in_a_nodes_own_folder(done: Finished) -> None:
    done.age(done.write(done.root / ".staging" / "@node-1" / "default" / f"{'0' * 16}.part", b"some", 0o600))


@plants("stray_part")
def a_part_that_nobody_wants(done: Finished) -> None:
    done.age(done.write(done.root / ".staging" / "default" / f"{'0' * 16}.part", b"some", 0o600))


@plants("stray_part")
def a_part_of_a_job_that_failed_for_good(done: Finished) -> None:
    slug = part_slug("default", f"{SITE}nothing")
    done.age(done.write(done.root / ".staging" / "default" / f"{slug}.part", b"some", 0o600))


@plants("stray_temp")
def what_a_crash_left_in_the_staging_folder(done: Finished) -> None:
    done.age(done.write(done.root / ".staging" / "default" / f"{'0' * 64}.01234567.tmp", b"some"))


@plants("staging_blocked")
def a_link_where_a_tenants_folder_belongs(done: Finished) -> None:
    (done.root / ".staging" / "elsewhere").symlink_to(done.root)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


@plants("job_without_detail")
def the_detail_was_deleted(done: Finished) -> None:
    done.plant("DELETE FROM artifact_jobs WHERE job_id = :job", job=done.canceled)


@plants("detail_without_job")
def the_job_was_deleted(done: Finished) -> None:
    done.plant("DELETE FROM jobs WHERE job_id = :job", job=done.canceled)


@plants("job_key_wrong")
def a_job_stands_under_another_key(done: Finished) -> None:
    done.plant("UPDATE jobs SET idempotency_key = :key WHERE job_id = :job", key="0" * 64, job=done.large)


@plants("job_key_wrong")
def a_job_asks_for_another_work(done: Finished) -> None:
    done.plant("UPDATE artifact_jobs SET work_id = 'other' WHERE job_id = :job", job=done.large)


@plants("job_lost")
def a_planned_job_that_nobody_will_send(done: Finished) -> None:
    job = done.world.plan(f"{SITE}late")
    done.plant("UPDATE artifact_jobs SET due_at = NULL WHERE job_id = :job", job=job)


@plants("job_lost")
def a_queued_download_that_nobody_will_hand_over(done: Finished) -> None:
    job = done.torrent.start(2).job_id
    done.plant("UPDATE download_jobs SET due_at_utc = NULL WHERE job_id = :job", job=job)


@plants("job_unfinished", strict=True)
def a_job_is_planned(done: Finished) -> None:
    done.world.plan(f"{SITE}late")


@plants("job_unfinished", strict=True)
def a_download_is_followed(done: Finished) -> None:
    done.torrent.downloading(2)


@plants("state_status")
def a_completed_job_is_called_failed(done: Finished) -> None:
    done.plant("UPDATE jobs SET status = 'canceled' WHERE job_id = :job", job=done.large)


@plants("state_status")
def a_canceled_job_is_called_pending(done: Finished) -> None:
    done.plant("UPDATE jobs SET status = 'pending' WHERE job_id = :job", job=done.canceled)


@plants("state_status")
def a_completed_download_is_called_processing(done: Finished) -> None:
    done.plant("UPDATE jobs SET status = 'processing' WHERE job_id = :job", job=done.followed)


@plants("state_ops")
def a_stage_is_not_on_record(done: Finished) -> None:
    done.plant("DELETE FROM artifact_ops WHERE job_id = :job AND op_type = 'RESUME'", job=done.large)


@plants("state_ops")
def a_stage_is_on_record_as_failed(done: Finished) -> None:
    done.plant(
        "UPDATE artifact_ops SET state = 'failed', result_json = NULL, finished_at = NULL "
        "WHERE job_id = :job AND op_type = 'DEDUPE'",
        job=done.large,
    )


@plants("state_ops")
def two_stages_were_recorded_in_the_wrong_order(done: Finished) -> None:
    done.plant("UPDATE artifact_ops SET fence = 1 WHERE job_id = :job AND op_type = 'STREAM'", job=done.large)


@plants("state_ops")
def two_stages_that_are_never_joined_have_one_claim(done: Finished) -> None:
    done.plant("UPDATE artifact_ops SET fence = 2 WHERE job_id = :job AND op_type = 'STREAM'", job=done.large)


@plants("state_ops")
def the_state_fell_back(done: Finished) -> None:
    done.plant("UPDATE artifact_jobs SET state = 'RESUME_OK' WHERE job_id = :job", job=done.large)
    _set_time(done, "published_at", done.large)
    done.plant(
        "UPDATE jobs SET status = 'processing', completed_at = NULL, progress = 10 WHERE job_id = :job", job=done.large
    )


@plants("due_and_terminal")
def a_completed_job_is_due(done: Finished) -> None:
    _set_time(done, "due_at", done.large)


@plants("due_and_terminal")
def a_canceled_job_is_in_flight(done: Finished) -> None:
    _set_time(done, "published_at", done.canceled)


@plants("lease_stale")
def a_completed_job_is_held(done: Finished) -> None:
    _set_time(done, "lease_owner = 'gone', lease_until", done.large)


@plants("end_not_noted")
def a_completed_job_without_its_time(done: Finished) -> None:
    done.plant("UPDATE jobs SET completed_at = NULL WHERE job_id = :job", job=done.large)


@plants("end_not_noted")
def a_completed_job_with_an_error(done: Finished) -> None:
    done.plant("UPDATE jobs SET error_code = 'http_404' WHERE job_id = :job", job=done.large)


@plants("dead_letter_without_error")
def a_failed_job_that_does_not_say_why(done: Finished) -> None:
    done.plant("UPDATE jobs SET error_code = NULL WHERE job_id = :job", job=done.gone)


@plants("dead_letter_without_error")
def a_failed_job_that_does_not_say_when(done: Finished) -> None:
    done.plant("UPDATE jobs SET failed_at = NULL WHERE job_id = :job", job=done.gone)


# ── the ledger of effects ─────────────────────────────────────────────────────────────────────────


@plants("fence_wrong")
def an_op_is_ahead_of_its_job(done: Finished) -> None:
    done.plant("UPDATE artifact_ops SET fence = 99 WHERE job_id = :job AND op_type = 'DEDUPE'", job=done.large)


@plants("op_started_twice")
def two_ops_are_under_way_under_one_fence(done: Finished) -> None:
    job = done.world.plan(f"{SITE}b2")
    done.world.source.put(f"{SITE}b2", b"x")
    done.world.leave_claimed("head", job)
    done.plant(_COPY_OP, key="0" * 64, job=job, kind="HEAD", state="started")


@plants("op_recorded_twice")
def one_stage_has_two_results_in_one_run(done: Finished) -> None:
    done.plant(_COPY_OP, key="0" * 64, job=done.large, kind="STREAM", state="finished")


@plants("op_unfinished")
def a_completed_job_has_an_op_under_way(done: Finished) -> None:
    done.plant(_COPY_OP, key="0" * 64, job=done.large, kind="DEDUPE", state="started")


@plants("op_unreadable")
def a_result_was_cut(done: Finished) -> None:
    _result(done, done.large, "RESUME", lambda text: text[:20])


@plants("op_unreadable")
def a_result_lacks_a_field(done: Finished) -> None:
    _result(done, done.large, "STREAM", lambda text: json.dumps({**json.loads(text), "size": None}))


@plants("op_results_differ")
def two_stages_tell_of_different_sizes(done: Finished) -> None:
    _result(done, done.large, "STREAM", lambda text: json.dumps({**json.loads(text), "size": 1}))


@plants("op_without_effect")
def the_manifest_has_another_dedupe_action(done: Finished) -> None:
    done.plant("UPDATE manifest SET dedupe_action = 'copy' WHERE job_id = :job", job=done.large)


@plants("op_without_effect")
def a_file_vanished_before_it_was_registered(done: Finished) -> None:
    done.world.source.put(f"{SITE}new", b"new")
    job = done.world.plan(f"{SITE}new")
    done.world.run_to("index", job)
    next((done.root / "default" / "default").glob(f"*/{sha256(b'new')}*")).unlink()


@plants("effect_without_op")
def an_artifact_of_a_download_is_none_of_its_files(done: Finished) -> None:
    done.plant("DELETE FROM download_files WHERE job_id = :job", job=done.followed)


@plants("effect_without_op")
def an_artifact_that_no_op_made(done: Finished) -> None:
    done.plant(
        'UPDATE artifact_ops SET result_json = replace(result_json, \'"known_sha256":"\', \'"other_sha256":"\') '
        "WHERE job_id = :job AND op_type = 'HEAD'",
        job=done.known,
    )


# ── what is registered ────────────────────────────────────────────────────────────────────────────


@plants("artifact_without_job")
def an_artifact_names_no_job(done: Finished) -> None:
    _copy_artifact(done, "NULL")


@plants("artifact_without_job")
def an_artifact_names_a_job_that_is_not_there(done: Finished) -> None:
    _copy_artifact(done, "'00000000-0000-5000-8000-000000000000'")


@plants("artifact_pointer")
def an_artifact_points_to_another_project(done: Finished) -> None:
    """It names a file that is there, and that has a row of its own."""
    pointer = "local:" + str(done.path(done.twin).relative_to(done.root))
    for table, column in (("artifacts", "storage_pointer"), ("manifest", "pointer")):
        key = "created_by_job_id" if table == "artifacts" else "job_id"
        done.plant(f"UPDATE {table} SET {column} = :to WHERE {key} = :job", to=pointer, job=done.known)


@plants("scope_differs")
def a_download_and_its_job_have_different_owners(done: Finished) -> None:
    done.plant("UPDATE download_jobs SET project_id = 'other' WHERE job_id = :job", job=done.torrent.added(2))


@plants("result_missing")
def a_completed_job_has_no_result(done: Finished) -> None:
    done.plant("DELETE FROM job_artifacts WHERE job_id = :job", job=done.large)


@plants("result_pointer")
def a_result_is_of_another_job(done: Finished) -> None:
    done.plant(
        "INSERT INTO job_artifacts (job_id, role, position, artifact_uuid) "
        "SELECT :job, 'result', 1, artifact_uuid FROM artifacts WHERE created_by_job_id = :other",
        job=done.large, other=done.fetched,
    )  # fmt: skip


@plants("result_pointer")
def a_result_does_not_exist(done: Finished) -> None:
    done.plant(
        "INSERT INTO job_artifacts (job_id, role, position, artifact_uuid) VALUES (:job, 'result', 1, :uuid)",
        job=done.large, uuid="00000000-0000-5000-8000-000000000000",
    )  # fmt: skip


@plants("result_pointer")
def a_file_of_a_download_and_its_artifact_differ(done: Finished) -> None:
    done.plant("UPDATE download_files SET byte_size = 1 WHERE job_id = :job", job=done.followed)


@plants("published_twice")
def the_same_bytes_are_registered_twice(done: Finished) -> None:
    new = "00000000-0000-5000-8000-000000000000"
    done.plant(_COPY_ARTIFACT.format(maker=f"'{done.known}'"), new=new, job=done.known)
    done.plant(
        "INSERT INTO job_artifacts (job_id, role, position, artifact_uuid) VALUES (:job, 'result', 1, :new)",
        job=done.known, new=new,
    )  # fmt: skip
    _copy_manifest(done, done.known)


@plants("manifest_missing")
def an_artifact_is_not_in_the_manifest(done: Finished) -> None:
    done.plant("DELETE FROM manifest WHERE job_id = :job", job=done.known)


@plants("manifest_wrong")
def the_manifest_has_another_size(done: Finished) -> None:
    done.plant("UPDATE manifest SET byte_size = 1 WHERE job_id = :job", job=done.known)


@plants("manifest_wrong")
def the_manifest_tells_of_an_artifact_that_is_not_there(done: Finished) -> None:
    _copy_manifest(done, done.known)


@plants("hash_index_wrong")
def bytes_are_not_in_the_index(done: Finished) -> None:
    done.plant("DELETE FROM hash_index WHERE job_id = :job", job=done.large)


@plants("hash_index_wrong")
def the_index_of_hashes_points_elsewhere(done: Finished) -> None:
    done.plant("UPDATE hash_index SET pointer = pointer || '.zip' WHERE job_id = :job", job=done.large)


@plants("url_index_wrong")
def a_url_is_not_in_the_index(done: Finished) -> None:
    done.plant("DELETE FROM url_index WHERE canonical_url = :url", url=f"{SITE}b")


@plants("url_index_wrong")
def the_index_of_urls_has_another_size(done: Finished) -> None:
    done.plant("UPDATE url_index SET size = 1 WHERE canonical_url = :url", url=f"{SITE}b")


@plants("url_index_wrong")
def an_entry_stands_under_another_key(done: Finished) -> None:
    done.plant("UPDATE url_index SET canonical_url = :new WHERE canonical_url = :url", new="x", url=f"{SITE}b")


@plants("library_wrong")
def a_book_with_an_asset_is_archived(done: Finished) -> None:
    done.plant("UPDATE books SET state = 'Archive'")


@plants("library_wrong")
def a_completed_download_has_no_asset(done: Finished) -> None:
    done.plant("UPDATE media_assets SET media_type = 'audio'")


def _artifact(done: Finished, job: str) -> str:
    (row,) = done.sql("SELECT artifact_uuid FROM artifacts WHERE created_by_job_id = :job", job=job)
    return str(row.artifact_uuid)


def _copy_artifact(done: Finished, maker: str) -> None:
    new = "11111111-0000-5000-8000-000000000000"
    done.plant(_COPY_ARTIFACT.format(maker=maker), new=new, job=done.known)
    if maker == "NULL":
        _copy_manifest(done, done.known, new)


def _copy_manifest(done: Finished, job: str, new: str = "00000000-0000-5000-8000-000000000000") -> None:
    done.plant(_COPY_MANIFEST, new=new, job=job)


_COPY_ARTIFACT = """
    INSERT INTO artifacts (artifact_uuid, tenant_id, project_id, artifact_type, storage_backend, storage_pointer,
                           content_type, byte_size, sha256, schema_version, created_at, created_by_job_id)
    SELECT :new, tenant_id, project_id, artifact_type, storage_backend, storage_pointer,
           content_type, byte_size, sha256, schema_version, created_at, {maker}
    FROM artifacts WHERE created_by_job_id = :job
"""
_COPY_MANIFEST = """
    INSERT INTO manifest (artifact_uuid, job_id, run, sha256, pointer, byte_size, dedupe_action, created_at)
    SELECT :new, job_id, run, sha256, pointer, byte_size, dedupe_action, created_at FROM manifest WHERE job_id = :job
"""


def _set_time(done: Finished, column: str, job: str) -> None:
    now = "now()" if done.database.engine.dialect.name == "postgresql" else "1794960000000"
    done.plant(f"UPDATE artifact_jobs SET {column} = {now} WHERE job_id = :job", job=job)


def _result(done: Finished, job: str, kind: str, change: Callable[[str], str]) -> None:
    which = "WHERE job_id = :job AND op_type = :kind"
    (row,) = done.sql(f"SELECT result_json FROM artifact_ops {which}", job=job, kind=kind)
    done.plant(f"UPDATE artifact_ops SET result_json = :text {which}", text=change(row[0]), job=job, kind=kind)


_COPY_OP = """
    INSERT INTO artifact_ops (op_key, job_id, run, op_type, state, fence, started_at, finished_at, result_json)
    SELECT :key, job_id, run, op_type, CAST(:state AS VARCHAR), fence, started_at,
           CASE WHEN CAST(:state AS VARCHAR) = 'finished' THEN finished_at END,
           CASE WHEN CAST(:state AS VARCHAR) = 'finished' THEN result_json END
    FROM artifact_ops WHERE job_id = :job AND op_type = :kind
"""

CASES = [pytest.param(code, plant, id=f"{code}-{plant.__name__}") for code, found in PLANTS.items() for plant in found]


def test_every_code_is_planted_at_least_once() -> None:
    not_as_root = {"file_unreadable"}
    assert set(PLANTS) == set(FINDINGS) - not_as_root


def test_a_finished_world_is_clean(done: Finished) -> None:
    assert_clean(done.url, done.root)
    assert findings(done.url, done.root, notes=True) == []


@pytest.mark.slow
@pytest.mark.parametrize(("code", "plant"), CASES)
def test_damage_is_told_by_its_code_and_by_no_other(done: Finished, code: str, plant: Plant) -> None:
    plant(done)
    found = findings(done.url, done.root, strict=plant in STRICT)
    assert {one.code for one in found} == {code}, "\n".join(map(str, found))


# ── how old is young ──────────────────────────────────────────────────────────────────────────────


def codes(done: Finished, options: Options) -> set[str]:
    return {one.code for one in check(done.url, done.root, options)}


@pytest.mark.parametrize(("grace_s", "told"), [(3_600.0, False), (100.0, False), (40.0, True), (0.0, True)])
def test_a_file_that_no_row_knows_is_told_once_it_is_older_than_the_settings_say(
    done: Finished, monkeypatch: pytest.MonkeyPatch, grace_s: float, told: bool
) -> None:
    data = b"nobody knows me"
    path = done.root / "default" / "default" / sha256(data)[:2] / sha256(data)
    path.parent.mkdir(exist_ok=True)
    done.write(path, data)
    lstat = os.lstat

    def older(found: os.PathLike[str]) -> os.stat_result:
        """The time of a change of its name, which no call can set."""
        whole = list(lstat(found))
        whole[8] = whole[9] = int(time.time()) - 60
        return os.stat_result(whole)

    monkeypatch.setattr(os, "lstat", older)
    found = codes(done, Options(file_grace_s=grace_s))
    assert ("file_unknown" in found) is told
    assert "file_unknown" in codes(done, Options(strict=True, file_grace_s=grace_s))


@pytest.mark.parametrize(("age_s", "told"), [(3_600.0, False), (100.0, False), (40.0, True)])
def test_a_part_that_nobody_wants_is_told_once_it_is_older_than_the_settings_say(
    done: Finished, age_s: float, told: bool
) -> None:
    part = done.root / ".staging" / "default" / f"{'0' * 16}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(b"x")
    os.utime(part, (time.time() - 60, time.time() - 60))
    assert ("stray_part" in codes(done, Options(part_age_s=age_s))) is told
    assert "stray_part" in codes(done, Options(strict=True, part_age_s=age_s))


# ── which store it is ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mark", [None, "another", ""])
def test_a_store_that_is_not_the_one_on_record_is_not_checked(done: Finished, mark: str | None) -> None:
    (done.root / ".dlpipe-store").unlink()
    if mark is not None:
        (done.root / ".dlpipe-store").write_text(mark)
    with pytest.raises(StoreNotOurs):
        codes(done, Options())


def test_a_store_that_no_ledger_has_marked_yet_is_checked(database: SqlDatabase, tmp_path: Path) -> None:
    done = Finished(database, tmp_path)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM stores")
    (done.root / ".dlpipe-store").unlink()
    assert codes(done, Options(strict=True)) == set()
