"""A message that holds an address is described without it, also while it waits in a worker and Flower asks (SAFE-2)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from celery.worker.request import Request

from dlpipe.celery import app
from dlpipe.request import NOT_SHOWN, PlanRequest
from dlpipe.tasks import plan

SECRET = "https://files.example/a?X-Amz-Signature=5ec2e7"


def told_by(kind: type[Request]) -> str:
    """All that a request says of itself: to inspection, to events, and to log lines, its own and the child's."""
    headers: dict[str, Any] = {
        "id": "1", "task": plan.name, "lang": "py", "argsrepr": f"({SECRET!r},)", "kwargsrepr": repr({"url": SECRET}),
    }  # fmt: skip
    body = json.dumps([[SECRET], {"url": SECRET}, {}]).encode()
    message = SimpleNamespace(
        headers=headers, body=body, payload=[[SECRET], {"url": SECRET}, {}], properties={}, delivery_info={},
        content_type="application/json", content_encoding="utf-8",
    )  # fmt: skip
    made: Any = kind(message, app=app, task=plan, body=body, headers=headers, hostname="h", decoded=False, utc=True)
    made._args, made._kwargs = [SECRET], {"url": SECRET}
    handed_on = [made.request_dict[name] for name in ("argsrepr", "kwargsrepr")]
    return f"{made.info()} {made.info(safe=True)} {made.argsrepr} {made.kwargsrepr} {made!r} {handed_on}"


def test_a_request_to_plan_does_not_tell_its_address() -> None:
    assert SECRET in told_by(Request), "nothing would be shown"
    told = told_by(PlanRequest)
    assert SECRET not in told
    assert told.count(NOT_SHOWN) >= 6


def test_a_worker_takes_requests_to_plan_as_such() -> None:
    assert plan.Request == f"{PlanRequest.__module__}:{PlanRequest.__name__}"
