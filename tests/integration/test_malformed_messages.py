"""Workers outlive whatever is sent to them, and take what the release before sent (ADR 45, SAFE-1, OPS-3)."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dlpipe.core.messages import Fault
from tests.fleet import QUICK, Fleet
from tests.fuzz import messages
from tests.fuzz.forgery import CALLS, Forged, good
from tests.rabbitmq import RabbitMQ
from tests.servers import Valkey
from tests.shelf import Shelf
from tests.webserver import WebServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CASES, SEED = 240, 18
OWN_RIGHTS = r"^(amq\.default|dlpipe\..*|.*\.dlpipe\.control\.pidbox|celeryev.*|celery_delayed_.*)$"
"""As docs/operations.md names them."""
SECRET = "https://u:hunter2@files.example/?token=5ec2e7"


@pytest.mark.everywhere
def test_workers_live_on_and_do_good_messages_among_malformed_ones(fleet: Fleet, web: WebServer) -> None:
    with messages.reached(fleet.broker, fleet.env) as broker:
        report = messages.run(fleet, broker, web, CASES, SEED)
    assert report.violations == []
    assert report.done == report.good > 0
    dropped = {name: count for name, count in report.dropped.items() if name in {*Fault}}
    assert set(dropped) >= {Fault.BODY, Fault.CONTENT, Fault.HEADERS, Fault.HANDLING}, dropped
    assert sum(dropped.values()) > CASES / 4, dropped


def test_a_malformed_message_is_logged_once_for_its_kind_and_never_shown(fleet: Fleet) -> None:
    worker = fleet.worker("w1", size=1)
    task, call = CALLS[3]
    frames = [good(task, bad, "a") for bad in (f"\x1b[31m{SECRET}", {"url": SECRET, "\x1b]0;": 5}, [[SECRET], 5, {}])]
    named = good(task, call, "a")
    named["headers"].update(shadow=f"\x1b[31m{SECRET}", task=SECRET)
    with messages.reached(fleet.broker, fleet.env) as broker:
        for frame in [*frames, named] * 3:
            broker.send("dlpipe.plan", Forged(json.dumps(frame).encode(), frame, base64.b64decode(frame["body"])))
        fleet.until(lambda: broker.waiting() == 0 and worker.says(Fault.HEADERS), "all of it to be dropped", worker)
    told = worker.log.read_text()
    assert "hunter2" not in told
    assert "\x1b" not in told
    assert (told.count(f"dropped: {Fault.BODY}"), told.count(f"dropped: {Fault.HEADERS}")) == (1, 1)
    assert worker.lives


@pytest.mark.own_engines("a key of Redis", "broker")
def test_key_of_another_type_in_the_place_of_a_queue_is_waited_out(
    broker: Valkey, tmp_path: Path, ledger_settings: Mapping[str, str], shelf: Shelf, web: WebServer
) -> None:
    url = web.put("/file", body := b"worth fetching" * 100)
    settings = {**QUICK, **ledger_settings, **shelf.settings}
    with Fleet(tmp_path / "home", broker, shelf, **settings) as fleet, broker.client() as client:
        client.flushall()
        worker = fleet.worker("w1")
        client.set("dlpipe.net", "no list")
        fleet.until(lambda: worker.says("WRONGTYPE"), "the worker to meet it", worker)
        client.delete("dlpipe.net")
        fleet.plan([url])
        fleet.until(lambda: fleet.done() == 1, "the job to end", worker)
        fleet.assert_each_once({url: body})


@pytest.mark.own_engines("keys of Redis", "broker")
def test_old_queue_that_is_a_key_of_another_type_is_passed_over(
    broker: Valkey, tmp_path: Path, ledger_settings: Mapping[str, str], shelf: Shelf, web: WebServer
) -> None:
    """Before the worker starts, and while it listens."""
    url = web.put("/file", body := b"worth fetching" * 100)
    settings = {**QUICK, **ledger_settings, **shelf.settings}
    with Fleet(tmp_path / "home", broker, shelf, **settings) as fleet, broker.client() as client:
        client.flushall()
        for name in ("plan", "net", "beat"):
            client.set(name, "another project's")
        worker = fleet.worker("w1")
        assert worker.lives
        client.set("disk", "another project's")
        fleet.until(lambda: worker.says("passed over: the queue disk"), "the worker to pass over it", worker)
        fleet.plan([url])
        fleet.until(lambda: fleet.done() == 1, "the job to end", worker)
        fleet.assert_each_once({url: body})
        assert fleet.waiting() == 0
        told = worker.log.read_text()
        assert [told.count(f"passed over: the queue {name} ") for name in ("plan", "net", "disk", "beat")] == [1] * 4


@pytest.mark.own_engines("keys of Redis", "broker")
def test_worker_that_is_told_to_take_from_more_queues_goes_on_where_one_is_anothers(
    broker: Valkey, tmp_path: Path, ledger_settings: Mapping[str, str], shelf: Shelf, web: WebServer
) -> None:
    url = web.put("/file", body := b"worth fetching" * 100)
    settings = {**QUICK, **ledger_settings, **shelf.settings}
    with Fleet(tmp_path / "home", broker, shelf, **settings) as fleet, broker.client() as client:
        client.flushall()
        client.set("net", "another project's")
        worker = fleet.worker("w1", "-Q", "plan,beat")
        for name in ("net", "disk"):
            fleet.celery(f"add-{name}", "control", "add_consumer", name)
        started = [f"Started consuming from {name}\n" for name in ("dlpipe.net", "dlpipe.disk", "disk")]
        fleet.until(lambda: all(map(worker.says, started)), "three more queues to be taken from", worker)
        fleet.plan([url])
        fleet.until(lambda: fleet.done() == 1, "the job to end", worker)
        fleet.assert_each_once({url: body})
        assert worker.log.read_text().count("passed over: the queue net ") == 1


@pytest.mark.own_engines("rights at RabbitMQ", "broker")
@pytest.mark.xdist_group("production")
@pytest.mark.parametrize(("user", "may_declare"), [("within", False), ("reader", True)])
def test_old_queue_that_this_user_of_rabbitmq_may_not_use_is_passed_over(
    user: str,
    may_declare: bool,
    rabbitmq: RabbitMQ,
    broker: Valkey,
    tmp_path: Path,
    ledger_settings: Mapping[str, str],
    shelf: Shelf,
    web: WebServer,
) -> None:
    bodies = {web.put("/file", body := b"worth fetching" * 100): body}
    place = urlsplit(rabbitmq.new_url())
    rabbitmq.ctl("add_user", user, "sesame")
    more = ".*" if may_declare else OWN_RIGHTS
    rabbitmq.ctl("set_permissions", "-p", place.path[1:], user, more, more, OWN_RIGHTS)
    address = {"DLPIPE_BROKER_URL": f"amqp://{user}:sesame@127.0.0.1:{rabbitmq.port}{place.path}"}
    with Fleet(tmp_path / "home", broker, shelf, **{**QUICK, **ledger_settings, **shelf.settings, **address}) as fleet:
        worker = fleet.celery("w1", "worker", "-P", "threads", "-c", "2", "-n", "w1@test", "-l", "INFO")
        fleet.plan(list(bodies))
        fleet.until(lambda: fleet.done() == 1, "the job to end", worker)
        fleet.assert_each_once(bodies)
        assert fleet.waiting() == 0
        told = worker.log.read_text()
    passed = [told.count(f"passed over: the queue {name}.quorum ") for name in ("plan", "net", "disk", "beat")]
    assert passed == [1] * 4
    assert "ACCESS_REFUSED" not in told
    assert "sesame" not in told


BEFORE = {"DLPIPE_BROKER_QUEUE_PREFIX": ""}


def test_what_the_release_before_sent_is_taken_and_counted(fleet: Fleet, web: WebServer) -> None:
    """It knew no prefix. Its workers are gone, and what they left in their queues is all there is."""
    bodies = {web.put(f"/{n}", body := os.urandom(5_000)): body for n in range(3)}
    now, fleet.env = fleet.env, {**fleet.env, **BEFORE}
    fleet.plan(list(bodies))
    fleet.env = now
    assert fleet.waiting() == 3
    net = fleet.worker("net", "-Q", "net", "-X", "disk")
    fleet.until(lambda: fleet.states() == {"STREAMING": 3} and fleet.waiting() == 3, "three streams to end", net)
    disk = fleet.worker("disk", "-Q", "disk")
    fleet.until(lambda: fleet.done() == 3, "three jobs to end", disk)
    fleet.assert_each_once(bodies)
    assert fleet.waiting() == 0
