"""Every object of a bucket, as `files` for a folder: does a row know it, and are its bytes what its key says?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dlpipe.verify import rules
from dlpipe.verify.facts import Snapshot
from dlpipe.verify.files import BATCH, READ_BYTES, Look
from dlpipe.verify.findings import Finding

_CODE = re.compile(r"<Code>(\w+)</Code>")
_BEHIND_HIDDEN = ".~"


class ObjectStoreTrouble(Exception):
    """The bucket cannot be read. The text is safe to show."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object; `path` begins with the kind of store, as no path of a folder does."""

    path: str
    size: int
    born: float


class Objects:
    """The bucket, for reading only."""

    def __init__(
        self, url: str, options: Mapping[str, str], *, allow_http: bool, timeout_s: float, retries: int
    ) -> None:
        self.space = url.partition(":")[0]
        with _trouble():
            from obstore.store import from_url

            self._store: Any = from_url(
                url,
                config=dict(options),  # type: ignore[call-overload]
                client_options={
                    "allow_http": allow_http,
                    "read_timeout": timedelta(seconds=timeout_s),
                    "timeout": timedelta(days=1),
                },
                retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=timeout_s)},
            )

    def look(self) -> None:
        """ObjectStoreTrouble when the bucket is not there, or may not be listed."""
        import obstore

        with _trouble():
            next(iter(obstore.list(self._store, chunk_size=1)), None)

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self.space}:")

    def size(self, path: str) -> int | None:
        import obstore
        from obstore.exceptions import NotFoundError

        with _trouble():
            try:
                return int(obstore.head(self._store, self._key(path))["size"])
            except (FileNotFoundError, NotFoundError):
                return None

    def digest(self, path: str, heard: Callable[[int], None]) -> str | None:
        import obstore
        from obstore.exceptions import NotFoundError

        digest = hashlib.sha256()
        with _trouble():
            try:
                body = obstore.get(self._store, self._key(path))
            except (FileNotFoundError, NotFoundError):
                return None
            for block in body.stream(min_chunk_size=READ_BYTES):
                digest.update(block)
                heard(len(block))
        return digest.hexdigest()

    def batches(self) -> Iterator[list[Found]]:
        import obstore

        with _trouble():
            for page in obstore.list(self._store, offset=_BEHIND_HIDDEN, chunk_size=BATCH):
                yield [
                    Found(f"{self.space}:{one['path']}", one["size"], one["last_modified"].timestamp())
                    for one in page
                    if not one["path"].startswith(".")
                ]


@contextmanager
def _trouble() -> Iterator[None]:
    try:
        from obstore.exceptions import BaseError
    except ImportError:
        raise ObjectStoreTrouble("obstore is not installed: pip install 'dlpipe[s3]'") from None
    try:
        yield
    except BaseError as error:
        said = _CODE.search(str(error))
        raise ObjectStoreTrouble(said[1] if said else type(error).__name__) from None


def judge(
    objects: Objects,
    batch: list[Found],
    now: Snapshot,
    heard: Callable[[int], None] | None,
    look_at: Callable[[set[str]], Look],
) -> Iterator[Finding]:
    """All that is wrong with these; their bytes are read if somebody hears of it."""
    named = {one.path: digest for one in batch if (digest := rules.digest_in(_name(one.path))) is not None}
    known = now.artifacts_of(set(named.values())) if named else {}
    look = look_at({digest for path, digest in named.items() if path not in known})
    for one in batch:
        rows, digest = known.get(one.path, []), named.get(one.path)
        if digest is None or rules.path_in(one.path) is None:
            yield Finding("name_not_hash", one.path, "the name is none that the store gives", None, one.path)
            continue
        if rows and all(rules.is_brought_again(row) for row in rows):
            continue
        job_id = next((row.created_by_job_id for row in sorted(rows, key=_failed)), None)
        if rows and one.size not in {row.byte_size for row in rows}:
            yield Finding("file_size", one.path, f"{one.size} instead of {rows[0].byte_size} bytes", job_id, one.path)
            continue
        read = objects.digest(one.path, heard) if heard is not None else digest
        if read is None:
            continue  # it was there a moment ago; a row that misses it says so
        if read != digest:
            yield Finding("file_damaged" if rows else "name_not_hash", one.path, "", job_id, one.path)
            continue
        if not rows:
            yield from look.stranger(one.path, digest, one.born)
        if heard is not None and any(look.is_wrongly_marked(row) for row in rows):
            yield Finding("mark_wrong", one.path, "", job_id, one.path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _failed(row: Any) -> bool:
    return row.state not in rules.PLACED
