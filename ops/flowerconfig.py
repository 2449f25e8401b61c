"""Flower's settings: `celery -A dlpipe flower --conf=/srv/dlpipe/flowerconfig.py`.

Nobody sees anything without a name and a password from the file that FLOWER_USERS_FILE names, one USER:PASSWORD a
line. Without that file Flower does not start: a monitor that is open by mistake is worse than none.
"""

import os
from pathlib import Path
from typing import Any

from flower.views import monitor
from tornado.web import authenticated

_HIDDEN = "(not shown)"


def _users() -> list[str]:
    named = os.environ.get("FLOWER_USERS_FILE")
    if not named:
        raise SystemExit("error: FLOWER_USERS_FILE has to name a file of USER:PASSWORD lines, or Flower would be open")
    lines = [line for line in Path(named).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines or not all(all(line.partition(":")[::2]) for line in lines):
        raise SystemExit(f"error: {named} has to hold USER:PASSWORD lines and nothing else")
    return lines


def _without_addresses(task: Any) -> Any:
    """Planning by name carries the address to fetch, perhaps a signed one; all other messages carry ids."""
    if task.name == "dlpipe.plan":
        task.args = task.kwargs = _HIDDEN
    return task


basic_auth = _users()
# Looking is what it is for: jobs are canceled and retried with dlpipe, which writes down who asked for what.
read_only = True
format_task = _without_addresses
max_tasks = 10_000
natural_time = False
purge_offline_workers = 86_400

# Flower leaves its own metrics open even where everything else asks who is there. They name workers and tasks.
monitor.Metrics.get = authenticated(monitor.Metrics.get)
