"""Workers whose files go into a bucket: all stages, equal files, kills, the independent check. OPS-3, FINAL-2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import obstore
import pytest
import sqlalchemy as sa

from dlpipe.db.clock import after
from dlpipe.db.schema import artifact_jobs
from dlpipe.store.objects import MARKER
from tests.fleet import QUICK, Fleet
from tests.objectserver import SECRET, ObjectServer, contents
from tests.servers import Valkey
from tests.webserver import WebServer
from tests.world import altered, sha256, staged

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("it is about a bucket", "store"),
]


@pytest.fixture
def url(object_server: ObjectServer) -> str:
    return object_server.new_prefix()


@pytest.fixture
def engines(ledger_settings: Mapping[str, str], broker_settings: Mapping[str, str]) -> dict[str, str]:
    return {**ledger_settings, **broker_settings}


@pytest.fixture
def fleet(
    broker: Valkey, tmp_path: Path, object_server: ObjectServer, url: str, engines: dict[str, str]
) -> Iterator[Fleet]:
    with broker.client() as client:
        client.flushall()
    # Small enough for a file of some MiB to go up in parts.
    more = {"DLPIPE_STORE_MULTIPART_BYTES": str(5 << 20), "DLPIPE_STORE_RETRIES": "0", **engines}
    with Fleet(tmp_path / "home", broker, **QUICK, **object_server.settings(url), **more) as fleet:
        yield fleet


def command(fleet: Fleet, *words: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "dlpipe", *words]
    done = subprocess.run(argv, env=fleet.env, cwd=fleet.cwd, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def blobs_in(server: ObjectServer, url: str) -> dict[str, bytes]:
    """All but the mark of the store."""
    return {path: body for path, body in contents(server.bucket(url).store).items() if path != MARKER}


def assert_clean(fleet: Fleet) -> None:
    code, out, err = command(fleet, "verify", "--strict")
    assert (code, out) == (0, ""), (out, err)


def assert_no_secret(fleet: Fleet) -> None:
    for process in fleet.processes:
        said = process.log.read_text(errors="replace")
        assert SECRET not in said
        assert "X-Amz-Signature" not in said


def test_files_and_their_equals_go_into_the_bucket_once(
    fleet: Fleet, web: WebServer, object_server: ObjectServer, url: str
) -> None:
    bodies = {f"/{n}.bin": os.urandom(50_000 + n) for n in range(6)}
    bodies["/large.bin"] = os.urandom(11 << 20)
    addresses = [web.put(path, body) for path, body in bodies.items()]
    worker = fleet.worker("one", pool="prefork", size=2)
    fleet.beat()
    fleet.plan(addresses)
    fleet.until(lambda: fleet.done() == 7, "the first files", worker)
    # The same bytes under other addresses, in another project of the tenant, and of another tenant.
    twins = [web.put(f"/twin{path}", body) for path, body in bodies.items()]
    fleet.plan(twins, project_id="second")
    fleet.plan([web.put("/their.bin", bodies["/0.bin"])], tenant_id="other")
    fleet.until(lambda: fleet.done() == 15, "their equals", worker)

    bucket = object_server.bucket(url)
    kept = {path: body for path, body in contents(bucket.store).items() if not path.startswith(".")}
    ours = {f"default/default/{sha256(b)[:2]}/{sha256(b)}.bin": b for b in bodies.values()}
    theirs = sha256(bodies["/0.bin"])
    assert kept == {**ours, f"other/default/{theirs[:2]}/{theirs}.bin": bodies["/0.bin"]}
    rows = fleet.sql("SELECT storage_backend, storage_pointer, project_id FROM artifacts WHERE tenant_id = 'default'")
    assert {row.storage_backend for row in rows} == {"s3"}
    assert len(rows) == 14
    assert {row.storage_pointer for row in rows} == {f"s3:{path}" for path in ours}
    actions = fleet.sql("SELECT dedupe_action, count(*) AS n FROM manifest GROUP BY dedupe_action")
    assert {row.dedupe_action: row.n for row in actions} == {"download": 8, "skipped": 7}
    assert staged(fleet.home / "store") == []
    assert_clean(fleet)

    (artifact,) = fleet.sql("SELECT artifact_uuid FROM artifacts WHERE byte_size > 1000000 AND project_id = 'second'")
    uuid = str(artifact.artifact_uuid)
    words = ("open", uuid, "--project", "second")
    code, link, err = command(fleet, *words, "--link", "--expires", "5m")
    assert code == 0, err
    with urllib.request.urlopen(link.strip(), timeout=20) as answer:
        assert answer.read() == bodies["/large.bin"]
    code, out, err = command(fleet, *words)
    digest = sha256(bodies["/large.bin"])
    assert (code, out) == (0, f"{url}/default/default/{digest[:2]}/{digest}.bin\n")
    foreign = command(fleet, "open", uuid, "--link")
    assert foreign[0] != 0
    assert "artifact_unknown" in foreign[2]
    assert_no_secret(fleet)
    code, out, err = command(fleet, "doctor")
    assert f"{url} answers" in out, (out, err)
    assert SECRET not in out + err
    fleet.env["DLPIPE_STORE_URL"] = "s3://no-such-bucket"
    code, out, err = command(fleet, "doctor", "--json")
    assert (code, "store_bucket_missing" in out) == (1, True)


@pytest.mark.parametrize("point", ["objects.before_put", "objects.after_put", "objects.after_unlink"])
@pytest.mark.parametrize("size", [100_000, 11 << 20], ids=["small", "large"])
def test_a_worker_killed_around_an_upload_is_followed_by_one_that_ends_it(
    fleet: Fleet, web: WebServer, object_server: ObjectServer, url: str, point: str, size: int
) -> None:
    address = web.put("/a.bin", body := os.urandom(size))
    first = fleet.worker("first", DLPIPE_CRASH_POINT=point)
    fleet.plan([address])
    fleet.until(lambda: not first.lives, "the worker to die")
    there = bool(blobs_in(object_server, url))
    assert there is (point != "objects.before_put")
    fleet.worker("second")
    fleet.beat()
    fleet.until(lambda: fleet.done() == 1, "the job to end")
    assert blobs_in(object_server, url) == {f"default/default/{sha256(body)[:2]}/{sha256(body)}.bin": body}
    if point != "objects.after_unlink":
        assert len(web.gets("/a.bin")) == 1  # nothing was fetched again
    fleet.until(lambda: staged(fleet.home / "store") == [], "the part to be gone")
    assert_clean(fleet)


def test_while_the_server_is_away_jobs_wait_and_then_go_on(
    broker: Valkey, web: WebServer, tmp_path: Path, engines: dict[str, str]
) -> None:
    with broker.client() as client:
        client.flushall()
    with tempfile.TemporaryDirectory(prefix="dls") as directory, ObjectServer(Path(directory)) as server:
        url = server.new_prefix()
        more = {**server.settings(url), "DLPIPE_STORE_RETRIES": "0", "DLPIPE_STORE_TIMEOUT_S": "3", **engines}
        with Fleet(tmp_path / "home", broker, **QUICK, **more) as fleet:
            server.stop()
            worker = fleet.worker("one")
            fleet.plan([web.put("/a.bin", body := os.urandom(100_000))])
            address = f"{web.url}/a.bin"
            fleet.until(
                lambda: fleet.sql("SELECT error_code FROM jobs WHERE error_code = 'store_unreachable'"),
                "a wait",
                worker,
            )
            assert fleet.job(address).attempts == 0
            server.start()
            with fleet.database.write() as unit:
                waiting = artifact_jobs.c.due_at.is_not(None)
                unit._connection.execute(sa.update(artifact_jobs).where(waiting).values(due_at=after(-3600.0)))
            fleet.beat()
            fleet.until(lambda: fleet.done() == 1, "the job to end", worker)
            assert len(web.gets("/a.bin")) == 1
            assert list(blobs_in(server, url).values()) == [body]
            assert_clean(fleet)


def test_lost_and_damaged_objects_are_brought_again_and_the_checker_says_which(
    fleet: Fleet, web: WebServer, object_server: ObjectServer, url: str
) -> None:
    addresses = [web.put(f"/{n}.bin", os.urandom(30_000 + n)) for n in range(3)]
    fleet.worker("one")
    fleet.plan(addresses)
    fleet.until(lambda: fleet.done() == 3, "the files")
    bucket = object_server.bucket(url)
    before = blobs_in(object_server, url)
    lost, damaged, whole = sorted(before)
    bucket.delete(lost)
    obstore.put(bucket.store, damaged, altered(before[damaged]))
    obstore.put(bucket.store, "default/default/ab/junk", b"junk")
    code, out, err = command(fleet, "verify", "--json")
    found = {(one["code"], one["path"]) for one in map(json.loads, out.splitlines())}
    assert code == 1, err
    assert found == {
        ("file_missing", f"s3:{lost}"),
        ("file_damaged", f"s3:{damaged}"),
        ("name_not_hash", "s3:default/default/ab/junk"),
    }
    code, _, err = command(fleet, "verify", "--repair")
    assert code == 1, err
    fleet.beat()
    fleet.until(lambda: fleet.states() == {"DEDUPED": 3} and lost in contents(bucket.store), "the repair")
    fleet.until(lambda: contents(bucket.store)[damaged] == before[damaged], "the other one")
    after = contents(bucket.store)
    assert {path: after[path] for path in before} == before
    assert altered(before[damaged]) in [body for path, body in after.items() if path.startswith(".quarantine/")]
    assert whole in after


def test_with_no_bucket_set_the_checker_does_not_call_its_files_missing(fleet: Fleet, web: WebServer) -> None:
    fleet.worker("one")
    fleet.plan([web.put("/a.bin", b"bytes")])
    fleet.until(lambda: fleet.done() == 1, "the file")
    fleet.env = {name: value for name, value in fleet.env.items() if not name.startswith("DLPIPE_STORE")}
    code, out, err = command(fleet, "verify")
    assert (code, out) == (2, "")
    assert "store_missing" in err
