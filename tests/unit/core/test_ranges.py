"""HTTP.md, row by row: the head of an answer and the end of its body (STREAM-1, STREAM-3)."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import answers, ranges
from dlpipe.core.answers import Kind, Reject
from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.ranges import (
    Append,
    Finished,
    Incomplete,
    More,
    Restart,
    Verdict,
    Want,
    facts,
    judge,
    verdict,
)
from dlpipe.core.remote import Headers

ALL = Want()
REST = Want(start=40, if_range='"a"', etag='"a"', total=100)
BY_DATE = Want(start=40, if_range="Sun, 06 Nov 1994 08:49:37 GMT", total=100)


def _headers(*lines: str) -> Headers:
    return Headers((name, value) for name, _, value in (line.partition(":") for line in lines))


def _judged(status: int, lines: tuple[str, ...], want: Want, framing: str | None = None) -> str:
    """The judgement in a word or two, so that the table can be read."""
    headers = _headers(*lines)
    if framing is None:
        framing = (
            "chunked" if headers.all("transfer-encoding") else ("length" if headers.all("content-length") else "close")
        )
    found = judge(status, headers, framing, want)
    match found:
        case Append(offset, length, total):
            return f"append {offset} {length} {total}"
        case Restart(reason):
            return f"restart {reason}"
        case Reject(code, _, kind):
            return f"{kind} {code}"


ETAG = 'ETag: "a"'
R40 = "Content-Range: bytes 40-99/100"
FULL = "Content-Range: bytes 0-99/100"
LENGTH = "Content-Length: 60"
CHUNKED = "Transfer-Encoding: chunked"
MULTIPART = "Content-Type: Multipart/ByteRanges; boundary=x"

HEADS: list[tuple[str, int, tuple[str, ...], Want, str]] = [
    ("row 1: length", 200, ("Content-Length: 5",), ALL, "append 0 5 5"),
    ("row 2: chunked", 200, (CHUNKED,), ALL, "append 0 None None"),
    ("row 3: until it closes", 200, (), ALL, "append 0 None None"),
    ("row 8: two framings", 200, (CHUNKED, "Content-Length: 5"), ALL, "permanent protocol_error"),
    ("row 8: the same in a 206", 206, (CHUNKED, LENGTH, ETAG, R40), REST, "permanent protocol_error"),
    ("row 9: a list", 200, ("Content-Length: 5, 5",), ALL, "permanent protocol_error"),
    ("row 9: two different", 200, ("Content-Length: 5", "Content-Length: 6"), ALL, "permanent protocol_error"),
    ("row 9: two equal", 200, ("Content-Length: 5", "Content-Length: 5"), ALL, "permanent protocol_error"),
    ("row 9: negative", 200, ("Content-Length: -5",), ALL, "permanent protocol_error"),
    ("row 9: signed", 200, ("Content-Length: +5",), ALL, "permanent protocol_error"),
    ("row 9: underscore", 200, ("Content-Length: 1_000",), ALL, "permanent protocol_error"),
    ("row 9: another script's digit", 200, ("Content-Length: \u0663",), ALL, "permanent protocol_error"),
    ("row 9: hexadecimal", 200, ("Content-Length: 0x5",), ALL, "permanent protocol_error"),
    ("row 9: empty", 200, ("Content-Length:",), ALL, "permanent protocol_error"),
    ("row 9: absurd", 200, ("Content-Length: " + "9" * 5000,), ALL, "permanent protocol_error"),
    ("row 9: large and real", 200, ("Content-Length: 18446744073709551616",), ALL, "append 0 18446744073709551616 18446744073709551616"),
    ("a coding that we do not speak", 200, ("Transfer-Encoding: gzip, chunked",), ALL, "permanent protocol_error"),
    ("row 10: over the limit", 200, ("Content-Length: 6",), Want(max_bytes=5), "permanent too_large"),
    ("row 10: at the limit", 200, ("Content-Length: 5",), Want(max_bytes=5), "append 0 5 5"),
    ("row 12: a range unasked", 206, (LENGTH, ETAG, R40), ALL, "permanent range_not_asked"),
    ("row 12: start without If-Range sends no Range", 206, (LENGTH, ETAG, R40), Want(start=40), "permanent range_not_asked"),
    ("row 13: 200 with a range", 200, ("Content-Length: 5", R40), ALL, "restart range_on_200"),
    ("row 13: however malformed", 200, ("Content-Length: 5", "Content-Range: x"), REST, "restart range_on_200"),
    ("row 13: a part of it, from its start", 200, ("Content-Length: 5", "Content-Range: bytes 0-4/100"), ALL, "restart range_on_200"),
    ("row 13: the end of it", 200, ("Content-Length: 5", "Content-Range: bytes 95-99/100"), REST, "restart range_on_200"),
    ("row 13: another length", 200, ("Content-Length: 99", FULL), REST, "restart range_on_200"),
    ("row 13: a total that nobody knows", 200, ("Content-Length: 100", "Content-Range: bytes 0-99/*"), REST, "restart range_on_200"),
    ("row 13: two of them", 200, ("Content-Length: 100", FULL, FULL), REST, "restart range_on_200"),
    ("row 13: another unit", 200, ("Content-Length: 100", "Content-Range: lines 0-99/100"), REST, "restart range_on_200"),
    ("row 14: nothing here", 204, (), ALL, "permanent unexpected_status"),
    ("row 14: reset", 205, (), ALL, "permanent unexpected_status"),
    ("row 14: not modified", 304, (), ALL, "permanent unexpected_status"),
    ("accepted is not delivered", 202, ("Content-Length: 5",), ALL, "permanent unexpected_status"),
    ("a proxy changed it", 203, ("Content-Length: 5",), ALL, "permanent unexpected_status"),
    ("a redirect that nobody followed", 302, (), ALL, "permanent unexpected_status"),
    ("another protocol", 101, (), ALL, "permanent protocol_error"),
    ("row 15: gzip", 200, ("Content-Length: 5", "Content-Encoding: gzip"), ALL, "permanent content_coding"),
    ("row 15: brotli, chunked", 200, (CHUNKED, "Content-Encoding: br"), ALL, "permanent content_coding"),
    ("row 15: a chain", 200, ("Content-Encoding: identity, gzip",), ALL, "permanent content_coding"),
    ("row 15: on two lines", 200, ("Content-Encoding: identity", "Content-Encoding: zstd"), ALL, "permanent content_coding"),
    ("row 15: an unknown word", 200, ("Content-Encoding: utf-8",), ALL, "permanent content_coding"),
    ("row 15: identity is no coding", 200, ("Content-Length: 5", "Content-Encoding: Identity"), ALL, "append 0 5 5"),
    ("row 16: empty", 200, ("Content-Length: 0",), ALL, "append 0 0 0"),
    ("row 18: as asked", 206, (LENGTH, ETAG, R40), REST, "append 40 60 100"),
    ("row 18: chunked", 206, (CHUNKED, ETAG, R40), REST, "append 40 60 100"),
    ("row 18: by date, none repeated", 206, (LENGTH, R40), BY_DATE, "append 40 60 100"),
    ("row 18: by date, repeated", 206, (LENGTH, R40, "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"), BY_DATE, "append 40 60 100"),
    ("row 18: another date", 206, (LENGTH, R40, "Last-Modified: Sun, 06 Nov 1994 08:49:38 GMT"), BY_DATE, "restart validator_changed"),
    ("row 27: an ETag where there was none", 206, (LENGTH, R40, ETAG), BY_DATE, "restart validator_appeared"),
    ("row 19: earlier", 206, (ETAG, "Content-Range: bytes 30-99/100"), REST, "append 30 70 100"),
    ("row 19: so early that nothing new comes", 206, (ETAG, "Content-Range: bytes 0-39/100"), REST, "restart range_brings_nothing"),
    ("row 20: later", 206, (ETAG, "Content-Range: bytes 41-99/100"), REST, "restart range_starts_later"),
    ("row 21: not all of the rest", 206, (ETAG, "Content-Range: bytes 40-49/100"), REST, "append 40 10 100"),
    ("row 22: another total", 206, (ETAG, "Content-Range: bytes 40-99/101"), REST, "restart total_changed"),
    ("row 23: an unknown total, known before", 206, (ETAG, "Content-Range: bytes 40-99/*"), REST, "append 40 60 100"),
    ("row 23: an unknown total", 206, (ETAG, "Content-Range: bytes 40-99/*"), Want(40, '"a"', '"a"'), "append 40 60 None"),
    ("row 23: past the total of before", 206, (ETAG, "Content-Range: bytes 40-100/*"), REST, "restart range_past_total"),
    ("row 24: backwards", 206, (ETAG, "Content-Range: bytes 99-40/100"), REST, "restart range_malformed"),
    ("row 24: past its own total", 206, (ETAG, "Content-Range: bytes 40-100/100"), REST, "restart range_malformed"),
    ("row 24: another unit", 206, (ETAG, "Content-Range: pages 40-99/100"), REST, "restart range_malformed"),
    ("row 24: missing", 206, (LENGTH, ETAG), REST, "restart range_malformed"),
    ("row 24: twice", 206, (ETAG, R40, R40), REST, "restart range_malformed"),
    ("row 24: signed", 206, (ETAG, "Content-Range: bytes +40-99/100"), REST, "restart range_malformed"),
    ("row 24: other digits", 206, (ETAG, "Content-Range: bytes \u0664\u0660-99/100"), REST, "restart range_malformed"),
    ("row 24: a tail", 206, (ETAG, R40 + " x"), REST, "restart range_malformed"),
    ("row 24: unsatisfied in a 206", 206, (ETAG, "Content-Range: bytes */100"), REST, "restart range_malformed"),
    ("row 25: several ranges", 206, (ETAG, MULTIPART), REST, "permanent multipart"),
    ("row 25: in a 200", 200, (MULTIPART, LENGTH), ALL, "permanent multipart"),
    ("row 26: declared longer than its range", 206, ("Content-Length: 61", ETAG, R40), REST, "restart body_too_long"),
    ("row 26: declared shorter", 206, ("Content-Length: 10", ETAG, R40), REST, "append 40 60 100"),
    ("row 27: no ETag", 206, (LENGTH, R40), REST, "restart validator_changed"),
    ("row 27: a weak one", 206, (LENGTH, R40, 'ETag: W/"a"'), REST, "restart validator_changed"),
    ("row 27: another", 206, (LENGTH, R40, 'ETag: "b"'), REST, "restart validator_changed"),
    ("row 27: two", 206, (LENGTH, R40, ETAG, ETAG), REST, "restart validator_changed"),
    ("row 28: a coded range", 206, (LENGTH, R40, ETAG, "Content-Encoding: gzip"), REST, "restart coded_range"),
    ("row 29: all of it instead", 200, ("Content-Length: 100", 'ETag: "b"'), REST, "append 0 100 100"),
    ("row 30: all is held, which proves nothing", 416, ("Content-Range: bytes */40",), REST, "restart range_all_held_unproven"),
    ("row 31: another total", 416, ("Content-Range: bytes */39",), REST, "restart range_not_satisfiable"),
    ("row 31: none", 416, (), REST, "restart range_not_satisfiable"),
    ("row 31: malformed", 416, ("Content-Range: bytes 40",), REST, "restart range_not_satisfiable"),
    ("416 without a range of ours", 416, (), ALL, "permanent http_4xx"),
    ("row 32: 304", 304, (), REST, "restart status_304"),
    ("row 32: 412", 412, (), REST, "restart status_412"),
    ("412 without a condition of ours", 412, (), ALL, "permanent http_4xx"),
    ("row 33", 404, (), REST, "permanent http_404"),
    ("row 33", 410, (), ALL, "permanent http_410"),
    ("row 33", 451, (), ALL, "permanent http_451"),
    ("row 34", 401, (), REST, "permanent http_401"),
    ("row 34", 403, (), ALL, "permanent http_403"),
    ("other refusals", 418, (), ALL, "permanent http_4xx"),
    ("row 35", 408, (), ALL, "retryable http_408"),
    ("row 35", 425, (), ALL, "retryable http_425"),
    ("row 35", 429, (), ALL, "retryable http_429"),
    ("row 35", 500, (), REST, "retryable http_5xx"),
    ("row 35", 599, (), ALL, "retryable http_5xx"),
    ("row 54: all of it to a range", 200, ("Content-Length: 100", FULL), REST, "append 0 100 100"),
    ("row 54: all of it to no range", 200, ("Content-Length: 100", FULL, ETAG), ALL, "append 0 100 100"),
    ("row 54: of another total than is held", 200, ("Content-Length: 7", "Content-Range: bytes 0-6/7"), REST, "append 0 7 7"),
    ("row 54: chunked, its total is its length", 200, (CHUNKED, FULL), REST, "append 0 100 100"),
    ("row 54: until it closes, its total is its length", 200, (FULL,), REST, "append 0 100 100"),
    ("row 54: coded", 200, (CHUNKED, FULL, "Content-Encoding: gzip"), REST, "permanent content_coding"),
    ("row 54: over the limit, chunked", 200, (CHUNKED, FULL), Want(max_bytes=99), "permanent too_large"),
    ("a range beyond the limit", 206, (ETAG, R40), Want(40, '"a"', '"a"', 100, max_bytes=99), "permanent too_large"),
    ("a range of unknown total beyond it", 206, (ETAG, "Content-Range: bytes 40-99/*"), Want(40, '"a"', '"a"', None, max_bytes=99), "permanent too_large"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "lines", "want", "expected"),
    [case[1:] for case in HEADS],
    ids=[f"{case[0]} ({n})" for n, case in enumerate(HEADS)],
)
def test_judge(status: int, lines: tuple[str, ...], want: Want, expected: str) -> None:
    assert _judged(status, lines, want) == expected


def test_judge_refuses_a_framing_that_does_not_fit_the_headers() -> None:
    assert _judged(200, ("Content-Length: 5",), ALL, "close") == "permanent protocol_error"
    assert _judged(200, (), ALL, "length") == "permanent protocol_error"
    assert _judged(200, (), ALL, "none") == "permanent protocol_error"


_lines = st.lists(
    st.sampled_from(
        ['ETag: "a"', 'ETag: "b"', 'ETag: W/"a"', "Content-Range: bytes 4-9/10", "Content-Range: bytes 3-9/10",
         "Content-Range: bytes 5-9/10", "Content-Range: bytes 4-6/*", "Content-Range: bytes 4-9/11",
         "Content-Length: 6", "Content-Length: 7", "Content-Encoding: gzip"]
    ),
    max_size=4,
)  # fmt: skip


@given(_lines, st.sampled_from([200, 206, 304, 404, 412, 416, 500]))
def test_bytes_are_only_joined_under_the_validator_that_they_were_begun_with(lines: list[str], status: int) -> None:
    want = Want(start=4, if_range='"a"', etag='"a"', total=10)
    headers = _headers(*lines)
    found = judge(status, headers, "length" if headers.all("content-length") else "close", want)
    if isinstance(found, Append) and found.offset > 0:
        assert status == 206
        assert headers.all("etag") == ('"a"',)
        assert found.length is not None
        assert found.offset <= want.start < found.offset + found.length <= 10


ENDS: list[tuple[str, Append, int, str, dict[str, object], Verdict]] = [
    ("row 1", Append(0, 5, 5), 5, "length", {}, Finished()),
    ("row 2", Append(0, None, None), 7, "chunked", {}, Finished()),
    ("row 2: HEAD said something else, GET is right", Append(0, None, None), 7, "chunked", {"known_total": 9}, Finished()),
    ("row 3: nothing proves it", Append(0, None, None), 7, "close", {}, Finished(length_unproven=True)),
    ("row 3: a length agrees", Append(0, None, None), 7, "close", {"known_total": 7}, Finished()),
    ("row 3: a length says that more was to come", Append(0, None, None), 7, "close", {"known_total": 8}, Incomplete()),
    ("row 3: the length was wrong", Append(0, None, None), 7, "close", {"known_total": 6}, Finished(length_unproven=True)),
    ("row 3: a digest agrees", Append(0, None, None), 7, "close", {"digest_agreed": True}, Finished()),
    ("row 3: a digest agrees, whatever HEAD said", Append(0, None, None), 7, "close", {"digest_agreed": True, "known_total": 8}, Finished()),
    ("row 4", Append(0, 5, 5), 4, "length", {}, Incomplete()),
    ("row 16", Append(0, 0, 0), 0, "length", {}, Finished()),
    ("row 18", Append(40, 60, 100), 60, "length", {}, Finished()),
    ("row 21", Append(40, 10, 100), 10, "length", {}, More(50)),
    ("row 21: whatever a digest of a part says", Append(40, 10, 100), 10, "length", {"digest_agreed": False}, More(50)),
    ("row 23", Append(40, 60, None), 60, "length", {}, Restart("total_unknown")),
    ("row 23: proven by a digest", Append(40, 60, None), 60, "length", {"digest_agreed": True}, Finished()),
    ("row 26: longer", Append(40, 60, 100), 61, "chunked", {}, Restart("body_too_long")),
    ("row 26: shorter", Append(40, 60, 100), 59, "chunked", {}, Incomplete()),
    ("row 37: same validator, other bytes", Append(40, 60, 100), 60, "length", {"digest_agreed": False}, Restart("digest_mismatch")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("append", "received", "framing", "more", "expected"), [c[1:] for c in ENDS], ids=[c[0] for c in ENDS]
)
def test_verdict(append: Append, received: int, framing: str, more: dict[str, object], expected: Verdict) -> None:
    assert verdict(append, received, framing, **more) == expected  # type: ignore[arg-type]


def test_verdict_refuses_what_nothing_proves_when_the_policy_says_so() -> None:
    found = verdict(Append(0, None, None), 7, "close", accept_unproven=False)
    assert isinstance(found, Reject)
    assert (found.code, found.kind) == ("length_unproven", Kind.PERMANENT)


def test_verdict_on_a_fresh_body_that_is_not_what_its_digest_says_is_tried_again() -> None:
    found = verdict(Append(0, 5, 5), 5, "length", digest_agreed=False)
    assert isinstance(found, Reject)
    assert (found.code, found.kind) == ("digest_mismatch", Kind.RETRYABLE)


def test_a_refusal_becomes_the_failure_of_its_kind_with_a_hint() -> None:
    gone, busy = answers.refuse_status(404).failure(), answers.refuse_status(503).failure(7.0)
    assert isinstance(gone, Permanent)
    assert (gone.code, bool(gone.hint)) == ("http_404", True)
    assert isinstance(busy, Retryable)
    assert (busy.code, busy.after_s) == ("http_5xx", 7.0)


@pytest.mark.parametrize("text", ["", "+5", "-5", "1_000", "\u0663", " 5", "5 ", "0x5", "1e3", "5.0", "9" * 31])
def test_number_refuses_what_int_would_take(text: str) -> None:
    assert answers.number(text) is None


def test_number_takes_any_real_size() -> None:
    assert answers.number("0") == 0
    assert answers.number("007") == 7
    assert answers.number("9" * 30) == int("9" * 30)
    assert answers.number("0" * 9000) == 0


def test_facts_of_a_200_and_of_a_206_name_the_whole_file() -> None:
    whole = facts(200, _headers("Content-Length: 100", ETAG, "Accept-Ranges: bytes", "Content-Type: x/y"), "u")
    part = facts(206, _headers(LENGTH, ETAG, R40), "u")
    assert (whole.content_length, whole.etag, whole.accept_ranges, whole.content_type) == (
        100,
        '"a"',
        "bytes",
        "x/y",
    )
    assert (part.content_length, part.etag) == (100, '"a"')


def test_facts_of_a_coded_or_ambiguous_answer_carry_no_validators() -> None:
    for line in ("Content-Encoding: gzip", CHUNKED, "Content-Length: 6"):
        found = facts(200, _headers("Content-Length: 5", ETAG, "Last-Modified: x", line), "u")
        assert (found.content_length, found.etag, found.last_modified) == (None, None, None)


def test_facts_with_an_unreadable_etag_offer_no_date_either() -> None:
    for etags in ((ETAG, 'ETag: "b"'), ('ETag: "' + "a" * 2000 + '"',)):
        found = facts(200, _headers("Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT", *etags), "u")
        assert (found.etag, found.last_modified) == (None, None)


def test_content_range_unit_is_case_insensitive_as_the_rfc_says() -> None:
    assert ranges.content_range(_headers("Content-Range: Bytes 0-4/5")) == ranges.ContentRange(0, 4, 5)
