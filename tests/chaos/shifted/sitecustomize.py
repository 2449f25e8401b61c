"""On the path of workers whose clock libfaketime shifts, and imported by Python before anything else.

libfaketime 0.9.10 takes the moment up to which `time.sleep` waits, on the monotonic clock, for one of the clock that
it shifts, and hands the kernel nonsense. Waiting by select has no moment to mistake.
"""

import select
import time


def _sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = _sleep  # type: ignore[assignment]
