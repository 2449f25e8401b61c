"""What owners may want of their jobs, and which jobs they mean."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dlpipe.core.states import Status


class Wish(StrEnum):
    """What an owner may want of many jobs at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    REFRESH = "refresh"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant; what is None lets all through."""

    status: Status | None = None
    code: str | None = None
    host: str | None = None
    work_id: str | None = None
    job_type: str | None = None
    paused: bool | None = None
    ended: bool | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs have one thing in common, and the newest of them as an example."""

    value: str | None
    jobs: int
    job_id: str
    error_code: str | None
    error_message_safe: str | None
    error_debug_id: str | None
