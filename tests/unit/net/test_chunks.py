"""The framing of a chunked body, byte by byte (row 7): what is refused, when, and where a body ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.net.chunks import ChunkedBody, ChunkError


def body() -> ChunkedBody:
    return ChunkedBody(max_trailers=3, max_trailer_bytes=200)


def feed(data: bytes, size: int = 4096) -> ChunkedBody:
    fed = body()
    for at in range(0, len(data), size):
        fed.feed(data[at : at + size])
    return fed


@pytest.mark.parametrize("size", [1, 3, 4096])
@pytest.mark.parametrize(
    ("data", "surplus"),
    [
        (b"0\r\n\r\n", 0),
        (b"5\r\nhello\r\n0\r\n\r\n", 0),
        (b"A\r\n0123456789\r\n1\r\nx\r\n000\r\n\r\n", 0),
        (b"5;name=value\r\nhello\r\n0;last\r\n\r\n", 0),
        (b"5  \r\nhello\r\n0\r\n\r\n", 0),
        (b"0\r\nDigest: x\r\nB: \r\n\r\n", 0),
        (b"0\r\n\r\nHTTP/1.1 200 OK", 15),
        (b"3\r\n\r\n\n\r\n0\r\n\r\n\n", 1),
    ],
)
def test_body_ends_where_its_last_chunk_says_however_it_is_cut(data: bytes, surplus: int, size: int) -> None:
    fed = feed(data, size)
    assert (fed.ended, fed.surplus) == (True, surplus)


@pytest.mark.parametrize("cut", range(len(b"5\r\nhello\r\n0\r\nA: b\r\n\r\n")))
def test_body_has_not_ended_before_its_last_byte(cut: int) -> None:
    fed = feed(b"5\r\nhello\r\n0\r\nA: b\r\n\r\n"[:cut])
    assert (fed.ended, fed.surplus) == (False, 0)


@pytest.mark.parametrize("size", [1, 3, 4096])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"5\n", "a bare LF behind a size"),
        (b"5\r\nhello\n", "a bare LF behind a chunk"),
        (b"5\r\nhellos", "a chunk longer than its size"),
        (b"5\r\nhello\rx", "a CR alone behind a chunk"),
        (b"5;a\x00", "a NUL in an extension, before the end of its line"),
        (b"5;a\rb", "a CR in an extension, before the end of its line"),
        (b"5;a\r\r\n", "two CR"),
        (b"-", "a sign"), (b"x5", "a prefix"), (b"\r\n", "no size"), (b" 5\r\n", "a space before"),
        (b";a", "an extension alone"),
        (b"0x5\r\n", "hexadecimal as a program writes it"), (b"5_0\r\n", "an underscore"),
        (b"5 a\r\n", "a word behind"),
        (b"1" * 17 + b"\r\n", "more than 16 digits"),
        (b"5;" + b"a" * 5000, "a line that does not end"),
        (b"0\r\nA: b\r\n c\r\n", "a folded trailer"),
        (b"0\r\nA: b\r\n c", "a folded trailer, before the end of its line"),
        (b"0\r\n\tc\r\n", "a trailer that begins with a tab"),
        (b"0\r\nA: b\n", "a bare LF behind a trailer"),
        (b"0\r\n\n", "a bare LF as the last line"),
        (b"0\r\nA: \x00", "a NUL in a trailer"),
        (b"0\r\nno colon\r\n", "a trailer without a colon"),
        (b"0\r\n" + b"A: b\r\n" * 4, "too many trailers"),
        (b"0\r\nA: " + b"b" * 201, "a trailer that does not end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_framing_is_refused_with_its_first_wrong_byte(data: bytes, why: str, size: int) -> None:
    with pytest.raises(ChunkError):
        feed(data, size)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(0), st.binary(max_size=20))
def test_any_chunks_in_any_pieces_end_where_they_end(chunks: list[bytes], seed: int, behind: bytes) -> None:
    data = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
    fed, chance, at = body(), random.Random(seed), 0
    whole = data + behind
    while at < len(whole):
        step = chance.randrange(1, 40)
        assert fed.ended is (at >= len(data))
        fed.feed(whole[at : at + step])
        at += step
    assert (fed.ended, fed.surplus) == (True, len(behind))
