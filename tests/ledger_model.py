"""What the ledger should say, in a few lines of plain Python and without the project's own tables of rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

CHAIN: dict[str, tuple[tuple[str, ...], str]] = {
    # stage: (where it may claim, what its result enters)
    "head": (("LEASED",), "HEAD_DONE"),
    "resume_decide": (("HEAD_DONE",), "RESUME_OK"),
    "stream": (("RESUME_OK", "STREAMING"), "STREAMING"),
    "finalize": (("STREAMING",), "FINALIZED"),
    "index": (("FINALIZED",), "INDEXED"),
    "dedupe": (("INDEXED",), "DEDUPED"),
}
STAGES = tuple(CHAIN)
GOOD_ENDS = ("DEDUPED", "SKIPPED_DUPLICATE")
GOES_BACK = ("LEASED", "HEAD_DONE", "RESUME_OK", "STREAMING", "FAILED")
"""From where a further run can be taken back."""
FINISHED = (*GOOD_ENDS, "CANCELED")
KEPT = {"FINALIZED": "index", "INDEXED": "dedupe"}
"""Where a new run goes on instead of beginning again, and with which stage."""
BEHIND = {
    "LEASED": 0, "HEAD_DONE": 1, "RESUME_OK": 2, "STREAMING": 2, "FINALIZED": 4, "INDEXED": 5, "DEDUPED": 6,
    "SKIPPED_DUPLICATE": 6, "PLANNED": 0, "FAILED": 0, "CANCELED": 0,
}  # fmt: skip


@dataclass
class Op:
    kind: str
    fence: int
    run: int
    state: str = "started"
    result: object = None


@dataclass
class Job:
    job_id: str
    host: str
    state: str = "PLANNED"
    run: int = 0
    fence: int = 0
    attempts: int = 0
    due: str = "now"
    """`now`, `later`, or `no`."""
    published: bool = False
    owner: str | None = None
    live: bool = False
    purpose: str | None = None
    stood: str | None = None
    """The good end that it goes back to when its further run is canceled."""
    registered: bool = False
    ops: dict[str, Op] = field(default_factory=dict)

    @property
    def status(self) -> str:
        fixed = {"PLANNED": "pending", "DEDUPED": "completed", "SKIPPED_DUPLICATE": "skipped", "CANCELED": "canceled"}
        if self.state in (*GOOD_ENDS, "FAILED") and self.due != "no":
            return "pending"
        if self.state == "FAILED":
            return "failed"
        return fixed.get(self.state, "processing")

    @property
    def ended(self) -> bool:
        return self.state == "CANCELED" or (self.state in (*GOOD_ENDS, "FAILED") and self.due == "no")

    def next_stage(self) -> str:
        """The first stage that a message for this job, as it is now, would carry."""
        if self.due != "no":
            return KEPT.get(self.state, "head")
        # Of the stage whose claim enters its state, only the ledger knows whether it is done.
        streamed = self.latest("STREAM") if self.state == "STREAMING" else None
        if streamed is not None and streamed.run == self.run:
            return "finalize"
        return STAGES[min(BEHIND[self.state], 5)]

    def next_run(self) -> int:
        return self.run + (self.due != "no")

    def verdict(self, stage: str, run: int) -> str:
        """What a message comes to: `claimed`, `past`, or the reason of the refusal."""
        free = self.owner is None or not self.live
        within = run == self.run and self.due == "no" and self.state in CHAIN[stage][0]
        begins = run == self.run + 1 and self.due != "no" and not self.ended and stage == self.next_stage()
        if free and (within or begins):
            return "claimed"
        if run < self.run:
            return "older_run"
        if run == self.run and BEHIND[self.state] > STAGES.index(stage):
            return "past"
        if not free:
            return "lease_held"
        return "job_at_an_end" if self.ended else "out_of_order"

    def claim(self, stage: str, run: int, token: str) -> None:
        if run > self.run and self.state not in KEPT:
            self.state = "LEASED"
        elif stage == "stream":
            self.state = "STREAMING"
        self.run, self.fence, self.due = run, self.fence + 1, "no"
        self.owner, self.live = token, True

    def holds(self, fence: int) -> bool:
        return self.fence == fence and self.owner is not None

    def let_go(self, due: str) -> None:
        self.owner, self.live, self.published, self.due = None, False, False, due

    def advance(self, target: str) -> None:
        self.let_go("no")
        self.state, self.published = target, target not in FINISHED
        self.purpose = None if target in FINISHED else self.purpose
        self.stood = self.stood if target in GOES_BACK else None

    def refresh(self) -> None:
        if self.status == "failed" or (self.ended and self.state in GOOD_ENDS):
            self.due, self.attempts, self.purpose = "now", 0, "refresh"
            self.stood = self.state if self.state in GOOD_ENDS else self.stood

    def can_be_reopened(self) -> bool:
        """Has it a file, does nobody work on it, and is no run from the start on its way?"""
        held = self.owner is not None and self.live
        return not held and (self.state in KEPT or (self.ended and self.state in GOOD_ENDS))

    def reopen(self) -> None:
        self.let_go("now")
        self.stood = None if self.state in KEPT else self.state
        self.state = "FAILED" if self.state in KEPT else self.state
        self.fence, self.attempts, self.purpose = self.fence + 1, 0, "repair"

    def cancel(self) -> None:
        if self.state in GOOD_ENDS and self.due != "no":
            self.let_go("no")  # what had not begun is taken back
            self.purpose = self.stood = None
        elif self.stood is not None and not self.ended and self.state in GOES_BACK:
            self.let_go("no")
            self.state, self.fence, self.purpose, self.stood = self.stood, self.fence + 1, None, None
        elif not self.ended and self.state != "INDEXED" and not self.registered:
            self.let_go("no")
            self.state, self.fence, self.purpose = "CANCELED", self.fence + 1, None

    def latest(self, kind: str) -> Op | None:
        found = [op for op in self.ops.values() if op.kind == kind and op.state == "finished"]
        return max(found, key=lambda op: op.fence, default=None)


def room_for(jobs: Iterable[Job], limit: int, window: int, per_host: int) -> int:
    """How many due jobs may be published."""
    flying: dict[str, int] = {}
    ready: dict[str, int] = {}
    for job in jobs:
        flying[job.host] = flying.get(job.host, 0) + job.published
        ready[job.host] = ready.get(job.host, 0) + (job.due == "now" and not job.published)
    wanted = sum(min(count, max(0, per_host - flying[host])) for host, count in ready.items())
    return max(0, min(limit, window - sum(flying.values()), wanted))
