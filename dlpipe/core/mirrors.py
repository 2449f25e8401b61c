"""Several URLs for the same bytes: which to ask first, and when to go on to the next. Pure; PLAN-5."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dlpipe.core.errors import Permanent, Postponed, StageFailure

_NOT_THE_SERVERS = frozenset({"blocked_offline", "no_space", "part_busy", "quota_exceeded", "too_large"})


def order(request_url: str, mirrors: Sequence[str], held_of: str | None) -> tuple[str, ...]:
    """The URLs in the order to ask them: first the one that the held bytes came from, for they fit to it best."""
    urls = tuple(dict.fromkeys((request_url, *mirrors)))
    return tuple(sorted(urls, key=lambda url: not is_from((url,), held_of)))


def is_from(urls: Sequence[str], held_of: str | None) -> bool:
    """Did the held bytes come from one of these? Bytes that came over a redirect are nobody's."""
    return held_of in {hashlib.sha256(url.encode()).hexdigest() for url in urls}


def may_help(failure: StageFailure) -> bool:
    """May another server do better? Not when the fault is on our side, or the file itself is unwanted."""
    if isinstance(failure, Permanent) and failure.code == "quota_exceeded":
        return True  # the length that no volume could hold was this server's word
    return failure.code not in _NOT_THE_SERVERS and not failure.code.startswith("store_")


def outcome(failures: Sequence[StageFailure]) -> StageFailure:
    """What the run comes to when no URL gave the file: as long as one of them may yet, it is not over."""
    hopeful = [one for one in failures if not isinstance(one, Permanent)]
    waiting = [one for one in hopeful if isinstance(one, Postponed)]
    # An attempt is used up only if nobody merely asked us to wait.
    return (waiting or hopeful or list(failures))[0]
