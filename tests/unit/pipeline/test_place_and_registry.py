"""After the last byte: one name, one record, one copy. FINAL-1, FINAL-2, INDEX-1, DEDUPE-1, DEDUPE-2."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core import keys
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.states import State
from dlpipe.pipeline.runner import Done, Failed
from tests.world import RETRY_S, World, altered, no_links, sha256, some_bytes

BODY = some_bytes(30_000)
ONE, TWO = "http://one.example/a.bin", "http://two.example/b.bin"
OTHER = Scope(project_id="other")


@pytest.fixture(autouse=True)
def _pages(world: World) -> None:
    for url in (ONE, TWO):
        world.source.put(url, BODY)


def result(world: World, job: str, op: OpType, scope: Scope | None = None) -> dict[str, Any]:
    found = world.op(job, op, scope or Scope()).result
    assert found is not None
    return dict(found)


def path_of(world: World, job: str, scope: Scope | None = None) -> Path:
    (artifact,) = world.artifacts(job, scope or Scope())
    return Path(world.deps.store.path(artifact.storage_pointer))


def damage(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"!" * len(BODY))
    path.chmod(0o444)


# ── finalize ──────────────────────────────────────────────────────────────────────────────────────


def test_the_file_is_named_by_its_hash_in_its_own_project(world: World) -> None:
    world.fetch(ONE, tenant_id="t-1", project_id="p.2")
    digest = sha256(BODY)
    assert list(world.blobs()) == [f"t-1/p.2/{digest[:2]}/{digest}.bin"]


@pytest.mark.parametrize(
    ("url", "fields", "ext"),
    [
        ("http://one.example/paper.PDF?download=1", {}, ".pdf"),
        ("http://one.example/x.tar.gz", {}, ".tar.gz"),
        ("http://one.example/run.exe", {}, ""),
        ("http://one.example/data", {"ext": "csv"}, ".csv"),
        ("http://one.example/a.txt", {"ext": ""}, ""),
    ],
)
def test_the_extension_comes_from_a_list(world: World, url: str, fields: dict[str, Any], ext: str) -> None:
    world.fetch(world.source.put(url, BODY), **fields)
    (name,) = world.blobs()
    assert Path(name).name == sha256(BODY) + ext


def test_staged_bytes_that_rotted_are_never_published(world: World) -> None:
    job = world.plan(ONE)
    world.run_to("finalize", job)
    (part,) = (world.root / ".staging").rglob("*.part")
    part.write_bytes(altered(BODY))
    assert world.run("finalize", job) == Failed("part_damaged", RETRY_S)
    assert world.blobs() == {}
    world.make_due(job)
    world.drive()
    assert (world.state(job), list(world.blobs().values())) == (State.DEDUPED, [BODY])


def test_two_jobs_with_the_same_bytes_share_the_place(world: World) -> None:
    jobs = [world.plan(ONE), world.plan(TWO)]
    for stage in ("head", "resume_decide", "stream", "finalize", "index", "dedupe"):
        for job in jobs:
            assert isinstance(world.run(stage, job), Done)
    assert len(world.blobs()) == 1
    assert [result(world, job, OpType.FINALIZE)["already_there"] for job in jobs] == [False, True]
    assert [result(world, job, OpType.DEDUPE)["action"] for job in jobs] == ["download", "skipped"]
    assert [len(world.artifacts(job)) for job in jobs] == [1, 1]
    assert len(world.sql("SELECT 1 FROM hash_index")) == 1
    assert len(world.sql("SELECT 1 FROM url_index")) == 2


def test_a_damaged_file_in_the_place_is_set_aside_and_kept(world: World) -> None:
    path = path_of(world, world.fetch(ONE))
    damage(path)
    job = world.fetch(TWO)
    assert result(world, job, OpType.FINALIZE)["already_there"] is False
    assert path.read_bytes() == BODY
    assert len([name for name in world.blobs() if ".damaged-" in name]) == 1


# ── index ─────────────────────────────────────────────────────────────────────────────────────────


def test_everything_about_a_file_is_on_record(world: World) -> None:
    job = world.fetch(ONE)
    (artifact,) = world.artifacts(job)
    (noted,) = world.sql("SELECT * FROM manifest")
    assert (artifact.sha256, artifact.byte_size, artifact.created_by_job_id) == (sha256(BODY), len(BODY), job)
    assert (noted.artifact_uuid, noted.sha256, noted.byte_size) == (
        artifact.artifact_uuid,
        sha256(BODY),
        len(BODY),
    )
    assert (noted.resume_decision, noted.resumed_from_bytes, noted.dedupe_action) == ("fresh", 0, "download")
    assert noted.shard_prefix == sha256(BODY)[:2]
    index = world.op(job, OpType.INDEX)
    assert artifact.artifact_uuid == keys.artifact_uuid(index.op_key)  # made again it is the same record
    assert world.view(job).artifacts == (artifact.artifact_uuid,)


def test_a_crash_before_the_record_registers_nothing_twice(world: World) -> None:
    job = world.plan(ONE)
    world.run_to("index", job)
    world.leave_claimed("index", job)
    world.expire(job)
    assert world.run("index", job) == Done(State.INDEXED)
    before = world.everything()
    assert world.run("index", job) == Done(State.INDEXED, replayed=True)
    assert world.everything() == before
    for table in ("artifacts", "job_artifacts", "hash_index", "url_index", "manifest"):
        assert len(before[table]) == 1


# ── dedupe ────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_copy_is_the_download(world: World) -> None:
    assert result(world, world.fetch(ONE), OpType.DEDUPE) == {"action": "download", "saved_bytes": 0}


def test_a_copy_in_another_project_shares_the_first_ones_bytes(world: World) -> None:
    first = world.fetch(ONE)
    job = world.fetch(TWO, project_id="other")
    assert result(world, job, OpType.DEDUPE, OTHER) == {"action": "hardlink", "saved_bytes": len(BODY)}
    assert os.path.samefile(path_of(world, first), path_of(world, job, OTHER))
    (noted,) = world.sql("SELECT dedupe_action FROM manifest WHERE job_id = :job", job=job)
    assert noted.dedupe_action == "hardlink"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_there_are_no_links_the_copy_stays(world: World, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.fetch(ONE)
    job = world.plan(TWO, project_id="other")
    world.run_to("dedupe", job)
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_links(code))
        world.run("dedupe", job)
    assert result(world, job, OpType.DEDUPE, OTHER) == {"action": "copy", "saved_bytes": 0}
    assert not os.path.samefile(path_of(world, first), path_of(world, job, OTHER))
    assert len(world.blobs()) == 2


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_first_copy_that_is_no_longer_right_is_replaced_as_the_one_to_share(world: World, harm: str) -> None:
    first = path_of(world, world.fetch(ONE))
    damage(first) if harm == "damaged" else first.unlink()
    job = world.fetch(TWO, project_id="other")
    assert result(world, job, OpType.DEDUPE, OTHER) == {"action": "download", "saved_bytes": 0}
    mine = path_of(world, job, OTHER)
    assert mine.read_bytes() == BODY
    (copy,) = world.sql("SELECT * FROM hash_index")
    assert (copy.job_id, copy.pointer.startswith("local:default/other/")) == (job, True)
    # And the next one shares with that.
    third = world.fetch(world.source.put("http://three.example/c.bin", BODY), project_id="third")
    assert os.path.samefile(mine, path_of(world, third, Scope(project_id="third")))


@pytest.mark.parametrize(
    ("scope", "same_tenant", "other_tenant"),
    [("project", False, False), ("tenant", True, False), ("global", True, True)],
)
def test_bytes_are_shared_within_the_scope_that_is_set(
    world: World, scope: str, same_tenant: bool, other_tenant: bool
) -> None:
    world.policy(dedupe_scope=scope)
    first = path_of(world, world.fetch(ONE))
    near, far = world.fetch(TWO, project_id="other"), world.fetch(TWO, tenant_id="far")
    assert os.path.samefile(first, path_of(world, near, OTHER)) is same_tenant
    assert os.path.samefile(first, path_of(world, far, Scope("far"))) is other_tenant
    assert result(world, near, OpType.DEDUPE, OTHER)["action"] == ("hardlink" if same_tenant else "download")
    # Never a word of what another tenant has (DEDUPE-2): tests/contract/test_foreign_tenants.py.
    assert result(world, far, OpType.DEDUPE, Scope("far"))["action"] == "download"
