"""Real workers that do in one hand what they would take from their queues anyway (ADR 42)."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Any

import pytest
from celery import Celery

from dlpipe import defaults
from dlpipe.core import flow
from dlpipe.settings import load
from tests.fleet import Fleet, disconnect
from tests.webserver import WebServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMES = [row.name for row in flow.STAGES]


def taken(fleet: Fleet, name: str) -> dict[str, int]:
    """The messages of stages that this worker was given; the log says the same of all stages, however they came."""
    app = Celery("asks", set_as_current=False)
    app.config_from_object(defaults.config(load(fleet.env).settings))
    stats = app.control.inspect(destination=[f"{name}@test"], timeout=10).stats()
    disconnect(app)
    assert stats is not None, "the worker does not answer"
    total = stats[f"{name}@test"]["total"]
    return {stage: total[f"dlpipe.{stage}"] for stage in NAMES if f"dlpipe.{stage}" in total}


def some_files(web: WebServer, count: int) -> dict[str, bytes]:
    bodies = {f"/file-{n}.bin": os.urandom(20_000) for n in range(count)}
    return {web.put(path, body): body for path, body in bodies.items()}


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_of_both_queues_needs_one_message_for_a_job(fleet: Fleet, web: WebServer, pool: str) -> None:
    worker = fleet.worker("w1", "-Q", "net,disk", pool=pool, size=2)
    bodies = some_files(web, 5)
    fleet.plan(list(bodies))
    fleet.until(lambda: fleet.done() == 5, "five jobs to end", worker)
    fleet.assert_each_once(bodies)
    assert taken(fleet, "w1") == {"head": 5}
    assert fleet.waiting() == 0


def test_workers_of_one_queue_each_hand_over_to_each_other(fleet: Fleet, web: WebServer) -> None:
    net = fleet.worker("net", "-Q", "net")
    fleet.worker("disk", "-Q", "disk")
    bodies = some_files(web, 5)
    fleet.plan(list(bodies))
    fleet.until(lambda: fleet.done() == 5, "five jobs to end", net)
    fleet.assert_each_once(bodies)
    assert (taken(fleet, "net"), taken(fleet, "disk")) == ({"head": 5}, {"finalize": 5})


def test_switched_off_each_stage_has_its_message(fleet: Fleet, web: WebServer) -> None:
    worker = fleet.worker("w1", DLPIPE_WORKER_IN_HAND="false")
    bodies = some_files(web, 2)
    fleet.plan(list(bodies))
    fleet.until(lambda: fleet.done() == 2, "two jobs to end", worker)
    fleet.assert_each_once(bodies)
    assert taken(fleet, "w1") == dict.fromkeys(NAMES, 2)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_who_watches_a_worker_sees_every_stage(fleet: Fleet, web: WebServer, pool: str) -> None:
    app = Celery("watches", set_as_current=False)
    app.config_from_object(defaults.config(load(fleet.env).settings))
    seen: list[Any] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        watching = threading.Event()

        def watch() -> None:
            with receiver.consumer_context() as (line, _, _):
                watching.set()
                while not done.is_set():
                    try:
                        line.drain_events(timeout=0.5)
                    except TimeoutError:
                        continue

        done = threading.Event()
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        assert watching.wait(10)
        worker = fleet.worker("w1", "-E", pool=pool, size=2)
        bodies = some_files(web, 2)
        fleet.plan(list(bodies))
        fleet.until(lambda: fleet.done() == 2, "two jobs to end", worker)

        def all_told() -> bool:
            names = {event["uuid"]: event["name"] for event in list(seen) if event["type"] == "task-received"}
            ended = Counter(names.get(event["uuid"]) for event in list(seen) if event["type"] == "task-succeeded")
            # Of the tasks that had messages the threads pool loses some events itself (docs/operations.md).
            return all(ended[f"dlpipe.{name}"] == 2 for name in (NAMES[1:] if pool == "threads" else NAMES))

        fleet.until(all_told, "every stage of both jobs to be told", worker, within_s=30)
        done.set()
        thread.join(10)
    disconnect(app)
    assert taken(fleet, "w1") == {"head": 2}
