"""An origin of which no connection is used twice, as if it had sent bytes behind an answer: what reuse is worth."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from dlpipe import wiring
from dlpipe.net.reuse import ReuseMarks

KEPT_S = 3_600.0


def mark(url: str) -> None:
    """For all workers of the stack that the settings of this process name."""
    at = urlsplit(url)
    marks = ReuseMarks(wiring.host_line(wiring.settings(), os.getpid()), KEPT_S)
    marks.mark((at.scheme, str(at.hostname), at.port or 80), "the bench compares")
