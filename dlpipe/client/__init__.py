"""What other programs ask of dlpipe, beside `plan` and `plan_many`: jobs, artifacts and wishes by their ids.

It stands above the tasks, since a wish that was granted is sent to the workers at once, and below the command line,
which is one of its users. Nothing here names a place in the store; whoever may read an artifact opens it.
"""

from dlpipe.client.artifacts import (
    Artifact,
    export,
    get_artifact,
    link_artifact,
    list_artifacts,
    open_artifact,
)
from dlpipe.client.jobs import (
    count_jobs,
    explain_job,
    get_job,
    get_purged_job,
    job_id_for,
    list_jobs,
    list_ops,
)
from dlpipe.client.wishes import (
    cancel_job,
    cancel_jobs,
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
from dlpipe.core.model import JobView as Job
from dlpipe.core.model import OpView as Op
from dlpipe.core.purging import Tombstone as Purged
from dlpipe.core.telemetry import Told
from dlpipe.core.why import Why
from dlpipe.core.wishes import Tally as Count

__all__ = [
    "Artifact",
    "Count",
    "Job",
    "Op",
    "Purged",
    "Told",
    "Why",
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
    "refresh_job",
    "refresh_jobs",
    "replay_job",
    "replay_jobs",
    "resume_job",
    "resume_jobs",
    "retry_job",
    "retry_jobs",
]
