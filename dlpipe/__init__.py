"""dlpipe: from "these URLs belong to these works" to verified, de-duplicated, registered files.

    from dlpipe import plan
    plan.delay(url="https://example.org/a.pdf", work_id="w1", artifact_id="a1")

Importing this package opens and starts nothing: `app`, `plan`, `plan_many` and
`start_download` are made when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlpipe.celery import app
    from dlpipe.tasks import plan, plan_many, start_download

__version__ = "0.1.0"
__all__ = ["__version__", "app", "plan", "plan_many", "start_download"]

_LAZY = {
    "app": "dlpipe.celery",
    "plan": "dlpipe.tasks",
    "plan_many": "dlpipe.tasks",
    "start_download": "dlpipe.tasks",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
