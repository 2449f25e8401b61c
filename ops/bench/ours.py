"""One file through the stages in a process of its own; prints what stream and finalize took, as JSON.

Run as `python -m ops.bench.ours URL` with DLPIPE_HOME set. The ledger is SQLite with synchronous=FULL, Redis the
private one: the embedded default as users run it, without Celery between the stages.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from dlpipe import wiring
from dlpipe.core.model import Scope
from dlpipe.pipeline import planner, runner

MEASURED = ("stream", "finalize")


class _Nobody:
    """We carry out the stages ourselves, so messages go nowhere."""

    def publish(self, hints: object) -> None:
        pass

    def waiting(self) -> int | None:
        return None


def main(url: str) -> None:
    redis = wiring.private_redis()
    if redis is not None:
        redis.keep()
    deps = wiring.deps(_Nobody)
    job = planner.plan(deps, {"url": url}).job_id
    took: dict[str, float] = {}
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for stage in ("head", "resume_decide", "stream", "finalize", "index", "dedupe"):
        began = time.monotonic()
        outcome = runner.run(deps, stage, job, 1)
        took[stage] = time.monotonic() - began
        if not isinstance(outcome, runner.Done):
            sys.exit(f"{stage}: {outcome}")
    with deps.database.read() as unit:
        measures = unit.owned(Scope()).measures_of(job) or {}
        (artifact,) = unit.owned(Scope()).artifacts_of(job)
    print(
        json.dumps(
            {
                "sha256": artifact.sha256,
                "path": deps.store.path(artifact.storage_pointer),
                "seconds": sum(took[stage] for stage in MEASURED),
                "stages": took,
                "fsync_ms": measures.get("fsync_ms"),
                "grown_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle,
            }
        )
    )
    if redis is not None:
        redis.stop()


if __name__ == "__main__":
    main(sys.argv[1])
