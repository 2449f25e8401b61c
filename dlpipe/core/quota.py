"""Whether a volume has room for what a download has yet to bring. A pure decision; STREAM-7.

`free − reserved − need × margin ≥ floor`, where only bytes that do not take room yet are needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlpipe.core.errors import Permanent, Postponed

QUOTA_AGAIN_S = 60.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    floor_bytes: int = 0
    margin: float = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """A volume as it is now, and what a part takes of it already, be it written or set aside."""

    volume: str
    free: int
    taken: int = 0
    size: int = 1 << 62
    """What it could hold if nothing else were on it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The figures, in bytes, and what they came to."""

    admitted: bool
    free: int
    reserved: int
    need: int
    margin: float
    floor: int

    def refusal(self, *, anew: bool = False) -> Postponed:
        """`anew`: there was room for all of it, and others have taken it since."""
        missing = self.floor + math.ceil(self.need * self.margin) + self.reserved - self.free
        return Postponed(
            f"the store's volume has too little room: {_mib(self.free)} free, {_mib(self.reserved)} promised to "
            f"downloads that are running, {_mib(self.need)} needed, {_mib(self.floor)} to be left",
            code="quota_exceeded",
            after_s=QUOTA_AGAIN_S,
            hint=f"Free {_mib(missing)}, or lower quota.floor_bytes; the job goes on by itself.",
            anew=anew,
        )


def headroom(free: int, need: int, margin: float, floor: int) -> int:
    """How much may be promised to others for this one still to fit; below 0 it does not fit at all."""
    return free - math.ceil(need * margin) - floor


def admit(free: int, reserved: int, need: int, margin: float, floor: int) -> Decision:
    """Decide. What needs nothing new is never refused: to stop it would free nothing."""
    fits = need <= 0 or reserved <= headroom(free, need, margin, floor)
    return Decision(fits, free, reserved, need, margin, floor)


def never_fits(room: Room, need: int, policy: QuotaPolicy) -> bool:
    """Would it have too little room with nothing else on the volume, and nothing running?

    A floor that is as large as the volume keeps out every file: then it is the setting that is to be mended.
    """
    return (
        need > 0
        and policy.floor_bytes < room.size
        and headroom(room.size - room.taken, need, policy.margin, policy.floor_bytes) < 0
    )


def too_large_for(room: Room, need: int, policy: QuotaPolicy) -> Permanent:
    takes, holds = math.ceil(need * policy.margin) + room.taken, max(0, room.size - policy.floor_bytes)
    return Permanent(
        f"the store's volume could never hold the file: it would take {_mib(takes)} or more, and with nothing else on "
        f"it the volume has {_mib(holds)} for downloads",
        code="quota_exceeded",
        hint="Put store.root on a larger volume, or lower quota.floor_bytes and quota.margin; then dlpipe retry.",
    )


def need(total: int | None, taken: int, ahead: int) -> int:
    """The bytes that have yet to take room; of a file whose end is unknown, those until the next look."""
    return ahead if total is None else max(0, total - taken)


def _mib(size: int) -> str:
    return f"{math.ceil(size / _MIB)} MiB"
