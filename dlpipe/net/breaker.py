"""The layer that stops asking an origin which keeps failing, and lets one request at a time find out (HUB-4, HOST-2).

Closed: all pass; consecutive failures are counted. Open: nobody passes, and jobs are handed back without costing
an attempt. Half open, after some time: one probe among all workers passes, whose outcome closes or opens it again.
Of HEAD only a failure to connect counts: servers that cannot do HEAD serve GET all the same (HTTP.md, row 40).
A 503 counts once for each URL: one that is always busy says nothing of its origin (row 52).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from dlpipe.core.errors import Retryable
from dlpipe.net import failures
from dlpipe.net.layer import Ask, R
from dlpipe.net.line import Away, Line
from dlpipe.net.policy import NetPolicy

T = TypeVar("T")

BROKEN_STATUSES = frozenset({500, 502, 503, 504})
_UNREACHABLE = frozenset({"connect_failed", "connect_timeout", "dns_failed", "tls_failed"})
_BROKEN = _UNREACHABLE | {"read_timeout", "connection_lost"}
_PROBED_AGAIN_MS = 2_000
_FORGOTTEN_MS = 600_000
_KEPT = 1_000
_BELIEVED_S = 0.25
"""For so long a circuit that was closed is believed to be: what others find out meanwhile costs a few requests more."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Go ahead. `clean`: nothing is on record against the origin. `probe`: the verdict depends on you."""

    clean: bool = True
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Shut:
    """Nobody passes; look again after that time."""

    seconds: float


class Circuits(Protocol):
    """The circuit of each origin. Only the probe's outcome, told with its token, counts once it is open."""

    def enter(self, origin: str, token: str) -> Pass | Shut: ...
    def succeeded(self, origin: str, token: str) -> None: ...
    def failed(self, origin: str, token: str, url: str = "") -> None:
        """With a `url` it counts once for that URL, until there is a success; the same from a probe tells nothing."""

    def undecided(self, origin: str, token: str) -> None:
        """The probe told nothing: the next one may try."""


@dataclass(frozen=True, slots=True)
class BreakerBounds:
    failures: int
    """So many in a row open it."""
    open_ms: int
    probe_ms: int
    """A probe that is not heard of for so long is taken for dead."""

    @classmethod
    def of(cls, policy: NetPolicy) -> BreakerBounds:
        probe_s = policy.connect_s + policy.head_s + policy.max_wait_s
        return cls(policy.breaker_failures, round(policy.breaker_open_s * 1000), round(probe_s * 1000))


# One hash per origin: fails | until (open), probe and probe_until (half open); and the URLs that were busy.
_ENTER = """
local state = redis.call('HMGET', KEYS[1], 'fails', 'until', 'probe_until')
if not state[2] then return {'pass', state[1] or 0} end
local ends, probed = tonumber(state[2]), tonumber(state[3] or '0')
if ends > now then return {'shut', ends - now} end
if probed > now then return {'shut', math.min(probed - now, tonumber(ARGV[4]))} end
redis.call('HSET', KEYS[1], 'probe', ARGV[2], 'probe_until', string.format('%.0f', now + tonumber(ARGV[3])))
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[3]) + tonumber(ARGV[5]))
return {'probe', 0}
"""
_SUCCEEDED = """
local state = redis.call('HMGET', KEYS[1], 'until', 'probe')
if not state[1] or state[2] == ARGV[2] then redis.call('DEL', KEYS[1]) end
"""
_FAILED = """
local state = redis.call('HMGET', KEYS[1], 'until', 'probe')
if state[1] and state[2] ~= ARGV[2] then return end
if ARGV[6] ~= '' and redis.call('HSETNX', KEYS[1], 'url ' .. ARGV[6], 1) == 0 then
    redis.call('HDEL', KEYS[1], 'probe', 'probe_until')
    return
end
local kept = tonumber(ARGV[5])
if not state[1] and redis.call('HINCRBY', KEYS[1], 'fails', 1) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], kept)
    return
end
redis.call('HDEL', KEYS[1], 'fails', 'probe', 'probe_until')
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + tonumber(ARGV[4])))
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[4]) + kept)
"""
_UNDECIDED = """
if redis.call('HGET', KEYS[1], 'probe') == ARGV[2] then redis.call('HDEL', KEYS[1], 'probe', 'probe_until') end
"""


class SharedCircuits:
    """The port `Circuits` in Redis; every method may raise Away."""

    def __init__(self, line: Line, bounds: BreakerBounds) -> None:
        self._line, self._bounds = line, bounds

    def enter(self, origin: str, token: str) -> Pass | Shut:
        args = (token, self._bounds.probe_ms, _PROBED_AGAIN_MS, _FORGOTTEN_MS)
        word, number = self._line.run(_ENTER, (key(origin),), args)
        word = word.decode() if isinstance(word, bytes) else word
        if word == "shut":
            return Shut(int(number) / 1000)
        return Pass(clean=word == "pass" and int(number) == 0, probe=word == "probe")

    def succeeded(self, origin: str, token: str) -> None:
        self._line.run(_SUCCEEDED, (key(origin),), (token,))

    def failed(self, origin: str, token: str, url: str = "") -> None:
        args = (token, self._bounds.failures, self._bounds.open_ms, _FORGOTTEN_MS, url)
        self._line.run(_FAILED, (key(origin),), args)

    def undecided(self, origin: str, token: str) -> None:
        self._line.run(_UNDECIDED, (key(origin),), (token,))


def key(origin: str) -> str:
    return f"dlpipe:breaker:{{{origin}}}"


@dataclass
class _Circuit:
    fails: int = 0
    forgotten: float = 0.0
    until: float | None = None
    probe: str | None = None
    probe_until: float = 0.0
    urls: set[str] = field(default_factory=set)


class LocalCircuits:
    """The port `Circuits` in this process."""

    def __init__(self, bounds: BreakerBounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds, self.clock = bounds, clock
        self._origins: dict[str, _Circuit] = {}
        self._lock = threading.Lock()

    def enter(self, origin: str, token: str) -> Pass | Shut:
        with self._lock:
            now, at = self._look(origin)
            if at is None or at.until is None:
                return Pass(clean=at is None)
            if at.until > now:
                return Shut((at.until - now) / 1000)
            if at.probe is not None and at.probe_until > now:
                return Shut(min(at.probe_until - now, _PROBED_AGAIN_MS) / 1000)
            at.probe, at.probe_until = token, now + self._bounds.probe_ms
            at.forgotten = at.probe_until + _FORGOTTEN_MS
            return Pass(clean=False, probe=True)

    def succeeded(self, origin: str, token: str) -> None:
        with self._lock:
            _, at = self._look(origin)
            if at is not None and (at.until is None or at.probe == token):
                del self._origins[origin]

    def failed(self, origin: str, token: str, url: str = "") -> None:
        with self._lock:
            now, at = self._look(origin)
            at = at or self._new(origin, now)
            if at.until is not None and at.probe != token:
                return
            if url in at.urls:
                at.probe = None
                return
            if url:
                at.urls.add(url)
            at.fails += 1
            at.forgotten = now + _FORGOTTEN_MS
            if at.until is not None or at.fails >= self._bounds.failures:
                at.until, at.probe = now + self._bounds.open_ms, None
                at.forgotten = at.until + _FORGOTTEN_MS

    def undecided(self, origin: str, token: str) -> None:
        with self._lock:
            _, at = self._look(origin)
            if at is not None and at.probe == token:
                at.probe = None

    def _new(self, origin: str, now: float) -> _Circuit:
        if len(self._origins) >= _KEPT:
            self._origins = {name: one for name, one in self._origins.items() if one.forgotten > now}
        return self._origins.setdefault(origin, _Circuit())

    def _look(self, origin: str) -> tuple[float, _Circuit | None]:
        now = self.clock() * 1000
        at = self._origins.get(origin)
        if at is not None and at.forgotten <= now:
            del self._origins[origin]
            at = None
        return now, at


class Breaker:
    def __init__(
        self,
        policy: NetPolicy,
        shared: Circuits | None,
        local: LocalCircuits,
        *,
        chance: Callable[[], float],
    ) -> None:
        """Without `shared` circuits, or while they are away, `local` keeps them for this process alone."""
        self._policy, self._shared, self._local, self._chance = policy, shared, local, chance
        self._closed: dict[str, float] = {}
        """Until when the circuits of these origins are believed to be closed."""

    def call(self, ask: Ask, send: Callable[[Ask], R]) -> R:
        """Send unless the origin's circuit is open; then Postponed(`host_circuit_open`)."""
        if self._policy.breaker_failures == 0:
            return send(ask)
        origin, token = ask.origin, uuid.uuid4().hex
        state = self._enter(origin, token)
        if isinstance(state, Shut):
            # Not all at once: only one of them will be the probe.
            raise failures.host_circuit_open(origin, state.seconds + self._chance() * self._policy.breaker_open_s / 4)
        try:
            reply = send(ask)
        except Retryable as error:
            if error.code in (_UNREACHABLE if ask.method == "HEAD" else _BROKEN):
                self._failed(origin, token)
            elif state.probe:
                self._tell(lambda circuits: circuits.undecided(origin, token))
            raise
        except BaseException:
            if state.probe:
                self._tell(lambda circuits: circuits.undecided(origin, token))
            raise
        if reply.status_code not in BROKEN_STATUSES:
            if state.probe or not state.clean:
                self._tell(lambda circuits: circuits.succeeded(origin, token))
        elif ask.method != "HEAD":
            self._failed(origin, token, ask.url if reply.status_code == 503 else "")
        elif state.probe:
            self._tell(lambda circuits: circuits.undecided(origin, token))
        return reply

    def _enter(self, origin: str, token: str) -> Pass | Shut:
        now = self._local.clock()
        if now < self._closed.get(origin, now):
            return Pass()
        state = self._tell(lambda circuits: circuits.enter(origin, token))
        if state == Pass():
            if len(self._closed) >= _KEPT:
                self._closed = {}
            self._closed[origin] = now + _BELIEVED_S
        return state

    def _failed(self, origin: str, token: str, url: str = "") -> None:
        self._closed.pop(origin, None)
        self._tell(lambda circuits: circuits.failed(origin, token, url))

    def _tell(self, what: Callable[[Circuits], T]) -> T:
        if self._shared is not None:
            try:
                return what(self._shared)
            except Away:
                pass
        return what(self._local)
