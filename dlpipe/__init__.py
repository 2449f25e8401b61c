"""dlpipe: from "these URLs belong to these works" to verified, de-duplicated, registered files.

    from dlpipe import plan
    plan.delay(url="https://example.org/a.pdf", work_id="w1", artifact_id="a1")

Importing this package opens and starts nothing: all names are made when first used (docs/client.md).
"""

from __future__ import annotations

TYPE_CHECKING = False  # the import of `typing` alone would be a third of what a handed-over command takes (ADR 40)
if TYPE_CHECKING:
    from typing import Any

    from dlpipe.celery import app
    from dlpipe.client import (
        Artifact,
        Count,
        Job,
        Op,
        Purged,
        Told,
        Why,
        cancel_job,
        cancel_jobs,
        count_jobs,
        explain_job,
        export,
        get_artifact,
        get_job,
        get_purged_job,
        job_id_for,
        link_artifact,
        list_artifacts,
        list_jobs,
        list_ops,
        open_artifact,
        pause_job,
        pause_jobs,
        refresh_job,
        refresh_jobs,
        replay_job,
        replay_jobs,
        resume_job,
        resume_jobs,
        retry_job,
        retry_jobs,
    )
    from dlpipe.tasks import plan, plan_many, start_download

__version__ = "0.1.0"
__all__ = [
    "Artifact",
    "Count",
    "Job",
    "Op",
    "Purged",
    "Told",
    "Why",
    "__version__",
    "app",
    "cancel_job",
    "cancel_jobs",
    "count_jobs",
    "explain_job",
    "export",
    "get_artifact",
    "get_job",
    "get_purged_job",
    "job_id_for",
    "link_artifact",
    "list_artifacts",
    "list_jobs",
    "list_ops",
    "open_artifact",
    "pause_job",
    "pause_jobs",
    "plan",
    "plan_many",
    "refresh_job",
    "refresh_jobs",
    "replay_job",
    "replay_jobs",
    "resume_job",
    "resume_jobs",
    "retry_job",
    "retry_jobs",
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
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
