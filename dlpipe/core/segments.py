"""One file over several connections: which ranges to ask for, and whether an answer is one of them. Pure.

The ranges are handed out in ascending order, so that the hash, which can only follow the contiguous front, is
never far behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlpipe.core import ranges, resume
from dlpipe.core.ranges import Append, Judgement
from dlpipe.core.remote import RemoteFacts


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from `start` to before `end`. The first `compare` of them are held already, and must be the same."""

    start: int
    end: int
    compare: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def new(self) -> int:
        """Where the bytes that are not held begin."""
        return self.start + self.compare


@dataclass(frozen=True, slots=True)
class SegmentPolicy:
    connections: int = 1
    min_bytes: int = 64 << 20
    per_host: int = 4
    piece_bytes: int = 4 << 20


def suits(remote: RemoteFacts | None, policy: SegmentPolicy) -> bool:
    """Is it worth it, and safe: a strong validator, a known length, no word against ranges?"""
    return (
        policy.connections > 1
        and remote is not None
        and remote.content_length is not None
        and remote.content_length >= policy.min_bytes
        and resume.validator(remote) is not None
        and not resume.refuses_ranges(remote)
    )


def missing(front: int, total: int, good: Sequence[tuple[int, int]], piece_bytes: int, overlap: int) -> list[Span]:
    """The ranges that are neither before the front nor good, in ascending order and in pieces."""
    spans: list[Span] = []
    at = front
    for start, end in [*sorted(good), (total, total)]:
        while at < start:
            upto = min(start, at + piece_bytes)
            spans.append(Span(at, upto))
            at = upto
        at = max(at, end)
    if front and spans and spans[0].start == front:
        # Row 37: what is about to be joined to held bytes is first compared with the last of them.
        back = min(front, overlap)
        spans[0] = Span(front - back, spans[0].end, back)
    return spans


def fits(judged: Judgement, span: Span, total: int) -> bool:
    """Is it exactly the range that was asked for, of the same file? Anything else ends the segments."""
    return judged == Append(span.start, span.size, total)


def want(span: Span, remote: RemoteFacts, max_bytes: int | None, *, unproven: bool = False) -> ranges.Want:
    """How to ask for it. `unproven`: of another server, whose own validator says nothing; a digest is known."""
    if unproven:
        return ranges.Want(span.start, total=remote.content_length, max_bytes=max_bytes, unproven=True, end=span.end)
    return ranges.Want(
        span.start, resume.validator(remote), remote.etag, remote.content_length, max_bytes, end=span.end
    )
