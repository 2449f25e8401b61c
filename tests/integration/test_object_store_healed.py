"""Reconcile over a bucket, both ways (HEAL-3), with real ledgers and a real S3 server; and how equal files are kept."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import obstore
import pytest

from dlpipe import verify
from dlpipe.core.layout import Equal
from dlpipe.core.model import Scope
from dlpipe.db import SqlDatabase
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.round import Report
from dlpipe.store import LocalBlobStore
from dlpipe.store.bucket import Bucket, Meta, connect
from dlpipe.store.objects import MARKER
from dlpipe.store.routed import RoutedBlobStore
from dlpipe.verify.objects import Objects, ObjectStoreTrouble
from tests.objectserver import ObjectServer, contents, objects
from tests.world import DEFAULT, World, altered, sha256, some_bytes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("it is about a bucket", "store"),
    pytest.mark.no_engines("broker"),
]

HOST = "http://files.example"
KEYS = {"access_key_id": "a", "secret_access_key": "b"}


class InBucket(World):
    bucket: Bucket

    def use(self, bucket: Bucket, url: str, equal: Equal = Equal.POINTER) -> None:
        self.bucket = bucket
        store = RoutedBlobStore(objects(bucket, url, equal=equal), LocalBlobStore(self.root))
        heal = replace(self.deps.policy.heal, grace_s=0.0)
        self.deps = replace(self.deps, store=store, policy=replace(self.deps.policy, heal=heal))

    def brought(self, name: str, data: bytes, **fields: str) -> str:
        self.source.put(f"{HOST}/{name}", data)
        return self.fetch(f"{HOST}/{name}", **fields)

    def pointer(self, job_id: str, scope: Scope = DEFAULT) -> str:
        return self.artifacts(job_id, scope)[-1].storage_pointer

    def kept(self) -> dict[str, bytes]:
        return {path: data for path, data in contents(self.bucket.store).items() if not path.startswith(".")}


@pytest.fixture
def url(object_server: ObjectServer) -> str:
    return object_server.new_prefix()


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path, object_server: ObjectServer, url: str) -> InBucket:
    made = InBucket(database, tmp_path / "store")
    made.use(object_server.bucket(url), url)
    return made


def test_a_whole_store_gives_a_round_nothing_to_do(world: InBucket) -> None:
    for number in range(3):
        world.brought(f"{number}", some_bytes(1_000 + number))
    assert reconcile(world.deps) == Report()


def test_a_lost_object_is_marked_and_brought_again(world: InBucket) -> None:
    job = world.brought("a.bin", data := some_bytes(3_000))
    (path,) = world.kept()
    world.bucket.delete(path)
    assert reconcile(world.deps).files_missing == 1
    world.drive()
    assert world.kept() == {path: data}
    assert (world.view(job).run, reconcile(world.deps)) == (2, Report())


def test_damaged_bytes_are_found_by_reading_and_brought_again(world: InBucket) -> None:
    world.brought("a.bin", data := some_bytes(3_000))
    (path,) = world.kept()
    # With the very metadata of the right ones: nothing but the bytes themselves tells.
    obstore.put(world.bucket.store, path, wrong := altered(data), attributes={"sha256": sha256(data)})
    assert reconcile(world.deps).files_damaged == 1
    world.drive()
    assert world.kept() == {path: data}
    assert wrong in contents(world.bucket.store).values()


def test_with_the_bucket_gone_nothing_is_called_lost(world: InBucket, object_server: ObjectServer) -> None:
    for number in range(3):
        world.brought(f"{number}", some_bytes(1_000 + number))
    before = world.everything()
    gone = "s3://no-such-bucket/prefix"
    world.use(object_server.bucket(gone), gone)
    report = reconcile(world.deps)
    assert (report.files_missing, report.jobs_reopened) == (0, 0)
    assert report.unfinished == 1
    after = world.everything()
    assert {name: rows for name, rows in after.items() if name != "cursors"} == {
        name: rows for name, rows in before.items() if name != "cursors"
    }


def test_objects_that_no_row_knows_are_adopted_or_set_apart(world: InBucket) -> None:
    data = some_bytes(3_000)
    right = f"default/default/{sha256(data)[:2]}/{sha256(data)}.bin"
    wrong = f"default/default/ab/{'ab' * 32}.bin"
    for path, body in {right: data, wrong: b"other", "default/default/ab/junk": b"junk", "README": b"hello"}.items():
        obstore.put(world.bucket.store, path, body)
    report = reconcile(world.deps)
    assert (report.files_adopted, report.files_quarantined, report.files_foreign) == (1, 2, 1)
    assert {path: body for path, body in contents(world.bucket.store).items() if path != MARKER} == {
        right: data,
        f".quarantine/{wrong}": b"other",
        ".quarantine/default/default/ab/junk": b"junk",
        "README": b"hello",
    }
    # Who fetches these bytes in another project is led to what is there.
    job = world.brought("x.bin", data, project_id="another")
    assert world.pointer(job, Scope("default", "another")) == f"s3:{right}"
    assert set(world.kept()) == {"README", right}


def test_equal_files_of_a_tenant_share_one_object_within_their_dedupe_scope(world: InBucket) -> None:
    data = some_bytes(3_000)
    first = world.pointer(world.brought("a", data))
    assert world.pointer(world.brought("b", data)) == first
    assert world.pointer(world.brought("c", data, project_id="q"), Scope("default", "q")) == first
    assert world.pointer(world.brought("d", data, tenant_id="t2"), Scope("t2", "default")) != first
    assert len(world.kept()) == 2
    world.policy(dedupe_scope="project")
    assert world.pointer(world.brought("e", data, project_id="r"), Scope("default", "r")) != first
    # The very same address, known already, in yet another project.
    assert world.pointer(world.brought("a", data, project_id="s"), Scope("default", "s")) != first
    assert len(world.kept()) == 4


def test_in_the_scope_of_all_no_pointer_leads_to_another_tenant(
    world: InBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.policy(dedupe_scope="global")
    data = some_bytes(3_000)
    world.brought("a", data)
    monkeypatch.setattr(Bucket, "put", lambda *_, **__: pytest.fail("sent, instead of copied by the server"))
    pointer = world.pointer(world.brought("b", data, tenant_id="t2"), Scope("t2", "default"))
    assert pointer.startswith("s3:t2/default/")
    assert list(world.kept().values()) == [data, data]


def test_copies_are_made_by_the_server_if_that_is_set(
    world: InBucket, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.use(world.bucket, url, Equal.COPY)
    data = some_bytes(3_000)
    world.brought("a", data)
    monkeypatch.setattr(Bucket, "put", lambda *_, **__: pytest.fail("sent, instead of copied by the server"))
    pointer = world.pointer(world.brought("b", data, project_id="q"), Scope("default", "q"))
    assert pointer.startswith("s3:default/q/")
    assert list(world.kept().values()) == [data, data]
    assert reconcile(world.deps) == Report()


def test_a_shared_object_that_is_damaged_is_not_taken_for_an_equal(world: InBucket) -> None:
    data = some_bytes(3_000)
    world.brought("a", data)
    (path,) = world.kept()
    obstore.put(world.bucket.store, path, altered(data))
    job = world.brought("b", data, project_id="q")
    pointer = world.pointer(job, Scope("default", "q"))
    assert pointer != f"s3:{path}"
    assert world.deps.store.is_right(pointer, sha256(data), len(data))


def test_an_installation_that_moves_to_a_bucket_keeps_its_files(world: InBucket, url: str) -> None:
    routed, world.deps = world.deps.store, replace(world.deps, store=LocalBlobStore(world.root))
    old = world.brought("old", some_bytes(2_000))
    world.deps = replace(world.deps, store=routed)
    new = world.brought("new", some_bytes(3_000))
    again = world.brought("old", some_bytes(2_000), project_id="q")
    assert [world.pointer(job).partition(":")[0] for job in (old, new)] == ["local", "s3"]
    assert world.pointer(again, Scope("default", "q")).startswith("s3:default/q/")
    assert reconcile(world.deps) == Report()
    # The folder is not mounted: its files are not lost, and new ones come all the same.
    world.root.rename(world.root.with_name("away"))
    assert reconcile(world.deps).files_missing == 0
    world.brought("newer", some_bytes(4_000))
    shutil.rmtree(world.root)
    world.root.with_name("away").rename(world.root)
    with world.deps.store.open(world.pointer(old), 2_000) as stream:
        assert stream.read() == some_bytes(2_000)
    # And one that gives the bucket up fetches anew what it cannot reach, and calls nothing of it lost.
    world.deps = replace(world.deps, store=LocalBlobStore(world.root))
    assert reconcile(world.deps) == Report()
    assert world.pointer(world.brought("new", some_bytes(3_000), project_id="q"), Scope("default", "q")).startswith(
        "local:"
    )


def test_a_server_that_is_away_ends_a_walk_instead_of_being_asked_for_each_file(
    world: InBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        world.brought(f"{number}", some_bytes(1_000 + number))
    assert reconcile(world.deps) == Report()
    away = Bucket(connect("s3://bucket", {"endpoint": "http://127.0.0.1:1", **KEYS}, allow_http=True, retries=0))
    asked: list[str] = []
    look = Bucket.look

    def going_away(_: Bucket, key: str) -> Meta | None:
        asked.append(key)
        return look(away, key)

    monkeypatch.setattr(Bucket, "look", going_away)  # once the bucket was recognised
    report = reconcile(world.deps)
    assert (report.unfinished, report.files_missing, len(asked)) == (2, 0, 2)  # two walks over rows


# ── the checker ───────────────────────────────────────────────────────────────────────────────────


def checked(world: InBucket, server: ObjectServer, url: str, *, read: bool = True) -> set[tuple[str, str]]:
    address = world.database.url.render_as_string(hide_password=False)
    bucket = Objects(url, server.options(), allow_http=True, timeout_s=10, retries=0)
    found = verify.check(address, world.root, verify.Options(read, strict=True), bucket=bucket)
    return {(one.code, one.path or "") for one in found if not one.is_note}


@pytest.mark.parametrize("read", [True, False], ids=["every byte", "names and sizes"])
def test_the_checker_tells_each_kind_of_damage_in_a_bucket(
    world: InBucket, object_server: ObjectServer, url: str, read: bool
) -> None:
    jobs = [world.brought(f"{number}", some_bytes(1_000 + number)) for number in range(4)]
    world.brought("equal", some_bytes(1_000), project_id="q")
    world.brought("equal", some_bytes(1_000), tenant_id="t2")
    assert checked(world, object_server, url, read=read) == set()
    lost, cut, changed, moved = [world.pointer(job).removeprefix("s3:") for job in jobs]
    store, before = world.bucket.store, contents(world.bucket.store)
    world.bucket.delete(lost)
    obstore.put(store, cut, before[cut][:-1])
    obstore.put(store, changed, altered(before[changed]), attributes={"sha256": sha256(before[changed])})
    stranger = some_bytes(777)
    unknown = f"default/default/{sha256(stranger)[:2]}/{sha256(stranger)}"
    obstore.put(store, unknown, stranger)
    obstore.put(store, "default/default/ab/junk", b"junk")
    obstore.put(store, ".quarantine/x", b"set aside")
    foreign = f"s3:other/{moved.partition('/')[2]}"
    obstore.put(store, foreign.removeprefix("s3:"), before[moved])
    for table, column in (("artifacts", "storage_pointer"), ("manifest", "pointer"), ("hash_index", "pointer")):
        world.sql(f"UPDATE {table} SET {column} = :new WHERE {column} = :old", new=foreign, old=f"s3:{moved}")
    found = checked(world, object_server, url, read=read)
    expected = {
        ("file_missing", f"s3:{lost}"),
        ("file_size", f"s3:{cut}"),
        ("file_unknown", f"s3:{unknown}"),
        ("name_not_hash", "s3:default/default/ab/junk"),
        ("artifact_pointer", ""),
    }
    assert expected <= found
    assert (("file_damaged", f"s3:{changed}") in found) is read


def test_a_bucket_that_cannot_be_read_is_no_bucket_of_lost_files(world: InBucket, object_server: ObjectServer) -> None:
    world.brought("a", some_bytes(1_000))
    address, gone = world.database.url.render_as_string(hide_password=False), "s3://no-such-bucket/x"
    bucket = Objects(gone, object_server.options(), allow_http=True, timeout_s=10, retries=0)
    with pytest.raises(ObjectStoreTrouble, match="NoSuchBucket"):
        next(iter(verify.check(address, world.root, bucket=bucket)))  # before anything is told
    with pytest.raises(verify.StoreNotSet):
        next(iter(verify.check(address, world.root)))
