"""Which steps of a chain a worker does without their messages, and what is told of them (ADR 42)."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from dlpipe import defaults, hand, wiring
from dlpipe.celery import CeleryPublisher
from dlpipe.core.flow import STAGES
from dlpipe.settings import Settings

NAMES = [row.name for row in STAGES]
JOB = "6f1c8c0e-3d0b-5b7e-9a55-6d1b1f4b8f10"
_SET: dict[str, Any] = {"node": "a", "broker_url": "redis://redis.example", "redis_url": "redis://redis.example"}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    hand._route.cache_clear()
    hand._worker.clear()


def worker(monkeypatch: pytest.MonkeyPatch, *queues: str, **chosen: Any) -> Celery:
    """The app of a worker that was started with `-Q` and these; without, with none."""
    settings = Settings.model_validate(_SET | chosen)
    monkeypatch.setattr(wiring, "settings", lambda: settings)
    app = Celery("hand", set_as_current=False)
    app.config_from_object(defaults.config(settings))
    if queues:
        app.amqp.queues.select(list(queues))
    return app


def steps(app: Celery, *names: str, args: Any = (JOB, 1), **more: Any) -> list[dict[str, Any]]:
    """As a message has them: the last one is next."""
    made = [dict(app.signature(f"dlpipe.{name}", args=args, immutable=True)) for name in names or NAMES[1:]]
    for step in made:
        step.update(more)
    return made[::-1]


def test_all_that_the_worker_takes_anyway_needs_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    app = worker(monkeypatch)
    assert hand.further(app, steps(app), JOB, 1) == NAMES[1:]
    assert hand.further(app, steps(app, "dedupe"), JOB, 1) == ["dedupe"]
    assert hand.further(app, None, JOB, 1) == hand.further(app, [], JOB, 1) == []


@pytest.mark.parametrize(
    ("queues", "wanted"),
    [
        (("net", "disk"), NAMES[1:]),
        (("net",), ["resume_decide", "stream"]),
        (("net", "plan", "beat"), ["resume_decide", "stream"]),
        (("disk",), []),
        (("beat",), []),
    ],
)
def test_a_step_whose_queue_is_not_taken_from_ends_it(
    monkeypatch: pytest.MonkeyPatch, queues: tuple[str, ...], wanted: list[str]
) -> None:
    app = worker(monkeypatch, *queues)
    assert hand.further(app, steps(app), JOB, 1) == wanted


def test_the_queues_of_rabbitmq_are_known_by_the_names_that_they_have_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says `-Q net` there takes from dlpipe.net.quorum; the step says nothing of that."""
    app = worker(monkeypatch, broker_url="amqp://rabbit.example")
    names = [queue.name for queue in app.amqp.queues.values() if queue.name.startswith("dlpipe.net")]
    app.amqp.queues.select(names)
    assert hand.further(app, steps(app), JOB, 1) == ["resume_decide", "stream"]


@pytest.mark.parametrize("names", [("net", "disk"), ("dlpipe.net.quorum", "dlpipe.disk.quorum"), ()], ids=str)
def test_the_queues_of_rabbitmq_are_known_however_the_worker_was_told_of_them(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    app = worker(monkeypatch, *names, broker_url="amqp://rabbit.example")
    assert hand.further(app, steps(app), JOB, 1) == NAMES[1:]
    assert hand.further(app, steps(app, options={"queue": "disk"}), JOB, 1) == NAMES[1:]


@pytest.mark.parametrize("limit", ["task_time_limit", "task_soft_time_limit"])
def test_a_limit_that_every_task_has_is_one_of_each_stage(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    app = worker(monkeypatch)
    app.conf[limit] = 600
    assert hand.further(app, steps(app), JOB, 1) == []


@pytest.mark.parametrize("limit", ["time_limit", "soft_time_limit"])
def test_and_so_is_one_that_the_worker_was_started_with(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    app = worker(monkeypatch)
    hand._note(SimpleNamespace(**{"time_limit": None, "soft_time_limit": None, limit: 600}))
    assert hand.further(app, steps(app), JOB, 1) == []


def test_a_step_that_names_its_queue_is_judged_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    app = worker(monkeypatch, "net", "disk")
    made = steps(app, options={"queue": "disk", "task_id": "x", "reply_to": "y"})
    assert hand.further(app, made, JOB, 1) == NAMES[1:]
    made[-2]["options"] = {"queue": "elsewhere"}
    assert hand.further(app, made, JOB, 1) == NAMES[1:2]


@pytest.mark.parametrize(
    "more",
    [
        {"args": (JOB, 2)},
        {"args": ("another", 1)},
        {"args": (JOB, 1, "more")},
        {"args": ()},
        {"kwargs": {"since": 7}},
        {"options": {"countdown": 60}},
        {"options": {"eta": "2030-01-01"}},
        {"options": {"link": ["x"]}},
        {"options": {"priority": 9}},
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 2])
def test_a_step_that_says_more_or_something_else_ends_it(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], at: int
) -> None:
    """It is of another release, or of somebody's own making: for who understands it."""
    app = worker(monkeypatch)
    made = steps(app)
    made[-1 - at].update(more)
    assert hand.further(app, made, JOB, 1) == NAMES[1 : 1 + at]


@pytest.mark.parametrize("task", ["dlpipe.scan", "shop.tell_the_customer", "dlpipe.dispatch"])
def test_a_step_that_is_no_stage_of_this_release_ends_it(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """A later release has one more, or somebody's own task is behind ours: its message is for who has it."""
    app = worker(monkeypatch)
    made = steps(app)
    made[-2]["task"] = task
    assert hand.further(app, made, JOB, 1) == NAMES[1:2]


def test_arguments_are_compared_as_a_message_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    app = worker(monkeypatch)
    assert hand.further(app, steps(app, args=[JOB, 1]), JOB, 1) == NAMES[1:]


@pytest.mark.parametrize("chosen", [{"worker": {"in_hand": False}}, {"store": {"staging": "node"}}], ids=str)
def test_switched_off_or_with_parts_of_a_node_s_own_nothing_is_done_in_hand(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]
) -> None:
    app = worker(monkeypatch, **chosen)
    assert hand.further(app, steps(app), JOB, 1) == []


def test_what_the_publisher_sends_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps as they stand in a message that was really made, whatever Celery adds to them."""
    app = worker(monkeypatch)
    assert CeleryPublisher(app) is not None
    chain = [app.signature(f"dlpipe.{name}", args=(JOB, 1), immutable=True) for name in NAMES]
    made = [dict(step) for step in chain[1:]][::-1]
    assert hand.further(app, made, JOB, 1) == NAMES[1:]


# ── what is told of them ──────────────────────────────────────────────────────────────────────────


class Dispatcher:
    """Celery's, as far as it is asked."""

    def __init__(self, *, enabled: bool = True, groups: set[str] | None = None) -> None:
        self.enabled, self.groups = enabled, groups or set()
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None: ...


def task(dispatcher: Dispatcher) -> Any:
    app = SimpleNamespace(events=SimpleNamespace(default_dispatcher=lambda hostname: dispatcher))
    request = SimpleNamespace(id="parent", root_id="root", hostname="w@test")
    return SimpleNamespace(app=app, request=request)


@pytest.mark.parametrize(
    ("seen", "watched"),
    [
        (SimpleNamespace(task_events=True), True),
        (SimpleNamespace(task_events=False), False),
        (
            SimpleNamespace(task_events=True, consumer=SimpleNamespace(event_dispatcher=Dispatcher(enabled=False))),
            False,
        ),
        (SimpleNamespace(task_events=False, consumer=SimpleNamespace(event_dispatcher=Dispatcher())), True),
        (SimpleNamespace(consumer=SimpleNamespace(event_dispatcher=Dispatcher(groups={"worker"}))), False),
        (SimpleNamespace(consumer=SimpleNamespace(event_dispatcher=Dispatcher(groups={"worker", "task"}))), True),
        (None, False),
    ],
)
def test_events_are_sent_when_somebody_is_told_of_tasks(seen: Any, watched: bool) -> None:
    if seen is not None:
        hand._worker[:] = [seen]
    dispatcher = Dispatcher()
    hand.tell(task(dispatcher), ["stream", "finalize"], (JOB, 1))
    assert [kind for kind, _ in dispatcher.sent] == (
        ["task-received", "task-started", "task-succeeded"] * 2 if watched else []
    )


def test_each_stage_has_a_task_of_its_own_below_the_one_that_did_it() -> None:
    hand._worker[:] = [SimpleNamespace(task_events=True)]
    dispatcher = Dispatcher()
    hand.tell(task(dispatcher), [], (JOB, 1))
    assert dispatcher.sent == []
    hand.tell(task(dispatcher), ["stream", "finalize"], (JOB, 1))
    received = [fields for kind, fields in dispatcher.sent if kind == "task-received"]
    assert [(one["name"], one["parent_id"], one["root_id"]) for one in received] == [
        ("dlpipe.stream", "parent", "root"), ("dlpipe.finalize", "parent", "root"),
    ]  # fmt: skip
    assert len({fields["uuid"] for _, fields in dispatcher.sent}) == 2
