"""What only a store in a bucket has: failing requests, uploads in parts, what stays when one breaks off (ADR 33)."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from dlpipe.core import crash
from dlpipe.core.errors import InvalidInput, Misconfigured, Permanent, Postponed, Retryable, StageFailure
from dlpipe.store import LocalBlobStore
from dlpipe.store.bucket import Bucket, Taken, connect
from dlpipe.store.objects import ObjectBlobStore
from dlpipe.store.routed import RoutedBlobStore
from tests.fleet import REPOSITORY
from tests.objectserver import ObjectServer, contents, objects
from tests.parts import BODY, DIGEST, URL, WRONG, brought
from tests.servers import wait_until
from tests.world import some_bytes, staged

LARGE = some_bytes(12 << 20)
LARGE_DIGEST = hashlib.sha256(LARGE).hexdigest()


@pytest.fixture
def url(object_server: ObjectServer) -> str:
    return object_server.new_prefix()


@pytest.fixture
def bucket(object_server: ObjectServer, url: str) -> Bucket:
    return object_server.bucket(url)


@pytest.fixture
def store(bucket: Bucket, url: str) -> ObjectBlobStore:
    return objects(bucket, url)


# ── in many parts ─────────────────────────────────────────────────────────────────────────────────


def test_a_large_file_goes_up_in_parts(store: ObjectBlobStore, bucket: Bucket, tmp_path: Path) -> None:
    place = store.place("t", "p", LARGE_DIGEST, ".bin")
    with brought(tmp_path, LARGE) as part:
        assert store.publish(part, place, len(LARGE)) is False
    assert store.is_right(place.pointer, LARGE_DIGEST, len(LARGE))
    assert str(obstore.head(bucket.store, place.path)["e_tag"]).strip('"').endswith("-3")  # so many parts
    found = bucket.look(place.path)
    assert found is not None
    assert found.sha256 == LARGE_DIGEST
    with brought(tmp_path, LARGE) as part:
        assert store.publish(part, place, len(LARGE)) is True


def test_what_does_not_hash_to_its_name_is_never_completed(object_server: ObjectServer, tmp_path: Path) -> None:
    url = object_server.new_bucket()
    store = objects(object_server.bucket(url), url)
    with brought(tmp_path, LARGE) as part:
        os.pwrite(part.fileno(), b"!", len(LARGE) - 5)
        with pytest.raises(Retryable) as damaged:
            store.publish(part, store.place("t", "p", LARGE_DIGEST, ""), len(LARGE))
    assert damaged.value.code == "part_damaged"
    assert contents(object_server.bucket(url).store) == {}
    assert object_server.uploads(url) == []  # aborted


def test_two_with_the_same_large_file_leave_it_once_and_right(
    store: ObjectBlobStore, bucket: Bucket, tmp_path: Path
) -> None:
    place, start = store.place("t", "p", LARGE_DIGEST, ""), threading.Barrier(3)

    def work(number: int) -> bool:
        with brought(tmp_path, LARGE, url=f"{URL}/{number}", job=f"job-{number}") as part:
            start.wait(20)
            return store.publish(part, place, len(LARGE))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert contents(bucket.store) == {place.path: LARGE}
    assert staged(tmp_path) == []


def test_wrong_bytes_under_a_large_name_are_set_aside_first(
    store: ObjectBlobStore, bucket: Bucket, tmp_path: Path
) -> None:
    place = store.place("t", "p", LARGE_DIGEST, "")
    obstore.put(bucket.store, place.path, WRONG)
    with brought(tmp_path, LARGE) as part:
        assert store.publish(part, place, len(LARGE)) is False
    assert contents(bucket.store) == {place.path: LARGE, f".quarantine/{place.path}": WRONG}


# ── over nothing, over what was seen ──────────────────────────────────────────────────────────────


def test_of_many_at_once_one_gets_the_key(bucket: Bucket) -> None:
    start = threading.Barrier(8)

    def work(number: int) -> bool:
        data = b"%d" % number
        start.wait(20)
        try:
            bucket.put("t/p/key", data, hashlib.sha256(data).hexdigest(), None)
        except Taken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))).count(True) == 1


@contextmanager
def at(point: str, act: Any) -> Iterator[None]:
    left = [act]

    def hook(name: str) -> None:
        if name == point and left:
            left.pop()()

    crash.arm(hook)
    try:
        yield
    finally:
        crash.arm(None)


def test_bytes_that_come_between_are_not_written_over(
    store: ObjectBlobStore, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's wrong object appears after we have looked: create-only refuses, and it is set aside."""
    place, put = store.place("t", "p", DIGEST, ""), Bucket.put
    calls: list[object] = []

    def slipping_in(self: Bucket, *arguments: Any, **more: Any) -> None:
        if not calls:
            obstore.put(bucket.store, place.path, WRONG)
        calls.append(arguments[3])
        put(self, *arguments, **more)

    monkeypatch.setattr(Bucket, "put", slipping_in)
    with brought(tmp_path) as part:
        assert store.publish(part, place, len(BODY)) is False
    assert len(calls) == 2
    assert contents(bucket.store) == {place.path: BODY, f".quarantine/{place.path}": WRONG}


def test_right_bytes_that_take_the_place_of_wrong_ones_meanwhile_stay(
    store: ObjectBlobStore, bucket: Bucket, tmp_path: Path
) -> None:
    place = store.place("t", "p", DIGEST, "")
    obstore.put(bucket.store, place.path, WRONG)

    def another() -> None:
        with brought(tmp_path, url=f"{URL}/2", job="other") as part:
            assert store.publish(part, place, len(BODY)) is False

    with brought(tmp_path) as part, at("objects.set_aside", another):
        assert store.publish(part, place, len(BODY)) is True  # the object is not the one that was seen
    assert contents(bucket.store)[place.path] == BODY


def test_the_right_object_that_takes_the_wrong_ones_place_meanwhile_is_not_moved_away(
    store: ObjectBlobStore, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, copy = store.place("t", "p", DIGEST, ""), Bucket.copy
    obstore.put(bucket.store, place.path, WRONG)

    def overtaken(self: Bucket, *arguments: Any, **more: Any) -> None:
        copy(self, *arguments, **more)
        obstore.put(bucket.store, place.path, BODY)

    monkeypatch.setattr(Bucket, "copy", overtaken)
    assert store.quarantine(place.path) is False
    assert contents(bucket.store) == {place.path: BODY}


# ── what is known of the bytes ────────────────────────────────────────────────────────────────────


def test_what_was_checked_when_it_was_stored_need_not_be_read(
    store: ObjectBlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store.place("t", "p", DIGEST, "")
    with brought(tmp_path) as part:
        store.publish(part, place, len(BODY))
    copied = store.place("t", "q", DIGEST, "")
    store.copy(place.pointer, copied)
    monkeypatch.setattr(Bucket, "sha256_of", lambda *_: pytest.fail("read"))
    for one in (place, copied):
        assert store.vouched(one.pointer, DIGEST, len(BODY))
        assert not store.vouched(one.pointer, DIGEST, len(BODY) + 1)
    with pytest.raises(pytest.fail.Exception):
        store.is_right(place.pointer, DIGEST, len(BODY))


def test_what_is_said_to_be_of_other_bytes_is_not_right(store: ObjectBlobStore, bucket: Bucket) -> None:
    place = store.place("t", "p", DIGEST, "")
    obstore.put(bucket.store, place.path, WRONG, attributes={"sha256": hashlib.sha256(WRONG).hexdigest()})
    assert not store.vouched(place.pointer, DIGEST, len(BODY))


def test_what_was_found_wrong_is_believed_only_once_it_was_read(
    store: ObjectBlobStore, bucket: Bucket, tmp_path: Path
) -> None:
    """A disk of the server's went bad, say, and the metadata did not."""
    place = store.place("t", "p", DIGEST, "")
    obstore.put(bucket.store, place.path, WRONG, attributes={"sha256": DIGEST})
    with brought(tmp_path) as part:
        assert store.publish(part, place, len(BODY), doubted=True) is False
    assert contents(bucket.store) == {place.path: BODY, f".quarantine/{place.path}": WRONG}
    with brought(tmp_path) as part:
        assert store.publish(part, place, len(BODY), doubted=True) is True


def test_bytes_that_are_changed_on_their_way_get_no_key(object_server: ObjectServer, tmp_path: Path) -> None:
    """The server is told the sha256 of what it is to get, and refuses what is not that."""
    url = object_server.new_prefix()
    with Meddler(object_server) as meddler:
        store = objects(object_server.bucket(url, endpoint=meddler.address), url)
        place = store.place("t", "p", DIGEST, "")
        with brought(tmp_path) as part:
            with pytest.raises(StageFailure) as refused:
                store.publish(part, place, len(BODY))
            assert meddler.meddled
    assert refused.value.code == "store_upload_damaged"
    assert contents(object_server.bucket(url).store) == {}


def test_where_no_server_checks_bytes_they_are_read_before_they_get_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(MemoryStore())
    store, put = objects(bucket, "gs://bucket", read_back=True), Bucket.put
    monkeypatch.setattr(Bucket, "put", lambda self, key, data, *rest, **more: put(self, key, WRONG, *rest, **more))
    with brought(tmp_path) as part, pytest.raises(Retryable) as refused:
        store.publish(part, store.place("t", "p", DIGEST, ""), len(BODY))
    assert refused.value.code == "store_upload_damaged"
    assert contents(bucket.store) == {}


# ── servers that fail ─────────────────────────────────────────────────────────────────────────────


def publish(store: ObjectBlobStore, tmp_path: Path) -> StageFailure:
    with brought(tmp_path) as part:
        with pytest.raises(StageFailure) as refused:
            store.publish(part, store.place("t", "p", DIGEST, ""), len(BODY))
        assert part.facts is not None
        assert part.facts.complete  # nothing is lost: it goes on from here
    for secret in ("127.0.0.1", "secret", "DLPIPETESTKEY", "<Code>"):
        assert secret not in str(refused.value)
    assert refused.value.hint
    return refused.value


def asked(store: ObjectBlobStore) -> list[StageFailure]:
    """What every question that could take a missing bucket for a missing file answers."""
    pointer, failures = store.place("t", "p", DIGEST, "").pointer, []
    for ask in (
        lambda: store.size(pointer),
        lambda: store.holds(pointer, 1),
        lambda: store.exists(pointer),
        lambda: store.is_right(pointer, DIGEST, len(BODY)),
        lambda: store.vouched(pointer, DIGEST, len(BODY)),
        lambda: store.open(pointer, 1),
        lambda: store.walk("", 10),
        store.marker,
    ):
        with pytest.raises(StageFailure) as refused:
            ask()
        failures.append(refused.value)
    return failures


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"access_key_id": "NOBODY"}, "store_credentials"),
        ({"secret_access_key": "wrong"}, "store_credentials"),
        ({"access_key_id": "READER"}, "store_denied"),
    ],
    ids=["unknown key", "wrong secret", "may only read"],
)
def test_credentials_that_do_not_fit_are_for_good(
    object_server: ObjectServer, url: str, tmp_path: Path, options: dict[str, str], code: str
) -> None:
    failure = publish(objects(object_server.bucket(url, 10.0, **options), url), tmp_path)
    if code == "store_denied":
        assert (type(failure), failure.code) == (Permanent, code)
    else:
        assert isinstance(failure, Permanent)
        assert failure.code in ("store_credentials", "store_denied")  # a HEAD has no body that says which


def test_a_bucket_that_is_not_there_is_for_good_and_no_file_counts_as_missing(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    url = "s3://no-such-bucket/prefix"
    store = objects(object_server.bucket(url), url)
    failure = publish(store, tmp_path)
    assert (type(failure), failure.code) == (Permanent, "store_bucket_missing")
    assert {one.code for one in asked(store)} == {"store_bucket_missing"}


def test_a_server_that_is_away_costs_no_attempt_and_no_file_counts_as_missing(tmp_path: Path) -> None:
    options = {"endpoint": "http://127.0.0.1:1", "access_key_id": "a", "secret_access_key": "secret"}
    made = connect("s3://bucket/prefix", options, allow_http=True, timeout_s=2, retries=0)
    store = objects(Bucket(made), "s3://bucket/prefix")
    failure = publish(store, tmp_path)
    assert (type(failure), failure.code) == (Postponed, "store_unreachable")
    assert {one.code for one in asked(store)} == {"store_unreachable"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (503, "<Error><Code>SlowDown</Code></Error>", Postponed, "store_busy"),
        (503, "", Postponed, "store_busy"),
        (500, "<Error><Code>InternalError</Code></Error>", Postponed, "store_busy"),
        (403, "<Error><Code>RequestTimeTooSkewed</Code></Error>", Postponed, "store_clock"),
        (403, "<Error><Code>AccessDenied</Code></Error>", Permanent, "store_denied"),
        (400, "<Error><Code>XAmzContentSHA256Mismatch</Code></Error>", Retryable, "store_upload_damaged"),
        (507, "", Postponed, "no_space"),
        (400, "<Error><Code>Strange</Code></Error>", Retryable, "store_error"),
    ],
)
def test_what_a_server_says_becomes_a_code(
    tmp_path: Path, status: int, body: str, kind: type[StageFailure], code: str
) -> None:
    with Answering(status, body) as server:
        options = {"endpoint": server.address, "access_key_id": "a", "secret_access_key": "secret"}
        made = connect("s3://bucket/prefix", options, allow_http=True, timeout_s=5, retries=0)
        failure = publish(objects(Bucket(made), "s3://bucket/prefix"), tmp_path)
    assert (type(failure), failure.code) == (kind, code)


def test_a_server_that_is_busy_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    with Answering(503, "<Error><Code>SlowDown</Code></Error>", times=1) as server:
        options = {"endpoint": server.address, "access_key_id": "a", "secret_access_key": "secret"}
        made = connect("s3://bucket/prefix", options, allow_http=True, timeout_s=5, retries=2)
        store = objects(Bucket(made), "s3://bucket/prefix")
        with brought(tmp_path) as part:
            store.publish(part, store.place("t", "p", DIGEST, ""), len(BODY))
    assert staged(tmp_path) == []


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_server_that_goes_away_in_the_middle_of_an_upload(tmp_path: Path, how: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="dls") as directory, ObjectServer(Path(directory)) as server:
        url = server.new_prefix()
        bucket = server.bucket(url, timeout_s=3)
        store, read = objects(bucket, url), os.pread
        place = store.place("t", "p", LARGE_DIGEST, "")

        def cutting(fd: int, size: int, offset: int) -> bytes:
            if offset == 8 << 20:
                os.kill(server.pid, how)
            return read(fd, size, offset)

        with brought(tmp_path, LARGE) as part:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(os, "pread", cutting)
                with pytest.raises(Postponed) as away:
                    store.publish(part, place, len(LARGE))
            assert away.value.code == "store_unreachable"
            assert part.facts is not None
            if how is signal.SIGSTOP:
                os.kill(server.pid, signal.SIGCONT)
                assert store.publish(part, place, len(LARGE)) is False
                assert contents(bucket.store) == {place.path: LARGE}


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize(("data", "call"), [(BODY, "PUT"), (LARGE, "POST")], ids=["small", "large"])
def test_an_upload_of_which_only_the_answer_was_lost_is_there(
    object_server: ObjectServer, url: str, tmp_path: Path, data: bytes, call: str, retries: int
) -> None:
    """The last request of it; asked again, the server knows of no such upload any more, as Amazon's does."""
    digest = hashlib.sha256(data).hexdigest()
    with Losing(object_server, call, "" if call == "PUT" else "uploadId=") as losing:
        options = object_server.options(endpoint=losing.address)
        made = connect(url, options, allow_http=True, timeout_s=5, retries=retries)
        store = objects(Bucket(made, multipart_bytes=5 << 20), url)
        place = store.place("t", "p", digest, "")
        with brought(tmp_path, data) as part:
            store.publish(part, place, len(data))
        assert losing.lost
    assert contents(object_server.bucket(url).store) == {place.path: data}
    assert staged(tmp_path) == []


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────

_PUBLISHER = """
import os, sys
from pathlib import Path
from dlpipe.core import crash
from dlpipe.store import LocalStaging
from dlpipe.store.bucket import Bucket, connect
from tests.objectserver import objects
import json
root, url, options, digest, point, back = sys.argv[1:]
body = sys.stdin.buffer.read()
bucket = Bucket(connect(url, json.loads(options), allow_http=True), multipart_bytes=5 << 20)
store = objects(bucket, url, read_back=back == "True")
def hook(name):
    if name == point:
        os.kill(os.getpid(), 9)
crash.arm(hook)
from tests.parts import URL
from dlpipe.core.remote import RemoteFacts
with LocalStaging(Path(root)).claim("t", URL, "job", 1) as part:
    part.begin(RemoteFacts(200, "u", etag='"v"', content_length=len(body)))
    part.write(body); part.finish()
    store.publish(part, store.place("t", "p", digest, ""), len(body))
"""


@pytest.mark.parametrize("data", [BODY, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("point", "back", "there"),
    [
        ("objects.before_put", False, False),
        ("objects.after_put", False, True),
        ("objects.before_name", True, False),
    ],
)
def test_a_publisher_that_is_killed_leaves_its_part_and_no_wrong_key(
    object_server: ObjectServer,
    url: str,
    bucket: Bucket,
    tmp_path: Path,
    data: bytes,
    point: str,
    back: bool,
    there: bool,
) -> None:
    import json

    digest = hashlib.sha256(data).hexdigest()
    arguments = [str(tmp_path), url, json.dumps(object_server.options()), digest, point, str(back)]
    done = subprocess.run(
        [sys.executable, "-c", _PUBLISHER, *arguments], input=data, cwd=REPOSITORY, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    store = objects(bucket, url)
    place = store.place("t", "p", digest, "")
    assert store.vouched(place.pointer, digest, len(data)) is there
    assert len(staged(tmp_path)) == 2
    with brought(tmp_path, data, fence=2) as part:
        assert store.publish(part, place, len(data)) is there
    kept = {path: found for path, found in contents(bucket.store).items() if not path.startswith(".incoming/")}
    assert kept == {place.path: data}


def test_what_is_left_of_an_upload_is_no_file_of_the_store(store: ObjectBlobStore, bucket: Bucket) -> None:
    obstore.put(bucket.store, ".incoming/abc", BODY)
    assert store.walk("", 10) == []


# ── links, marks, settings ────────────────────────────────────────────────────────────────────────


def test_a_signed_link_reads_the_file_and_nothing_else_until_it_expires(store: ObjectBlobStore, tmp_path: Path) -> None:
    place = store.place("t", "p", DIGEST, "")
    with brought(tmp_path) as part:
        store.publish(part, place, len(BODY))
    link = store.link(place.pointer, 60)
    with urllib.request.urlopen(link, timeout=10) as answer:
        assert answer.read() == BODY
    short = store.link(place.pointer, 1)

    def refused(address: str, method: str = "GET") -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=10):
                return 200
        except urllib.error.HTTPError as error:
            return error.code

    assert refused(link.partition("?")[0]) == 403
    assert refused(link.replace(DIGEST, "0" * 64)) == 403
    assert refused(link, "DELETE") == 403
    wait_until(lambda: refused(short) == 403, "the link to expire")


def test_a_file_on_a_disk_has_no_link(tmp_path: Path) -> None:
    local = LocalBlobStore(tmp_path)
    pointer = local.place("t", "p", DIGEST, "").pointer
    for store in (local, RoutedBlobStore(objects(Bucket(MemoryStore())), local)):
        with pytest.raises(InvalidInput) as refused:
            store.link(pointer, 60)
        assert refused.value.code == "link_unsupported"


def test_a_bucket_bears_the_first_mark_that_it_gets(store: ObjectBlobStore) -> None:
    assert store.marker() is None
    assert store.mark("one") == "one"
    assert (store.mark("two"), store.marker()) == ("one", "one")
    assert store.walk("", 10) == []


def test_files_from_before_the_bucket_are_read_where_they_are(
    store: ObjectBlobStore, bucket: Bucket, tmp_path: Path
) -> None:
    local = LocalBlobStore(tmp_path)
    both = RoutedBlobStore(store, local)
    old = local.place("t", "p", DIGEST, "")
    with brought(tmp_path) as part:
        local.publish(part, old, len(BODY))
    with brought(tmp_path, LARGE) as part:
        new = both.place("t", "p", LARGE_DIGEST, "")
        both.publish(part, new, len(LARGE))
    assert (old.space, new.space) == ("local", "s3")
    with both.open(old.pointer, len(BODY)) as stream:
        assert stream.read() == BODY
    assert [file.pointer for file in both.walk("", 10)] == [new.pointer, old.pointer]
    pages = [both.walk("", 1)]
    pages.append(both.walk(pages[0][-1].path, 1))
    assert [file.pointer for page in pages for file in page] == [new.pointer, old.pointer]
    assert both.walk(pages[1][-1].path, 1) == []
    assert not local.owns(new.pointer)
    assert both.unify(new.pointer, old.pointer).value == "copy"


def test_options_that_make_no_store_are_said_without_their_values() -> None:
    with pytest.raises(Misconfigured) as refused:
        connect("s3://bucket", {"no_such_option": "hunter2"})
    assert refused.value.code == "store_url_invalid"
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


# ── servers that are not what they should be ──────────────────────────────────────────────────────


class Answering:
    """An S3 server that says one thing; after `times` of them it takes everything."""

    def __init__(self, status: int, body: str, times: int | None = None) -> None:
        left = [times]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if left[0] is None or left[0] > 0:
                    left[0] = None if left[0] is None else left[0] - 1
                    # A HEAD is answered as for a file that is not there, so that the upload is reached.
                    self._say(404 if self.command == "HEAD" and times is None else status, body)
                elif self.command == "HEAD":
                    self._say(404, "")
                elif self.command == "GET":
                    self._say(200, "<ListBucketResult></ListBucketResult>")
                else:
                    self._say(200, "", ETag='"x"')

            def _say(self, code: int, text: str, **headers: str) -> None:
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                data = b"" if self.command == "HEAD" else text.encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Between(Answering):
    """Passes requests on. What is uploaded goes through `meddle`, and what is answered through `answers`."""

    def __init__(self, behind: ObjectServer) -> None:
        super().__init__(200, "")
        between = self

        def pass_on(self: BaseHTTPRequestHandler) -> None:
            data = bytearray(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            between.meddle(self, data)
            request = urllib.request.Request(
                f"{behind.endpoint}{self.path}",
                data=bytes(data) or None,
                method=self.command,
                headers=dict(self.headers),
            )
            try:
                answer = urllib.request.urlopen(request, timeout=10)
            except urllib.error.HTTPError as error:
                answer = error
            body, status = between.answers(self, answer.read(), answer.status or 500)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in answer.headers.items():
                if name.lower() not in ("connection", "content-length", "date", "server", "transfer-encoding"):
                    self.send_header(name, value)
            length = answer.headers["Content-Length"] if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(body)

        handler: Any = self._server.RequestHandlerClass
        for name in ("do_GET", "do_PUT", "do_HEAD", "do_POST", "do_DELETE"):
            setattr(handler, name, pass_on)

    def meddle(self, request: BaseHTTPRequestHandler, data: bytearray) -> None:
        """Changes what is sent."""

    def answers(self, request: BaseHTTPRequestHandler, body: bytes, status: int) -> tuple[bytes, int]:
        """What is answered; 0 for nothing at all."""
        return body, status


class Meddler(Between):
    """Changes one byte of what is uploaded."""

    meddled = False

    def meddle(self, request: BaseHTTPRequestHandler, data: bytearray) -> None:
        if data and request.command == "PUT":
            data[7] ^= 1
            self.meddled = True


class Losing(Between):
    """Loses the first answer to a kind of request, and knows nothing of it when it is asked again."""

    def __init__(self, behind: ObjectServer, method: str, word: str) -> None:
        super().__init__(behind)
        self._kind = (method, word)
        self.lost = 0

    def answers(self, request: BaseHTTPRequestHandler, body: bytes, status: int) -> tuple[bytes, int]:
        method, word = self._kind
        if request.command != method or word not in request.path or status >= 400:
            return body, status
        self.lost += 1
        return (b"", 0) if self.lost == 1 else (b"<Error><Code>NoSuchUpload</Code></Error>", 404)
