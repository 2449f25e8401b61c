"""How held bytes may be gone on with from a URL: which range to ask for, and under what. Pure; HTTP.md rows 18 to 38.

Within one server a strong validator ties the bytes together. Mirrors have validators of their own: there it has to be
the very same one, under the same length, or a digest that is known and tells at the end whether all of it fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlpipe.core import ranges, resume
from dlpipe.core.ranges import Judgement, Want
from dlpipe.core.remote import Headers, PartFacts


@dataclass(frozen=True, slots=True)
class Ties:
    """What ties the held bytes to those of the URL that is asked now.

    `elsewhere`: they came from another URL. `digest`: the file's is known. `prefix`: their beginning was compared.
    """

    elsewhere: bool = False
    digest: bool = False
    prefix: bool = False


def want(facts: PartFacts | None, start: int, ties: Ties, max_bytes: int | None) -> Want | None:
    """What to ask for, from `start` on; None when nothing allows to join, and all of it has to be asked for."""
    if facts is None:
        return None
    known = facts.total is not None
    if known and ties.elsewhere and ties.digest:
        return Want(start, total=facts.total, max_bytes=max_bytes, unproven=True)
    if known and not ties.elsewhere and ties.prefix:
        return Want(start, etag=facts.etag, total=facts.total, max_bytes=max_bytes, unproven=True)
    if_range = resume.validator(facts)
    if if_range is None or (ties.elsewhere and not known):
        return None
    return Want(start, if_range, facts.etag, facts.total, max_bytes)


def is_flip(status: int, headers: Headers, final_url_sha256: str, asked: Want, judged: Judgement) -> bool:
    """Row 36: is the answer to a range of another file than the one that is held?"""
    if asked.if_range is None:
        return False
    if status == 200:
        return resume.validator(ranges.facts(200, headers, final_url_sha256)) != asked.if_range
    return isinstance(judged, ranges.Restart) and judged.reason.startswith("validator_")
