"""Who may ask a host now: requests in a moving window, slots for answers on their way, and cool-downs (HUB-3).

Kept in Redis for all workers together, or in this process alone while Redis is away; the same rules in both.

A request counts from the moment it is let through until one window after *it was certainly with the server*:
what is let through is delayed on its way by threads, name look-ups and hand-shakes, and two bursts that were a
second apart here could meet there. So the server itself never sees more than the budget in any window (ADR 11).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dlpipe.net.limits import Bounds
from dlpipe.net.line import Line

ARRIVES_MS = 1000
"""A request that nobody has reported as arrived counts as arriving this late."""


class Why(StrEnum):
    RATE = "rate"
    SLOTS = "slots"
    COOLING = "cooling"


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now. `seconds` is an estimate, and 0 where none can be made."""

    why: Why
    seconds: float


class Gate(Protocol):
    """Calls of one host by one token; a call repeated changes nothing."""

    def enter(self, host: str, bounds: Bounds, token: str, ttl_ms: int) -> Wait | None:
        """Take a place in the window and a slot, or neither. None: go ahead."""

    def arrived(self, host: str, token: str) -> None:
        """The server has the request: from now on it is one of the past."""

    def leave(self, host: str, token: str) -> None:
        """The answer is over; the request has arrived, or never will."""

    def renew(self, held: Sequence[tuple[str, str]], ttl_ms: int) -> None:
        """These (host, token) go on holding their slots, also where they were forgotten."""

    def cool(self, host: str, ms: int) -> None:
        """The host asked to be left alone; the longest such wish counts."""

    def later(self, host: str, wait_ms: int, step_ms: int, cap_ms: int) -> int:
        """When to come again, in ms: those who are sent away are told times `step_ms` apart."""


ENTER = """
local rate, slots, cool = KEYS[1], KEYS[2], KEYS[3]
local budget, window, arrives = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, ttl, token = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local until_ms = tonumber(redis.call('GET', cool) or '0')
if until_ms > now then return {'cooling', until_ms - now} end
redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
redis.call('ZREMRANGEBYSCORE', rate, '-inf', now - window - 1)
local has_slot = limit == 0 or redis.call('ZSCORE', slots, token)
local has_place = budget == 0 or redis.call('ZSCORE', rate, token)
if not has_slot and redis.call('ZCARD', slots) >= limit then return {'slots', 0} end
if not has_place then
    local over = redis.call('ZCARD', rate) - budget
    if over >= 0 then
        local first = redis.call('ZRANGE', rate, over, over, 'WITHSCORES')
        return {'rate', tonumber(first[2]) + window + 1 - now}
    end
end
if budget > 0 then
    redis.call('ZADD', rate, now + arrives, token)
    redis.call('PEXPIRE', rate, window + arrives + 1000)
end
if limit > 0 then
    redis.call('ZADD', slots, now + ttl, token)
    redis.call('PEXPIRE', slots, ttl + 1000)
end
return {'go', 0}
"""
_ARRIVED = """
local score = redis.call('ZSCORE', KEYS[1], ARGV[2])
if score and tonumber(score) > now then redis.call('ZADD', KEYS[1], now, ARGV[2]) end
"""
_LEAVE = _ARRIVED + "redis.call('ZREM', KEYS[2], ARGV[2])"
_RENEW = """
local ttl = tonumber(ARGV[2])
for i = 3, #ARGV do redis.call('ZADD', KEYS[1], now + ttl, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ttl + 1000)
"""
_COOL = """
local ends = now + tonumber(ARGV[2])
if ends > tonumber(redis.call('GET', KEYS[1]) or '0') then
    redis.call('SET', KEYS[1], string.format('%.0f', ends), 'PX', ARGV[2])
end
"""
_LATER = """
local wait, step, cap = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
local at = math.max(math.max(last, now) + step, now + wait)
at = math.min(at, now + math.max(wait, cap))
redis.call('SET', KEYS[1], string.format('%.0f', at), 'PX', math.max(1, at - now))
return at - now
"""


class SharedGate:
    """The port `Gate` in Redis, one script a call; every method may raise Away."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def enter(self, host: str, bounds: Bounds, token: str, ttl_ms: int) -> Wait | None:
        keys = (key("rate", host), key("slots", host), key("cool", host))
        args = (bounds.budget, bounds.window_ms, ARRIVES_MS, bounds.slots, ttl_ms, token)
        word, wait_ms = self._line.run(ENTER, keys, args)
        word = word.decode() if isinstance(word, bytes) else word
        return None if word == "go" else Wait(Why(word), int(wait_ms) / 1000)

    def arrived(self, host: str, token: str) -> None:
        self._line.run(_ARRIVED, (key("rate", host),), (token,))

    def leave(self, host: str, token: str) -> None:
        self._line.run(_LEAVE, (key("rate", host), key("slots", host)), (token,))

    def renew(self, held: Sequence[tuple[str, str]], ttl_ms: int) -> None:
        for host in {host for host, _ in held}:
            tokens = [token for at, token in held if at == host]
            self._line.run(_RENEW, (key("slots", host),), (ttl_ms, *tokens))

    def cool(self, host: str, ms: int) -> None:
        self._line.run(_COOL, (key("cool", host),), (ms,))

    def later(self, host: str, wait_ms: int, step_ms: int, cap_ms: int) -> int:
        return int(self._line.run(_LATER, (key("turn", host),), (wait_ms, step_ms, cap_ms)))


def key(kind: str, host: str) -> str:
    # The braces keep all keys of a host on one node of a cluster, as a script needs them.
    return f"dlpipe:{kind}:{{{host}}}"


@dataclass
class _Host:
    rate: dict[str, float] = field(default_factory=dict)
    slots: dict[str, float] = field(default_factory=dict)
    cool: float = 0.0
    turn: float = 0.0
    used: float = 0.0


class LocalGate:
    """The port `Gate` in this process."""

    _KEPT = 1000
    _KEPT_MS = 60_000.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        self._lock = threading.Lock()

    def enter(self, host: str, bounds: Bounds, token: str, ttl_ms: int) -> Wait | None:
        with self._lock:
            now = self._now()
            at = self._at(host, now)
            if at.cool > now:
                return Wait(Why.COOLING, (at.cool - now) / 1000)
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
            return None

    def arrived(self, host: str, token: str) -> None:
        with self._lock:
            now = self._now()
            at = self._at(host, now)
            if at.rate.get(token, now) > now:
                at.rate[token] = now

    def leave(self, host: str, token: str) -> None:
        self.arrived(host, token)
        with self._lock:
            self._at(host, self._now()).slots.pop(token, None)

    def renew(self, held: Sequence[tuple[str, str]], ttl_ms: int) -> None:
        with self._lock:
            now = self._now()
            for host, token in held:
                self._at(host, now).slots[token] = now + ttl_ms

    def cool(self, host: str, ms: int) -> None:
        with self._lock:
            now = self._now()
            at = self._at(host, now)
            at.cool = max(at.cool, now + ms)

    def later(self, host: str, wait_ms: int, step_ms: int, cap_ms: int) -> int:
        with self._lock:
            now = self._now()
            at = self._at(host, now)
            turn = max(max(at.turn, now) + step_ms, now + wait_ms)
            at.turn = min(turn, now + max(wait_ms, cap_ms))
            return round(at.turn - now)

    def _now(self) -> float:
        return self._clock() * 1000

    def _at(self, host: str, now: float) -> _Host:
        if len(self._hosts) >= self._KEPT and host not in self._hosts:
            self._hosts = {name: one for name, one in self._hosts.items() if self._is_needed(one, now)}
        at = self._hosts.setdefault(host, _Host())
        at.used = now
        return at

    def _is_needed(self, one: _Host, now: float) -> bool:
        return one.used > now - self._KEPT_MS or one.cool > now or any(ends > now for ends in one.slots.values())
