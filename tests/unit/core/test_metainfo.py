"""Names of torrents: against torf and by hand, and what is refused because it could be read in two ways."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from pathlib import Path

import pytest
import torf
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import metainfo
from dlpipe.core.errors import TorrentRefused
from dlpipe.core.metainfo import InfoHashes
from tests import torrents_made
from tests.torrents_made import bencode

V1, V2 = "0123456789abcdef0123456789abcdef01234567", "ab" * 32
PIECES = b"x" * 20
INFO = {"length": 5, "name": "book", "piece length": 16384, "pieces": PIECES}


def refused(source: str | bytes) -> str:
    with pytest.raises(TorrentRefused) as error:
        metainfo.of_magnet(source) if isinstance(source, str) else metainfo.of_file(source)
    return error.value.code


def test_a_file_and_its_magnet_have_the_name_that_torf_gives_them(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "book" / name).write_bytes(name.encode() * 10_000)
    torrent = torf.Torrent(path=tmp_path / "book", trackers=["http://tracker.example/announce"], comment="é")
    torrent.generate()
    expected = InfoHashes(v1=str(torrent.infohash))
    assert metainfo.of_file(torrent.dump()) == expected
    assert metainfo.of_magnet(str(torrent.magnet())) == expected


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_modern_file_is_named_by_its_sha256(hybrid: bool) -> None:
    file = torrents_made.modern("book", b"content", hybrid=hybrid)
    # `piece layers` follows `info` in the order of keys, and ends the file.
    info = file[len(b"d4:info") : -len(b"12:piece layersdee")]
    found = metainfo.of_file(file)
    assert found.v2 == hashlib.sha256(info).hexdigest()
    assert found.v1 == (hashlib.sha1(info, usedforsecurity=False).hexdigest() if hybrid else None)
    assert found.names == tuple(one for one in (found.v2[:40], found.v1) if one)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (f"magnet:?xt=urn:btih:{V1}", InfoHashes(V1)),
        (f"MAGNET:?dn=x&xt=urn:btih:{V1.upper()}&tr=http%3A%2F%2Ft%2F", InfoHashes(V1)),
        (f"magnet:?xt=urn:btih:{base64.b32encode(bytes.fromhex(V1)).decode()}", InfoHashes(V1)),
        (f"magnet:?xt=urn%3Abtih%3A{V1}", InfoHashes(V1)),
        (f"magnet:?xt=urn:btmh:1220{V2}", InfoHashes(None, V2)),
        (f"magnet:?xt=urn:btih:{V1}" + "&tr=x" * (metainfo.MAX_PARAMETERS - 1), InfoHashes(V1)),
        (f"magnet:?xt=urn:btih:{V1}&xt=urn:btmh:1220{V2}", InfoHashes(V1, V2)),
        (f"magnet:?xt.1=urn:btih:{V1}&xt.2=urn:btmh:1220{V2}", InfoHashes(V1, V2)),
        (f"magnet:?xt=urn:btih:{V1}&xt=urn:btih:{V1.upper()}", InfoHashes(V1)),
        (f"magnet:?xt=urn:btih:{V1}&xt=urn:ed2k:{'0' * 32}", InfoHashes(V1)),
    ],
)
def test_magnets(link: str, expected: InfoHashes) -> None:
    assert metainfo.of_magnet(link) == expected


@pytest.mark.parametrize(
    "link",
    [
        "",
        "magnet:",
        "magnet:?",
        f"http://x/?xt=urn:btih:{V1}",
        f"magnet:?xt=urn:btih:{V1[:-1]}",
        f"magnet:?xt=urn:btih:{V1}0",
        f"magnet:?xt=urn:btih:{'g' * 40}",
        f"magnet:?xt=urn:btih:{'1' * 32}",  # no base32 digit
        f"magnet:?xt=urn:btih:{'a' * 40}&xt=urn:btih:{'b' * 40}",  # two torrents
        f"magnet:?xt=urn:btmh:1220{V2[:-2]}",
        f"magnet:?xt=urn:btmh:1114{V2}",  # another hash function
        f"magnet:?xt=urn:btih:{V1}\nhttp://127.0.0.1/",  # one line is one torrent to qBittorrent
        f"magnet:?xt=urn:btih:{V1}&dn=a b",
        f"magnet:?xt=urn:btih:{V1}&dn=" + "x" * metainfo.MAX_MAGNET,
        f"magnet:?xt=urn:btih:{V1}" + "&tr=x" * metainfo.MAX_PARAMETERS,
        "magnet:?" + "&" * (metainfo.MAX_MAGNET - 10),
    ],
)
def test_magnets_that_name_no_torrent_or_two_are_refused(link: str) -> None:
    assert refused(link) == "magnet_malformed"


def with_info(raw: bytes) -> bytes:
    return b"d4:info" + raw + b"e"


GOOD = bencode({"info": INFO})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html></html>",
        b"de",
        b"le",
        b"i1e",
        b"4:info",
        bencode({"info": 5}),
        bencode({"info": [b"pieces", PIECES]}),
        bencode({"info": {"name": "book"}}),  # neither kind
        bencode({"info": {"file tree": {}, "name": "book"}}),  # which version?
        bencode({"info": {"meta version": 2, "name": "book"}}),
        bencode({"info": {"file tree": {}, "meta version": 3}}),
        bencode({"nested": {"info": INFO}}),
        GOOD[:-1],
        GOOD[: len(GOOD) // 2],
        GOOD + b"\n",
        GOOD + GOOD,
        b"d" + 2 * GOOD[1:-1] + b"e",  # two info dictionaries
        with_info(b"d6:pieces20:" + PIECES + b"6:pieces20:" + PIECES + b"e"),
        with_info(b"d06:pieces20:" + PIECES + b"e"),
        with_info(b"di1e6:piecese"),  # a number for a key
        with_info(b"d6:piecese"),  # a key without its value
        with_info(b"d6:pieces20:" + PIECES + b"1:xi01ee"),
        with_info(b"d6:pieces20:" + PIECES + b"1:xi-0ee"),
        with_info(b"d6:pieces20:" + PIECES + b"1:xiee"),
        with_info(b"d6:pieces20:" + PIECES + b"1:xd1:ae" + b"e"),
        with_info(b"d6:pieces99999999999999999999:" + PIECES + b"e"),
        with_info(b"d6:pieces-1:" + PIECES + b"e"),
        with_info(b"d6:pieces20:" + PIECES + b"1:x" + b"l" * 500 + b"e" * 500 + b"e"),
        b"d" * 100_000,
        b"l" * 100_000,
    ],
)
def test_files_that_are_broken_or_ambiguous_are_refused(data: bytes) -> None:
    assert refused(data) == "torrent_malformed"


def test_a_file_that_is_too_large_is_refused() -> None:
    large = bencode({"comment": b"x" * metainfo.MAX_FILE_BYTES, "info": INFO})
    assert refused(large) == "torrent_malformed"


VALUES = st.recursive(
    st.integers(-(2**63), 2**64) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(around=st.dictionaries(st.text(max_size=8), VALUES, max_size=4), inside=VALUES)
def test_whatever_stands_around_and_inside_the_hash_is_that_of_the_info(
    around: dict[str, object], inside: object
) -> None:
    info = {**INFO, "extra": inside}
    expected = hashlib.sha1(bencode(info), usedforsecurity=False).hexdigest()
    assert metainfo.of_file(bencode({**around, "info": info})) == InfoHashes(expected)


@given(st.binary(max_size=60) | st.text(alphabet="dlie0123456789:-ab", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for file in (data, with_info(data), with_info(b"d6:pieces20:" + PIECES + data + b"e")):
        with suppress(TorrentRefused):
            metainfo.of_file(file)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for link in (text, "magnet:?" + text, "magnet:?xt=urn:btih:" + text):
        with suppress(TorrentRefused):
            metainfo.of_magnet(link)
