"""The table of all metrics: its name, what it is counted by, and what it means. The docs list the same (a test).

No label is a host, a tenant, a job or a URL: every one comes from a closed set in the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dlpipe.core import flow
from dlpipe.core.results import DedupeAction


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric. `shown` are label values that stand in the page from the start, at 0."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    shown: tuple[tuple[str, ...], ...] = ()

    @property
    def title(self) -> str:
        """The name that a query uses; of a histogram, what stands before `_bucket`, `_sum` and `_count`."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


_C, _G = Kind.COUNTER, Kind.GAUGE
_STAGES = tuple((row.name,) for row in flow.STAGES)
_DECISIONS = tuple((one,) for one in ("fresh", "resume", "complete", "discard"))
_ACTIONS = tuple((str(one),) for one in DedupeAction)

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0)

EVENTS: tuple[Series, ...] = (
    Series("dlpipe_stages_recorded", _C, "ops that were recorded, each once", ("stage",), _STAGES),
    Series("dlpipe_stages_replayed", _C, "stages that were answered from the ledger", ("stage",), _STAGES),
    Series("dlpipe_stage_seconds", Kind.HISTOGRAM, "from a stage's claim to its record", ("stage",), _STAGES),
    Series("dlpipe_failures", _C, "failures on record: `retried`, `postponed` or `for_good`", ("code", "then")),
    Series("dlpipe_messages_dropped", _C, "messages that came to nothing, and why", ("reason",)),
    Series("dlpipe_lease_losses", _C, "work that was given up as its lease or fence was lost", ("stage",), _STAGES),
    Series("dlpipe_received_bytes", _C, "new bytes that recorded streams wrote", (), ((),)),
    Series("dlpipe_resumed_bytes", _C, "held bytes that recorded streams went on from", (), ((),)),
    Series("dlpipe_resume_decisions", _C, "what was decided about held bytes", ("decision",), _DECISIONS),
    Series("dlpipe_dedupe_actions", _C, "what became of equal bytes", ("action",), _ACTIONS),
    Series("dlpipe_dedupe_saved_bytes", _C, "bytes of files that share another file's", (), ((),)),
    Series("dlpipe_hints_sent", _C, "messages that dispatch sent", (), ((),)),
    Series("dlpipe_reconcile_rounds", _C, "rounds of reconcile that were not dry", (), ((),)),
    Series("dlpipe_reconcile_findings", _C, "what reconcile found, by the counts of its report", ("kind",)),
)
"""What happened in the processes of one worker since it was started."""

LEDGER: tuple[Series, ...] = (
    Series("dlpipe_jobs", _G, "jobs in the ledger", ("job_type", "status")),
    Series("dlpipe_dead_letters", _G, "jobs that failed for good", ("code",)),
    Series("dlpipe_artifacts", _G, "registered artifacts"),
    Series("dlpipe_artifact_bytes", _G, "their sizes added up; bytes that files share count each time"),
    Series("dlpipe_artifacts_faulty", _G, "artifacts whose file is known to be missing or damaged"),
    Series("dlpipe_jobs_due", _G, "jobs whose message may be sent now: the depth of dispatch"),
    Series("dlpipe_jobs_due_later", _G, "jobs that wait for a retry, their turn, or a not-before time"),
    Series("dlpipe_jobs_oldest_due_seconds", _G, "for how long the job that waits longest has been due"),
    Series("dlpipe_jobs_in_flight", _G, "jobs that are held, or have a message outstanding"),
    Series("dlpipe_jobs_sent", _G, "of those, jobs whose message nobody has taken yet"),
    Series("dlpipe_jobs_held", _G, "jobs with a lease in their row"),
)
"""What stands in the ledger, over all tenants; every worker says the same."""

AROUND: tuple[Series, ...] = (
    Series("dlpipe_queue_messages", _G, "messages that wait in the broker", ("queue",)),
    Series("dlpipe_figures_age_seconds", _G, "how old the figures of a part are", ("part",)),
    Series("dlpipe_figures_ok", _G, "1: the part answered when it was last asked", ("part",)),
)

ALL: Mapping[str, Series] = {one.name: one for one in (*EVENTS, *LEDGER, *AROUND)}
