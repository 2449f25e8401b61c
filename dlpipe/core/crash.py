"""Named places at which the crash suite may end the process; nothing happens unless a test arms one."""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def arm(hook: Callable[[str], None] | None) -> None:
    """Call `hook(name)` at every crash point from now on; None disarms."""
    global _hook  # noqa: PLW0603 - one switch per process, as the process is what crashes
    _hook = hook


def crash_point(name: str) -> None:
    if _hook is not None:
        _hook(name)
