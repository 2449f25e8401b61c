"""A known URL that is no longer trusted, against a real origin: one conditional request decides. HEAD-1."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import Permanent, Postponed, Retryable
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import after
from dlpipe.db.schema import url_index
from dlpipe.net.cache import CachePolicy
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.sources.http import HttpSource
from tests.origin import Asked, Origin, Say, Then, answer
from tests.shelf import Shelf
from tests.world import World, make_deps, sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines("broker"),
]

POLICY = NetPolicy(allow_private=True, retries=0)
BODY = os.urandom(100_000)
TAG = 'ETag: "v1"'
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(POLICY, caching=CachePolicy(tmp_path / "http.db"))
    yield made
    made.close()


@pytest.fixture
def source(hub: Hub) -> HttpSource:
    return HttpSource(hub)


@pytest.fixture
def world(tmp_path: Path, ledger_url: str, shelf: Shelf, source: HttpSource) -> Iterator[World]:
    database = SqlDatabase(ledger_url)
    made = World(database, tmp_path / "store", shelf=shelf)
    fresh = make_deps(database, made.root, store=shelf.store(made.root), publisher=made.publisher)
    made.deps = replace(fresh, source=source)
    yield made
    database.close()


def seen_long_ago(world: World) -> None:
    with world.database.engine.begin() as connection:
        connection.execute(sa.update(url_index).values(seen_at=after(-1e6)))


def knowing(body: bytes, *lines: str, etag: str | None = None, date: str | None = None) -> Callable[[Asked], Say]:
    """A server that knows conditions."""

    def say(asked: Asked) -> Say:
        same = (etag is not None and asked.headers.get("if-none-match") == etag) or (
            date is not None and asked.headers.get("if-modified-since") == date
        )
        more = [*lines, *([f"ETag: {etag}"] if etag else []), *([f"Last-Modified: {date}"] if date else [])]
        if same:
            return Say(answer(304, b"", *more, length=False))
        data = answer(200, body, *more)
        return Say(data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if asked.method == "HEAD" else data)

    return say


def methods(origin: Origin) -> list[str]:
    return [asked.method for asked in origin.asked]


@pytest.mark.parametrize(
    ("validators", "header"),
    [
        ({"etag": '"v1"', "date": DATE}, ("if-none-match", '"v1"')),
        ({"date": DATE}, ("if-modified-since", DATE)),
        ({"etag": 'W/"v1"', "date": DATE}, ("if-modified-since", DATE)),
    ],
    ids=["strong tag", "date", "weak tag and date"],
)
def test_304_ends_it_with_one_request_and_no_body(
    origin: Origin, world: World, validators: dict[str, str], header: tuple[str, str]
) -> None:
    url = origin.on("/f.bin", knowing(BODY, **validators))
    world.fetch(url)
    origin.asked.clear()
    seen_long_ago(world)
    job = world.fetch(url, artifact_id="again")
    assert world.state(job) is State.SKIPPED_DUPLICATE
    (asked,) = origin.asked
    assert (asked.method, asked.headers.get(header[0]), asked.headers.get("range")) == ("GET", header[1], None)
    world.fetch(url, artifact_id="once more")
    assert len(origin.asked) == 1, "it is trusted again"
    assert world.artifacts(job)[0].sha256 == sha256(BODY)


def test_200_with_the_same_strong_tag_is_the_same_and_its_body_is_left_alone(origin: Origin, world: World) -> None:
    head = b'HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\nETag: "v1"\r\n\r\n' + b"x" * 1000
    url = origin.on("/f.bin", answer(200, b"", TAG), answer(200, BODY, TAG), Say(head, Then.HANG))
    world.fetch(url)
    seen_long_ago(world)
    job = world.fetch(url, artifact_id="again")
    assert world.state(job) is State.SKIPPED_DUPLICATE
    assert methods(origin) == ["HEAD", "GET", "GET"]
    assert origin.has_left(origin.asked[-1]), "the connection went with the body"


@pytest.mark.parametrize(
    "third",
    [answer(200, b"new", 'ETag: "v2"'), answer(200, b"new"), answer(200, b"new", 'ETag: W/"v1"'),
     answer(304, b"", 'ETag: "v2"', length=False), answer(404), answer(500), answer(412),
     Say(b"HTTP/1.1 200", Then.CLOSE), Say(b"nonsense\r\n\r\n", Then.CLOSE),
     answer(302, b"", "Location: /elsewhere", TAG)],
    ids=["another tag", "no tag", "a weak tag", "304 of another", "404", "500", "412", "cut", "nonsense", "redirect"],
)  # fmt: skip
def test_whatever_else_goes_the_ordinary_way(origin: Origin, world: World, third: Say | bytes) -> None:
    new = b"new bytes"
    origin.on("/elsewhere", answer(304, b"", TAG, length=False))
    url = origin.on(
        # Closed, as what is said next would not be believed on a connection that was used before.
        "/f.bin", answer(200, b"", TAG), Say(answer(200, BODY, TAG), Then.CLOSE), third, answer(200, b"", 'ETag: "v2"'),
        answer(200, new, 'ETag: "v2"'),
    )  # fmt: skip
    world.fetch(url)
    seen_long_ago(world)
    job = world.fetch(url, artifact_id="again")
    assert world.state(job) is State.DEDUPED
    assert world.artifacts(job)[0].sha256 == sha256(new)
    assert [one.method for one in origin.of("/f.bin")] == ["HEAD", "GET", "GET", "HEAD", "GET"]
    assert origin.of("/elsewhere") == []


@pytest.mark.no_engines
def test_it_is_never_answered_from_the_cache(origin: Origin, source: HttpSource) -> None:
    url = origin.on("/f.bin", answer(200, b"", TAG, "Cache-Control: max-age=999"))
    source.head(url, tenant="default")
    assert source.unchanged(url, '"v1"', None, tenant="default") is True
    assert methods(origin) == ["HEAD", "GET"]


def test_a_redirect_is_not_followed_and_its_validators_are_not_kept(origin: Origin, world: World) -> None:
    origin.on("/there", knowing(BODY, etag='"v1"'))
    url = origin.on("/f.bin", answer(302, b"", "Location: /there"))
    world.fetch(url)
    origin.asked.clear()
    seen_long_ago(world)
    job = world.fetch(url, artifact_id="again")
    assert world.state(job) is State.DEDUPED
    gets = [asked for asked in origin.asked if asked.method == "GET"]  # the cache may ask again by HEAD
    assert not any({"if-none-match", "if-modified-since"} & asked.headers.keys() for asked in gets)


@pytest.mark.no_engines
def test_without_validators_nothing_is_asked(origin: Origin, source: HttpSource) -> None:
    assert source.unchanged(origin.on("/f", answer(200, b"x")), None, None, tenant="default") is None
    assert source.unchanged(origin.url + "/f", 'W/"v1"', None, tenant="default") is None
    assert origin.asked == []


@pytest.mark.no_engines
def test_a_host_that_is_out_of_reach_or_wants_to_be_left_alone_is_not_asked_twice(
    origin: Origin, source: HttpSource
) -> None:
    with Origin() as gone:
        url = gone.url + "/f"
    with pytest.raises(Retryable) as caught:
        source.unchanged(url, '"v1"', None, tenant="default")
    assert caught.value.code == "connect_failed"
    with pytest.raises(Postponed):
        source.unchanged(origin.on("/f", answer(429, b"", "Retry-After: 600")), '"v1"', None, tenant="default")
    with pytest.raises(Permanent):
        source.unchanged("ftp://a.example/", '"v1"', None, tenant="default")


@pytest.mark.parametrize("lines", [(TAG,), ()])
def test_offline_what_is_held_still_resolves_and_nobody_is_asked(
    origin: Origin, world: World, lines: tuple[str, ...]
) -> None:
    url = origin.on("/f.bin", answer(200, b"", *lines), answer(200, BODY, *lines))
    world.fetch(url)
    seen_long_ago(world)
    offline = Hub(replace(POLICY, offline=True))
    world.deps = replace(world.deps, source=HttpSource(offline))
    asked = len(origin.asked)
    job = world.fetch(url, artifact_id="again")
    assert world.state(job) is State.SKIPPED_DUPLICATE
    other = world.plan(origin.url + "/other.bin")
    world.drive()
    assert world.view(other).error_code == "blocked_offline"
    assert len(origin.asked) == asked
    offline.close()
