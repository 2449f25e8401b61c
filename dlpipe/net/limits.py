"""How much may be asked of each origin of a host: the default, and what a file says of some (HUB-3, HOST-2, STREAM-4).

    [hosts."slow.example.org"]
    rate_per_s = 0.5
    slots = 1
    sniff = false               # whatever comes is taken for what was expected

    [hosts."*.example.org"]     # every host below it, not itself; the longest pattern counts
    rate_per_s = 5

What an entry leaves out is as by default; 0 is no limit.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlpipe.core.errors import Misconfigured

_MAX_SLOTS = 10_000
_MIN_RATE = 0.001


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one origin, over all workers together."""

    rate_per_s: float = 0.0
    slots: int = 0
    """Requests whose answers are on their way at once."""
    sniff: bool = True
    """Are the first bytes of its files looked at?"""

    @property
    def limited(self) -> bool:
        return self.rate_per_s > 0 or self.slots > 0

    @property
    def budget(self) -> int:
        """So many requests in any `window_ms`; 0 for any number. Fractions of a request are not given."""
        return 0 if self.rate_per_s <= 0 else max(1, math.floor(self.rate_per_s))

    @property
    def window_ms(self) -> int:
        return 1000 if self.rate_per_s <= 0 or self.rate_per_s >= 1 else math.ceil(1000 / self.rate_per_s)


@dataclass(frozen=True, slots=True)
class HostLimits:
    default: Bounds = Bounds()
    hosts: Mapping[str, Bounds] = field(default_factory=dict)

    def of(self, host: str) -> Bounds:
        name = plain(host)
        if name in self.hosts:
            return self.hosts[name]
        rest = name
        while "." in rest:
            rest = rest.partition(".")[2]
            if f"*.{rest}" in self.hosts:
                return self.hosts[f"*.{rest}"]
        return self.default


def plain(host: str) -> str:
    """One spelling per host: a closing dot must not open a second account."""
    return host.lower().rstrip(".")


def read(file: Path | None, default: Bounds) -> HostLimits:
    """The limits that a file gives beside the default; Misconfigured says what is wrong in it."""
    if file is None:
        return HostLimits(default)
    try:
        with file.open("rb") as stream:
            tree = tomllib.load(stream)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise _wrong(file, f"it cannot be read ({type(error).__name__})") from None
    hosts = tree.pop("hosts", {})
    if tree or not isinstance(hosts, dict):
        raise _wrong(file, 'only tables [hosts."name"] are expected')
    return HostLimits(default, {plain(name): _bounds(file, name, entry, default) for name, entry in hosts.items()})


def _bounds(file: Path, name: str, entry: Any, default: Bounds) -> Bounds:
    if not isinstance(entry, dict) or not entry.keys() <= {"rate_per_s", "slots", "sniff"}:
        raise _wrong(file, f"{name}: only rate_per_s, slots and sniff can be set")
    if "*" in name.removeprefix("*.") or not name.removeprefix("*."):
        raise _wrong(file, f"{name}: a pattern is a host's name, or *. and a name")
    rate, slots = entry.get("rate_per_s", default.rate_per_s), entry.get("slots", default.slots)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not (rate == 0 or _MIN_RATE <= rate < math.inf):
        raise _wrong(file, f"{name}: rate_per_s must be 0 or a number from {_MIN_RATE}")
    if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= _MAX_SLOTS:
        raise _wrong(file, f"{name}: slots must be a whole number, 0 to {_MAX_SLOTS}")
    sniff = entry.get("sniff", default.sniff)
    if not isinstance(sniff, bool):
        raise _wrong(file, f"{name}: sniff must be true or false")
    return replace(default, rate_per_s=float(rate), slots=slots, sniff=sniff)


def _wrong(file: Path, what: str) -> Misconfigured:
    return Misconfigured(
        f"{file}: {what}", code="limits_invalid", hint="Correct the file, or unset DLPIPE_NET_LIMITS_FILE."
    )
