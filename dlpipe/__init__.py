"""dlpipe: from "these URLs belong to these works" to verified, de-duplicated, registered files.

    from dlpipe import plan
    plan.delay(url="https://example.org/a.pdf", work_id="w1", artifact_id="a1")

Importing this package opens and starts nothing: all names are made when first used (docs/client.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlpipe.celery import app
    from dlpipe.client import (
        Artifact,
        Count,
        Job,
        Op,
        Told,
        Why,
        cancel_job,
        count_jobs,
        explain_job,
        export,
        get_artifact,
        get_job,
        job_id_for,
        link_artifact,
        list_artifacts,
        list_jobs,
        list_ops,
        open_artifact,
        pause_job,
        refresh_job,
        replay_job,
        resume_job,
        retry_job,
    )
    from dlpipe.tasks import plan, plan_many, start_download

__version__ = "0.1.0"
__all__ = [
    "Artifact",
    "Count",
    "Job",
    "Op",
    "Told",
    "Why",
    "__version__",
    "app",
    "cancel_job",
    "count_jobs",
    "explain_job",
    "export",
    "get_artifact",
    "get_job",
    "job_id_for",
    "link_artifact",
    "list_artifacts",
    "list_jobs",
    "list_ops",
    "open_artifact",
    "pause_job",
    "plan",
    "plan_many",
    "refresh_job",
    "replay_job",
    "resume_job",
    "retry_job",
    "start_download",
]

_LAZY = dict.fromkeys(__all__, "dlpipe.client") | {
    "app": "dlpipe.celery",
    "plan": "dlpipe.tasks",
    "plan_many": "dlpipe.tasks",
    "start_download": "dlpipe.tasks",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
