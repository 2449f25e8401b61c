"""Malformed messages are counted each, and logged by kind now and then, with nothing of what they hold."""

from __future__ import annotations

import logging

import pytest

from dlpipe import wiring
from dlpipe.core.events import Event, MessageDropped
from dlpipe.core.messages import Fault
from dlpipe.inbox.drops import LINE_EVERY_S, Drops


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(wiring, "telemetry", lambda: told)
    return told


def test_drops_are_counted_each_and_logged_once_for_each_kind(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    drops = Drops(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            drops.add(Fault.TEXT)
        drops.add(Fault.BODY)
        assert [line.getMessage().split(":")[1].strip() for line in caplog.records] == [Fault.TEXT, Fault.BODY]
        now[0] = LINE_EVERY_S
        drops.add(Fault.TEXT)
    assert "5 " in caplog.messages[-1], "those of which nothing was said"
    assert len(caplog.records) == 3
    assert told.events == [MessageDropped("", fault) for fault in [Fault.TEXT] * 5 + [Fault.BODY, Fault.TEXT]]
