"""The fuzzer of messages: `python -m tests.fuzz.messages --cases 20000 --seed 7 --broker redis`.

Real workers, prefork and threads, take good messages from queues into which anything else is sent as well. They live
on, every good message is executed, and nothing is left in the queues.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import kombu
import redis

from tests.fleet import QUICK, Fleet, Process
from tests.fuzz.forgery import Forged, commands, forged
from tests.servers import Valkey, free_port
from tests.webserver import WebServer

QUEUES = ("dlpipe.net", "dlpipe.disk", "dlpipe.beat", "dlpipe.plan", "net", "disk")
CONTROL, EVENTS = "dlpipe.control.pidbox", "celeryev"
_LONGEST_HEAD = 100_000
GROUPS = 3
GOOD = 5
_COUNTED = re.compile(r'^dlpipe_messages_dropped_total\{reason="([a-z_]+)"\} ([0-9.e+]+)$', re.MULTILINE)
_DEAD = ("Unrecoverable error", "WorkerLostError", "Trying to re-establish", "Connection to broker lost")


class Broker(Protocol):
    """Where messages are forged."""

    def send(self, queue: str, message: Forged) -> None: ...
    def publish(self, exchange: str, message: Forged) -> None: ...
    def waiting(self) -> int: ...


class InRedis:
    def __init__(self, line: redis.Redis) -> None:
        self._line = line

    def send(self, queue: str, message: Forged) -> None:
        self._line.lpush(queue, message.raw)

    def publish(self, exchange: str, message: Forged) -> None:
        self._line.publish(f"/0.{exchange}" + ("/worker.heartbeat" if exchange == EVENTS else ""), message.raw)

    def waiting(self) -> int:
        return sum(int(self._line.llen(queue)) for queue in QUEUES)


class InRabbit:
    def __init__(self, connection: Any) -> None:
        self._connection, self._channel = connection, connection.channel()

    def _again(self) -> None:
        """RabbitMQ ends the connection on what it cannot read itself."""
        if self._channel.connection is None or not self._connection.connected:
            self._connection.collect()
            self._channel = self._connection.channel()

    def send(self, queue: str, message: Forged) -> None:
        self._put(message, exchange="", routing_key=f"{queue}.quorum")

    def publish(self, exchange: str, message: Forged) -> None:
        self._put(message, exchange=exchange, routing_key="worker.heartbeat")

    def _put(self, message: Forged, **to: str) -> None:
        frame = message.frame or {}
        said = frame.get("properties")
        properties = {key: said.get(key) for key in ("correlation_id", "reply_to")} if isinstance(said, dict) else {}
        try:
            self._publish(message.body, frame, properties, to)
        except Exception:  # the protocol has no way to say that, or RabbitMQ refuses it: the body alone then
            self._again()
            self._publish(message.body, {"content-type": "application/json"}, {}, to)

    def _publish(self, body: bytes, frame: dict[str, Any], properties: dict[str, Any], to: dict[str, str]) -> None:
        from amqp.basic_message import Message

        json.dumps(frame.get("headers"), allow_nan=False)  # RabbitMQ ends the connection on NaN
        made: Any = Message(
            body,
            application_headers=frame.get("headers"),
            **{
                name.replace("-", "_"): frame[name]
                for name in ("content-type", "content-encoding")
                if frame.get(name) is not None
            },
            **{name: value for name, value in properties.items() if value is not None},
        )
        # Before a byte is sent: half a message, or a frame that is too long, would end the connection.
        if len(made._serialize_properties()) > _LONGEST_HEAD:
            raise ValueError("too long for one frame")
        self._channel.basic_publish(made, **to)

    def waiting(self) -> int:
        return sum(int(self._channel.queue_declare(f"{name}.quorum", passive=True).message_count) for name in QUEUES)


@dataclass
class Report:
    cases: int
    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    good: int = 0
    done: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "kinds": dict(self.kinds), "dropped": dict(self.dropped)}


def run(fleet: Fleet, broker: Broker, web: WebServer, cases: int, seed: int) -> Report:
    """Some forged messages, some good ones, and so on; then what became of all of them."""
    report, began = Report(cases, seed), time.monotonic()
    ports = {"prefork": free_port(), "threads": free_port()}
    workers = {pool: _worker(fleet, pool, port) for pool, port in ports.items()}
    for_one, for_all = list(forged(seed, cases)), list(commands(seed + 1, cases))
    for group in range(GROUPS):
        for number in range(group, cases, GROUPS):
            report.kinds[for_one[number].kind] += 1
            broker.send(QUEUES[number // GROUPS % len(QUEUES)], for_one[number])
            broker.publish(CONTROL if number % 2 else EVENTS, for_all[number])
        fleet.plan([web.put(f"/{group}-{n}", b"%d,%d" % (group, n) * 500) for n in range(GOOD)])
        report.good += GOOD
    try:
        for worker in workers.values():  # one that has ended is told at once
            fleet.until(lambda: fleet.done() == report.good, "every good job to be done", worker, 60)
            fleet.until(lambda: broker.waiting() == 0, "the queues to be empty", worker, 60)
    except (TimeoutError, RuntimeError) as error:
        report.violations.append(str(error)[:2_000])
    report.done = fleet.done()
    report.violations += [line for pool, worker in workers.items() for line in _ended(pool, worker)]
    for pool, port in ports.items():
        if workers[pool].lives:
            report.dropped += _counted(port)
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _worker(fleet: Fleet, pool: str, port: int) -> Process:
    worker = fleet.celery(
        pool, "worker", "-P", pool, "-c", "2", "-n", f"{pool}@test", "-l", "INFO", "--without-mingle",
        DLPIPE_METRICS_PORT=str(port), DLPIPE_METRICS_REFRESH_S="0",
    )  # fmt: skip
    fleet.until(lambda: worker.says("ready."), f"worker {pool} to be ready", worker)
    return worker


def _ended(pool: str, worker: Process) -> list[str]:
    said = worker.log.read_text(errors="replace")
    found = [f"{pool}: {sign}" for sign in _DEAD if sign in said]
    return found if worker.lives else [*found, f"{pool} ended: {said[-1_500:]}"]


def _counted(port: int) -> Counter[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return Counter({name: int(float(n)) for name, n in _COUNTED.findall(page.read().decode())})


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.messages", description=__doc__)
    parser.add_argument("--cases", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    chosen = parser.parse_args(argv)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="df")))
        (place / "v").mkdir()
        valkey = stack.enter_context(Valkey(place / "v"))
        settings: dict[str, str] = {}
        if chosen.broker == "rabbitmq":
            from tests.rabbitmq import RabbitMQ

            (place / "r").mkdir()
            settings["DLPIPE_BROKER_URL"] = stack.enter_context(RabbitMQ(place / "r")).new_url()
        web = stack.enter_context(WebServer())
        fleet = stack.enter_context(Fleet(place / "home", valkey, None, **QUICK, **settings))
        broker = stack.enter_context(reached(valkey, settings))
        report = run(fleet, broker, web, chosen.cases, chosen.seed)
    print(json.dumps(report.as_json(), indent=2))
    return 1 if report.violations else 0


@contextmanager
def reached(valkey: Valkey, settings: Mapping[str, str]) -> Iterator[Broker]:
    """The broker that workers with these settings use."""
    if (url := settings.get("DLPIPE_BROKER_URL", "")).startswith("amqp"):
        with kombu.Connection(url) as connection:
            yield InRabbit(connection)
    else:
        with valkey.client() as line:
            yield InRedis(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
