"""One file through the stages in a process of its own; prints what stream and finalize took, as JSON.

Run as `python -m ops.bench.ours URL [once]` with DLPIPE_HOME set; `once`: no connection is used twice. The ledger is
SQLite with synchronous=FULL, Redis the private one: the embedded default, without Celery between the stages.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Sequence

from dlpipe import wiring
from dlpipe.core import flow
from dlpipe.core.model import Scope
from dlpipe.core.ports import Hint
from dlpipe.pipeline import planner, runner
from ops.bench.marks import mark

MEASURED = ("stream", "finalize")


class _Nobody:
    """We carry out the stages ourselves, so messages go nowhere."""

    def publish(self, hints: Sequence[Hint]) -> None:
        pass

    def waiting(self, nodes: Collection[str] = ()) -> None:
        return None


def main(url: str, *how: str) -> None:
    redis = wiring.private_redis()
    if redis is None:
        sys.exit("DLPIPE_REDIS_URL and DLPIPE_BROKER_URL must not be set")
    redis.keep()
    try:
        if how == ("once",):
            mark(url)
        print(json.dumps(carried(url)))
    finally:
        redis.stop()


def carried(url: str) -> dict[str, object]:
    deps = wiring.deps(_Nobody)
    job = planner.plan(deps, {"url": url}).job_id
    took: dict[str, float] = {}
    for row in flow.STAGES:
        began = time.monotonic()
        outcome = runner.run(deps, row.name, job, 1)
        took[row.name] = time.monotonic() - began
        if not isinstance(outcome, runner.Done):
            sys.exit(f"{row.name}: {outcome}")
    with deps.database.read() as unit:
        measures = unit.owned(Scope()).measures_of(job) or {}
        (artifact,) = unit.owned(Scope()).artifacts_of(job)
    return {
        "sha256": artifact.sha256,
        "path": deps.store.path(artifact.storage_pointer),
        "seconds": sum(took[stage] for stage in MEASURED),
        "stages": took,
        "fsync_ms": measures.get("fsync_ms"),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
