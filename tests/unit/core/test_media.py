"""What a file is expected to be, and its first bytes against that (STREAM-4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core.layout import EXTENSIONS
from dlpipe.core.media import SNIFF_BYTES, Expected, expected, mismatch, wrong

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
    ("application/pdf", b"\x00" * 1_024 + b"%PDF-1.4", "the mark too far in"),
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


@pytest.mark.parametrize(("media_type", "first"), [row[:2] for row in RIGHT], ids=[f"{r[0]}: {r[2]}" for r in RIGHT])
def test_bytes_that_may_be_of_the_type_pass(media_type: str, first: bytes) -> None:
    assert mismatch(media_type, first) is None


@pytest.mark.parametrize(("media_type", "first"), [row[:2] for row in WRONG], ids=[f"{r[0]}: {r[2]}" for r in WRONG])
def test_bytes_that_cannot_be_of_the_type_are_told(media_type: str, first: bytes) -> None:
    assert mismatch(media_type, first)


@given(
    st.sampled_from([row[0] for row in RIGHT + WRONG]),
    st.binary(min_size=1),
    st.binary(),
)
def test_what_comes_after_the_first_bytes_makes_no_difference(media_type: str, first: bytes, more: bytes) -> None:
    head = (first * SNIFF_BYTES)[:SNIFF_BYTES]
    assert mismatch(media_type, head + more) == mismatch(media_type, head)
    assert wrong(Expected("zip"), head + more) == wrong(Expected("zip"), head)


# ── what is expected ──────────────────────────────────────────────────────────────────────────────

HOST = "https://files.example"
PDF, PNG = Expected("pdf"), Expected("image/png")

EXPECTED = [
    ("text/csv", ".pdf", "/a.png", "image/png", Expected("text/csv", asked=True), "the media type comes first"),
    (None, ".pdf", "/a.html", "text/html", PDF, "then the extension"),
    (None, ".html", "/a.pdf", "image/png", None, "an extension that pages have"),
    (None, ".tar.gz", "/a", None, Expected("gz"), "an extension of two parts"),
    (None, None, "/papers/a.pdf", "text/html", PDF, "then the path"),
    (None, "", "/a.PDF", None, PDF, "no extension was wanted, and letters are of one case"),
    (None, ".bin", "/a.pdf", None, PDF, "an extension that says nothing"),
    (None, None, "/a.pdf?b.html", None, PDF, "a query is no path"),
    (None, None, "/a.pdf;jsessionid=1.2", None, PDF, "nor are parameters of a path"),
    (None, None, "/a.html?b.pdf", "image/png", None, "a page"),
    (None, None, "/a.csv", "application/pdf", None, "text of any kind"),
    (None, None, "/a.xls", "application/pdf", None, "spreadsheets that are pages are about"),
    (None, None, "/a.php", "image/png", PNG, "a path that says nothing, so what is declared"),
    (None, None, "/a.pdf/", "image/png; x=y", PNG, "the last part of the path is empty"),
    (None, None, "/a", "Application/PDF;charset=x", Expected("application/pdf"), "declared, in any case"),
    (None, None, "/a", "application/epub+zip", Expected("application/epub+zip"), "declared"),
    (None, None, "", "video/mp4", Expected("video/mp4"), "no path at all, of a host with a name like a file"),
    *((None, None, "/a", declared, None, f"declared {declared}")
      for declared in (None, "", "text/html", "text/plain", "application/octet-stream", "application/json", "x")),
]  # fmt: skip


@pytest.mark.parametrize("row", EXPECTED, ids=[row[5] for row in EXPECTED])
def test_the_first_that_says_anything_is_expected(
    row: tuple[str | None, str | None, str, str | None, Expected | None, str],
) -> None:
    media_type, ext, path, declared, found, _why = row
    assert expected(media_type, ext, HOST + path, declared) == found


def test_a_host_is_no_path() -> None:
    assert expected(None, None, "https://example.zip", "text/html") is None


@pytest.mark.parametrize("ext", sorted(EXTENSIONS))
def test_every_extension_that_a_file_may_have_says_something_but_one(ext: str) -> None:
    """Else what the server declares of an unknown one would decide."""
    declared = expected(None, ext, HOST, "image/png")
    assert (declared == PNG) == (ext == ".bin")


# ── a page in place of a file ─────────────────────────────────────────────────────────────────────

PAGES = [
    (PAGE, "a document type"),
    (b"<!doctype\n\thtml>", "blanks within it"),
    (b'<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 4.01//EN">', "an old one"),
    (b"<HTML LANG=en>", "upper case"),
    (b"<html>", "the whole body"),
    (b"<html", "cut off"),
    (b"<head><title>Log in</title>", "a head"),
    (b"<script>location='/login'</script>", "a script"),
    (b"<body onload=x()>", "a body"),
    (b"<title>403</title>", "a title"),
    (b"<h1>Forbidden</h1>", "a heading"),
    (b"<br />\n<b>Warning</b>: no such paper", "a warning of a script"),
    (b"<form action=/login>", "a form"),
    (b"<meta http-equiv=refresh>", "a redirect of its own"),
    (b"\xef\xbb\xbf<html>", "a mark of UTF-8"),
    (b" \r\n\t\x0c<html>", "blanks"),
    (b"\r\n" * 1_000 + b"<html>", "many blanks"),
    (b"<!-- cached -->\n<!-- twice --><html>", "comments"),
    (b"<!-- " + b"x" * SNIFF_BYTES, "a comment without end"),
    (b'<?xml version="1.0"?>\n<!-- x --><!DOCTYPE html><html xmlns=x>', "XHTML"),
    ("\ufeff<!DOCTYPE html><html>".encode("utf-16-le"), "UTF-16"),
    ("\ufeff <html>".encode("utf-16-be"), "UTF-16, the other way round"),
    ("<!-- x --><html>".encode("utf-16-le"), "UTF-16 without a mark"),
    ("\ufeff<html>".encode("utf-32-le"), "UTF-32"),
]  # fmt: skip
BINARY = (
    "pdf", "zip", "gz", "png", "svg", "mp4", "epub", "docx", "image/svg+xml", "application/pdf", "audio/mpeg",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
)  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("page", PAGES, ids=[row[1] for row in PAGES])
def test_a_page_is_told_where_no_page_is_expected(name: str, page: tuple[bytes, str]) -> None:
    may_begin_so = name in ("svg", "image/svg+xml") and page[1] == "a comment without end"
    assert (wrong(Expected(name), page[0]) is None) == may_begin_so


def test_a_page_is_told_for_an_asked_type_as_well() -> None:
    for page, _why in PAGES:
        assert wrong(Expected("video/mp4", asked=True), page)


SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>"

HONEST = [
    ("pdf", b"%PDF-1.7\n", "a PDF"),
    ("pdf", b"junk\r\n\r\n%PDF-1.4", "one with junk in front"),
    ("pdf", b"<br />\n<b>Warning</b>: deprecated<br />\n%PDF-1.4", "and with a script's warnings in front"),
    ("application/pdf", b"<html>%PDF-1.4", "readers take it"),
    ("application/x-pdf", b"<html>%PDF-1.4", "by its old name as well"),
    ("pdf", b"", "an empty file"),
    ("pdf", b"%P", "a file shorter than any mark"),
    ("pdf", b'{"error": "no such paper"}', "no page: what else it is, nothing says"),
    ("pdf", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML is no page"),
    ("zip", b"PK\x03\x04", "a zip"),
    ("epub", b"PK\x03\x04mimetypeapplication/epub+zip", "an epub"),
    ("docx", b"PK\x03\x04[Content_Types].xml", "a document"),
    ("zip", b"#!/bin/sh\n", "a self-extracting one"),
    ("iso", b"\x00" * SNIFF_BYTES, "zeros"),
    ("tar", b"a.html" + b"\x00" * 94, "an archive of pages"),
    ("svg", SVG, "an SVG"),
    ("svg", b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- made by hand -->\n" + SVG, "with a declaration and a comment"),
    ("svg", b"<!DOCTYPE svg PUBLIC '-//W3C//DTD SVG 1.1//EN' 'x'>" + SVG, "with a document type"),
    ("svg", b"<!--" + b"x" * SNIFF_BYTES + b"-->" + SVG, "with a long licence in front"),
    ("image/svg+xml", "\ufeff<svg/>".encode("utf-16"), "in UTF-16"),
    ("png", b"\x89PNG\r\n\x1a\n", "an image"),
    ("mp3", b"ID3\x04<html>", "music"),
    ("mp4", b"\x00\x00\x00\x18ftypmp42", "a film"),
    ("tif", b"<abbr>", "no tag that pages begin with"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "first"), [row[:2] for row in HONEST], ids=[f"{r[0]}: {r[2]}" for r in HONEST])
def test_an_honest_file_passes(name: str, first: bytes) -> None:
    assert wrong(Expected(name), first) is None


@given(st.binary(max_size=200), st.sampled_from(["text/xml", "text/csv", "application/json", "text/plain"]))
def test_an_asked_type_of_text_is_judged_by_its_beginning_alone(first: bytes, media_type: str) -> None:
    """`<title>` or a comment may begin an XML file: of text only what cannot be anything else is a page."""
    assert mismatch(media_type, b"<title>" + first) is None
    assert mismatch(media_type, b"<!-- -->" + first) is None
