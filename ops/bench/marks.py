"""An origin of which no connection is used twice, as if it had sent bytes behind an answer: what reuse is worth."""

from __future__ import annotations

import os

from dlpipe import wiring
from dlpipe.core.urls import origin_of
from dlpipe.net.reuse import ReuseMarks

KEPT_S = 3_600.0


def mark(url: str) -> None:
    """For all workers of the stack that the settings of this process name."""
    marks = ReuseMarks(wiring.host_line(wiring.settings(), os.getpid()), KEPT_S)
    marks.mark(origin_of(url), "the bench compares")
