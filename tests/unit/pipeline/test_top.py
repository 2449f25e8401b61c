"""Looking again and again while what is asked goes away and comes back."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dlpipe.core.errors import LeaseUnavailable, LedgerUnavailable
from dlpipe.core.model import Scope
from dlpipe.core.ports import Queued
from dlpipe.core.top import LastRound, OriginState, Snapshot
from dlpipe.pipeline.top import AWAY_S, BROKER_EVERY_S, Watcher
from tests.world import World


class FakeWatch:
    """The port `Watch`; `away` is a Redis that does not answer."""

    away = False

    def origins(self, origins: Any) -> dict[str, OriginState]:
        return {origin: OriginState(open_s=3.0) for origin in self._answered(origins)}

    def put_round(self, found: Any) -> None: ...

    def last_round(self) -> LastRound | None:
        found: LastRound = self._answered(LastRound(1.0, {"dispatched": 4}))
        return found

    def _answered(self, answer: Any) -> Any:
        if self.away:
            raise LeaseUnavailable("Redis did not answer (ConnectionError)")
        return answer


class Broker:
    def __init__(self) -> None:
        self.depth: int | None = 7
        self.asked = 0

    def publish(self, hints: Any) -> None: ...

    def waiting(self, nodes: Collection[str] = ()) -> list[Queued] | None:
        self.asked += 1
        return None if self.depth is None else [Queued(frozenset({"head"}), 3), Queued(frozenset(), self.depth - 3)]


class Table:
    """A watcher, and all that can go away around it."""

    def __init__(self, world: World) -> None:
        self.world, self.watch, self.broker = world, FakeWatch(), Broker()
        self.watcher = Watcher(
            world.database, world.progress, self.watch, self.broker, world.deps.policy, Scope(), lambda: world.now
        )

    def look(self) -> Snapshot:
        return self.watcher.look()


@pytest.fixture
def table(world: World) -> Table:
    job = world.plan("http://files.example/a")
    world.leave_claimed("head", job)
    world.progress.report(job, 10, 100)
    world.plan("http://down.example/a")
    return Table(world)


def test_all_of_it_is_put_together(table: Table) -> None:
    seen = table.look()
    assert (seen.queued, seen.troubles, seen.reconcile) == (7, (), LastRound(1.0, {"dispatched": 4}))
    assert [(one.host, one.done_bytes, one.total_bytes) for one in seen.running] == [("files.example", 10, 100)]
    assert [(one.host, one.circuit_open_s) for one in seen.waiting] == [("down.example", 3.0)]


def test_without_redis_the_ledger_is_shown_and_what_is_missing_is_said(table: Table) -> None:
    table.watch.away = True
    seen = table.look()
    (trouble,) = seen.troubles
    assert "Redis did not answer" in trouble
    assert (len(seen.running), seen.reconcile, seen.running[0].done_bytes) == (1, None, None)
    table.watch.away = False
    assert table.look().troubles == ()


def test_where_nobody_works_neither_redis_nor_the_broker_is_asked_and_that_is_said(table: Table) -> None:
    table.watcher.idle = lambda: True
    table.watch.away = True
    seen = table.look()
    assert seen.troubles == ("nothing runs here: `dlpipe up` starts workers and a scheduler",)
    assert (len(seen.running), seen.queued, seen.window, table.broker.asked) == (1, None, 2_000, 0)


def test_without_the_database_what_was_seen_last_is_shown_as_such(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def gone() -> Iterator[Any]:
        raise LedgerUnavailable("the database did not answer (OperationalError)")
        yield

    fresh = Table(table.world)
    before = table.look()
    with monkeypatch.context() as away:
        away.setattr(table.world.database, "read", gone)
        seen = table.look()
        assert (seen.running, seen.at) == (before.running, before.at)
        assert seen.troubles == ("the database did not answer (OperationalError): what is shown is older",)
        never = fresh.look()
        assert (never.at, never.troubles) == (None, ("the database did not answer (OperationalError)",))
    assert table.look().troubles == ()


def test_the_broker_is_asked_now_and_then_and_left_alone_when_it_is_away(table: Table) -> None:
    table.look()
    table.look()
    assert table.broker.asked == 1
    table.world.now += BROKER_EVERY_S
    table.broker.depth = None
    (trouble,) = table.look().troubles
    assert ("broker" in trouble, table.broker.asked) == (True, 2)
    table.world.now += BROKER_EVERY_S
    assert (table.look().queued, table.broker.asked) == (None, 2)
    table.world.now += AWAY_S
    table.broker.depth = 1
    assert (table.look().queued, table.look().troubles, table.broker.asked) == (1, (), 3)
