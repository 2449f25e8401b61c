"""Which torrent a magnet link or a .torrent file names. Reads bytes, and refuses whatever can be read in two ways.

A client lists a torrent only some time after it has taken it, so its name has to be known beforehand.
BEP 3 and 9 (v1), BEP 52 (v2 and hybrids).
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from dlpipe.core.errors import TorrentRefused

MAX_MAGNET = 16 * 1024
MAX_PARAMETERS = 1000
MAX_FILE_BYTES = 10 * 1024 * 1024
_MAX_DEPTH = 100
_MAX_DIGITS = 20

_HEX_40 = re.compile(r"[0-9a-fA-F]{40}\Z")
_BASE32 = re.compile(r"[A-Za-z2-7]{32}\Z")
# A multihash: 0x12 is SHA-256, 0x20 its 32 bytes.
_BTMH = re.compile(r"1220([0-9a-fA-F]{64})\Z")
_NOT_IN_A_LINK = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff]")
_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,19}")


@dataclass(frozen=True, slots=True)
class InfoHashes:
    """A torrent has one of them, or as a hybrid both. Lowercase hex: 40 digits of SHA-1, 64 of SHA-256."""

    v1: str | None = None
    v2: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What a client may call it, in 40 digits: libtorrent 2 prefers the cut v2, libtorrent 1 knows only v1."""
        cut = self.v2[:40] if self.v2 is not None else None
        return tuple(name for name in (cut, self.v1) if name is not None)


def of_magnet(link: str) -> InfoHashes:
    """Raises TorrentRefused(`magnet_malformed`)."""
    scheme, _, query = link.partition(":?")
    if scheme.lower() != "magnet" or len(link) > MAX_MAGNET or _NOT_IN_A_LINK.search(link):
        raise _bad_magnet()
    v1: set[str] = set()
    v2: set[str] = set()
    if query.count("&") >= MAX_PARAMETERS:
        raise _bad_magnet()
    for key, value in parse_qsl(query, errors="replace"):
        if key.lower() != "xt" and not key.lower().startswith("xt."):
            continue
        urn = value.lower()
        if urn.startswith("urn:btih:"):
            v1.add(_btih(value[9:]))
        elif urn.startswith("urn:btmh:"):
            v2.add(_btmh(value[9:]))
    if not (v1 or v2) or len(v1) > 1 or len(v2) > 1:
        raise _bad_magnet()
    return InfoHashes(next(iter(v1), None), next(iter(v2), None))


def of_file(data: bytes) -> InfoHashes:
    """Raises TorrentRefused(`torrent_malformed`)."""
    if len(data) > MAX_FILE_BYTES:
        raise _bad_file("it is larger than 10 MiB")
    start, end = _entries(data).get(b"info", (0, 0))
    raw = data[start:end]
    if not raw.startswith(b"d"):
        raise _bad_file("it has no info dictionary")
    spans = _entries(raw)
    has_v1 = b"pieces" in spans
    has_v2 = b"file tree" in spans and raw[slice(*spans.get(b"meta version", (0, 0)))] == b"i2e"
    if not (has_v1 or has_v2):
        raise _bad_file("it has neither pieces nor a file tree")
    # The hashes are those of BitTorrent; nobody is protected by this SHA-1.
    v1 = hashlib.sha1(raw, usedforsecurity=False).hexdigest() if has_v1 else None
    return InfoHashes(v1, hashlib.sha256(raw).hexdigest() if has_v2 else None)


def _btih(digits: str) -> str:
    if _HEX_40.match(digits):
        return digits.lower()
    if _BASE32.match(digits):
        return base64.b32decode(digits.upper()).hex()
    raise _bad_magnet()


def _btmh(digits: str) -> str:
    found = _BTMH.match(digits)
    if found is None:
        raise _bad_magnet()
    return found[1].lower()


def _entries(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Where the value of each key of the dictionary that is `data` begins and ends. All of it is checked."""
    if not data.startswith(b"d"):
        raise _bad_file("it is not a bencoded dictionary")
    spans: dict[bytes, tuple[int, int]] = {}
    at = 1
    while data[at : at + 1] != b"e":
        start = _skip(data, at, wants_text=True)
        key = data[at:start].partition(b":")[2]
        if key in spans:
            raise _bad_file("a key stands in it twice")
        at = _skip(data, start)
        spans[key] = (start, at)
    if at + 1 != len(data):
        raise _bad_file("something follows its end")
    return spans


def _skip(data: bytes, at: int, *, wants_text: bool = False) -> int:
    """Where the value that begins at `at` ends."""
    # For each container that is open: whether the next thing in it must be a key (None in a list).
    key_next: list[bool | None] = []
    while True:
        text = wants_text or bool(key_next and key_next[-1])
        kind = data[at : at + 1]
        if kind.isdigit():
            at = _after_text(data, at)
        elif kind == b"e" and key_next and key_next[-1] is not False and not wants_text:
            key_next.pop()
            at += 1
        elif text:
            raise _bad_file("a key in it is no text")
        elif kind == b"i":
            at = _after_number(data, at)
        elif kind in (b"l", b"d"):
            if len(key_next) == _MAX_DEPTH:
                raise _bad_file("it is nested too deeply")
            key_next.append(True if kind == b"d" else None)
            at += 1
            continue
        else:
            raise _bad_file("it is cut off or not bencoded")
        if not key_next:
            return at
        if key_next[-1] is not None:
            key_next[-1] = not key_next[-1]


def _after_text(data: bytes, at: int) -> int:
    colon = data.find(b":", at, at + _MAX_DIGITS)
    digits = data[at:colon]
    if colon < 0 or not digits.isdigit() or not _NUMBER.fullmatch(digits):
        raise _bad_file("the length of a text in it cannot be read")
    end = colon + 1 + int(digits)
    if end > len(data):
        raise _bad_file("it is cut off")
    return end


def _after_number(data: bytes, at: int) -> int:
    end = data.find(b"e", at, at + _MAX_DIGITS + 3)
    if end < 0 or not _NUMBER.fullmatch(data, at + 1, end):
        raise _bad_file("a number in it cannot be read")
    return end + 1


def _bad_magnet() -> TorrentRefused:
    return TorrentRefused(
        "the magnet link names no torrent, or more than one",
        code="magnet_malformed",
        hint="It needs one xt=urn:btih:… or xt=urn:btmh:1220…; copy it again from where you found it.",
    )


def _bad_file(why: str) -> TorrentRefused:
    return TorrentRefused(
        f"this is no .torrent file that can be used: {why}",
        code="torrent_malformed",
        hint="A login page in its place is a common cause; open the file's address in a browser.",
    )
