"""Tries a request again within one call: connecting, timeouts, and the statuses that mean "later" (HUB-2).

Short waits are slept here; a longer one goes back to the ledger, where it costs no worker.
Time, chance and sleep are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import tenacity

from dlpipe.core import answers, retries
from dlpipe.core.errors import Retryable, StageFailure
from dlpipe.core.retries import RetryPolicy
from dlpipe.net import failures
from dlpipe.net.policy import NetPolicy
from dlpipe.net.wire import StaleConnection

STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
IDEMPOTENT = frozenset({"GET", "HEAD"})
_TRY_AGAIN = frozenset({"connect_failed", "connect_timeout", "dns_failed", "connection_lost", "read_timeout"})


class Reply(Protocol):
    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Any: ...
    def close(self) -> None: ...


R = TypeVar("R", bound=Reply)


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

    def call(self, method: str, host: str, send: Callable[[bool], R]) -> R:
        """Send until there is an answer to hand out. `send(True)` has to use a new connection.

        Raises the last failure when the tries are used up, and Postponed(`retry_after`) at once when
        the server asks for a longer wait than is slept here.
        """
        again = method in IDEMPOTENT
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: again and self._is_passing(method, error)),
            stop=self._is_enough,
            wait=self._wait_s,
            sleep=self._sleep,
            reraise=True,
        )
        reply: R = tries(self._once, host, send, again)
        return reply

    def _once(self, host: str, send: Callable[[bool], R], again: bool) -> R:
        try:
            reply = send(False)
        except StaleConnection as error:
            # The server closed an idle connection just as we used it: that is no failure of a try.
            if not again:
                raise failures.connection_lost(host) from error
            reply = self._afresh(host, send)
        if reply.status_code not in STATUSES:
            return reply
        asked = retries.retry_after_s(_single(reply.headers), self._now())
        reply.close()
        raise self._refusal(host, reply.status_code, asked)

    def _afresh(self, host: str, send: Callable[[bool], R]) -> R:
        try:
            return send(True)
        except StaleConnection as error:
            raise failures.connection_lost(host) from error

    def _refusal(self, host: str, status: int, asked: float | None) -> StageFailure:
        if asked is not None:
            asked = min(asked, self._policy.max_retry_after_s)
        if status in (429, 503) and asked is not None and asked > self._policy.max_retry_sleep_s:
            return failures.retry_after(host, asked)
        reject = answers.refuse_status(status)
        return Retryable(f"{host}: {reject.message}", code=reject.code, hint=reject.hint, after_s=asked)

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


def _single(headers: Any) -> str | None:
    """Retry-After when it came once; joined values would not be what the server said."""
    values = headers.get_list("retry-after")
    return str(values[0]) if len(values) == 1 else None
