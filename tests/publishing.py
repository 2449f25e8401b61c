"""Files for the suites of the blob store: staged, published, or put in their place by somebody else."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlpipe.core.layout import Place
from dlpipe.core.ports import BlobStore, Part
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging

URL = "http://files.example/a.bin"
BODY = random.Random(1).randbytes(70_000)  # the same in every process that pytest spreads over
DIGEST = hashlib.sha256(BODY).hexdigest()
WRONG = b"!" + BODY[1:]


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
