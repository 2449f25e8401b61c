"""Celery's configuration as dlpipe needs it; `celeryconfig.py` overlays it (docs/operations.md).

Shipped inside the package: without it a worker run from a wheel would silently talk to amqp://localhost.
"""

from __future__ import annotations

from typing import Any

from kombu import Queue as Binding

from dlpipe.core import flow
from dlpipe.core.flow import Queue
from dlpipe.settings import Settings

VISIBILITY_TIMEOUT_S = 12 * 3600
"""Longer than any stage may take (stream.deadline_s), so that Redis hands no message out twice by itself."""


def config(settings: Settings) -> dict[str, Any]:
    return {
        "broker_url": settings.broker_uri,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            # Off: Redis would only pretend to acknowledge. What a killed worker held comes back through
            # reconcile, which knows better than a time-out. See docs/adr/0004.
            "ack_emulation": settings.broker.ack_emulation,
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "socket_connect_timeout": 10,
            "socket_keepalive": True,
            "health_check_interval": 30,
        },
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_backend": None,
        "task_ignore_result": True,
        "task_track_started": False,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "enable_utc": True,
        "timezone": "UTC",
        "task_default_queue": Queue.NET.value,
        "task_queues": [Binding(queue.value, routing_key=queue.value) for queue in Queue],
        "task_routes": {
            **{f"dlpipe.{row.name}": {"queue": row.queue.value} for row in flow.STAGES},
            "dlpipe.plan": {"queue": Queue.PLAN.value},
            "dlpipe.dispatch": {"queue": Queue.BEAT.value},
            "dlpipe.reconcile": {"queue": Queue.BEAT.value},
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


def _torrents(settings: Settings) -> dict[str, Any]:
    """Nothing to follow where no qBittorrent is set."""
    if settings.torrents.url is None:
        return {}
    return {"sync_torrents": _every("dlpipe.sync_torrents", settings.torrents.every_s)}


def _every(task: str, seconds: float) -> dict[str, Any]:
    """Without an expiry: that would be judged by the worker's clock. What piles up, SingleFlight skips."""
    return {"task": task, "schedule": seconds}
