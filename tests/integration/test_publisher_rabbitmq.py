"""Hints on their way to RabbitMQ: what it did not confirm counts as not sent, whatever happens on the way (HEAL-1)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from celery import Celery
from kombu import Connection

from dlpipe import celery as ours
from dlpipe import defaults
from dlpipe.celery import CeleryPublisher
from dlpipe.core.errors import BrokerUnavailable
from dlpipe.core.ports import Hint
from dlpipe.db import SqlDatabase
from dlpipe.pipeline.dispatch import dispatch, dispatch_lost
from dlpipe.settings import load
from tests.fleet import disconnect
from tests.link import Link
from tests.rabbitmq import RabbitMQ
from tests.servers import wait_until
from tests.world import World

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("it is about RabbitMQ", "broker"),
    pytest.mark.no_engines("store"),
    pytest.mark.xdist_group("production"),
]

JOBS = 12


class Watched(CeleryPublisher):
    """Calls back before each message."""

    before: Callable[[int], None] = staticmethod(lambda _: None)

    def publish(self, hints: Any) -> None:
        self._count = 0
        super().publish(hints)

    def _send_first(self, hint: Hint, producer: Any) -> None:
        self.before(self._count)
        self._count += 1
        super()._send_first(hint, producer)


@dataclass
class Place:
    """A world with jobs that are due, and a way to RabbitMQ that can break."""

    server: RabbitMQ
    room: str
    link: Link
    publisher: Watched
    world: World

    def published(self) -> int:
        return int(self.world.sql("SELECT count(*) AS n FROM artifact_jobs WHERE published_at IS NOT NULL")[0].n)

    def messages(self) -> int:
        """As the server counts them for who asks it directly."""
        with Connection(f"{self.server.url.rstrip('/')}/{quote(self.room, safe='')}") as connection:
            channel: Any = connection.default_channel
            return int(channel.queue_declare("dlpipe.net.quorum", passive=True).message_count)

    def assert_nothing_counts_as_sent(self) -> None:
        assert self.published() == 0

    def assert_all_is_sent(self, *, besides: int = 0) -> None:
        """To be sent twice is harmless; not to be sent is not."""
        assert dispatch(self.world.deps) == JOBS
        assert self.published() == JOBS
        wait_until(lambda: self.messages() == JOBS + besides, "the server to count them", 30)


@pytest.fixture
def place(rabbitmq: RabbitMQ, ledger_url: str, tmp_path: Path) -> Iterator[Place]:
    url = rabbitmq.new_url()
    room = urlsplit(url).path[1:]
    with Link(str(rabbitmq.port)) as link:
        broken = url.replace(f":{rabbitmq.port}/", f":{link.port}/")
        env = {"DLPIPE_BROKER_URL": broken, "DLPIPE_REDIS_URL": "redis://127.0.0.1:1/0", "DLPIPE_HOME": str(tmp_path)}
        app = Celery("sender", set_as_current=False)
        app.config_from_object(defaults.config(load(env).settings))
        database = SqlDatabase(ledger_url)
        world = World(database, tmp_path / "store")
        publisher = Watched(app)
        world.deps = replace(world.deps, publisher=publisher)
        for number in range(JOBS):
            world.plan(f"http://files.example/{number}")
        yield Place(rabbitmq, room, link, publisher, world)
        database.close()
        disconnect(app)


def test_all_are_confirmed_and_counted(place: Place) -> None:
    place.assert_all_is_sent()
    waiting = place.publisher.waiting()
    assert waiting is not None
    assert sum(queue.messages for queue in waiting) == JOBS


def test_a_message_that_is_refused_counts_none_as_sent(place: Place) -> None:
    """The queue is full, and the server says no to what comes on top."""
    policy = json.dumps({"max-length": 3, "overflow": "reject-publish"})
    place.server.ctl("set_policy", "-p", place.room, "full", ".*", policy)
    with pytest.raises(BrokerUnavailable, match=r"refused a message \(MessageNacked\)"):
        dispatch(place.world.deps)
    place.assert_nothing_counts_as_sent()
    place.server.ctl("clear_policy", "-p", place.room, "full")
    taken = place.messages()
    assert 0 < taken < JOBS
    place.assert_all_is_sent(besides=taken)


@pytest.mark.parametrize("at", [0, 5, JOBS - 1])
def test_a_connection_that_is_cut_in_the_middle_counts_none_as_sent(place: Place, at: int) -> None:
    place.publisher.before = lambda number: place.link.cut() if number == at else None
    with pytest.raises(BrokerUnavailable):
        dispatch(place.world.deps)
    place.assert_nothing_counts_as_sent()
    place.publisher.before = lambda _: None
    with pytest.raises(BrokerUnavailable):  # it is still away
        dispatch(place.world.deps)
    place.assert_nothing_counts_as_sent()
    place.link.mend()
    place.assert_all_is_sent(besides=at)


def test_a_server_that_falls_silent_is_not_waited_for_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have it or not: without its word the message counts as not sent."""
    monkeypatch.setattr(ours, "CONFIRM_S", 1.0)
    place.publisher.before = lambda number: place.link.stall() if number == 5 else None
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        dispatch(place.world.deps)
    assert time.monotonic() - began < 20
    place.assert_nothing_counts_as_sent()
    place.publisher.before = lambda _: None
    place.link.cut()
    place.link.mend()
    already = place.messages()
    assert already in (5, 6)  # whether it had the sixth, nobody was told
    place.assert_all_is_sent(besides=already)


def test_a_queue_of_that_name_and_another_kind_is_told_as_such_and_counts_none_as_sent(place: Place) -> None:
    """Somebody else's, or one that was made by hand: the server lets nobody declare it in another way."""
    with Connection(f"{place.server.url.rstrip('/')}/{quote(place.room, safe='')}") as connection:
        channel: Any = connection.default_channel
        channel.queue_declare("dlpipe.net.quorum", durable=True, auto_delete=False)
        with pytest.raises(BrokerUnavailable, match="of another kind") as refused:
            dispatch(place.world.deps)
        assert "dlpipe.net.quorum" in str(refused.value)
        assert "sesame" not in f"{refused.value}{refused.value.hint}"
        place.assert_nothing_counts_as_sent()
        channel.queue_delete("dlpipe.net.quorum")
    place.assert_all_is_sent()


def test_what_the_server_has_forgotten_is_sent_again(place: Place) -> None:
    """Confirmed or not: a queue that was made right before a kill -9 came back empty with RabbitMQ 3.10."""
    place.assert_all_is_sent()
    place.server.ctl("purge_queue", "dlpipe.net.quorum", "--vhost", place.room)
    wait_until(lambda: place.messages() == 0, "them to be forgotten", 30)
    for row in place.world.sql("SELECT job_id FROM artifact_jobs"):
        place.world.age(row.job_id)
    assert dispatch_lost(place.world.deps) == JOBS
    wait_until(lambda: place.messages() == JOBS, "all messages to be there", 30)
