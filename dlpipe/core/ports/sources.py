"""Where bytes come from: servers, and a program that transfers torrents."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from dlpipe.core.remote import Headers, RemoteFacts
from dlpipe.core.torrents import Torrent, TorrentFile


class Answer(Protocol):
    """The head of a GET answer, and its raw body."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def final_url_sha256(self) -> str: ...
    @property
    def framing(self) -> str:
        """`length`, `chunked`, `close` (ended only by closing the connection) or `none`."""

    @property
    def is_reused(self) -> bool:
        """Did it come on a connection that had carried another answer? Then no job fails for good by it (row 50)."""

    def disown(self) -> None:
        """It was no answer to its request: no connection to its origin is used twice from now on (row 50)."""

    def chunks(self) -> Iterator[bytes]:
        """The raw body. Retryable(`body_cut`) when it broke off, Permanent(`protocol_error`) when it is malformed."""

    def read_into(self, buffer: memoryview) -> int:
        """Put the next bytes of the body into the buffer, at least one; 0 at the end. Fails as `chunks` does.

        Of one answer either this is used or `chunks`.
        """


class Source(Protocol):
    """A server that we ask for files. Failures come as StageFailure with a code; redirects are followed inside.

    Connections are used again for requests of the same tenant only (row 49).
    """

    def head(self, url: str, *, tenant: str) -> RemoteFacts | None:
        """What HEAD says; None when HEAD is of no use here and GET must tell."""

    def unchanged(self, url: str, etag: str | None, last_modified: str | None, *, tenant: str) -> bool | None:
        """Does the URL still give what came under these validators? None when that cannot be told.

        Reads no body. Raises only what `head` and `get` would raise as well: Permanent(`blocked_offline`),
        Postponed, a server out of reach; what else goes wrong is None, and for those two to tell.
        """

    def get(
        self,
        url: str,
        *,
        tenant: str,
        start: int = 0,
        end: int | None = None,
        if_range: str | None = None,
        unproven: bool = False,
        afresh: bool = False,
    ) -> AbstractContextManager[Answer]:
        """Ask for the bytes from `start` on, or to before `end`. Every status is handed out unless it is retryable.

        A range is asked for only under `if_range`, or `unproven`: then the caller compares bytes. `afresh`: over a
        connection that carried no other answer.
        """


class Flips(Protocol):
    """Hosts whose validators change from answer to answer (row 36), as any worker saw it. Best effort: never fails."""

    def note(self, host: str) -> None:
        """The host answered a range as if the file were another one."""

    def off(self, host: str) -> bool:
        """Is resume turned off there? Until the first of its last three flips is an hour old."""


class TorrentClient(Protocol):
    """A program that transfers torrents for us.

    Every method raises TorrentOutage when the client did not answer, or not as one who can be believed
    (unreachable, 5xx, login refused or banned), and changes nothing then as far as anybody can tell.
    A torrent is named by the info hash that `add` answered: 40 lowercase hex digits.
    """

    def add(self, source: str | bytes, *, save_path: str, tag: str) -> str:
        """Start a download into `save_path` and answer its info hash. Idempotent: one that is there is left as it is.

        `source` is a magnet link, the http(s) URL of a .torrent, or the bytes of one. Waits a few seconds for the
        client to list the torrent; one that is slower than that is answered all the same. TorrentRefused when the
        source is malformed or the client declines it; StageFailure when the .torrent could not be fetched.
        """

    def torrents(self, hashes: Collection[str]) -> Mapping[str, Torrent]:
        """What the client says of these, in one request for all; those that it does not have are absent."""

    def files(self, info_hash: str) -> list[TorrentFile]:
        """The files that are wanted of it. TorrentRefused(`torrent_not_found`) when it is not there."""

    def stop(self, info_hash: str) -> None:
        """Stop transferring. Nothing happens to one that is stopped already or not there; so for the next two."""

    def start(self, info_hash: str) -> None: ...

    def delete(self, info_hash: str, *, with_files: bool) -> None:
        """Forget the torrent, and remove its files if asked."""

    def free_space(self) -> int | None:
        """Bytes left where it downloads to; None when it cannot tell."""

    def version(self) -> str:
        """Its name for itself and its version, for people."""
