"""What the state names of the torrent client mean to us: one map, complete for qBittorrent 4.1 to 5.3."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType


class Seen(Enum):
    """What a state name of the torrent client means to us."""

    DOWNLOADING = auto()
    """It is at work on the download, whether bytes come or not."""
    WAITING = auto()
    """It will be at work when its own queue allows."""
    COMPLETE = auto()
    """Everything wanted is on disk; what it does now (seeding, stopped) is not our concern."""
    STOPPED = auto()
    """Somebody stopped it before its end. It stays ours, and changes nothing."""
    BUSY = auto()
    """It checks or moves files; what it was before, it will say again afterwards."""
    ERROR = auto()
    MISSING_FILES = auto()
    UNKNOWN = auto()
    """Reported, and changes nothing."""


SEEN: Mapping[str, Seen] = MappingProxyType(
    {
        "downloading": Seen.DOWNLOADING,
        "forcedDL": Seen.DOWNLOADING,
        "metaDL": Seen.DOWNLOADING,
        "forcedMetaDL": Seen.DOWNLOADING,
        "stalledDL": Seen.DOWNLOADING,
        "queuedDL": Seen.WAITING,
        # Not said since 4.1, but still in its documentation.
        "allocating": Seen.WAITING,
        "uploading": Seen.COMPLETE,
        "forcedUP": Seen.COMPLETE,
        "queuedUP": Seen.COMPLETE,
        "stalledUP": Seen.COMPLETE,
        # `paused` up to 4.6, `stopped` since 5.0.
        "pausedUP": Seen.COMPLETE,
        "stoppedUP": Seen.COMPLETE,
        "pausedDL": Seen.STOPPED,
        "stoppedDL": Seen.STOPPED,
        "queuedForChecking": Seen.BUSY,
        "checkingDL": Seen.BUSY,
        "checkingUP": Seen.BUSY,
        "checkingResumeData": Seen.BUSY,
        "moving": Seen.BUSY,
        "error": Seen.ERROR,
        "missingFiles": Seen.MISSING_FILES,
        "unknown": Seen.UNKNOWN,
    }
)


def seen(state: str) -> Seen:
    return SEEN.get(state, Seen.UNKNOWN)
