"""A publisher that dies in the middle: the bytes are there for whoever goes on, and never open to change. FINAL-2."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlpipe.core import crash
from dlpipe.core.errors import Retryable
from dlpipe.core.ports import BlobStore
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalBlobStore, LocalStaging
from tests.parts import BODY, DIGEST, URL, WRONG, brought, path_of, published
from tests.world import blobs, staged


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return LocalBlobStore(tmp_path)


def test_a_file_is_read_only_before_it_has_its_name(store: BlobStore, tmp_path: Path) -> None:
    seen: list[int] = []
    place = store.place("t", "p", DIGEST, ".bin")
    crash.arm(lambda name: seen.append(path_of(store, place).stat().st_mode & 0o777) if "after_link" in name else None)
    try:
        published(store, tmp_path)
    finally:
        crash.arm(None)
    assert seen == [0o444]


class Died(BaseException):
    """The process ended here."""


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    def hook(name: str) -> None:
        if name == point:
            raise Died

    crash.arm(hook)
    try:
        yield
    finally:
        crash.arm(None)


@pytest.mark.parametrize("point", ["finalize.before_link", "finalize.after_link", "finalize.after_fsync"])
def test_after_a_crash_the_part_is_still_whole_and_never_written_to(
    store: BlobStore, tmp_path: Path, point: str
) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    with brought(tmp_path) as part, dying_at(point), pytest.raises(Died):
        store.publish(part, place, len(BODY))
    with LocalStaging(tmp_path).claim("t", URL, "job", 2) as part:
        assert part.facts is not None
        assert part.facts.complete
        with pytest.raises(Retryable):
            part.write(b"!")
        assert part.verify(100) == 0  # whole, or not at all
        assert part.facts is None
    with LocalStaging(tmp_path).claim("t", URL, "other", 1) as part:
        part.begin(RemoteFacts(200, "u"))  # a new file: the published one stays as it is
        part.write(WRONG)
        part.finish()
    assert set(blobs(tmp_path).values()) <= {BODY}


_AS_NOBODY = """
import ctypes, os, sys
from pathlib import Path
from dlpipe.core import crash
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalBlobStore, LocalStaging
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc/self is root's from now on
root, digest, point = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
body = sys.stdin.buffer.read()
store, staging = LocalBlobStore(root), LocalStaging(root)
place = store.place("t", "p", digest, ".bin")
class Died(BaseException): pass
def hook(name):
    if name == point: raise Died
crash.arm(hook)
try:
    with staging.claim("t", "http://files.example/a.bin", "job", 1) as part:
        part.begin(RemoteFacts(200, "u", etag='"v"', content_length=len(body)))
        part.write(body); part.finish()
        store.publish(part, place, len(body))
except Died: pass
crash.arm(None)
with staging.claim("t", "http://files.example/a.bin", "job", 2) as part:
    held = part.verify(part.facts.good)
    assert (held, part.finish()[:2]) == (len(body), (digest, len(body)))
with staging.claim("t", "http://files.example/a.bin", "job", 3) as part:
    print(store.publish(part, place, len(body)))
"""


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """pytest's own folders are for root only, when root runs it."""
    with tempfile.TemporaryDirectory(prefix="dl") as folder:
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        yield Path(folder)


@pytest.mark.parametrize(
    ("point", "there"),
    [("finalize.before_link", False), ("finalize.after_link", True), ("finalize.after_fsync", True)],
)
def test_an_ordinary_user_can_go_on_after_a_crash_in_the_middle_of_it(
    everybodys: Path, point: str, there: bool
) -> None:
    """Root may open what is read-only; whoever else dlpipe runs as may not."""
    root = everybodys
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(root), DIGEST, point], input=BODY, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == str(there)
    assert list(blobs(root).values()) == [BODY]
    assert staged(root) == []
