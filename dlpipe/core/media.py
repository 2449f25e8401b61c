"""Whether the first bytes of a file can be of the media type that was asked for (STREAM-4)."""

from __future__ import annotations

from collections.abc import Mapping

SNIFF_BYTES = 1_024

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
_HTML = (b"<!doctype html", b"<html")


def mismatch(expected: str, first: bytes) -> str | None:
    """Why these first bytes are not of the expected type; None when they may be."""
    head = first[:SNIFF_BYTES]
    if expected == "application/pdf":
        # Readers accept the mark anywhere in the first kilobyte, and such files are about.
        return None if b"%PDF-" in head else "the file does not begin like a PDF"
    if expected in _SIGNATURES and not head.startswith(_SIGNATURES[expected]):
        return f"the file does not begin like {expected}"
    is_page = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML)
    if is_page and expected not in ("text/html", "application/xhtml+xml", "text/plain"):
        return f"the server sent a web page where {expected} was expected"
    return None
