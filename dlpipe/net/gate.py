"""When an origin may be asked: requests in a moving window, slots for answers on their way, and waits (HUB-3, HOST-2).

Kept in Redis for all workers together, or in this process alone while Redis is away (`net.local_gate`); the same
rules in both.

A busy answer (429, 503) makes its URL wait, longer each time, and the origin goes on (HOST-3, HTTP.md row 52). Only
when several URLs are busy one after the other, with no answer between, the origin is meant and cools down (ADR 44).
HEAD and GET of a URL wait for themselves: some servers refuse the one and serve the other (row 40).

A request counts from the moment it is let through until one window after *it was certainly with the server*:
what is let through is delayed on its way by threads, name look-ups and hand-shakes, and two bursts that were a
second apart here could meet there. So the server itself never sees more than the budget in any window (ADR 11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dlpipe.net.limits import Bounds
from dlpipe.net.line import Line

ARRIVES_MS = 1000
"""A request that nobody has reported as arrived counts as arriving this late."""


MEANT = 3
"""So many URLs of an origin that are busy one after the other, with no answer between, mean the origin."""
TOGETHER_MS = 60_000
"""Busy answers further apart than this do not count together."""
KEPT_MS = 600_000
"""For so long behind its end, and as long again as it was, a wait is remembered: the next one is longer."""


class Why(StrEnum):
    RATE = "rate"
    SLOTS = "slots"
    COOLING = "cooling"
    """The origin is left alone."""
    BUSY = "busy"
    """This URL is, and no other."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of an origin."""

    method: str
    url: str

    @property
    def streaks(self) -> tuple[str, ...]:
        """The rows of busy answers that an answer ends, its own first. One to HEAD says nothing of GET."""
        return ("HEAD",) if self.method == "HEAD" else ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Pause:
    """How long a busy answer asks for, how long the first wait is at least, and any at most."""

    asked_ms: int
    first_ms: int
    most_ms: int


@dataclass(frozen=True, slots=True)
class Go:
    """Go ahead. `noted`: busy answers are on record, so another answer is to be told (`answered`)."""

    noted: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now. `seconds` is an estimate, and 0 where none can be made."""

    why: Why
    seconds: float


class Gate(Protocol):
    """Calls of one origin by one token; a call repeated changes nothing."""

    def enter(self, origin: str, bounds: Bounds, token: str, ttl_ms: int, target: Target) -> Go | Wait:
        """Take a place in the window and a slot, or neither."""

    def arrived(self, origin: str, token: str) -> None:
        """The server has the request: from now on it is one of the past."""

    def leave(self, origin: str, token: str) -> None:
        """The answer is over; the request has arrived, or never will."""

    def renew(self, held: Sequence[tuple[str, str]], ttl_ms: int) -> None:
        """These (origin, token) go on holding their slots, also where they were forgotten."""

    def busy(self, origin: str, target: Target, pause: Pause) -> Wait:
        """The answer was 429 or 503: who waits for it, and how long from now on.

        A wait that comes behind another, with no answer between, is at least twice as long. While one lasts, the
        longest that was asked for counts.
        """

    def answered(self, origin: str, target: Target) -> None:
        """The answer was another one: the URL's waits, and those of the origin, begin at the first again."""

    def later(self, origin: str, wait_ms: int, step_ms: int, cap_ms: int) -> int:
        """When to come again, in ms: those who are sent away are told times `step_ms` apart."""


# KEYS: rate, slots, the wait of the origin, that of the URL, and what else busy answers have left.
ENTER = """
local rate, slots = KEYS[1], KEYS[2]
local budget, window, arrives = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, ttl, token = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
for n, name in ipairs({'cooling', 'busy'}) do
    local ends = tonumber(redis.call('HGET', KEYS[n + 2], 'until') or '0')
    if ends > now then return {name, ends - now} end
end
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
return {'go', redis.call('EXISTS', unpack(KEYS, 4))}
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
# KEYS: the wait of the URL, the wait of the origin, the URLs of it that were busy and when.
_BUSY = """
local asked, first, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local meant, together, kept = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
redis.call('ZADD', KEYS[3], now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - together)
redis.call('PEXPIRE', KEYS[3], together)
local name, key = 'busy', KEYS[1]
if redis.call('ZCARD', KEYS[3]) >= meant then
    name, key = 'cooling', KEYS[2]
    redis.call('DEL', KEYS[3])
end
local had = redis.call('HMGET', key, 'until', 'wait')
local ends, last = tonumber(had[1] or '0'), tonumber(had[2] or '0')
if ends <= now then last = last * 2 end
local wait = math.min(most, math.max(asked, first, last))
ends = math.max(ends, now + wait)
redis.call('HSET', key, 'until', string.format('%.0f', ends), 'wait', string.format('%.0f', wait))
redis.call('PEXPIRE', key, math.ceil(ends - now + wait + kept))
return {name, ends - now}
"""
# KEYS: the wait of the URL, that of the origin, and the streaks; only GET (ARGV[2]) speaks for the origin.
_ANSWERED = """
redis.call('DEL', KEYS[1], unpack(KEYS, 3))
if ARGV[2] == '1' then
    if tonumber(redis.call('HGET', KEYS[2], 'until') or '0') <= now then redis.call('DEL', KEYS[2])
    else redis.call('HDEL', KEYS[2], 'wait') end
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

    def enter(self, origin: str, bounds: Bounds, token: str, ttl_ms: int, target: Target) -> Go | Wait:
        keys = (key("rate", origin), key("slots", origin), key("cool", origin), *_on_record(origin, target))
        args = (bounds.budget, bounds.window_ms, ARRIVES_MS, bounds.slots, ttl_ms, token)
        word, number = self._line.run(ENTER, keys, args)
        word = word.decode() if isinstance(word, bytes) else word
        return Go(int(number) > 0) if word == "go" else Wait(Why(word), int(number) / 1000)

    def arrived(self, origin: str, token: str) -> None:
        self._line.run(_ARRIVED, (key("rate", origin),), (token,))

    def leave(self, origin: str, token: str) -> None:
        self._line.run(_LEAVE, (key("rate", origin), key("slots", origin)), (token,))

    def renew(self, held: Sequence[tuple[str, str]], ttl_ms: int) -> None:
        for origin in {origin for origin, _ in held}:
            tokens = [token for at, token in held if at == origin]
            self._line.run(_RENEW, (key("slots", origin),), (ttl_ms, *tokens))

    def busy(self, origin: str, target: Target, pause: Pause) -> Wait:
        keys = (_wait_key(origin, target), key("cool", origin), _streak_key(origin, target.streaks[0]))
        args = (target.url, pause.asked_ms, pause.first_ms, pause.most_ms, MEANT, TOGETHER_MS, KEPT_MS)
        word, wait_ms = self._line.run(_BUSY, keys, args)
        return Wait(Why(word.decode() if isinstance(word, bytes) else word), int(wait_ms) / 1000)

    def answered(self, origin: str, target: Target) -> None:
        streaks = (_streak_key(origin, name) for name in target.streaks)
        keys = (_wait_key(origin, target), key("cool", origin), *streaks)
        self._line.run(_ANSWERED, keys, (int(target.method != "HEAD"),))

    def later(self, origin: str, wait_ms: int, step_ms: int, cap_ms: int) -> int:
        return int(self._line.run(_LATER, (key("turn", origin),), (wait_ms, step_ms, cap_ms)))


def key(kind: str, origin: str) -> str:
    # The braces keep all keys of an origin on one node of a cluster, as a script needs them.
    return f"dlpipe:{kind}:{{{origin}}}"


def _wait_key(origin: str, target: Target) -> str:
    return f"{key('wait', origin)}:{target.streaks[0]}:{target.url}"


def _streak_key(origin: str, name: str) -> str:
    return f"{key('streak', origin)}:{name}"


def _on_record(origin: str, target: Target) -> tuple[str, ...]:
    """Where busy answers are that another answer takes off the record; the URL's wait first."""
    streaks = tuple(_streak_key(origin, name) for name in target.streaks)
    cool = () if target.method == "HEAD" else (key("cool", origin),)
    return (_wait_key(origin, target), *cool, *streaks)
