"""RESUME-1 and the rows of HTTP.md that are decided before the request."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import resume
from dlpipe.core.remote import PartFacts, RemoteFacts
from dlpipe.core.resume import (
    Complete,
    Decision,
    Discard,
    Fresh,
    Resume,
    ResumePolicy,
    decide,
    instant,
    is_strong,
)

ON = ResumePolicy()
CHANGED = "Sun, 06 Nov 1994 08:49:37 GMT"
SECOND_LATER = "Sun, 06 Nov 1994 08:49:38 GMT"
REMOTE = RemoteFacts(200, "u", etag='"a"', accept_ranges="bytes", content_length=100)
PART = PartFacts(good=40, final_url_sha256="u", etag='"a"', total=100)
DATED_REMOTE = replace(REMOTE, etag=None, last_modified=CHANGED, date=SECOND_LATER)
DATED_PART = replace(PART, etag=None, last_modified=CHANGED, date=SECOND_LATER)

CASES: list[tuple[str, RemoteFacts | None, PartFacts | None, Decision]] = [
    ("nothing is held", REMOTE, None, Fresh("no_part")),
    ("no byte is known good", REMOTE, replace(PART, good=0), Fresh("nothing_held")),
    ("no byte is known good, though flagged", REMOTE, replace(PART, good=0, complete=True), Fresh("nothing_held")),
    ("row 18: same strong ETag", REMOTE, PART, Resume(40, '"a"')),
    ("row 18: the total of neither is known", replace(REMOTE, content_length=None), PART, Resume(40, '"a"')),
    ("row 27: another ETag", replace(REMOTE, etag='"b"'), PART, Discard("validator_changed")),
    ("row 38: weak there", replace(REMOTE, etag='W/"a"'), PART, Discard("no_strong_validator")),
    ("row 38: weak here", REMOTE, replace(PART, etag='W/"a"'), Discard("no_strong_validator")),
    (
        "row 38: weak on both sides, and equal",
        replace(REMOTE, etag='W/"a"'),
        replace(PART, etag='W/"a"'),
        Discard("no_strong_validator"),
    ),
    ("the ETag has gone", replace(REMOTE, etag=None), PART, Discard("no_strong_validator")),
    ("an ETag without quotes is none", replace(REMOTE, etag="a"), replace(PART, etag="a"), Discard("no_strong_validator")),
    ("an empty ETag says nothing", replace(REMOTE, etag='""'), replace(PART, etag='""'), Discard("no_strong_validator")),
    ("row 36: same date, a second older than the answers", DATED_REMOTE, DATED_PART, Resume(40, CHANGED)),
    (
        "row 38: the date is of the second of the answer, there",
        replace(DATED_REMOTE, date=CHANGED),
        DATED_PART,
        Discard("no_strong_validator"),
    ),
    (
        "row 38: the date is of the second of the answer, here",
        DATED_REMOTE,
        replace(DATED_PART, date=CHANGED),
        Discard("no_strong_validator"),
    ),
    ("no Date to compare with", DATED_REMOTE, replace(DATED_PART, date=None), Discard("no_strong_validator")),
    (
        "another date",
        replace(DATED_REMOTE, last_modified="Sat, 05 Nov 1994 08:49:37 GMT"),
        DATED_PART,
        Discard("validator_changed"),
    ),
    (
        "a date does not count beside an ETag, be it weak",
        replace(DATED_REMOTE, etag='W/"a"'),
        replace(DATED_PART, etag='W/"a"'),
        Discard("no_strong_validator"),
    ),
    ("an ETag appeared since", replace(DATED_REMOTE, etag='"a"'), DATED_PART, Discard("validator_changed")),
    ("row 39: no word on ranges", replace(REMOTE, accept_ranges=None), PART, Resume(40, '"a"')),
    ("row 39: ranges refused", replace(REMOTE, accept_ranges="None"), PART, Discard("ranges_refused")),
    ("row 42: from elsewhere", replace(REMOTE, final_url_sha256="v"), PART, Discard("final_url_changed")),
    ("row 22: grown", replace(REMOTE, content_length=101), PART, Discard("total_changed")),
    ("shrunk below what is held", replace(REMOTE, content_length=39), replace(PART, total=None), Discard("more_than_total")),
    ("more is held than there can be", REMOTE, replace(PART, good=101), Discard("more_than_total")),
    ("row 40: HEAD is of no use, our own validator is tried", None, PART, Resume(40, '"a"', "own_validator")),
    ("row 40: our own date is tried", None, DATED_PART, Resume(40, CHANGED, "own_validator")),
    ("HEAD is of no use, and neither is ours", None, replace(PART, etag='W/"a"'), Discard("no_strong_validator")),
    ("all is held, and agreed", REMOTE, replace(PART, good=100, complete=True), Complete()),
    ("all is held though nobody noted it", REMOTE, replace(PART, good=100), Complete()),
    ("all is held, and nobody to ask", None, replace(PART, good=100, complete=True), Complete()),
    (
        "all is held of unknown length, and nobody to ask: one whole body stays one whole body",
        None,
        replace(PART, etag=None, total=None, complete=True),
        Complete(),
    ),
    ("all is held, needs no ranges", replace(REMOTE, accept_ranges="none"), replace(PART, good=100), Complete()),
    (
        "all is held of what was there before",
        replace(REMOTE, etag='"b"'),
        replace(PART, good=100, complete=True),
        Discard("validator_changed"),
    ),
    (
        "all is held, but nothing tells whether it is still that",
        replace(REMOTE, etag=None),
        replace(PART, good=100, etag=None, complete=True),
        Discard("no_strong_validator"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("remote", "part", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_decide(remote: RemoteFacts | None, part: PartFacts | None, expected: Decision) -> None:
    assert decide(remote, part, ON) == expected


def test_decide_when_resume_is_off_discards_even_a_good_part() -> None:
    assert decide(REMOTE, PART, ResumePolicy(enabled=False)) == Discard("resume_off")


def test_decide_when_bytes_were_joined_under_a_digest_they_count_only_where_it_is_wanted() -> None:
    for held in (PART, replace(PART, good=100, complete=True)):
        promised = replace(held, promised="d")
        assert decide(REMOTE, promised, ON, "d") == decide(REMOTE, held, ON)
        for wanted in (None, "another"):
            assert decide(REMOTE, promised, ON, wanted) == Discard("joined_under_a_digest")
            assert decide(None, promised, ON, wanted) == Discard("joined_under_a_digest")


def test_decide_when_less_is_held_than_a_resume_is_worth_discards() -> None:
    assert decide(REMOTE, PART, ResumePolicy(min_bytes=41)) == Discard("too_little_held")
    assert decide(REMOTE, PART, ResumePolicy(min_bytes=40)) == Resume(40, '"a"')


_etags = st.sampled_from([None, '"a"', '"b"', 'W/"a"', '""', "a"])
_totals = st.one_of(st.none(), st.integers(0, 5))


@given(_etags, _etags, _totals, _totals, st.integers(0, 6), st.booleans(), st.booleans())
def test_resume_always_carries_a_strong_validator_that_both_sides_agree_on(
    theirs: str | None,
    ours: str | None,
    length: int | None,
    total: int | None,
    good: int,
    whole: bool,
    asked: bool,
) -> None:
    remote = RemoteFacts(200, "u", etag=theirs, content_length=length) if asked else None
    decision = decide(remote, PartFacts(good, "u", etag=ours, total=total, complete=whole), ON)
    if isinstance(decision, Resume):
        assert is_strong(decision.if_range)
        assert decision.if_range == ours
        assert remote is None or theirs == ours
        assert 0 < decision.offset == good


@pytest.mark.parametrize(
    "text",
    ["", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "Sun, 31 Feb 1994 08:49:37 GMT",
     "Sun, 06 Nov 1994 08:49:37 +0000", "Sun, 06 Nov 1994 08:49:37 GMT ", "Sun, \u06606 Nov 1994 08:49:37 GMT",
     "Sun, 06 Nov 1994 25:49:37 GMT"],
)  # fmt: skip
def test_instant_takes_only_the_one_form_that_servers_may_send(text: str) -> None:
    assert instant(text) is None
    assert instant(CHANGED) == 784111777


# ── the prefix, where a setting allows it (row 38) ────────────────────────────────────────────────

WEAK = PartFacts(good=100, final_url_sha256="u", etag='W/"v"', total=500)
WEAK_REMOTE = RemoteFacts(200, "u", etag='W/"v"', content_length=500)


@pytest.mark.parametrize(
    ("remote", "part", "size"),
    [
        ({}, {}, 64),
        ({"etag": None}, {"etag": None}, 64),
        ({}, {"good": 10}, 10),
        ({"etag": None, "last_modified": "x"}, {"etag": None, "last_modified": "x"}, 64),
        ({"etag": 'W/"w"'}, {}, None),
        ({"etag": None}, {}, None),
        ({"last_modified": "x"}, {}, None),
        ({"content_length": 501}, {}, None),
        ({"content_length": None}, {}, None),
        ({}, {"total": None}, None),
        ({"final_url_sha256": "other"}, {}, None),
        ({"accept_ranges": "none"}, {}, None),
    ],
)
def test_a_prefix_is_needed_where_nothing_but_the_validator_speaks_against_it(
    remote: dict[str, Any], part: dict[str, Any], size: int | None
) -> None:
    held = replace(WEAK, **part)
    found = resume.decide(replace(WEAK_REMOTE, **remote), held, ResumePolicy(prefix_bytes=64))
    if size is None:
        assert isinstance(found, resume.Discard)
    else:
        assert found == resume.NeedPrefix(size, held.good)
    assert isinstance(resume.decide(replace(WEAK_REMOTE, **remote), held, ResumePolicy()), resume.Discard)
