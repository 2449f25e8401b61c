"""The logical clock that commands and events carry."""

from __future__ import annotations

from typing import Any

from kombu.clocks import LamportClock

_MAX = 2**62


class Clock(LamportClock):
    """Set by a message to a number of 4,300 digits it could never be sent again, and no event with it."""

    def adjust(self, other: Any) -> int:
        fits = isinstance(other, int) and 0 <= other < _MAX
        return int(super().adjust(other if fits else 0))
