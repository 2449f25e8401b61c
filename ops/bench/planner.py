"""Plans for a stack that runs elsewhere: a line of URLs, or of how many to make up, in; a line of how it went out.

Run as `python -m ops.bench.planner` with the settings of that stack.
"""

from __future__ import annotations

import time
from typing import Any

from dlpipe.core.states import Status
from dlpipe.pipeline import planner
from dlpipe.tasks import deps
from ops.bench.marks import mark
from ops.bench.processes import answer_lines

POLL_S = 0.02
LONGEST_S = 600.0
_ENDED = (Status.COMPLETED, Status.SKIPPED, Status.FAILED, Status.CANCELED)


class Planner:
    def __init__(self) -> None:
        self._deps = deps()
        self._planned = 0
        self._counts()

    def carry(self, message: dict[str, Any]) -> dict[str, Any]:
        """Plan these URLs, and wait until all that was ever planned is at an end."""
        began = time.monotonic()
        summary = planner.plan_many(self._deps, ({"url": url} for url in message["urls"]))
        self._planned += summary.created
        counts = self._counts()
        while sum(counts[status] for status in _ENDED) < self._planned and time.monotonic() - began < LONGEST_S:
            time.sleep(POLL_S)
            counts = self._counts()
        took = time.monotonic() - began
        return {
            "seconds": took,
            "planned": self._planned,
            "refused": summary.refused_count,
            "completed": counts[Status.COMPLETED],
            "counts": {status.value: count for status, count in counts.items()},
        }

    def plan(self, count: int) -> dict[str, Any]:
        """Plan so many made-up files, and wait for nobody."""
        began = time.monotonic()
        summary = planner.plan_many(
            self._deps,
            ({"url": f"https://h{n % 97}.example.org/files/{n}.pdf", "work_id": f"work-{n}"} for n in range(count)),
        )
        took = time.monotonic() - began
        return {"seconds": took, "created": summary.created, "refused": summary.refused_count}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if "mark" in message:
            mark(message["mark"])
            return {}
        return self.plan(message["plan"]) if "plan" in message else self.carry(message)

    def _counts(self) -> dict[Status, int]:
        with self._deps.database.read() as unit:
            found = unit.jobs.counts()
        return {status: found.get(status, 0) for status in Status}


if __name__ == "__main__":
    ready = Planner()
    print("{}", flush=True)
    answer_lines(ready.answer)
