"""The fakes keep the contracts of their ports as the real adapters do: Source, Leases, Publisher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from dlpipe.celery import CeleryPublisher
from dlpipe.core import flow
from dlpipe.core.errors import LeaseBusy, LeaseUnavailable, Permanent
from dlpipe.core.ports import Hint, Leases, Publisher, Source
from dlpipe.lease.lock import RedisLeases
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.sources.http import HttpSource
from tests.fakes.leases import FakeLeases
from tests.fakes.publisher import FakePublisher
from tests.fakes.source import FakeSource
from tests.servers import Valkey
from tests.webserver import WebServer
from tests.world import some_bytes

BODY = some_bytes(200_000)
KINDS = ["fake", "real"]


# ── Source ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Site:
    source: Source
    url: str
    gone: str


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "fake":
        fake = FakeSource()
        yield Site(fake, fake.put("http://files.example/a.bin", BODY), "http://files.example/gone")
        return
    with WebServer() as web:
        hub = Hub(NetPolicy(allow_private=True))
        yield Site(HttpSource(hub), web.put("/a.bin", BODY), web.url + "/gone")
        hub.close()


def read(site: Site, start: int = 0, if_range: str | None = None) -> tuple[int, str | None, bytes, str]:
    with site.source.get(site.url, start=start, if_range=if_range, tenant="default") as answer:
        body = b"".join(answer.chunks())
        return answer.status, answer.headers.one("content-range"), body, answer.framing


def test_head_says_what_get_will_bring(site: Site) -> None:
    facts = site.source.head(site.url, tenant="default")
    assert facts is not None
    assert (facts.http_status, facts.content_length) == (200, len(BODY))
    assert re.fullmatch('"[a-z0-9]+"', facts.etag or "")
    with site.source.get(site.url, tenant="default") as answer:
        assert (answer.headers.one("etag"), answer.final_url_sha256) == (facts.etag, facts.final_url_sha256)


def test_without_a_start_all_of_it_comes(site: Site) -> None:
    assert read(site) == (200, None, BODY, "length")


def test_under_the_same_validator_the_rest_comes(site: Site) -> None:
    facts = site.source.head(site.url, tenant="default")
    assert facts is not None
    span = f"bytes 5000-{len(BODY) - 1}/{len(BODY)}"
    assert read(site, 5000, facts.etag) == (206, span, BODY[5000:], "length")


@pytest.mark.parametrize("if_range", ['"another"', None])
def test_under_another_validator_all_of_it_comes(site: Site, if_range: str | None) -> None:
    assert read(site, 5000, if_range) == (200, None, BODY, "length")


def test_what_is_gone_is_permanent_by_head_and_told_by_get(site: Site) -> None:
    with pytest.raises(Permanent) as gone:
        site.source.head(site.gone, tenant="default")
    assert gone.value.code == "http_404"
    with site.source.get(site.gone, tenant="default") as answer:
        assert answer.status == 404


# ── Leases ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=KINDS)
def leases(request: pytest.FixtureRequest) -> Iterator[Leases]:
    if request.param == "fake":
        yield FakeLeases()
        return
    client: redis.Redis = request.getfixturevalue("client")
    real = RedisLeases(client, "node.1.1", ttl_s=100.0, renew_s=40.0)
    yield real
    real.close()


def test_a_lease_is_held_by_one_and_given_back(leases: Leases) -> None:
    with leases.hold("a") as lease:
        lease.bind(3)
        lease.check()
        assert leases.live(["a", "b"]) == {"a"}
        with pytest.raises(LeaseBusy), leases.hold("a"):
            pass
        assert not leases.owner_is_dead(lease.token)
        assert not leases.release_dead("a", lease.token)
    assert leases.live(["a"]) == set()
    with pytest.raises(ZeroDivisionError), leases.hold("a"):
        raise ZeroDivisionError
    assert leases.live(["a"]) == set()
    assert leases.live([]) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_without_redis_nobody_is_given_a_lease(kind: str) -> None:
    made: Leases
    if kind == "fake":
        made = FakeLeases()
        made.down = True
    else:
        made = RedisLeases(redis.Redis(unix_socket_path="/nowhere.sock", retry=Retry(NoBackoff(), 0)), "node.1.1")
    for ask in (lambda: made.live(["a"]), lambda: made.hold("a").__enter__()):
        with pytest.raises(LeaseUnavailable):
            ask()


# ── Publisher ─────────────────────────────────────────────────────────────────────────────────────

HINTS = [Hint("a", 1, flow.STAGES), Hint("b", 2, flow.STAGES[4:]), Hint("c", 1, ())]


@pytest.fixture(params=KINDS)
def publisher(request: pytest.FixtureRequest) -> Iterator[Publisher]:
    if request.param == "fake":
        yield FakePublisher()
        return
    valkey: Valkey = request.getfixturevalue("valkey")
    request.getfixturevalue("client")
    with Celery("test", broker=f"redis+socket://{valkey.socket}?virtual_host=0", set_as_current=False) as app:
        app.conf.task_routes = {f"dlpipe.{row.name}": {"queue": row.queue.value} for row in flow.STAGES}
        yield CeleryPublisher(app)


def test_what_was_published_waits_until_it_is_taken(publisher: Publisher) -> None:
    assert waiting(publisher) == {"net": 0, "disk": 0}
    publisher.publish([])
    assert waiting(publisher) == {"net": 0, "disk": 0}
    publisher.publish(HINTS)  # one of them has nothing left to do
    assert waiting(publisher) == {"net": 1, "disk": 1}


def waiting(publisher: Publisher) -> dict[str, int]:
    """By the queue, which is known by one of its stages."""
    found = publisher.waiting()
    assert found is not None
    assert sorted(name for one in found for name in one.stages) == sorted(row.name for row in flow.STAGES)
    return {"net" if "head" in one.stages else "disk": one.messages for one in found}
