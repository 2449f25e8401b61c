"""What is remembered of answers, and what never: files, and what servers forbid. HUB-1."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from dlpipe.core.errors import Retryable
from dlpipe.net import cache, urls
from dlpipe.net.cache import CachePolicy
from dlpipe.net.client import Hub, Reply
from dlpipe.net.policy import NetPolicy
from tests.origin import Origin, answer

POLICY = NetPolicy(allow_private=True, retries=0)
FRESH = "Cache-Control: max-age=600"
SECRET = "X-Amz-Signature=5ec2e7"


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "cache" / "http.db"


@pytest.fixture
def make(file: Path) -> Iterator[Callable[..., Hub]]:
    made: list[Hub] = []

    def one(**changes: object) -> Hub:
        made.append(Hub(POLICY, caching=replace(CachePolicy(file), **changes)))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for hub in made:
        hub.close()


@pytest.fixture
def hub(make: Callable[..., Hub]) -> Hub:
    return make()


def ask(
    hub: Hub, url: str, method: str = "HEAD", *, metadata: bool = True, tenant: str = "default", **headers: str
) -> tuple[Reply, bytes]:
    reply = hub.send(
        method,
        urls.address(url),
        {k.replace("_", "-"): v for k, v in headers.items()},
        metadata=metadata,
        tenant=tenant,
    )
    body = b"".join(reply.chunks())
    reply.close()
    return reply, body


def test_a_head_that_may_be_remembered_is_asked_for_once(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"", FRESH, 'ETag: "v1"'))
    for _ in range(3):
        reply, body = ask(hub, url)
        assert (reply.status, reply.headers.one("etag"), reply.framing, body) == (200, '"v1"', "none", b"")
    assert len(origin.asked) == 1


def test_a_small_question_by_get_is_asked_once_with_its_body(origin: Origin, hub: Hub) -> None:
    url = origin.on("/list.json", answer(200, b"[1, 2]", FRESH))
    assert [ask(hub, url, "GET")[1] for _ in range(3)] == [b"[1, 2]"] * 3
    assert len(origin.asked) == 1


def test_a_file_is_never_remembered_nor_answered_from_memory(origin: Origin, hub: Hub, file: Path) -> None:
    url = origin.on("/f", answer(200, b"file", FRESH))
    ask(hub, url, "GET", metadata=False)
    ask(hub, url, "GET", metadata=False)
    assert len(origin.asked) == 2
    ask(hub, url, "GET")
    ask(hub, url, "GET", metadata=False)
    assert len(origin.asked) == 4
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)


def test_head_is_no_answer_to_get(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"", FRESH), answer(200, b"abc", FRESH))
    ask(hub, url)
    assert ask(hub, url, "GET")[1] == b"abc"


@pytest.mark.parametrize(
    "lines",
    [("Cache-Control: no-store", 'ETag: "a"'), ("Cache-Control: no-store, max-age=600",),
     ("Cache-Control: private, max-age=600",), ("Cache-Control: max-age=0",), (), ("Expires: 0",),
     (FRESH, "Vary: *"), ("Cache-Control: no-cache",)],
    ids=" / ".join,
)  # fmt: skip
def test_what_may_not_be_used_again_is_not(origin: Origin, hub: Hub, lines: tuple[str, ...]) -> None:
    url = origin.on("/f", answer(200, b"", *lines))
    ask(hub, url)
    ask(hub, url)
    assert len(origin.asked) == 2


def test_no_store_leaves_no_trace(origin: Origin, hub: Hub, file: Path) -> None:
    ask(hub, origin.on("/f", answer(200, b"", "Cache-Control: no-store", FRESH, "X-Trace: 5ec2e7")))
    assert all(b"5ec2e7" not in one.read_bytes() for one in file.parent.iterdir())


def test_vary_keeps_answers_apart(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"", FRESH, "Vary: Accept-Language"))
    for language in ("de", "en", "de", "en"):
        ask(hub, url, Accept_Language=language)
    assert [one.headers["accept-language"] for one in origin.asked] == ["de", "en"]


@pytest.mark.parametrize("status", [404, 410, 403, 501])
def test_a_refusal_without_a_time_is_asked_for_again(origin: Origin, hub: Hub, status: int) -> None:
    url = origin.on("/f", answer(status))
    assert [ask(hub, url)[0].status for _ in range(2)] == [status] * 2
    assert len(origin.asked) == 2


def test_an_error_of_the_server_is_not_remembered_even_if_it_says_so(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(500, b"", FRESH))
    for _ in range(2):
        with pytest.raises(Retryable):
            ask(hub, url)
    assert len(origin.asked) == 2


def test_a_stale_answer_is_asked_about_and_renewed(origin: Origin, hub: Hub) -> None:
    url = origin.on(
        "/f",
        answer(200, b"", "Cache-Control: max-age=0", 'ETag: "v1"', "Content-Type: a/b"),
        answer(304, b"", FRESH, 'ETag: "v1"', length=False),
    )
    for _ in range(3):
        reply, _ = ask(hub, url)
        assert (reply.status, reply.headers.one("content-type")) == (200, "a/b")
    assert [one.headers.get("if-none-match") for one in origin.asked] == [None, '"v1"']


def test_however_long_a_server_says_it_holds_it_ends_with_ours(origin: Origin, make: Callable[..., Hub]) -> None:
    hub = make(ttl_s=1e-6)
    url = origin.on("/f", answer(200, b"", "Cache-Control: max-age=999999999"))
    ask(hub, url)
    ask(hub, url)
    assert len(origin.asked) == 2


def test_an_answer_guessed_to_hold_ends_with_ours_too(origin: Origin, make: Callable[..., Hub]) -> None:
    lines = (f"Last-Modified: {formatdate(1e9, usegmt=True)}", f"Date: {formatdate(usegmt=True)}")
    url = origin.on("/f", answer(200, b"", *lines))
    short = make(ttl_s=1e-6)
    ask(short, url)
    ask(short, url)
    assert len(origin.asked) == 2


def test_urls_that_differ_anywhere_are_different(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"", FRESH))
    origin.on("/F", answer(200, b"", FRESH))
    for other in (url, url + "?a=1", url + "?a=2", url + "?", url + "?a=1&b", origin.url + "/F"):
        ask(hub, other)
    assert len(origin.asked) == 6


def test_each_tenant_has_answers_of_its_own(origin: Origin, hub: Hub) -> None:
    url = origin.on("/f", answer(200, b"", FRESH, 'ETag: "one"'), answer(200, b"", FRESH, 'ETag: "two"'))
    told = [ask(hub, url, tenant=tenant)[0].headers.one("etag") for tenant in ("one", "two", "one", "two")]
    assert told == ['"one"', '"two"', '"one"', '"two"']
    assert len(origin.asked) == 2


def test_another_process_profits(origin: Origin, make: Callable[..., Hub]) -> None:
    url = origin.on("/f", answer(200, b"", FRESH))
    ask(make(), url)
    ask(make(), url)
    assert len(origin.asked) == 1


def test_nobody_else_reads_it_and_it_holds_no_url(origin: Origin, hub: Hub, file: Path) -> None:
    before = os.umask(0)
    try:
        ask(hub, origin.on("/secret-path", answer(200, b"", FRESH)) + "?" + SECRET)
    finally:
        os.umask(before)
    found = sorted(file.parent.iterdir())
    assert file in found
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for one in found:
        if one.name.startswith(file.name):
            assert stat.S_IMODE(one.stat().st_mode) == 0o600, one.name
        assert b"secret-path" not in one.read_bytes()
        assert SECRET.encode() not in one.read_bytes()


def test_what_is_too_large_is_handed_on_and_not_kept(origin: Origin, hub: Hub, file: Path) -> None:
    url = origin.on("/f", answer(200, b"x" * (2 * cache.MIB), FRESH))
    assert len(ask(hub, url, "GET")[1]) == 2 * cache.MIB
    ask(hub, url, "GET")
    assert len(origin.asked) == 2
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (0,)


def test_the_file_stays_within_its_bound(origin: Origin, make: Callable[..., Hub], file: Path) -> None:
    hub = make(max_bytes=cache.MIB)
    for n in range(60):
        ask(hub, origin.on(f"/f{n}", answer(200, b"x" * 50_000, FRESH)), "GET")
    assert file.stat().st_size <= 1.3 * cache.MIB


@pytest.mark.parametrize("harm", ["garbage", "a foreign table", "a folder in its place", "a symlink", "no folder"])
def test_a_cache_that_cannot_be_is_as_if_there_were_none(
    origin: Origin, make: Callable[..., Hub], file: Path, harm: str
) -> None:
    file.parent.parent.mkdir()
    if harm == "no folder":
        file.parent.write_bytes(b"")
    else:
        file.parent.mkdir()
    if harm == "garbage":
        file.write_bytes(b"no database at all " * 500)
    elif harm == "a foreign table":
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE entries (x)")
    elif harm == "a folder in its place":
        file.mkdir()
    elif harm == "a symlink":
        file.symlink_to(file.parent / "elsewhere")
    hub = make()
    url = origin.on("/f", answer(200, b"", FRESH))
    for _ in range(2):
        assert ask(hub, url)[0].status == 200
    assert len(origin.asked) == (1 if harm == "garbage" else 2)  # garbage is thrown away
    assert not (file.parent / "elsewhere").exists()


def test_damage_while_it_is_in_use_fails_nothing(origin: Origin, hub: Hub, file: Path) -> None:
    url = origin.on("/f", answer(200, b"", FRESH))
    ask(hub, url)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("DROP TABLE streams; DROP TABLE entries;")
    for _ in range(2):
        assert ask(hub, url)[0].status == 200
    assert len(origin.asked) == 3
