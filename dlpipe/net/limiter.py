"""The layer that keeps us polite: each origin has a budget of requests and of answers at once (HUB-3, HOST-2).

A short wait for one's turn is slept here; a longer one hands the job back without costing it an attempt.
A busy answer (429, 503) makes its URL wait, for all workers; the origin only when several URLs are busy (HOST-3).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from dlpipe.core import retries
from dlpipe.core.errors import Postponed
from dlpipe.net import failures
from dlpipe.net.gate import Gate, Pause, Target, Wait, Why
from dlpipe.net.layer import Ask, R, single
from dlpipe.net.limits import Bounds, HostLimits
from dlpipe.net.line import Away
from dlpipe.net.local_gate import LocalGate
from dlpipe.net.policy import NetPolicy
from dlpipe.net.slots import Renewals

T = TypeVar("T")

BUSY_STATUSES = frozenset({429, 503})
_LOOK_AGAIN_S = 0.1
_PATIENT_MS = 1000
_SLOT_STEP_MS, _SLOT_CAP_MS, _RATE_CAP_MS, _FREE_STEP_MS = 250, 60_000, 300_000, 10


@dataclass(frozen=True, slots=True)
class _Place:
    """What a request holds of an origin, and where that is written down."""

    gate: Gate
    origin: str
    token: str
    bounds: Bounds
    target: Target
    noted: bool


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

        Postponed(`host_busy`) when that is too far off, Postponed(`retry_after`) when this URL is to be asked later
        than is slept here, and Postponed(`host_cooling_down`) when the origin is.
        """
        place = self._enter(ask)
        if place.bounds.window_ms > _PATIENT_MS:
            # A second request at once, for an answer on a reused connection that is doubted, would not have its turn.
            ask = replace(ask, afresh=True)
        try:
            reply = send(ask)
            self._notice(place, reply)
        except BaseException:
            self._leave(place)
            raise
        if ask.method != "HEAD" and place.bounds.budget:  # of a HEAD nothing more comes: it leaves at once
            self._at(place.gate, lambda gate: gate.arrived(place.origin, place.token))
        reply.on_close(lambda: self._leave(place))
        return reply

    def close(self) -> None:
        self._renewals.close()

    def _enter(self, ask: Ask) -> _Place:
        origin, target = ask.origin, Target(ask.method, ask.url)
        bounds, token = self._limits.of(ask.host), uuid.uuid4().hex
        left_s = self._policy.max_wait_s
        while True:
            gate, found = self._first(lambda gate: gate.enter(origin, bounds, token, self._ttl_ms, target))
            if not isinstance(found, Wait):
                if bounds.slots:
                    self._renewals.add(origin, token)
                return _Place(gate, origin, token, bounds, target, found.noted)
            if found.seconds > left_s or left_s <= 0:
                raise self._postponed(origin, bounds, found)
            # Looked at again before the time: a request that arrives early makes room early.
            pause_s = min(found.seconds or _LOOK_AGAIN_S, _LOOK_AGAIN_S) * (0.75 + 0.5 * self._chance())
            self._sleep(pause_s)
            left_s -= pause_s

    def _postponed(self, origin: str, bounds: Bounds, wait: Wait) -> Postponed:
        """Jobs that wait for the same origin are sent away for different times, or they would all meet again."""
        ms = round(wait.seconds * 1000)
        step = max(1, bounds.window_ms // bounds.budget) if bounds.budget else _FREE_STEP_MS
        match wait.why:
            case Why.BUSY:
                return failures.retry_after(origin, wait.seconds + self._chance())
            case Why.COOLING:
                ms = self._turn(origin, ms, step, ms + _RATE_CAP_MS)
                return failures.host_cooling_down(origin, ms / 1000 + self._chance())
            case Why.RATE:
                ms = self._turn(origin, ms, step, _RATE_CAP_MS)
            case Why.SLOTS:
                ms = self._turn(origin, 1000, _SLOT_STEP_MS, _SLOT_CAP_MS)
        return failures.host_busy(origin, ms / 1000 + self._chance())

    def _turn(self, origin: str, wait_ms: int, step_ms: int, cap_ms: int) -> int:
        return self._first(lambda gate: gate.later(origin, wait_ms, step_ms, cap_ms))[1]

    def _notice(self, place: _Place, reply: R) -> None:
        """Put down what the answer says of the times to come; a long wait hands the job back."""
        status, target = reply.status_code, place.target
        if status not in BUSY_STATUSES:
            if status < 500:  # a server that fails has not answered
                self._each(lambda gate: gate.answered(place.origin, target), local_only=not place.noted)
            return
        asked_s = retries.retry_after_s(single(reply.headers, "retry-after"), self._now())
        is_long = asked_s is not None and asked_s > self._policy.max_retry_sleep_s
        if target.method == "HEAD" and status == 503 and not is_long:
            return  # HEAD is a hint: GET is asked next, and must not wait for that (row 40)
        pause = Pause(
            round(min(asked_s or 0.0, self._policy.max_retry_after_s) * 1000),
            round(self._policy.backoff_base_s * 1000 * (0.5 + self._chance())),
            round(self._policy.max_retry_after_s * 1000),
        )
        wait = self._each(lambda gate: gate.busy(place.origin, target, pause))
        if asked_s is not None and wait.seconds > self._policy.max_retry_sleep_s:
            reply.close()
            raise self._postponed(place.origin, place.bounds, wait)

    def _leave(self, place: _Place) -> None:
        self._renewals.remove(place.origin, place.token)
        if place.bounds.limited:
            self._at(place.gate, lambda gate: gate.leave(place.origin, place.token))

    def _first(self, ask: Callable[[Gate], T]) -> tuple[Gate, T]:
        """The answer of the first gate that is there; the local one always is."""
        for gate in self._gates[:-1]:
            try:
                return gate, ask(gate)
            except Away:
                continue
        return self._gates[-1], ask(self._gates[-1])

    def _each(self, tell: Callable[[Gate], T], *, local_only: bool = False) -> T:
        """Tell all gates that are there, and answer what the first of them says."""
        said: list[T] = []
        for gate in self._gates[-1:] if local_only else self._gates:
            with suppress(Away):
                said.append(tell(gate))
        return said[0]

    def _at(self, gate: Gate, tell: Callable[[Gate], None]) -> None:
        try:
            tell(gate)
        except Away:
            return  # what was held there ends by itself
