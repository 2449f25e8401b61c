"""Keeps the leases of this process alive.

One daemon thread per process renews all of them. It never takes a lease, and never brings a lost one back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dlpipe.lease.held import Clock, HeldLease, Rounds, boot_clock

log = logging.getLogger(__name__)

Extend = Callable[[Sequence[tuple[str, str]]], Sequence[bool | None]]
"""Extend the locks of (job id, token). True: extended; False: ours no more; None or an error: unknown."""
Mirror = Callable[[Sequence[tuple[str, int]], float], set[str]]
"""Renew the leases in the rows of (job id, fence) for so long; answer the job ids that are ours no more."""

RETRY_S = 1.0
"""Pause after a renewal of which nobody knows whether it succeeded."""


class Heartbeat(Rounds):
    """Renews every `renew_s` what was added and not yet removed."""

    def __init__(
        self, extend: Extend, mirror: Mirror | None, ttl_s: float, renew_s: float, clock: Clock = boot_clock
    ) -> None:
        self._extend = extend
        self._mirror = mirror
        self._ttl_s = ttl_s
        self._clock = clock
        super().__init__("dlpipe-heartbeat", renew_s, min(RETRY_S, renew_s))

    def give_up_all(self) -> None:
        for lease in self.held():
            lease.give_up()

    def go_round(self) -> bool:
        return self.beat()

    def beat(self) -> bool:
        """Renew each lease once; False when it is not known of all whether that succeeded."""
        held = [lease for lease in self.held() if not lease.is_lost()]
        if not held:
            return True
        # Taken before the request goes out: Redis counts from later on, so our end is not after its own.
        asked = self._clock()
        answers = self._extend_locks(held)
        ours = []
        for lease, answer in zip(held, answers, strict=True):
            if answer:
                ours.append(lease)
            elif answer is not None:
                self._lose(lease, "it ran out, or somebody else has it")
        claims = {lease.token: (lease.job_id, fence) for lease in ours if (fence := lease.fence) is not None}
        foreign = self._renew_rows(list(claims.values()))
        for lease in ours:
            if lease.token not in claims:
                lease.renewed(asked)
            elif foreign is not None and lease.job_id in foreign and lease.fence == claims[lease.token][1]:
                self._lose(lease, "its fence was overtaken")
            elif foreign is not None:
                lease.renewed(asked)
        return None not in answers and foreign is not None

    def _extend_locks(self, held: list[HeldLease]) -> Sequence[bool | None]:
        try:
            return self._extend([(lease.job_id, lease.token) for lease in held])
        except Exception as error:
            log.warning("%d leases could not be renewed: %s", len(held), type(error).__name__)
            return [None] * len(held)

    def _renew_rows(self, claims: list[tuple[str, int]]) -> set[str] | None:
        """The job ids whose row is no longer ours; None when the database did not answer."""
        if self._mirror is None or not claims:
            return set()
        try:
            return set(self._mirror(claims, self._ttl_s))
        except Exception as error:
            log.warning("%d mirrored leases could not be renewed: %s", len(claims), type(error).__name__)
            return None

    def _lose(self, lease: HeldLease, reason: str) -> None:
        lease.lose(reason)
        if self.holds(lease):  # else it was released meanwhile, which is no news
            log.warning("the lease of job %s is lost: %s", lease.job_id, reason)
