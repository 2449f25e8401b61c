"""What a file is expected to be, and whether its first bytes can be that (STREAM-4). Pure.

A media type that was asked for is held against signatures. What follows from an extension, or from what the server
declares, is enough to refuse one thing only: a web page in place of a PDF, an archive, an image, a media file, or of
another format that no text can be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SNIFF_BYTES = 4_096
_PDF_BYTES = 1_024
"""Readers accept the mark of a PDF anywhere in so many first bytes, and such files are about."""

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_SIGNATURES: Mapping[str, tuple[bytes, ...]] = {
    "application/epub+zip": _ZIP,
    "application/gzip": (b"\x1f\x8b",),
    "application/x-7z-compressed": (b"7z\xbc\xaf\x27\x1c",),
    "application/x-bzip2": (b"BZh",),
    "application/x-xz": (b"\xfd7zXZ\x00",),
    "application/zip": _ZIP,
    "application/zstd": (b"\x28\xb5\x2f\xfd",),
    "audio/flac": (b"fLaC",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/tiff": (b"II*\x00", b"MM\x00*"),
}

# What no web page is named. Of formats that are zip archives, those that people know under names of their own.
_PAPERS = "azw3 djvu docx epub mobi odp ods odt pdf pptx ps xlsx"
_ARCHIVES = "7z apk bz2 cab cbr cbz deb dmg gz iso jar lz4 lzma rar rpm tar tbz2 tgz txz whl xz zip zst"
_IMAGES = "avif bmp gif heic heif ico jp2 jpeg jpg jxl png psd svg tif tiff webp"
_MEDIA = "3gp aac avi flac m4a m4b m4v mkv mov mp3 mp4 mpeg mpg oga ogg ogv opus wav webm wma wmv"
_DATA = "h5 nc parquet"
_NO_PAGES = frozenset(f"{_PAPERS} {_ARCHIVES} {_IMAGES} {_MEDIA} {_DATA}".split())
# What may be text of any kind, pages among it: old spreadsheets are, too.
_MAYBE_PAGES = frozenset(
    "bib cif csv doc fasta htm html ipynb json jsonl md nt ppt rdf rtf shtml tex tsv ttl txt warc xhtml xls xml".split()
)

_TYPES = frozenset(
    "application/java-archive application/pdf application/postscript application/vnd.rar application/x-bzip "
    "application/x-gtar application/x-gzip application/x-hdf5 application/x-iso9660-image "
    "application/x-mobipocket-ebook application/x-netcdf application/x-pdf "
    "application/x-rar-compressed application/x-tar application/x-zip-compressed application/vnd.apache.parquet".split()
) | frozenset(_SIGNATURES)
_TYPES_BELOW = (
    "application/vnd.oasis.opendocument.", "application/vnd.openxmlformats-officedocument.",
    "audio/", "image/", "video/",
)  # fmt: skip

_HTML = (b"<!doctype html", b"<html")
_BLANKS = b" \t\r\n\f\v"
_MARKS = b"\xef\xbb\xbf\xfe\xff"
"""Of UTF-8 and UTF-16, in whatever order they come."""
_ASIDE = re.compile(rb"(?:\s+|<!--.*?-->|<\?.*?\?>)*", re.DOTALL)
# As browsers tell a page (WHATWG MIME Sniffing §7.1), and what else pages that are made by scripts begin with.
_PAGE = re.compile(
    rb"<(?:!doctype\s+html|a|b|base|body|br|center|div|font|form|frameset|h[1-6]|head|html|iframe|img|link|meta|"
    rb"noscript|p|script|span|style|table|title)(?=[\s/>]|\Z)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Expected:
    """`name`: a media type, or an extension without its dot. `asked`: by media type, so that signatures count."""

    name: str
    asked: bool = False


def expected(media_type: str | None, ext: str | None, url: str, content_type: str | None) -> Expected | None:
    """What to expect, by the first of these that says anything; None: any file.

    `url` is the planned one: what its path ends in. `content_type` is what the server declares.
    """
    if media_type is not None:
        return Expected(media_type, asked=True)
    path = url.partition("://")[2].partition("?")[0].partition("/")[2]
    name = path.rpartition("/")[2].partition(";")[0]
    for text in (ext or "", name):
        suffix = text.rpartition(".")[2].lower() if "." in text else ""
        if suffix in _NO_PAGES:
            return Expected(suffix)
        if suffix in _MAYBE_PAGES:
            return None
    declared = plain(content_type)
    return Expected(declared) if declared is not None and _is_no_page(declared) else None


def plain(content_type: str | None) -> str | None:
    """The type alone, without parameters."""
    return content_type.partition(";")[0].strip().lower() if content_type else None


def wrong(what: Expected, first: bytes) -> str | None:
    """Why a file with these first bytes is not what was expected; None when it may be."""
    if what.asked:
        return mismatch(what.name, first)
    head = first[:SNIFF_BYTES]
    if ("pdf" in what.name and _is_pdf(head)) or not _is_page(head, what.name):
        return None
    return f"the server sent a web page where {what.name if '/' in what.name else f'a .{what.name}'} was expected"


def mismatch(media_type: str, first: bytes) -> str | None:
    """The same for a media type that was asked for."""
    head = first[:SNIFF_BYTES]
    if media_type == "application/pdf":
        return None if _is_pdf(head) else "the file does not begin like a PDF"
    if media_type in _SIGNATURES and not head.startswith(_SIGNATURES[media_type]):
        return f"the file does not begin like {media_type}"
    if _is_no_page(media_type):
        is_page = _is_page(head, media_type)
    else:
        is_page = head.lstrip(_MARKS + _BLANKS).lower().startswith(_HTML)
    if is_page and media_type not in ("text/html", "application/xhtml+xml", "text/plain"):
        return f"the server sent a web page where {media_type} was expected"
    return None


def _is_no_page(media_type: str) -> bool:
    return media_type in _TYPES or media_type.startswith(_TYPES_BELOW) or media_type.endswith(("+zip", "+gzip"))


def _is_pdf(head: bytes) -> bool:
    return b"%PDF-" in head[:_PDF_BYTES]


def _is_page(head: bytes, name: str) -> bool:
    """Is it a web page, where nothing else that is text is expected? Comments and declarations may stand before it."""
    text = head.replace(b"\x00", b"").lstrip(_MARKS)  # what is left of UTF-16 and UTF-32
    begins = _ASIDE.match(text)
    rest = text[begins.end() :] if begins else text
    if rest.startswith(b"<!--"):  # a comment longer than what is looked at; of these formats SVG alone has any
        return name not in ("svg", "image/svg+xml")
    return _PAGE.match(rest) is not None
