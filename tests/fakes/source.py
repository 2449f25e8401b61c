"""A server in memory: honest and able to resume, until a test scripts an answer that is neither."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from dlpipe.core import ranges, revalidation
from dlpipe.core.errors import Permanent, StageFailure
from dlpipe.core.remote import Headers, RemoteFacts

Piece = bytes | Exception | Callable[[], None]
"""Of a body: bytes that arrive, an error that breaks it off, or something that happens meanwhile."""


@dataclass(frozen=True)
class Page:
    body: bytes
    etag: str | None = '"v1"'
    last_modified: str | None = None
    content_type: str | None = "application/octet-stream"
    head: bool = True
    """Whether HEAD is answered; None otherwise."""
    head_length: int | None = None
    """What HEAD declares, where that is not the truth."""
    chunk: int = 1 << 16


@dataclass(frozen=True)
class Asked:
    method: str
    url: str
    start: int = 0
    if_range: str | None = None
    end: int | None = None
    afresh: bool = False


@dataclass
class FakeAnswer:
    """The port `Answer`, as scripted."""

    status: int
    headers: Headers
    body: Sequence[Piece]
    final_url_sha256: str
    framing: str = "length"
    is_reused: bool = False
    disowned: list[str] = field(default_factory=list)
    _pieces: Iterator[bytes] | None = None
    _left: bytes = b""

    def disown(self) -> None:
        self.disowned.append(self.final_url_sha256)

    def chunks(self) -> Iterator[bytes]:
        for piece in self.body:
            if isinstance(piece, bytes):
                yield piece
            elif isinstance(piece, Exception):
                raise piece
            else:
                piece()

    def read_into(self, buffer: memoryview) -> int:
        if self._pieces is None:
            self._pieces = filter(None, self.chunks())
        piece = self._left or next(self._pieces, b"")
        size = min(len(piece), len(buffer))
        buffer[:size] = piece[:size]
        self._left = piece[size:]
        return size


@dataclass(frozen=True)
class Says:
    """A scripted answer: what is not given is what the page would honestly say."""

    status: int | None = None
    headers: dict[str, str] | None = None
    body: Sequence[Piece] | None = None
    framing: str | None = None
    without: tuple[str, ...] = ()
    is_reused: bool = False


@dataclass
class FakeSource:
    """The port `Source`."""

    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    disowned: list[str] = field(default_factory=list)
    """Digests of the URLs of answers that were no answers."""
    before_get: Callable[[], None] = lambda: None
    """What happens while somebody waits for the first byte."""
    _scripts: dict[str, list[Says | StageFailure]] = field(default_factory=dict)
    _heads: dict[str, StageFailure] = field(default_factory=dict)

    def put(self, url: str, body: bytes, **more: object) -> str:
        self.pages[url] = replace(Page(body), **more)  # type: ignore[arg-type]
        return url

    def script(self, url: str, *answers: Says | StageFailure) -> None:
        """The next GETs of that URL get these; those after them the honest answer again."""
        self._scripts.setdefault(url, []).extend(answers)

    def fail_head(self, url: str, failure: StageFailure) -> None:
        self._heads[url] = failure

    def gets(self, url: str) -> list[Asked]:
        return [one for one in self.asked if one.method == "GET" and one.url == url]

    def head(self, url: str, *, tenant: str) -> RemoteFacts | None:
        self.asked.append(Asked("HEAD", url))
        if url in self._heads:
            raise self._heads[url]
        page = self.pages.get(url)
        if page is None:
            raise Permanent("the server answered 404", code="http_404")
        if not page.head:
            return None
        return ranges.facts(200, Headers(_headers(page, page.head_length or len(page.body)).items()), _digest(url))

    def unchanged(self, url: str, etag: str | None, last_modified: str | None, *, tenant: str) -> bool | None:
        condition = revalidation.condition(etag, last_modified)
        if condition is None:
            return None
        self.asked.append(Asked("CHECK", url, if_range=next(iter(condition.values()))))
        if url in self._heads:
            raise self._heads[url]
        page = self.pages.get(url)
        if page is None:
            return None
        return page.etag == etag if "If-None-Match" in condition else page.last_modified == last_modified

    @contextmanager
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
    ) -> Iterator[FakeAnswer]:
        self.asked.append(Asked("GET", url, start, if_range, end, afresh))
        self.before_get()
        scripted = self._scripts.get(url)
        says = scripted.pop(0) if scripted else Says()
        if isinstance(says, StageFailure):
            raise says
        answer = _answer(url, self.pages.get(url), says, self.asked[-1], unproven)
        answer.disowned = self.disowned
        yield answer


def _answer(url: str, page: Page | None, says: Says, asked: Asked, unproven: bool) -> FakeAnswer:
    start, end = asked.start, asked.end
    if page is None:
        return FakeAnswer(says.status or 404, Headers(()), says.body or (), _digest(url), is_reused=says.is_reused)
    status, headers, body = 200, _headers(page, len(page.body)), page.body
    holds = asked.if_range in (page.etag, page.last_modified) if asked.if_range is not None else unproven
    if (start > 0 or end is not None) and holds:
        if start >= len(page.body):
            status, body = 416, b""
            headers = {"Content-Range": f"bytes */{len(page.body)}"}
        else:
            status, body = 206, page.body[start:end]
            headers = _headers(page, len(body))
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(page.body)}"
    headers.update(says.headers or {})
    for name in says.without:
        headers.pop(name, None)
    pieces = says.body if says.body is not None else re.findall(rb"(?s).{1,%d}" % page.chunk, body)
    framing = says.framing or ("length" if "Content-Length" in headers else "close")
    return FakeAnswer(says.status or status, Headers(headers.items()), pieces, _digest(url), framing, says.is_reused)


def _headers(page: Page, length: int) -> dict[str, str]:
    found = {
        "Content-Length": str(length),
        "ETag": page.etag,
        "Last-Modified": page.last_modified,
        "Content-Type": page.content_type,
        "Date": "Wed, 18 Nov 2026 10:00:00 GMT",
        "Accept-Ranges": "bytes",
    }
    return {name: value for name, value in found.items() if value is not None}


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
