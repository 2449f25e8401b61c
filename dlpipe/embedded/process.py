"""Tells one process from a later one with the same pid."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STARTTIME = 19  # field 22 of /proc/PID/stat, counted from the state, which is field 3


def birth(pid: int) -> str | None:
    """A mark of when the process began, for comparing only; None when there is no living process."""
    if pid <= 0:
        return None
    if not sys.platform.startswith("linux"):
        ask = ["ps", "-o", "lstart=", "-p", str(pid)]
        shown = subprocess.run(ask, capture_output=True, text=True, check=False)
        return shown.stdout.strip() or None
    try:
        # The name, field 2, may hold spaces and brackets: count from the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = _BOOT.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZXx" and not _has_other_threads(pid):
        return None
    return f"{boot}:{fields[_STARTTIME]}"


def _has_other_threads(pid: int) -> bool:
    # A process whose first thread has ended looks dead, and is not before its last one has.
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False
