"""What a worker's consumer lets through to Celery, and what it takes off the queue; the fuzzer sends it far more."""

from __future__ import annotations

import json
from typing import Any

import kombu
import pytest
from celery import Celery, chain

from dlpipe.core import messages


@pytest.mark.parametrize("protocol", [1, 2])
def test_what_celery_sends_is_right(protocol: int) -> None:
    """With all that a caller can ask for."""
    app = Celery("sender", broker="memory://", set_as_current=False)
    app.conf.task_protocol = protocol
    seen: list[tuple[Any, dict[str, Any]]] = []

    class Producer(kombu.Producer):
        def publish(self, body: Any, *_: Any, **options: Any) -> None:
            seen.append((json.loads(json.dumps(body)), json.loads(json.dumps(options["headers"] or {}))))

    steps = [app.signature(f"dlpipe.{name}", args=("job", 1), immutable=True) for name in ("stream", "finalize")]
    options: dict[str, Any] = {
        "countdown": 5, "expires": 60, "time_limit": 30, "soft_time_limit": 10.5, "priority": 3, "retries": 2,
        "shadow": "other", "headers": {"traceparent": "00-a-b-01"}, "link": steps[0], "link_error": steps[1],
    }  # fmt: skip
    with app.connection_for_write() as connection:
        producer = Producer(connection)
        for more in ({}, options, {"chain": list(chain(*steps).tasks)}):
            app.send_task("dlpipe.head", args=["job", 1], producer=producer, **more)
    for body, headers in seen:
        assert messages.of_frame("application/json", "utf-8", {}, headers, b"") is None
        assert messages.of_body(body, headers) is None
    assert len(seen) == 3
