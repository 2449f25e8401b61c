"""Parts with bytes in them, and files in the store, for tests of what becomes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dlpipe.core.layout import Place
from dlpipe.core.ports import BlobStore, Part, Staging
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging
from tests.world import altered, some_bytes

URL = "http://files.example/a.bin"
BODY = some_bytes(70_000)
DIGEST = hashlib.sha256(BODY).hexdigest()
WRONG = altered(BODY)


@contextmanager
def brought(tmp_path: Path, data: bytes = BODY, *, url: str = URL, job: str = "job", fence: int = 1) -> Iterator[Part]:
    """A part with all its bytes, held by its stream stage."""
    with LocalStaging(tmp_path).claim("t", url, job, fence) as part:
        part.begin(RemoteFacts(200, "u", etag='"v"', content_length=len(data)))
        part.write(data)
        part.finish()
        yield part


def published(store: BlobStore, tmp_path: Path, project: str = "p", ext: str = ".bin") -> Place:
    place = store.place("t", project, DIGEST, ext)
    with brought(tmp_path) as part:
        store.publish(part, place, len(BODY))
    return place


def path_of(store: BlobStore, place: Place) -> Path:
    return Path(store.path(place.pointer))


def put(store: BlobStore, place: Place, data: bytes) -> Path:
    path = path_of(store, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o444)
    return path


def facts(total: int | None = None) -> RemoteFacts:
    return RemoteFacts(200, "u", etag='"v"', content_length=total)


@contextmanager
def claim(staging: Staging, job: str = "job", fence: int = 1) -> Iterator[Part]:
    with staging.claim("t", URL, job, fence) as part:
        yield part


def begun(stack: ExitStack, staging: Staging, job: str = "job", fence: int = 1, data: bytes = b"abc") -> Part:
    part = stack.enter_context(claim(staging, job, fence))
    part.begin(facts())
    part.write(data)
    part.flush()
    return part


def file_of(tmp_path: Path) -> Path:
    (found,) = (tmp_path / ".staging").rglob("*.part")
    return found


def sidecar_of(tmp_path: Path) -> Path:
    return file_of(tmp_path).with_suffix(".json")
