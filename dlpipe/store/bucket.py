"""One bucket, or a prefix in it, through obstore: what the blob store asks of it, and failures with codes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import obstore
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store, from_url

from dlpipe.core.errors import InvalidInput, Misconfigured, Retryable
from dlpipe.store.object_errors import GONE, TAKEN, store_errors
from dlpipe.store.object_reader import blocks, sha256_of

HASH = "sha256"
"""The metadata that says which bytes were checked when they were stored."""
SEEN_S = 30.0
"""For so long a bucket that was there is taken to be there still."""
MULTIPART_AT_ONCE = 4
MIB = 1 << 20
MAX_PARTS = 9_000
MAX_COPY_BYTES = 5 << 30
"""What one server-side copy may move, by the rules of S3."""


class Taken(Exception):
    """The name has bytes now, or others than were expected: look again."""


@dataclass(frozen=True, slots=True)
class Meta:
    size: int
    changed_at: float
    e_tag: str | None
    version: str | None
    sha256: str | None
    """What was checked when it was stored; None: nobody has said so."""


def connect(
    url: str, options: Mapping[str, str], *, allow_http: bool = False, timeout_s: float = 60.0, retries: int = 3
) -> ObjectStore:
    """Misconfigured when the address and the options do not make a store. Nothing is connected to."""
    try:
        made: ObjectStore = from_url(
            url,
            config=dict(options),  # type: ignore[call-overload]
            client_options={
                "allow_http": allow_http,
                "connect_timeout": timedelta(seconds=min(10.0, timeout_s)),
                "read_timeout": timedelta(seconds=timeout_s),
                "timeout": timedelta(days=1),  # of a whole body; what stands still is ended by the other one
            },
            retry_config={
                "max_retries": retries,
                "retry_timeout": timedelta(seconds=timeout_s),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
        )
        return made
    except Exception as error:
        raise Misconfigured(
            f"no object store can be made of store.url and its options ({type(error).__name__})",
            code="store_url_invalid",
            hint="Correct store.url, store.endpoint, and the names in store.credentials_file.",
        ) from None  # its text may hold a key


class Bucket:
    def __init__(self, store: ObjectStore, *, multipart_bytes: int = 16 * MIB) -> None:
        self.store = store
        self.multipart_bytes = multipart_bytes
        self._seen_at = float("-inf")

    def look(self, key: str) -> Meta | None:
        """What is there; None only when the bucket is there, and nothing at the key."""
        with store_errors():
            try:
                found = obstore.get(self.store, key, options={"head": True})
            except GONE:
                self._see()
                return None
        meta = found.meta
        digest = {name.lower(): value for name, value in found.attributes.items()}.get(HASH)
        return Meta(meta["size"], meta["last_modified"].timestamp(), meta["e_tag"], meta["version"], digest)

    def _see(self) -> None:
        """To be told that a key is not there may mean that the bucket is not."""
        if time.monotonic() - self._seen_at > SEEN_S:
            next(iter(obstore.list(self.store, chunk_size=1)), None)
            self._seen_at = time.monotonic()

    def put(self, key: str, data: bytes, digest: str, over: Meta | None, *, anyhow: bool = False) -> None:
        """In one request, over nothing, or over the very object that was seen; Taken when it is not so any more."""
        mode: obstore.PutMode = "create"
        if anyhow:
            mode = "overwrite"
        elif over is not None:
            mode = {}
            if over.e_tag is not None:
                mode["e_tag"] = over.e_tag
            if over.version is not None:
                mode["version"] = over.version
        with store_errors():
            try:
                obstore.put(self.store, key, data, attributes={HASH: digest}, mode=mode, use_multipart=False)
            except TAKEN:
                raise Taken from None

    def put_pieces(self, key: str, pieces: Iterable[bytes], size: int, digest: str) -> None:
        """In many requests, of which the last one makes the object; when `pieces` raises, none is made."""
        chunk = max(self.multipart_bytes, -(-size // MAX_PARTS // MIB) * MIB)
        at_once = max(1, min(MULTIPART_AT_ONCE, 256 * MIB // chunk))
        with store_errors():
            obstore.put(
                self.store,
                key,
                iter(pieces),
                attributes={HASH: digest},
                use_multipart=True,
                chunk_size=chunk,
                max_concurrency=at_once,
            )

    def copy(self, key: str, to: str, size: int, *, anew: bool = False) -> None:
        """On the server, over whatever is there; `anew`: over nothing, else Taken. S3 has no such copy."""
        if size > MAX_COPY_BYTES:
            raise Retryable(
                "an object is too large to be copied on the server",
                code="store_error",
                hint="Move it by hand, with a tool that copies in parts.",
            )
        with store_errors():
            try:
                obstore.copy(self.store, key, to, overwrite=not anew)
            except TAKEN:
                raise Taken from None

    def delete(self, key: str) -> None:
        with store_errors():
            try:
                obstore.delete(self.store, key)
            except GONE:
                return

    def read(self, key: str, offset: int = 0) -> Iterator[bytes]:
        return blocks(self.store, key, offset)

    def sha256_of(self, key: str) -> tuple[str, int] | None:
        return sha256_of(self.store, key)

    def list_(self, after: str, limit: int) -> list[tuple[str, int, float]]:
        """Keys behind `after`, in the order that the server has for them, with size and time; one page is held."""
        found: list[tuple[str, int, float]] = []
        with store_errors():
            for page in obstore.list(self.store, offset=after or None, chunk_size=min(limit, 1000)):
                found += [(one["path"], one["size"], one["last_modified"].timestamp()) for one in page]
                if len(found) >= limit:
                    break
        return found[:limit]

    def sign(self, key: str, expires_s: float) -> str:
        if not isinstance(self.store, S3Store | GCSStore | AzureStore):
            raise InvalidInput("this store signs no links", code="link_unsupported", hint="Use: dlpipe open ARTIFACT -")
        with store_errors():
            return str(obstore.sign(self.store, "GET", key, timedelta(seconds=expires_s)))

    def temporary(self) -> str:
        return f".incoming/{uuid.uuid4().hex}"
