"""Whether a server still has what we hold: the condition that is sent, and what the answer means. HEAD-1."""

from __future__ import annotations

import pytest

from dlpipe.core.remote import Headers
from dlpipe.core.revalidation import condition, is_same

DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("etag", "last_modified", "sent"),
    [
        ('"v1"', DATE, {"If-None-Match": '"v1"'}),
        ('"v1"', None, {"If-None-Match": '"v1"'}),
        ('W/"v1"', DATE, {"If-Modified-Since": DATE}),
        (None, DATE, {"If-Modified-Since": DATE}),
        ("v1", DATE, {"If-Modified-Since": DATE}),
        ('""', None, None),
        ('W/"v1"', None, None),
        ('"ü"', None, None),
        ('"a", "b"', None, None),
        (None, "yesterday", None),
        (None, "", None),
        (None, None, None),
    ],
)
def test_the_strongest_validator_is_asked_under(
    etag: str | None, last_modified: str | None, sent: dict[str, str] | None
) -> None:
    assert condition(etag, last_modified) == sent


@pytest.mark.parametrize(
    ("status", "answered", "etag", "same"),
    [
        (304, ['"v1"'], '"v1"', True),
        (304, [], '"v1"', True),
        (304, [], None, True),  # to If-Modified-Since
        (304, ['"v1"'], None, True),
        (304, ['W/"v1"'], 'W/"v1"', True),
        (304, ['W/"v1"'], '"v1"', True),  # to be compared weakly (RFC 9110 §13.1.2)
        (304, ['"v2"'], '"v1"', False),  # it contradicts itself
        (304, ['W/"v2"'], 'W/"v1"', False),
        (304, ['"v1"', '"v2"'], '"v1"', None),
        (200, ['"v1"'], '"v1"', True),  # a server that does not know conditions
        (200, ['"v2"'], '"v1"', False),
        (200, ['W/"v1"'], '"v1"', False),
        (200, ['W/"v1"'], 'W/"v1"', None),  # a weak tag is no proof
        (200, [], '"v1"', None),
        (200, ['"v1"', '"v1"'], '"v1"', None),
        (200, ['"v1"'], None, None),
        (200, [], None, None),
        (206, ['"v1"'], '"v1"', None),
        (301, ['"v1"'], '"v1"', None),
        (404, ['"v1"'], '"v1"', None),
        (412, ['"v1"'], '"v1"', None),
    ],
)
def test_what_an_answer_says(status: int, answered: list[str], etag: str | None, same: bool | None) -> None:
    assert is_same(status, Headers(("ETag", one) for one in answered), etag) is same
