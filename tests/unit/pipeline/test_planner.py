"""Taking requests in: refused with a reason, or on record before anybody is told. PLAN-3, PLAN-4, PLAN-5, PLAN-8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from dlpipe.core.errors import DlpipeError, InvalidInput
from dlpipe.core.model import Scope
from dlpipe.core.ports import Hint
from dlpipe.core.states import State, Status
from dlpipe.pipeline import planner
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.planner import BATCH, PlanSummary
from tests.world import World

URL = "http://files.example/a.bin"


class BrokerDown(DlpipeError):
    code = "broker_unavailable"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "fields_invalid"),
        ({"url": URL, "sha": "0" * 64}, "fields_invalid"),
        ({"work_id": "w"}, "fields_invalid"),
        ({"url": ""}, "url_empty"),
        ({"url": "ftp://files.example/a"}, "url_scheme"),
        ({"url": "file:///etc/passwd"}, "url_scheme"),
        ({"url": "http://user:pw@files.example/a"}, "url_userinfo"),
        ({"url": "http://files.example/a\nb"}, "url_control_character"),
        ({"url": "http://files.example/" + "a" * 9_000}, "url_too_long"),
        ({"url": "http://"}, "url_invalid"),
        ({"url": URL, "sha256": "abc"}, "sha256_invalid"),
        ({"url": URL, "max_bytes": -1}, "max_bytes_invalid"),
        ({"url": URL, "priority": 101}, "priority_invalid"),
        ({"url": URL, "tenant_id": "../up"}, "tenant_invalid"),
        ({"url": URL, "ext": ".exe"}, "extension_unknown"),
        ({"url": URL, "not_before": "tomorrow"}, "not_before_invalid"),
    ],
)
def test_a_bad_request_is_refused_and_changes_nothing(world: World, fields: dict[str, Any], code: str) -> None:
    before = world.everything()
    with pytest.raises(InvalidInput) as refused:
        planner.plan(world.deps, fields)
    assert refused.value.code == code
    assert refused.value.hint
    assert (world.everything(), world.publisher.sent) == (before, [])


def test_a_host_that_the_policy_forbids_is_refused(world: World) -> None:
    world.deps = replace(world.deps, forbidden=lambda host, port: "private" if port == 81 else None)
    with pytest.raises(InvalidInput) as refused:
        planner.plan(world.deps, {"url": "http://files.example:81/a"})
    assert (refused.value.code, "files.example" in refused.value.message) == ("egress_forbidden", True)
    assert planner.plan(world.deps, {"url": URL}).outcome == "created"


def test_a_plan_is_on_record_before_its_message_is_sent(world: World) -> None:
    rows_when_sent: list[int] = []
    publish = world.publisher.publish

    def look_and_publish(hints: Sequence[Hint]) -> None:
        rows_when_sent.append(len(world.sql("SELECT 1 FROM artifact_jobs")))
        publish(hints)

    world.publisher.publish = look_and_publish  # type: ignore[method-assign]
    answer = planner.plan(world.deps, {"url": URL})
    assert rows_when_sent == [1]
    (hint,) = world.publisher.sent
    assert (hint.job_id, hint.run, len(hint.stages)) == (answer.job_id, 1, 6)


def test_a_plan_stands_when_nobody_can_be_told(world: World) -> None:
    world.publisher.error = BrokerDown("no broker")
    answer = planner.plan(world.deps, {"url": URL})
    assert (answer.outcome, world.state(answer.job_id)) == ("created", State.PLANNED)
    world.publisher.error = None
    world.source.put(URL, b"x")
    world.drive()
    assert world.state(answer.job_id) is State.DEDUPED


def test_planned_again_the_job_is_answered_as_it_stands(world: World) -> None:
    world.source.put(URL, b"x")
    first = planner.plan(world.deps, {"url": URL})
    assert planner.plan(world.deps, {"url": URL}).outcome == "known"
    assert len(world.publisher.sent) == 1  # and no second message
    world.drive()
    done = planner.plan(world.deps, {"url": "HTTP://FILES.example:80/x/../a.bin#part"})
    assert (done.job_id, done.outcome, len(done.artifacts)) == (first.job_id, "skipped", 1)
    gone = world.fetch("http://files.example/gone")
    answer = planner.plan(world.deps, {"url": "http://files.example/gone"})
    assert (answer.job_id, answer.outcome, gone in answer.hint) == (gone, "failed", True)


def test_a_canceled_job_is_answered_as_canceled(world: World) -> None:
    job = world.plan(URL)
    with world.database.write() as unit:
        assert unit.owned(Scope()).cancel(job) is Status.CANCELED
    assert planner.plan(world.deps, {"url": URL}).outcome == "canceled"
    assert world.publisher.sent == []


def test_many_with_bad_ones_in_between_are_planned(world: World) -> None:
    requests: list[dict[str, Any]] = [{"url": f"http://files.example/{n}"} for n in range(10)]
    requests[3] = {"url": "nonsense"}
    requests[7] = {"url": URL, "colour": "red"}
    requests.append(requests[0])
    summary = planner.plan_many(world.deps, iter(requests))
    assert (summary.created, summary.known, summary.refused_count) == (8, 1, 2)
    assert [(one.position, one.code) for one in summary.refused] == [(4, "url_invalid"), (8, "fields_invalid")]
    assert len(world.publisher.sent) == 8


def test_many_are_taken_in_batches_so_that_memory_is_bounded(world: World) -> None:
    seen = 0

    def requests() -> Iterator[dict[str, Any]]:
        nonlocal seen
        for n in range(3 * BATCH):
            if n == 2 * BATCH + 1:
                seen = world.sql("SELECT count(*) AS n FROM jobs")[0].n
            yield {"url": f"http://files.example/{n}"}

    assert planner.plan_many(world.deps, requests()).created == 3 * BATCH
    assert BATCH <= seen <= 2 * BATCH


def test_batches_of_long_requests_hold_fewer_of_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "BATCH_CHARACTERS", 20_000)
    write, sizes = planner._write_batch, list[int]()

    def written(deps: Deps, batch: Any) -> Any:
        sizes.append(len(batch))
        return write(deps, batch)

    monkeypatch.setattr(planner, "_write_batch", written)
    mirrors = [f"http://mirror.example/{'m' * 3_000}"]
    requests = [{"url": f"http://files.example/{n}/{'u' * 3_000}", "mirrors": mirrors} for n in range(10)]
    assert planner.plan_many(world.deps, requests).created == 10
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize("ends_with", [KeyboardInterrupt, EOFError])
def test_when_the_input_breaks_off_what_was_planned_by_then_is_answered(
    world: World, ends_with: type[BaseException]
) -> None:
    def requests() -> Iterator[dict[str, Any]]:
        for n in range(BATCH + 1):
            yield {"url": f"http://files.example/{n}"}
        raise ends_with

    answers = planner.plan_each(world.deps, requests())
    answered = list(islice(answers, BATCH))
    with pytest.raises(ends_with):
        next(answers)
    assert len(answered) == world.sql("SELECT count(*) AS n FROM jobs")[0].n == BATCH


def test_what_is_refused_is_answered_before_the_next_is_taken(world: World) -> None:
    def requests() -> Iterator[dict[str, Any]]:
        yield {"url": "x" * 100_000}
        raise AssertionError("kept until its batch is full, it would pile up")

    assert isinstance(next(planner.plan_each(world.deps, requests())), planner.Refusal)


def test_of_very_many_refusals_the_first_are_kept_and_all_are_counted(world: World) -> None:
    summary = planner.plan_many(world.deps, ({"url": "bad"} for _ in range(PlanSummary.KEPT_REFUSALS + 5)))
    assert summary.refused_count == PlanSummary.KEPT_REFUSALS + 5
    assert len(summary.refused) == PlanSummary.KEPT_REFUSALS
