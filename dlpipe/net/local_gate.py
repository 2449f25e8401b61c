"""The port `Gate` in this process alone: what the limits are kept by without Redis, and while it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlpipe.net.gate import ARRIVES_MS, KEPT_MS, MEANT, TOGETHER_MS, Go, Pause, Target, Wait, Why
from dlpipe.net.limits import Bounds


@dataclass
class _Waits:
    """One wait after the other, until there is an answer: each at least twice as long as the one before."""

    ends: float = 0.0
    ms: float = 0.0

    def lengthen(self, now: float, pause: Pause) -> float:
        if self.ends + self.ms + KEPT_MS <= now:
            self.ms = 0.0  # so long ago that it is forgotten
        last = self.ms if self.ends > now else 2 * self.ms
        self.ms = min(pause.most_ms, max(pause.asked_ms, pause.first_ms, last))
        self.ends = max(self.ends, now + self.ms)
        return self.ends - now


@dataclass
class _Origin:
    rate: dict[str, float] = field(default_factory=dict)
    slots: dict[str, float] = field(default_factory=dict)
    cool: _Waits = field(default_factory=_Waits)
    waits: dict[tuple[str, str], _Waits] = field(default_factory=dict)
    streaks: dict[str, dict[str, float]] = field(default_factory=dict)
    """The URLs that were busy, and when; of HEAD and of GET."""
    turn: float = 0.0
    used: float = 0.0


class LocalGate:
    _KEPT = 1000
    _KEPT_MS = 60_000.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._origins: dict[str, _Origin] = {}
        self._lock = threading.Lock()

    def enter(self, origin: str, bounds: Bounds, token: str, ttl_ms: int, target: Target) -> Go | Wait:
        with self._lock:
            now = self._now()
            at = self._at(origin, now)
            mine = at.waits.get((target.streaks[0], target.url), _NONE)
            for why, waits in ((Why.COOLING, at.cool), (Why.BUSY, mine)):
                if waits.ends > now:
                    return Wait(why, (waits.ends - now) / 1000)
            at.slots = {one: ends for one, ends in at.slots.items() if ends > now}
            at.rate = {one: when for one, when in at.rate.items() if when >= now - bounds.window_ms}
            if bounds.slots and token not in at.slots and len(at.slots) >= bounds.slots:
                return Wait(Why.SLOTS, 0.0)
            if bounds.budget and token not in at.rate and len(at.rate) >= bounds.budget:
                first = sorted(at.rate.values())[len(at.rate) - bounds.budget]
                return Wait(Why.RATE, (first + bounds.window_ms + 1 - now) / 1000)
            if bounds.budget:
                at.rate[token] = now + ARRIVES_MS
            if bounds.slots:
                at.slots[token] = now + ttl_ms
            speaks = target.method != "HEAD" and at.cool.ms > 0
            return Go(mine.ms > 0 or speaks or any(at.streaks.get(name) for name in target.streaks))

    def arrived(self, origin: str, token: str) -> None:
        with self._lock:
            now = self._now()
            at = self._at(origin, now)
            if at.rate.get(token, now) > now:
                at.rate[token] = now

    def leave(self, origin: str, token: str) -> None:
        self.arrived(origin, token)
        with self._lock:
            self._at(origin, self._now()).slots.pop(token, None)

    def renew(self, held: Sequence[tuple[str, str]], ttl_ms: int) -> None:
        with self._lock:
            now = self._now()
            for origin, token in held:
                self._at(origin, now).slots[token] = now + ttl_ms

    def busy(self, origin: str, target: Target, pause: Pause) -> Wait:
        with self._lock:
            now = self._now()
            at = self._at(origin, now)
            name = target.streaks[0]
            streak = {url: when for url, when in at.streaks.get(name, {}).items() if when > now - TOGETHER_MS}
            at.streaks[name] = {**streak, target.url: now}
            if len(at.streaks[name]) >= MEANT:
                del at.streaks[name]
                return Wait(Why.COOLING, at.cool.lengthen(now, pause) / 1000)
            if len(at.waits) >= self._KEPT:
                at.waits = {of: one for of, one in at.waits.items() if one.ends > now}
            mine = at.waits.setdefault((name, target.url), _Waits())
            return Wait(Why.BUSY, mine.lengthen(now, pause) / 1000)

    def answered(self, origin: str, target: Target) -> None:
        with self._lock:
            at = self._at(origin, self._now())
            at.waits.pop((target.streaks[0], target.url), None)
            for name in target.streaks:
                at.streaks.pop(name, None)
            if target.method != "HEAD":
                at.cool.ms = 0.0  # what was asked for lasts, and the next one begins at the first again

    def later(self, origin: str, wait_ms: int, step_ms: int, cap_ms: int) -> int:
        with self._lock:
            now = self._now()
            at = self._at(origin, now)
            turn = max(max(at.turn, now) + step_ms, now + wait_ms)
            at.turn = min(turn, now + max(wait_ms, cap_ms))
            return round(at.turn - now)

    def _now(self) -> float:
        return self._clock() * 1000

    def _at(self, origin: str, now: float) -> _Origin:
        if len(self._origins) >= self._KEPT and origin not in self._origins:
            self._origins = {name: one for name, one in self._origins.items() if self._is_needed(one, now)}
        at = self._origins.setdefault(origin, _Origin())
        at.used = now
        return at

    def _is_needed(self, one: _Origin, now: float) -> bool:
        ends = (*one.slots.values(), *(each.ends for each in (one.cool, *one.waits.values())))
        return one.used > now - self._KEPT_MS or any(end > now for end in ends)


_NONE = _Waits()
