"""What layers are given in their tests: the head of an answer, and a way further in that a test scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from dlpipe.net.layer import Ask

Outcome = int | tuple[int, dict[str, str]] | BaseException


class Answer:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, httpx.Headers(headers)
        self._at_close: list[Callable[[], None]] = []

    def on_close(self, action: Callable[[], None]) -> None:
        self._at_close.append(action)

    def close(self) -> None:
        actions, self._at_close = self._at_close, []
        for action in actions:
            action()


@dataclass
class Inner:
    """Answers with the next of its outcomes, the last one from then on, and notes what it was asked."""

    outcomes: list[Outcome] = field(default_factory=lambda: [200])
    asked: list[Ask] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def __call__(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        self.meanwhile()
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        status, headers = outcome if isinstance(outcome, tuple) else (outcome, {})
        return Answer(status, headers)
