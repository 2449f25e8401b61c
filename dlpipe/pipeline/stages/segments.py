"""One file over several connections, where the server honours ranges under a strong validator.

Threads fetch pieces and write them at their places; this thread alone keeps the sidecar, follows the front with the
hash, and looks at lease, pace and room. The first exception ends all of them. Whatever is not exactly as asked
ends the segments, and the single connection takes over.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dlpipe.core import digests, ranges, resume, segments
from dlpipe.core.errors import LeaseLost, Postponed, StageFailure
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Answer, Lease, Part
from dlpipe.core.remote import RemoteFacts
from dlpipe.core.segments import Span
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.stages.digested import Hashing
from dlpipe.pipeline.stages.pace import Pace
from dlpipe.pipeline.stages.room import Admission

LOOK_S = 0.5


class Disagrees(Exception):
    """The server's answer is not the piece that was asked for."""


class HostCap:
    """How many connections for pieces this process has open to each host."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}

    def take(self, host: str, wanted: int, cap: int) -> int:
        """Answer how many may be opened; one always may, as without segments."""
        with self._lock:
            granted = max(1, min(wanted, cap - self._open.get(host, 0)))
            self._open[host] = self._open.get(host, 0) + granted
            return granted

    def give_back(self, host: str, count: int) -> None:
        with self._lock:
            self._open[host] -= count
            if not self._open[host]:
                del self._open[host]


HOSTS = HostCap()


@dataclass(frozen=True, slots=True)
class Asking:
    """Whom, and for pieces of what. `elsewhere`: what is held is another server's."""

    url: str
    remote: RemoteFacts
    max_bytes: int | None
    elsewhere: bool
    unproven: bool


@dataclass(frozen=True, slots=True)
class Got:
    """Bytes that were written."""

    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    span: Span
    sha256: str
    declared: tuple[digests.Digest, ...]
    kept: threading.Event


@dataclass(frozen=True, slots=True)
class Ended:
    """A thread is over; the error says why, if it did not simply find nothing left to do."""

    error: BaseException | None


class Segments:
    def __init__(
        self,
        deps: Deps,
        job: ArtifactJob,
        lease: Lease,
        part: Part,
        admission: Admission,
        pace: Pace,
        on_front: Callable[[], None],
    ) -> None:
        self._deps, self._job, self._lease, self._part, self._admission = deps, job, lease, part, admission
        self._pace, self._on_front = pace, on_front
        self._policy = deps.policy.segments
        self._events: queue.SimpleQueue[Got | Piece | Ended] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._waiting: deque[Span] = deque()
        self._promised: str | None = None
        """The digest under which another server's pieces are joined."""
        self.held = 0
        self.written = 0
        self.doubtful: Answer | None = None
        """Of a piece that came on a connection which had carried another answer."""
        self.declared: tuple[digests.Digest, ...] = ()

    def bring(
        self, url: str, host: str, remote: RemoteFacts, max_bytes: int | None, *, elsewhere: bool = False
    ) -> bool:
        """Fetch what is missing; False when one connection has to do it, from the front that there is.

        `elsewhere`: what is held, and what `remote` says, is from another server. Its first piece then comes alone,
        and is compared with the front that it joins, before anything else is asked for.
        """
        total = remote.content_length
        assert total is not None  # noqa: S101 - segments.suits has seen to it
        if not self._admission.hint(total):  # before anything is made that grows with what was declared
            return False
        good = self._part.verify_pieces() if elsewhere else self._held_pieces(remote)
        overlap = self._deps.policy.stream.overlap_bytes
        spans = segments.missing(self._part.offset, total, good, self._policy.piece_bytes, overlap)
        self.held = self._part.offset + sum(end - start for start, end in good)
        if len(spans) < 2:
            return False
        self._promised = self._job.expected_sha256 if elsewhere else None
        asking = Asking(url, remote, max_bytes, elsewhere, unproven=self._promised is not None)
        for some in (spans[:1], spans[1:]) if elsewhere else (spans,):
            if not self._fetch_all(some, host, asking, total):
                return False
        return self._part.offset == total

    def _fetch_all(self, spans: list[Span], host: str, asking: Asking, total: int) -> bool:
        """Fetch these; False when the server disagrees."""
        self._waiting.extend(spans)
        count = HOSTS.take(host, min(self._policy.connections, len(spans)), self._policy.per_host)
        threads = [
            threading.Thread(target=self._work, args=(asking,), name=f"dlpipe-segment-{number}", daemon=True)
            for number in range(count)
        ]
        self._stop.clear()
        try:
            for thread in threads:
                thread.start()
            return self._follow(count, total)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()  # none may write any more when the part is let go
            HOSTS.give_back(host, count)
            with suppress(LeaseLost, StageFailure):
                self._keep_the_rest()

    def _held_pieces(self, remote: RemoteFacts) -> list[tuple[int, int]]:
        """What an earlier claim left of this very file; else the part begins anew."""
        begun = self._part.begun
        same = (
            begun is not None
            and resume.validator(begun) == resume.validator(remote)
            and begun.content_length == remote.content_length
            and begun.final_url_sha256 == remote.final_url_sha256
        )
        if same:
            return self._part.verify_pieces()
        self._part.begin(remote)
        return []

    # ── the thread that keeps the books ───────────────────────────────────────────────────────────

    def _follow(self, count: int, total: int) -> bool:
        pace = self._pace
        pace.begin()
        alive, done = count, self.held
        while alive:
            self._lease.check()
            try:
                event = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                pace.count(0)
                continue
            match event:
                case Got(size=size):
                    done += size
                    self.written += size
                    pace.gain(size)
                    pace.count(size)
                    self._admission.count(size, total)
                    self._deps.progress.report(self._job.job_id, done, total)
                case Piece(declared=declared) as piece:
                    self._keep(piece)
                    self.declared += tuple(one for one in declared if one not in self.declared)
                    self._on_front()
                case Ended(error=Disagrees()):
                    return False
                case Ended(error=error):
                    # When the host wants fewer of us at once, the others do that one's share.
                    if error is not None and not (_is_busy(error) and alive > 1):
                        raise error
                    alive -= 1
        return True

    def _keep(self, piece: Piece) -> None:
        if self._promised is not None:
            self._part.promise(self._promised)
        self._part.keep(piece.span.new, piece.span.end, piece.sha256)
        piece.kept.set()

    def _keep_the_rest(self) -> None:
        """Pieces that were finished while the end was coming need not come again."""
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, Piece):
                self._keep(event)

    # ── the threads that fetch ────────────────────────────────────────────────────────────────────

    def _work(self, asking: Asking) -> None:
        error: BaseException | None = None
        try:
            while (span := self._next()) is not None:
                try:
                    piece = self._fetch(span, asking)
                except Postponed as busy:
                    if _is_busy(busy):
                        with self._lock:
                            self._waiting.appendleft(span)
                    raise
                if piece is None:
                    break
                self._events.put(piece)
                # Not before it is on record is the next one begun: a crash then costs one piece for each of us.
                while not piece.kept.wait(LOOK_S) and not self._stop.is_set():
                    pass
        except BaseException as raised:  # handed to the thread that asked for it
            error = raised
            if not _is_busy(raised):
                self._stop.set()
        self._events.put(Ended(error))

    def _next(self) -> Span | None:
        with self._lock:
            if not self._waiting or self._stop.is_set():
                return None
            self._pace.ask()
            return self._waiting.popleft()

    def _fetch(self, span: Span, asking: Asking) -> Piece | None:
        """One piece, written and hashed; None when it is no longer wanted."""
        remote = asking.remote
        want = segments.want(span, remote, asking.max_bytes, unproven=asking.unproven)
        digest = hashlib.sha256()
        with self._deps.source.get(
            asking.url,
            tenant=self._job.scope.tenant_id,
            start=span.start,
            end=span.end,
            if_range=want.if_range,
            unproven=want.unproven,
        ) as answer:
            if answer.is_reused:
                self.doubtful = answer
            judged = ranges.judge(answer.status, answer.headers, answer.framing, want)
            moved = answer.final_url_sha256 != remote.final_url_sha256 and not asking.elsewhere
            if moved or not segments.fits(judged, span, remote.content_length or 0):
                raise Disagrees
            expected = digests.expected_digests(answer.headers)
            content = Hashing(expected.of_range(answer.status))
            at = span.start
            for chunk in answer.chunks():
                if self._stop.is_set():
                    return None
                self._lease.check()
                if at + len(chunk) > span.end:
                    raise Disagrees
                content.update(chunk)
                piece = memoryview(chunk)
                held = min(len(piece), max(0, span.new - at))
                if held and self._part.read(at, held) != piece[:held]:
                    raise Disagrees  # row 37: the same validator, other bytes
                if len(piece) > held:
                    self._part.put(at + held, piece[held:])
                    digest.update(piece[held:])
                    self._events.put(Got(len(piece) - held))
                at += len(piece)
            if at < span.end or content.agrees() is False:  # row 44
                raise Disagrees
            return Piece(span, digest.hexdigest(), expected.of_file(answer.status), threading.Event())


def _is_busy(error: BaseException) -> bool:
    """The host may not be asked by more of us at once, which is no reason for the others to stop."""
    return isinstance(error, Postponed) and error.code == "host_busy"
