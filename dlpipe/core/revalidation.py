"""Whether a server still has what we hold of a URL: the condition to ask under, and what the answer means. Pure.

Validators are compared only between answers of one and the same URL: nothing keeps two files from the same tag.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlpipe.core import resume
from dlpipe.core.remote import Headers


def condition(etag: str | None, last_modified: str | None) -> Mapping[str, str] | None:
    """The header that asks for the file only if it is another one; None when there is nothing to go by."""
    if etag is not None and resume.is_strong(etag):
        return {"If-None-Match": etag}
    if last_modified is not None and resume.instant(last_modified) is not None:
        return {"If-Modified-Since": last_modified}
    return None


def is_same(status: int, headers: Headers, etag: str | None) -> bool | None:
    """What an answer under `condition` says; None when it says nothing of the kind.

    A 200 with the same strong tag is a server that does not know conditions; Last-Modified alone proves
    nothing there, as a file may change twice within its second.
    """
    answered = headers.all("etag")
    if len(answered) > 1:
        return None
    told = answered[0] if answered else None
    if status == 304:
        # It has to carry the tag that a 200 would have (RFC 9110 §15.4.5): with another one it contradicts itself.
        return etag is None or told is None or _opaque(told) == _opaque(etag)
    if status == 200 and told is not None and etag is not None and resume.is_strong(etag):
        return told == etag
    return None


def _opaque(etag: str) -> str:
    return etag.removeprefix("W/")
