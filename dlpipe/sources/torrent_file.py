"""The .torrent behind a URL, fetched by us through the guarded hub: a torrent client would go anywhere."""

from __future__ import annotations

from collections.abc import Callable

from dlpipe.core.errors import Permanent
from dlpipe.core.metainfo import MAX_FILE_BYTES
from dlpipe.core.ports import Source


def fetcher(source: Source, limit: int = MAX_FILE_BYTES) -> Callable[[str], bytes]:
    """Raises StageFailure: from the source, `torrent_fetch_failed` for other answers, `torrent_too_large`."""

    def fetch(url: str) -> bytes:
        held = bytearray()
        with source.get(url, tenant="", afresh=True) as answer:  # of no tenant: no connection of it is used again
            if answer.status != 200:
                raise Permanent(f"the .torrent was answered with status {answer.status}", code="torrent_fetch_failed")
            for chunk in answer.chunks():
                held += chunk
                if len(held) > limit:
                    raise Permanent(f"the .torrent is larger than {limit} bytes", code="torrent_too_large")
        return bytes(held)

    return fetch
