"""The layer that keeps us polite: each host has a budget of requests and of answers at once (HUB-3).

A short wait for one's turn is slept here; a longer one hands the job back without costing it an attempt.
What a host says with Retry-After holds for all workers, and for that host alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dlpipe.core import retries
from dlpipe.core.errors import Postponed
from dlpipe.net import failures
from dlpipe.net.gate import Gate, LocalGate, Wait, Why
from dlpipe.net.layer import Ask, R, single
from dlpipe.net.limits import Bounds, HostLimits, plain
from dlpipe.net.line import Away
from dlpipe.net.policy import NetPolicy
from dlpipe.net.slots import Renewals

T = TypeVar("T")

COOLING_STATUSES = frozenset({429, 503})
_LOOK_AGAIN_S = 0.1
_SLOT_STEP_MS, _SLOT_CAP_MS, _RATE_CAP_MS = 250, 60_000, 300_000


@dataclass(frozen=True, slots=True)
class _Place:
    """What a request holds of a host, and where that is written down."""

    gate: Gate
    host: str
    token: str
    bounds: Bounds


class Limiter:
    def __init__(
        self,
        policy: NetPolicy,
        limits: HostLimits,
        shared: Gate | None,
        local: LocalGate,
        *,
        sleep: Callable[[float], None],
        now_epoch_s: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        """Without a `shared` gate, or while it is away, `local` keeps the limits for this process alone."""
        self._policy, self._limits = policy, limits
        self._gates: list[Gate] = [local] if shared is None else [shared, local]
        self._sleep, self._now, self._chance = sleep, now_epoch_s, chance
        self._ttl_ms = round(policy.slot_ttl_s * 1000)
        self._renewals = Renewals(policy.slot_ttl_s / 3, lambda held: self._each(lambda g: g.renew(held, self._ttl_ms)))

    def call(self, ask: Ask, send: Callable[[Ask], R]) -> R:
        """Send when it is our turn.

        Postponed(`host_busy`) when that is too far off, Postponed(`host_cooling_down`) when the host asked
        to be left alone for longer than is slept here.
        """
        place = self._enter(plain(ask.host))
        try:
            reply = send(ask)
            self._notice(place.host, reply)
        except BaseException:
            self._leave(place)
            raise
        if ask.method != "HEAD" and place.bounds.budget:  # of a HEAD nothing more comes: it leaves at once
            self._at(place.gate, lambda gate: gate.arrived(place.host, place.token))
        reply.on_close(lambda: self._leave(place))
        return reply

    def close(self) -> None:
        self._renewals.close()

    def _enter(self, host: str) -> _Place:
        bounds, token = self._limits.of(host), uuid.uuid4().hex
        left_s = self._policy.max_wait_s
        while True:
            gate, wait = self._first(lambda gate: gate.enter(host, bounds, token, self._ttl_ms))
            if wait is None:
                if bounds.slots:
                    self._renewals.add(host, token)
                return _Place(gate, host, token, bounds)
            if wait.seconds > left_s or left_s <= 0:
                raise self._postponed(host, bounds, wait)
            # Looked at again before the time: a request that arrives early makes room early.
            pause_s = min(wait.seconds or _LOOK_AGAIN_S, _LOOK_AGAIN_S) * (0.75 + 0.5 * self._chance())
            self._sleep(pause_s)
            left_s -= pause_s

    def _postponed(self, host: str, bounds: Bounds, wait: Wait) -> Postponed:
        """Jobs that wait for the same host are sent away for different times, or they would all meet again."""
        ms = round(wait.seconds * 1000)
        match wait.why:
            case Why.COOLING:
                return failures.host_cooling_down(host, wait.seconds + self._chance())
            case Why.RATE:
                step = max(1, bounds.window_ms // bounds.budget)
                _, ms = self._first(lambda gate: gate.later(host, ms, step, _RATE_CAP_MS))
            case Why.SLOTS:
                _, ms = self._first(lambda gate: gate.later(host, 1000, _SLOT_STEP_MS, _SLOT_CAP_MS))
        return failures.host_busy(host, ms / 1000 + self._chance())

    def _notice(self, host: str, reply: R) -> None:
        if reply.status_code not in COOLING_STATUSES:
            return
        asked = retries.retry_after_s(single(reply.headers, "retry-after"), self._now())
        if asked is not None and asked > 0:
            ms = round(min(asked, self._policy.max_retry_after_s) * 1000)
            self._each(lambda gate: gate.cool(host, ms))

    def _leave(self, place: _Place) -> None:
        self._renewals.remove(place.host, place.token)
        if place.bounds.limited:
            self._at(place.gate, lambda gate: gate.leave(place.host, place.token))

    def _first(self, ask: Callable[[Gate], T]) -> tuple[Gate, T]:
        """The answer of the first gate that is there; the local one always is."""
        for gate in self._gates[:-1]:
            try:
                return gate, ask(gate)
            except Away:
                continue
        return self._gates[-1], ask(self._gates[-1])

    def _each(self, tell: Callable[[Gate], None]) -> None:
        for gate in self._gates:
            self._at(gate, tell)

    def _at(self, gate: Gate, tell: Callable[[Gate], None]) -> None:
        try:
            tell(gate)
        except Away:
            return  # what was held there ends by itself
