"""Files of an earlier time become finished jobs without ops (PLAN-7), on both engines."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import Postponed
from dlpipe.core.model import Scope
from dlpipe.core.states import State, Status
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import backfill as filling
from dlpipe.pipeline.backfill import Answered, Line, Refused
from dlpipe.pipeline.reconcile import reconcile
from tests.checker import assert_clean, findings
from tests.ledgers import everything
from tests.world import World, sha256

URL = "https://example.org/old.pdf"
OWN, OTHER = Scope(), Scope("default", "other")
BODY = b"%PDF-1.4 old"
WHEN = "2024-05-31T12:00:00Z"


class Attic:
    """A folder of files of old, and a world that has none of them."""

    def __init__(self, database: SqlDatabase, directory: Path) -> None:
        self.database = database
        self.world = World(database, directory / "store")
        self.url = database.url.render_as_string(hide_password=False)
        self.root = directory / "attic"
        self.root.mkdir()
        self.rows: list[dict[str, Any]] = []

    def put(self, name: str, data: bytes = BODY, **fields: Any) -> Path:
        """A file with its row."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.rows.append({"url": f"https://example.org/{name}", "path": name, **fields})
        return path

    def fill(self, *, scope: Scope = OWN, **how: Any) -> list[Answered | Refused]:
        lines = (Line(number, row) for number, row in enumerate(self.rows, start=2))
        return list(filling.backfill(self.world.deps, scope, str(self.root), lines, **how))

    def codes(self) -> list[str]:
        return [one.code if isinstance(one, Refused) else one.outcome for one in self.fill()]


@pytest.fixture
def attic(database: SqlDatabase, tmp_path: Path) -> Attic:
    return Attic(database, tmp_path)


def test_a_row_becomes_a_finished_job_with_its_file(attic: Attic) -> None:
    attic.put("old.pdf", work_id="w", sha256=sha256(BODY), content_type="application/pdf", downloaded_at=WHEN)
    (done,) = attic.fill()
    assert isinstance(done, Answered)
    view = attic.world.view(done.job_id)
    assert (view.status, view.state, view.run, view.progress) == (Status.COMPLETED, State.DEDUPED, 0, 100)
    assert view.completed_at == datetime(2024, 5, 31, 12, tzinfo=UTC)
    assert attic.world.ops(done.job_id) == []
    (artifact,) = attic.world.artifacts(done.job_id)
    assert (artifact.sha256, artifact.byte_size, artifact.content_type) == (sha256(BODY), len(BODY), "application/pdf")
    assert artifact.storage_pointer.endswith(".pdf")
    assert attic.world.deps.store.is_right(artifact.storage_pointer, artifact.sha256, artifact.byte_size)
    row = attic.world.row(done.job_id)
    assert (row.tenant_id, row.part is not None, row.due_at) == ("default", True, None)
    assert attic.world.plan(URL, work_id="w") == done.job_id
    assert_clean(attic.url, attic.world.root)
    assert not any(reconcile(attic.world.deps).counts().values())


@pytest.mark.parametrize("sharing", list(Sharing))
def test_the_original_keeps_its_bytes_and_its_place(attic: Attic, sharing: Sharing) -> None:
    path = attic.put("a/old.pdf")
    before = path.stat()
    attic.fill(sharing=sharing)
    after = path.stat()
    assert path.read_bytes() == BODY
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    if sharing is not Sharing.LINK:
        assert (after.st_mode, after.st_nlink) == (before.st_mode, 1)
    assert_clean(attic.url, attic.world.root)


def test_a_repeat_changes_nothing(attic: Attic) -> None:
    for number in range(3):
        attic.put(f"{number}.pdf", bytes([number]))
    attic.fill()
    before = everything(attic.database)
    assert attic.codes() == ["known"] * 3
    assert everything(attic.database) == before


def test_a_dry_run_changes_nothing(attic: Attic) -> None:
    attic.put("old.pdf")
    attic.rows.append({"url": "ftp://example.org/x", "path": "x"})
    before = everything(attic.database)
    assert [one.code if isinstance(one, Refused) else one.outcome for one in attic.fill(dry_run=True)] == [
        "url_scheme", "fit",
    ]  # fmt: skip
    assert everything(attic.database) == before
    assert not attic.world.root.exists()


def bad(attic: Attic, **fields: Any) -> list[Answered | Refused]:
    attic.rows.append({"url": "https://example.org/x", "path": "x", **fields})
    attic.put("good.pdf")
    return attic.fill()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "path_missing"),
        ({"path": "../x"}, "path_outside_root"),
        ({"path": "/etc/passwd"}, "path_outside_root"),
        ({"path": "link"}, "path_refused"),
        ({"path": "through/x"}, "path_refused"),
        ({"path": "folder"}, "path_refused"),
        ({"path": "there", "sha256": "0" * 64}, "sha256_mismatch"),
        ({"path": "there", "sha256": "zz"}, "sha256_invalid"),
        ({"path": "there", "url": "https://user:pw@example.org/x"}, "url_userinfo"),
        ({"path": "there", "url": ""}, "row_incomplete"),
        ({"path": "there", "downloaded_at": "yesterday"}, "downloaded_at_invalid"),
        ({"path": "there", "downloaded_at": "2999-01-01"}, "downloaded_at_invalid"),
        ({"path": "there", "content_type": "a\nb"}, "content_type_invalid"),
    ],
)
def test_bad_rows_are_refused_with_their_line_and_the_others_done(
    attic: Attic, fields: dict[str, Any], code: str
) -> None:
    (attic.root / "there").write_bytes(b"there")
    (attic.root / "folder").mkdir()
    (attic.root / "link").symlink_to(attic.root / "there")
    outside = attic.root.parent / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"x")
    (attic.root / "through").symlink_to(outside)
    found = bad(attic, **fields)
    (refused,) = [one for one in found if isinstance(one, Refused)]
    assert (refused.code, refused.number) == (code, 2)
    assert refused.message
    assert refused.hint
    assert [one.outcome for one in found if isinstance(one, Answered)] == ["done"]
    assert len(attic.world.blobs()) == 1
    assert_clean(attic.url, attic.world.root)


def test_a_job_that_is_on_its_way_is_left_to_it(attic: Attic) -> None:
    attic.put("old.pdf", work_id="w")
    job = attic.world.plan(URL, work_id="w")
    assert attic.codes() == ["job_exists"]
    assert attic.world.state(job) is State.PLANNED


def test_equal_files_share_their_bytes_within_the_dedupe_scope(attic: Attic) -> None:
    attic.put("old.pdf")
    attic.fill()
    attic.fill(scope=OTHER)
    names = [attic.world.root / name for name in attic.world.blobs()]
    assert len(names) == 2
    assert os.path.samefile(*names)
    assert_clean(attic.url, attic.world.root)


def test_what_an_index_knows_better_stays(attic: Attic) -> None:
    attic.world.source.put(URL, b"news")
    attic.world.fetch(URL, work_id="newer")
    attic.put("old.pdf")
    attic.fill()
    (known,) = attic.world.sql("SELECT sha256 FROM url_index")
    assert known.sha256 == sha256(b"news")
    assert_clean(attic.url, attic.world.root)


def test_what_was_downloaded_long_ago_is_not_taken_for_what_the_server_has_now(attic: Attic) -> None:
    attic.put("old.pdf", downloaded_at=WHEN)
    attic.fill()
    attic.world.source.put(URL, b"news")
    job = attic.world.fetch(URL, artifact_id="another")
    (artifact,) = attic.world.artifacts(job)
    assert artifact.sha256 == sha256(b"news")


@pytest.mark.parametrize("changed", [False, True])
def test_a_backfilled_job_can_be_refreshed(attic: Attic, changed: bool) -> None:
    attic.put("old.pdf")
    (done,) = attic.fill()
    assert isinstance(done, Answered)
    attic.world.source.put(URL, b"news" if changed else BODY)
    with attic.database.write() as unit:
        unit.owned(OWN).refresh(done.job_id)
    attic.world.drive()
    assert attic.world.view(done.job_id).status in (Status.COMPLETED, Status.SKIPPED)
    assert len(attic.world.artifacts(done.job_id)) == 1 + changed
    assert_clean(attic.url, attic.world.root)


def test_damage_in_a_backfilled_world_is_found(attic: Attic) -> None:
    attic.put("old.pdf")
    attic.put("gone.pdf", b"gone")
    attic.put("bare.pdf", b"bare")
    done = attic.fill()
    files = {data: attic.world.root / name for name, data in attic.world.blobs().items()}
    files[b"gone"].unlink()
    files[BODY].chmod(0o644)
    files[BODY].write_bytes(b"x" * len(BODY))
    files[BODY].chmod(0o444)
    bare = done[2]
    assert isinstance(bare, Answered)
    attic.world.sql("DELETE FROM job_artifacts WHERE job_id = :job", job=bare.job_id)
    assert {one.code for one in findings(attic.url, attic.world.root)} == {
        "file_missing", "file_damaged", "result_missing",
    }  # fmt: skip


def test_memory_is_bounded_by_the_batch(attic: Attic) -> None:
    """Rows are read as they are needed: never more than a batch ahead."""
    ahead = 0

    def lines() -> Any:
        nonlocal ahead
        for number in range(500):
            ahead += 1
            yield Line(number, {"url": f"https://example.org/{number}", "path": f"{number}"})

    answered = 0
    for _ in filling.backfill(attic.world.deps, OWN, str(attic.root), lines()):
        answered += 1
        assert ahead - answered <= filling.BATCH_ROWS
    assert answered == 500


def test_rows_of_two_jobs_with_one_id_are_one(attic: Attic) -> None:
    attic.put("old.pdf")
    attic.rows.append(dict(attic.rows[0]))
    assert sorted(attic.codes()) == ["done", "known"]


def test_the_policy_of_the_dedupe_scope_is_kept(attic: Attic) -> None:
    attic.world.deps = replace(attic.world.deps, policy=replace(attic.world.deps.policy, dedupe_scope="project"))
    attic.put("old.pdf")
    attic.fill()
    attic.fill(scope=OTHER)
    names = [attic.world.root / name for name in attic.world.blobs()]
    assert not os.path.samefile(*names)


def test_nothing_is_brought_into_a_store_that_is_not_mounted(attic: Attic) -> None:
    attic.put("a.pdf")
    attic.fill()
    attic.put("b.pdf", b"%PDF-1.4 other")
    attic.world.root.rename(attic.world.root.with_name("away"))
    attic.world.root.mkdir()
    attic.world.deps = replace(attic.world.deps, known_stores={})
    before = everything(attic.database)
    with pytest.raises(Postponed) as refused:
        attic.fill()
    assert refused.value.code == "store_not_mounted"
    assert list(attic.world.root.iterdir()) == []
    assert everything(attic.database) == before


def test_what_is_told_of_a_backfill_does_not_go_by_what_other_tenants_have(attic: Attic) -> None:
    """Where equal files of all tenants share their bytes (DEDUPE-2)."""
    attic.world.deps = replace(attic.world.deps, policy=replace(attic.world.deps.policy, dedupe_scope="global"))
    attic.put("old.pdf")
    attic.fill(scope=Scope("alone"))
    attic.fill(scope=Scope("later"))
    names = [attic.world.root / name for name in attic.world.blobs()]
    assert os.path.samefile(*names)
    alone, later = (row.dedupe_action for row in attic.world.sql("SELECT dedupe_action FROM manifest"))
    assert alone == later
    assert_clean(attic.url, attic.world.root)
