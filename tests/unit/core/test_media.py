"""First bytes against the media type that was asked for (STREAM-4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core.media import SNIFF_BYTES, mismatch

PAGE = b"<!DOCTYPE html><html><title>Log in</title>"

RIGHT = [
    ("application/pdf", b"%PDF-1.7\n", "as it should be"),
    ("application/pdf", b"\x00" * 1000 + b"%PDF-1.4", "the mark within the first kilobyte"),
    ("application/pdf", PAGE[:15] + b"%PDF-1.4", "odd, and readers take it"),
    ("application/epub+zip", b"PK\x03\x04rest", "a zip"),
    ("application/zip", b"PK\x05\x06" + b"\x00" * 18, "an empty zip"),
    ("application/gzip", b"\x1f\x8b\x08", "gzip"),
    ("application/zstd", b"\x28\xb5\x2f\xfd\x00", "zstd"),
    ("application/x-7z-compressed", b"7z\xbc\xaf\x27\x1c", "7z"),
    ("application/x-bzip2", b"BZh9", "bzip2"),
    ("application/x-xz", b"\xfd7zXZ\x00", "xz"),
    ("audio/flac", b"fLaC\x00", "flac"),
    ("image/gif", b"GIF87a", "the old gif"),
    ("image/gif", b"GIF89a", "the new gif"),
    ("image/jpeg", b"\xff\xd8\xff\xe0", "jpeg"),
    ("image/png", b"\x89PNG\r\n\x1a\n", "png"),
    ("image/tiff", b"II*\x00", "little-endian"),
    ("image/tiff", b"MM\x00*", "big-endian"),
    ("text/html", PAGE, "a page was asked for"),
    ("application/xhtml+xml", PAGE, "a page was asked for, as XML"),
    ("text/plain", PAGE, "the source of a page is text"),
    ("application/octet-stream", b"", "nothing is known of the type, nor of the bytes"),
    ("video/mp4", b"anything", "a type without a signature"),
    ("text/csv", b"a,<html>", "a page is one from its beginning"),
]

WRONG = [
    ("application/pdf", b"", "nothing at all"),
    ("application/pdf", PAGE, "a log-in page"),
    ("application/pdf", b"\x00" * SNIFF_BYTES + b"%PDF-1.4", "the mark too far in"),
    ("application/pdf", b"%PDF", "half of the mark"),
    ("application/zip", b"PK\x07\x08", "another record of zip"),
    ("application/gzip", b"\x1f", "cut off"),
    ("image/png", b"\xff\xd8\xff\xe0", "another picture"),
    ("image/gif", b"GIF88a", "no such version"),
    ("image/jpeg", PAGE, "an error page"),
    ("text/csv", PAGE, "a page, and the type has no signature"),
    ("video/mp4", b"\xef\xbb\xbf \r\n\t<HTML>", "a page after mark and blanks"),
    ("application/json", b"<hTmL lang=en>", "a page in any case"),
]


@pytest.mark.parametrize(("expected", "first"), [row[:2] for row in RIGHT], ids=[f"{r[0]}: {r[2]}" for r in RIGHT])
def test_bytes_that_may_be_of_the_type_pass(expected: str, first: bytes) -> None:
    assert mismatch(expected, first) is None


@pytest.mark.parametrize(("expected", "first"), [row[:2] for row in WRONG], ids=[f"{r[0]}: {r[2]}" for r in WRONG])
def test_bytes_that_cannot_be_of_the_type_are_told(expected: str, first: bytes) -> None:
    assert mismatch(expected, first)


@given(st.sampled_from([row[0] for row in RIGHT + WRONG]), st.binary(min_size=SNIFF_BYTES, max_size=1100), st.binary())
def test_what_comes_after_the_first_bytes_makes_no_difference(expected: str, first: bytes, more: bytes) -> None:
    head = first[:SNIFF_BYTES]
    assert mismatch(expected, head + more) == mismatch(expected, head)
