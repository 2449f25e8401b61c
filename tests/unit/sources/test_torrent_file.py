"""The .torrent behind a URL: bounded, and only a 200 is one."""

from __future__ import annotations

from functools import partial

import pytest

from dlpipe.core.errors import Permanent
from dlpipe.sources.torrent_file import fetcher
from tests.fakes.source import FakeSource, Page, Piece, Says

URL = "https://books.example/1.torrent"


def test_the_bytes_of_the_answer_are_the_file() -> None:
    assert fetcher(FakeSource({URL: Page(b"d4:infode", chunk=3)}))(URL) == b"d4:infode"


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False), (1_000_000, False)])
def test_more_than_the_limit_is_not_taken(size: int, fits: bool) -> None:
    fetch = fetcher(FakeSource({URL: Page(b"x" * size, chunk=10)}), limit=100)
    if fits:
        assert len(fetch(URL)) == size
        return
    with pytest.raises(Permanent) as failed:
        fetch(URL)
    assert failed.value.code == "torrent_too_large"


def test_what_is_not_there_is_no_file() -> None:
    with pytest.raises(Permanent) as failed:
        fetcher(FakeSource())(URL)
    assert failed.value.code == "torrent_fetch_failed"


def test_a_large_answer_is_left_after_the_limit() -> None:
    read: list[int] = []
    source = FakeSource()
    body: list[Piece] = []
    for number in range(50):
        body += [partial(read.append, number), b"x" * 10]
    source.put(URL, b"x" * 500)
    source.script(URL, Says(body=body))
    with pytest.raises(Permanent):
        fetcher(source, limit=100)(URL)
    assert read == list(range(11))
