"""Tries a request again within one call: connecting, timeouts, and the statuses that mean "later" (HUB-2).

Short waits are slept here; a longer one goes back to the ledger, where it costs no worker.
Time, chance and sleep are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tenacity

from dlpipe.core import answers, retries
from dlpipe.core.errors import Postponed, Retryable
from dlpipe.core.retries import RetryPolicy
from dlpipe.net import failures
from dlpipe.net.layer import Ask, R, single
from dlpipe.net.policy import NetPolicy
from dlpipe.net.wire import DoubtfulAnswer, StaleConnection

STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
IDEMPOTENT = frozenset({"GET", "HEAD"})
_TRY_AGAIN = frozenset({"connect_failed", "connect_timeout", "dns_failed", "connection_lost", "read_timeout"})


class Retry:
    def __init__(
        self,
        policy: NetPolicy,
        *,
        sleep: Callable[[float], None],
        now_epoch_s: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._policy, self._sleep, self._now, self._chance = policy, sleep, now_epoch_s, chance
        self._bounds = RetryPolicy(
            max_attempts=policy.retries + 1,
            base_s=policy.backoff_base_s,
            cap_s=policy.max_retry_sleep_s,
            server_cap_s=policy.max_retry_after_s,
        )

    def call(self, ask: Ask, send: Callable[[Ask], R]) -> R:
        """Send until there is an answer to hand out.

        Raises the last failure when the tries are used up, and at once what a layer further in hands back.
        """
        again = ask.method in IDEMPOTENT
        last: Retryable | None = None

        def attempt() -> R:
            nonlocal last
            try:
                # What failed may have been the connection's fault.
                return self._once(replace(ask, afresh=ask.afresh or last is not None), send, again)
            except Retryable as error:
                last = error
                raise

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: again and self._is_passing(ask.method, error)),
            stop=self._is_enough,
            wait=self._wait_s,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            reply: R = tries(attempt)
        except Postponed as error:
            # A layer further in does not let us try again. But we have asked, and it failed: unless the server
            # said when to come back that costs the job an attempt, or jobs for a dead host would never end.
            if last is not None and last.after_s is None:
                raise last from error
            raise
        return reply

    def _once(self, ask: Ask, send: Callable[[Ask], R], again: bool) -> R:
        try:
            reply = send(ask)
        except StaleConnection as error:
            # The server closed an idle connection just as we used it: that is no failure of a try.
            if not again:
                raise failures.connection_lost(ask.host) from error
            reply = self._afresh(ask, send)
        except DoubtfulAnswer as doubt:
            reply = self._afresh(ask, send)
            if reply.status_code not in STATUSES:  # those decide nothing, nor between two answers
                doubt.compare(reply.status_code)
        if reply.status_code not in STATUSES:
            return reply
        asked = retries.retry_after_s(single(reply.headers, "retry-after"), self._now())
        reply.close()
        if asked is not None:
            asked = min(asked, self._policy.max_retry_after_s)
        reject = answers.refuse_status(reply.status_code)
        raise Retryable(f"{ask.host}: {reject.message}", code=reject.code, hint=reject.hint, after_s=asked)

    def _afresh(self, ask: Ask, send: Callable[[Ask], R]) -> R:
        try:
            return send(replace(ask, afresh=True))
        except StaleConnection as error:
            raise failures.connection_lost(ask.host) from error

    def _is_passing(self, method: str, error: BaseException) -> bool:
        if not isinstance(error, Retryable):
            return False
        if method == "HEAD" and error.code == "read_timeout":
            return False  # a server that hangs on HEAD does so each time, and GET can tell all of it
        return error.code in _TRY_AGAIN or error.code.startswith("http_")

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.after_s if isinstance(error, Retryable) else None
        return retries.next_delay_s(state.attempt_number - 1, self._chance(), asked, self._bounds)

    def _is_enough(self, state: tenacity.RetryCallState) -> bool:
        used_up = state.attempt_number > self._policy.retries
        return used_up or state.upcoming_sleep > self._policy.max_retry_sleep_s
