"""Promised room in a dict, by a clock that the test moves."""

from __future__ import annotations

import threading


class FakeReservations:
    """The port `Reservations`."""

    def __init__(self, ttl_s: float = 120.0) -> None:
        self.now = 0.0
        self._ttl_s = ttl_s
        self._held: dict[tuple[str, str], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def reserve(self, volume: str, job_id: str, size: int, at_most: int) -> int:
        with self._lock:
            self._held = {key: held for key, held in self._held.items() if held[1] > self.now}
            others = sum(held[0] for key, held in self._held.items() if key[0] == volume and key[1] != job_id)
            if others <= at_most:
                self._held[volume, job_id] = (size, self.now + self._ttl_s)
            return others

    def release(self, volume: str, job_id: str) -> None:
        with self._lock:
            self._held.pop((volume, job_id), None)

    # ── what a test does ──

    @property
    def held(self) -> dict[str, int]:
        return {job: size for (_, job), (size, _) in self._held.items()}
