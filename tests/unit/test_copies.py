"""Messages that are copied from one before them are those that Celery would make (HEAL-1)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from celery import Celery, chain, signals
from celery._state import _task_stack  # type: ignore[attr-defined]
from kombu.transport.memory import Channel

from dlpipe import defaults, wiring
from dlpipe.celery import CONFIRM_S, CeleryPublisher
from dlpipe.core import flow
from dlpipe.core.ports import Hint
from dlpipe.settings import Settings

Raw = dict[str, Any]

NODES = Settings.model_validate({"node": "a", "store": {"staging": "node"}, "redis_url": "redis://redis.example"})


def _stage(self: Any, job_id: str, run: int) -> None: ...


def _dispatch(self: Any) -> None: ...


@pytest.fixture(params=["unregistered", "registered"])
def app(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Workers have the tasks, and who only plans may not; Celery sends them in different ways."""
    monkeypatch.setattr(wiring, "settings", lambda: NODES)
    monkeypatch.setattr(Channel, "queues", {})
    with Celery("copies", set_as_current=False) as made:
        made.config_from_object({**defaults.config(NODES), "broker_url": "memory://"})
        if request.param == "registered":
            for row in flow.STAGES:
                made.task(name=f"dlpipe.{row.name}", bind=True)(_stage)
        yield made


def hints(count: int = 4) -> list[Hint]:
    """Of several kinds, which take turns: from each stage on, and on no node or on one."""
    kinds = [(flow.STAGES[begin:], node) for begin in range(len(flow.STAGES)) for node in (None, "b")]
    return [Hint(str(uuid4()), run, stages, node) for run in range(1, count + 1) for stages, node in kinds]


def sent() -> list[Raw]:
    """What lies in the queues, which are empty then; the messages of each in their order."""
    found = [json.loads(json.dumps(raw)) for _, queue in sorted(Channel.queues.items()) for raw in queue.queue]
    for queue in Channel.queues.values():
        queue.queue.clear()
    return found


def without_ids(raw: Raw) -> str:
    """As it was spelled, order of the fields included, but for the ids that are made up for each."""
    text = json.dumps(raw)
    for made_up in (raw["headers"]["id"], raw["properties"]["delivery_tag"]):
        text = text.replace(made_up, "ID")
    return text


def by_celery(app: Celery, given: list[Hint]) -> list[Raw]:
    publisher = CeleryPublisher(app)
    for hint in given:
        steps = [
            app.signature(
                f"dlpipe.{r.name}", args=(hint.job_id, hint.run), immutable=True, **publisher._way(r, hint.node)
            )
            for r in hint.stages
        ]
        steps[0].apply_async(chain=steps[:0:-1], retry=False, confirm_timeout=CONFIRM_S)
    return sent()


def copied(app: Celery, given: list[Hint], made: int) -> list[Raw]:
    with patch.object(CeleryPublisher, "_make_first", autospec=True, side_effect=CeleryPublisher._make_first) as makes:
        CeleryPublisher(app).publish(given)
    assert makes.call_count == made
    return sent()


KINDS = 2 * len(flow.STAGES)


def test_copies_are_spelled_as_celery_spells_each(app: Celery) -> None:
    given = hints()
    found, expected = copied(app, given, made=KINDS), by_celery(app, given)
    assert [without_ids(one) for one in found] == [without_ids(one) for one in expected]
    assert len(found) == len(given)
    for one in found:
        assert one["headers"]["id"] == one["headers"]["root_id"] == one["properties"]["correlation_id"]
    assert len({one["headers"]["id"] for one in found}) == len(given)
    assert len({one["properties"]["delivery_tag"] for one in found}) == len(given)


def test_copies_say_what_a_chain_says_but_for_ids_that_nobody_reads(app: Celery) -> None:
    given = [Hint(str(uuid4()), run, flow.STAGES) for run in range(1, 4)]
    found = copied(app, given, made=1)
    for hint in given:
        steps = [app.signature(f"dlpipe.{r.name}", args=(hint.job_id, hint.run), immutable=True) for r in hint.stages]
        chain(*steps, app=app).apply_async()
    expected = sent()
    for ours, theirs in zip(found, expected, strict=True):
        ours_said, theirs_said = (json.loads(base64.b64decode(one["body"])) for one in (ours, theirs))
        for step in theirs_said[2]["chain"]:
            for name in ("task_id", "reply_to"):
                step["options"].pop(name)
        assert ours_said == theirs_said
        ids = {"id", "root_id"}
        assert {k: v for k, v in ours["headers"].items() if k not in ids} == {
            k: v for k, v in theirs["headers"].items() if k not in ids
        }


def test_copies_made_in_a_task_are_its_children(app: Celery) -> None:
    task: Any = app.task(name="dlpipe.dispatch", bind=True)(_dispatch)
    given = hints()
    task.push_request(id="its id", root_id="its root", called_directly=False, delivery_info={"priority": None})
    _task_stack.push(task)
    try:
        found, expected = copied(app, given, made=KINDS), by_celery(app, given)
    finally:
        _task_stack.pop()
        task.pop_request()
    assert [without_ids(one) for one in found] == [without_ids(one) for one in expected]
    assert {(one["headers"]["root_id"], one["headers"]["parent_id"]) for one in found} == {("its root", "its id")}


def test_who_listens_hears_of_each_message_as_celery_makes_it(app: Celery) -> None:
    given, heard = hints(), list[tuple[Any, ...]]()

    def listen(body: Any, **_: Any) -> None:
        heard.append(tuple(body[0]))

    for signal in (signals.before_task_publish, signals.after_task_publish):
        heard.clear()
        signal.connect(listen, weak=False)
        try:
            copied(app, given, made=len(given))
        finally:
            signal.disconnect(listen)
        assert heard == [(hint.job_id, hint.run) for hint in given]


def test_a_route_that_is_a_function_is_asked_for_each_message(app: Celery) -> None:
    asked = list[Any]()

    def route(name: str, args: Any, kwargs: Any, options: Any, **_: Any) -> None:
        asked.append(args[0])

    app.conf.task_routes = (route, app.conf.task_routes)
    given = hints()
    copied(app, given, made=len(given))
    assert asked == [hint.job_id for hint in given]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"task_serializer": "pickle"}, id="no text to copy"),
        pytest.param({"task_send_sent_event": True}, id="monitors are told of each"),
    ],
)
def test_where_more_may_differ_celery_makes_each(app: Celery, settings: dict[str, Any]) -> None:
    app.conf.update(settings)
    given = hints()
    copied(app, given, made=len(given))


def test_a_backend_that_wants_results_is_told_of_each(app: Celery) -> None:
    app.conf.task_ignore_result = False
    given = hints()
    with patch.object(type(app.backend), "on_task_call", autospec=True) as told:
        found = copied(app, given, made=KINDS)
    ignored = [one["headers"]["id"] for one in found if one["headers"]["ignore_result"]]
    assert not ignored
    assert sorted(call.args[2] for call in told.call_args_list) == sorted(one["headers"]["id"] for one in found)


def test_a_job_whose_name_stands_elsewhere_in_the_message_is_no_model(app: Celery) -> None:
    given = [Hint(name, 1, flow.STAGES) for name in ("stream", "b", "c")]
    found = copied(app, given, made=3)
    assert [without_ids(one) for one in found] == [without_ids(one) for one in by_celery(app, given)]
