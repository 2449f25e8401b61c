"""Which ranges are asked for over several connections, and which answers are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import segments
from dlpipe.core.ranges import Append, Restart
from dlpipe.core.remote import RemoteFacts
from dlpipe.core.segments import SegmentPolicy, Span

REMOTE = RemoteFacts(200, "u", etag='"v"', content_length=1000, accept_ranges="bytes")
POLICY = SegmentPolicy(connections=4, min_bytes=1000, piece_bytes=100)


@pytest.mark.parametrize(
    ("remote", "policy", "suits"),
    [
        ({}, {}, True),
        ({"accept_ranges": None}, {}, True),
        ({"accept_ranges": "none"}, {}, False),
        ({"etag": 'W/"v"'}, {}, False),
        ({"etag": None}, {}, False),
        ({"content_length": None}, {}, False),
        ({"content_length": 999}, {}, False),
        ({}, {"connections": 1}, False),
    ],
)
def test_segments_need_size_ranges_and_a_strong_validator(
    remote: dict[str, Any], policy: dict[str, Any], suits: bool
) -> None:
    assert segments.suits(replace(REMOTE, **remote), replace(POLICY, **policy)) == suits
    assert not segments.suits(None, POLICY)


@given(st.data())
def test_what_is_held_and_what_is_asked_for_make_up_the_file_once(data: st.DataObject) -> None:
    total = data.draw(st.integers(0, 2_000))
    front = data.draw(st.integers(0, total))
    cuts = sorted(data.draw(st.lists(st.integers(front, total), max_size=12, unique=True)))
    good = list(zip(cuts[::2], cuts[1::2], strict=False))
    piece = data.draw(st.integers(1, 300))
    overlap = data.draw(st.integers(0, 100))
    spans = segments.missing(front, total, data.draw(st.permutations(good)), piece, overlap)
    assert [span.new for span in spans] == sorted(span.new for span in spans)
    covered = sorted([(0, front), *good, *((span.new, span.end) for span in spans)])
    assert [a for a, b in covered if a < b] == [0 for a, b in covered if a < b][:1] + [b for a, b in covered if a < b][
        :-1
    ]
    assert not total or covered[-1][1] == total or covered == [(0, total)]
    for span in spans:
        assert 0 < span.end - span.new <= piece
        assert span.compare == (min(front, overlap) if span.new == front else 0)


@pytest.mark.parametrize(
    ("judged", "fits"),
    [
        (Append(100, 50, 1000), True),
        (Append(0, 1000, 1000), False),
        (Append(99, 51, 1000), False),
        (Append(100, 49, 1000), False),
        (Append(100, 51, 1000), False),
        (Append(100, 50, 1001), False),
        (Append(100, 50, None), False),
        (Append(100, None, 1000), False),
        (Restart("validator_changed"), False),
    ],
)
def test_only_exactly_the_range_that_was_asked_for_is_taken(judged: Any, fits: bool) -> None:
    assert segments.fits(judged, Span(100, 150), 1000) == fits
