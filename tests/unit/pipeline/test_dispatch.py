"""Sending hints: as many as the window holds, the important first, again when they are lost. HEAL-1."""

from __future__ import annotations

import pytest

from dlpipe.core.errors import DlpipeError
from dlpipe.core.flow import Queue
from dlpipe.pipeline import dispatch
from dlpipe.pipeline.reconcile import reconcile
from tests.world import World


class BrokerDown(DlpipeError):
    code = "broker_unavailable"


def jobs(world: World, count: int, host: str = "files.example", **fields: object) -> list[str]:
    return [world.plan(f"http://{host}/{n}", **fields) for n in range(count)]


def sent(world: World) -> list[str]:
    return [hint.job_id for hint in world.publisher.sent]


def test_what_is_due_is_sent_once(world: World) -> None:
    planned = jobs(world, 3)
    assert dispatch.dispatch(world.deps) == 3
    assert dispatch.dispatch(world.deps) == 0
    assert sorted(sent(world)) == sorted(planned)


def test_what_is_not_due_yet_is_not_sent(world: World) -> None:
    job = world.plan("http://files.example/a", not_before="2999-01-01T00:00:00Z")
    assert dispatch.dispatch(world.deps) == 0
    world.make_due(job)
    assert dispatch.dispatch(world.deps) == 1


def test_the_most_important_is_sent_first(world: World) -> None:
    low, high = jobs(world, 1, priority=-5)[0], jobs(world, 1, "other.example", priority=50)[0]
    dispatch.dispatch(world.deps)
    assert sent(world) == [high, low]


def test_no_more_are_on_their_way_than_the_window_holds(world: World) -> None:
    world.policy(window=4, batch=2)
    jobs(world, 10)
    assert dispatch.dispatch(world.deps) == 4
    assert dispatch.dispatch(world.deps) == 0
    world.sql("UPDATE artifact_jobs SET published_at = NULL, due_at = NULL WHERE published_at IS NOT NULL")
    assert dispatch.dispatch(world.deps) == 4


def test_one_host_cannot_fill_the_window(world: World) -> None:
    world.policy(window=10, window_per_host=2)
    jobs(world, 6, "busy.example", priority=1)
    jobs(world, 3, "calm.example")
    assert dispatch.dispatch(world.deps) == 4
    assert len(world.sql("SELECT 1 FROM artifact_jobs WHERE published_at > 0 AND host = 'calm.example'")) == 2


@pytest.mark.parametrize("error", [BrokerDown("down"), OSError("down"), ValueError("a fault of ours")])
def test_an_error_while_sending_puts_the_jobs_back(world: World, error: Exception) -> None:
    planned = jobs(world, 3)
    world.publisher.error = error
    with pytest.raises(type(error)):
        dispatch.dispatch(world.deps)
    assert {world.row(job).published_at for job in planned} == {None}
    world.publisher.error = None
    assert dispatch.dispatch(world.deps) == 3


def test_a_message_is_lost_only_when_the_broker_holds_fewer_than_wait(world: World) -> None:
    planned = jobs(world, 3)
    dispatch.dispatch(world.deps)
    for job in planned:
        world.age(job)
    assert dispatch.dispatch_lost(world.deps) == 0  # a long queue is no loss
    world.publisher.queue.pop()
    assert dispatch.dispatch_lost(world.deps) == 1
    world.publisher.queue.clear()
    assert dispatch.dispatch_lost(world.deps) == 2
    assert dispatch.dispatch_lost(world.deps) == 0  # sent again just now


def test_what_lies_in_one_queue_hides_no_loss_in_another(world: World) -> None:
    world.source.put("http://files.example/a", b"abc")
    placed = world.plan("http://files.example/a")
    dispatch.dispatch(world.deps)
    world.publisher.queue.clear()
    world.run_to("index", placed)
    world.age(placed)
    world.publisher.junk = {Queue.NET: 100}  # such as messages of torrents, or doubled ones
    assert dispatch.dispatch_lost(world.deps) == 1
    assert [row.name for row in world.publisher.queue[-1].stages] == ["index", "dedupe"]


def test_a_loss_in_one_queue_sends_nothing_again_that_lies_in_another(world: World) -> None:
    world.source.put("http://files.example/a", b"abc")
    placed = world.plan("http://files.example/a")
    dispatch.dispatch(world.deps)
    world.publisher.queue.clear()
    world.run_to("finalize", placed)
    fresh = jobs(world, 1)[0]
    dispatch.dispatch(world.deps)
    world.age(placed)
    world.age(fresh)  # it waits as long, and its message is there
    assert reconcile(world.deps, dry_run=True).lost_messages == 1
    assert dispatch.dispatch_lost(world.deps) == 1
    assert [hint.job_id for hint in world.publisher.queue] == [fresh, placed]
    assert dispatch.dispatch_lost(world.deps) == 0


def test_while_the_broker_cannot_tell_nothing_counts_as_lost(world: World) -> None:
    job = jobs(world, 1)[0]
    dispatch.dispatch(world.deps)
    world.publisher.queue.clear()
    world.age(job)
    world.publisher.tells = False
    assert dispatch.dispatch_lost(world.deps) == 0  # or messages could outgrow the jobs
    world.publisher.tells = True
    assert dispatch.dispatch_lost(world.deps) == 1


def test_a_job_that_somebody_works_on_has_lost_no_message(world: World) -> None:
    job = jobs(world, 1)[0]
    dispatch.dispatch(world.deps)
    world.publisher.queue.clear()
    world.leave_claimed("head", job)
    world.age(job)
    assert dispatch.dispatch_lost(world.deps) == 0


def test_a_chain_that_broke_off_goes_on_with_what_remains_of_its_run(world: World) -> None:
    url = world.source.put("http://files.example/a", b"abc")
    job = world.plan(url)
    dispatch.dispatch(world.deps)
    world.publisher.queue.clear()
    world.run_to("finalize", job)
    world.age(job)
    assert dispatch.dispatch_lost(world.deps) == 1
    hint = world.publisher.queue[-1]
    assert hint.run == 1
    assert [row.name for row in hint.stages][-3:] == ["finalize", "index", "dedupe"]
    assert "head" not in [row.name for row in hint.stages]
    world.drive()
    assert world.state(job) == "DEDUPED"
    assert len(world.source.asked) == 2


def test_an_error_while_sending_a_lost_message_again_loses_nothing(world: World) -> None:
    job = jobs(world, 1)[0]
    dispatch.dispatch(world.deps)
    world.publisher.queue.clear()
    world.age(job)
    world.publisher.error = BrokerDown("down")
    with pytest.raises(BrokerDown):
        dispatch.dispatch_lost(world.deps)
    world.publisher.error = None
    assert dispatch.dispatch(world.deps) == 1
