"""Celery's configuration as dlpipe needs it; `celeryconfig.py` overlays it (docs/operations.md).

Shipped inside the package: without it a worker run from a wheel would silently talk to amqp://localhost.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kombu import Queue as Binding

from dlpipe.core import flow
from dlpipe.core.flow import Queue
from dlpipe.settings import Settings

VISIBILITY_TIMEOUT_S = 12 * 3600
"""Longer than any stage may take (stream.deadline_s), so that Redis hands no message out twice by itself."""


CONSUMER_TIMEOUT_MS = 24 * 3600 * 1000
"""RabbitMQ takes a message back that is not acknowledged for so long; by itself after half an hour, which a stream may
take. It heeds this from 3.12 on. A fixed number: were it to follow a setting, the queues' names would have to as well.
"""

_QUORUM = ".quorum"


def config(settings: Settings) -> dict[str, Any]:
    return {
        "broker_url": settings.broker_uri,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # Of Redis: a key of another type under a queue's name, or a command that is not allowed any more. RabbitMQ's
        # tell of queues that are declared otherwise, and a worker that cannot take from them says so by ending.
        "broker_channel_error_retry": not _is_amqp(settings),
        **(_of_rabbitmq(settings) if _is_amqp(settings) else {"broker_transport_options": _of_redis(settings)}),
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_backend": None,
        "task_ignore_result": True,
        "task_track_started": False,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_consumer": "dlpipe.inbox.consumer:Consumer",
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "enable_utc": True,
        "timezone": "UTC",
        "task_default_queue": Queue.NET.value,
        "task_default_exchange": f"{settings.broker.queue_prefix}{Queue.NET.value}",
        "control_exchange": f"{settings.broker.queue_prefix}control",
        "task_queues": [*(one for kind in Queue for one in _queues(kind.value, settings)), *_own_queues(settings)],
        "task_routes": {
            **{f"dlpipe.{row.name}": {"queue": row.queue.value} for row in flow.STAGES},
            "dlpipe.plan": {"queue": Queue.PLAN.value},
            "dlpipe.dispatch": {"queue": Queue.BEAT.value},
            "dlpipe.reconcile": {"queue": Queue.BEAT.value},
            "dlpipe.sweep": {"queue": Queue.BEAT.value},
            "dlpipe.enqueue_download": {"queue": Queue.NET.value},
            "dlpipe.register_download": {"queue": Queue.DISK.value},
            "dlpipe.sync_torrents": {"queue": Queue.BEAT.value},
        },
        "beat_schedule": {
            "dispatch": _every("dlpipe.dispatch", settings.dispatch.every_s),
            "reconcile": _every("dlpipe.reconcile", settings.heal.every_s),
            **_torrents(settings),
        },
        "beat_max_loop_interval": min(5.0, settings.dispatch.every_s),
    }


def _is_amqp(settings: Settings) -> bool:
    return settings.broker_uri.startswith(("amqp://", "amqps://", "pyamqp://"))


def _of_redis(settings: Settings) -> dict[str, Any]:
    secret = settings.redis.sentinel_password
    return {
        # Off: Redis would only pretend to acknowledge. What a killed worker held comes back through
        # reconcile, which knows better than a time-out. See docs/adr/0004.
        "ack_emulation": settings.broker.ack_emulation,
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        "socket_connect_timeout": 10,
        "socket_keepalive": True,
        "health_check_interval": 30,
        **({"master_name": settings.broker_master} if settings.broker_uri.startswith("sentinel://") else {}),
        **({"sentinel_kwargs": {"password": secret.get_secret_value()}} if secret else {}),
    }


def _of_rabbitmq(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {
        # A message counts as sent when the broker says that it has it.
        "broker_transport_options": {"confirm_publish": True},
        # Who listens for the others goes with its connection; what nobody listens on is not left behind.
        "control_queue_exclusive": True,
        "event_queue_exclusive": True,
    }
    if settings.broker_uri.startswith("amqps://"):
        file = settings.broker.ca_file
        trusted = str(file) if file else ssl.get_default_verify_paths().cafile
        # Left to kombu, `localhost` would be checked as 127.0.0.1. Of several brokers the first one's name counts.
        host = urlsplit(settings.broker_uri.partition(";")[0]).hostname
        found["broker_use_ssl"] = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": trusted, "server_hostname": host}
    return found


def _queues(short: str, settings: Settings) -> list[Binding]:
    """What is called by this short name in routes and by `-Q`; then that of the release before, which had no prefix.

    Only the first is sent to. The second is taken from until nothing can be left in it.
    """
    now = _queue(f"{settings.broker.queue_prefix}{short}", settings, short)
    before = _queue(short, settings)
    return [now] if now.name == before.name or not settings.broker.old_queues else [now, before]


def _queue(name: str, settings: Settings, alias: str | None = None) -> Binding:
    """RabbitMQ refuses to declare a queue again with other arguments, so a queue of another kind has another name."""
    if not (settings.broker.quorum and _is_amqp(settings)):
        return Binding(name, alias=alias, routing_key=name)
    arguments = {"x-queue-type": "quorum", "x-consumer-timeout": CONSUMER_TIMEOUT_MS}
    name = f"{name}{_QUORUM}"
    return Binding(name, alias=alias, routing_key=name, queue_arguments=arguments)


def short_name(queue: Any) -> str:
    """Without prefix and kind: one name for a queue and for the one that it replaces."""
    return queue if isinstance(queue, str) else str(queue.alias or queue.name.removesuffix(_QUORUM))


def called(queues: Mapping[str, Binding], name: str) -> list[Binding]:
    """The queues that a name means; of none that an app knows, one of that name."""
    return known(queues, name) or [queues[name]]


def known(queues: Mapping[str, Binding], name: str) -> list[Binding]:
    """Of those that an app knows: the queues that a name means, which may be short or that at the broker."""
    by_name = {**{key.removesuffix(_QUORUM): one for key, one in queues.items()}, **queues}
    short = short_name(by_name[name]) if name in by_name else name
    return [one for one in queues.values() if short_name(one) == short]


def replaced(queues: Mapping[str, Binding]) -> dict[str, Binding]:
    """By name, those of the release before."""
    found: dict[str, Any] = dict(queues)
    now = {one.alias for one in found.values() if one.alias}
    return {name: one for name, one in found.items() if not one.alias and short_name(one) in now}


def node_queues(kind: Queue, node: str, settings: Settings) -> list[Binding]:
    """The queue of that kind from which only this node takes, and that of the release before."""
    return _queues(flow.node_queue(kind, node), settings)


def _own_queues(settings: Settings) -> list[Binding]:
    own = settings.own_node
    return [one for kind in flow.NODE_QUEUES for one in node_queues(kind, own, settings)] if own else []


def _torrents(settings: Settings) -> dict[str, Any]:
    """Nothing to follow where no qBittorrent is set."""
    if settings.torrents.url is None:
        return {}
    return {"sync_torrents": _every("dlpipe.sync_torrents", settings.torrents.every_s)}


def _every(task: str, seconds: float) -> dict[str, Any]:
    """Without an expiry: that would be judged by the worker's clock. What piles up, SingleFlight skips."""
    return {"task": task, "schedule": seconds}
