"""The rows of jobs: what stages, reconcile and their owners do to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from dlpipe.core.flow import StageRow
from dlpipe.core.model import ArtifactJob, ArtifactRecord, Fault, JobSpec, JobView, OpView, PlanAnswer
from dlpipe.core.nodes import NodePolicy
from dlpipe.core.purging import ArchiveFile, Expired, PurgeFilter, Tombstone
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import State, Status
from dlpipe.core.telemetry import Told
from dlpipe.core.top import Look
from dlpipe.core.why import Standing
from dlpipe.core.wishes import JobFilter, Tally, Wish


@dataclass(frozen=True, slots=True)
class Claimed:
    """The job is ours under `job.fence`."""

    job: ArtifactJob


@dataclass(frozen=True, slots=True)
class Past:
    """This run has recorded that stage already; the chain may go on, where `node` says that its part is."""

    state: State
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The message has nothing to say to the job as it is now; the chain ends. `reason` is for people."""

    reason: str


Claim = Claimed | Past | Refused


@dataclass(frozen=True, slots=True)
class Hint:
    """A message to be sent: the stages that this run has left to do."""

    job_id: str
    run: int
    stages: tuple[StageRow, ...]
    node: str | None = None
    """On whose disk the part is that it goes on with, where nodes share none."""


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that the row still mirrors although its time, or its owner, is over."""

    job: ArtifactJob
    token: str
    until: datetime | None = None


class Jobs(Protocol):
    """The rows of jobs. Every method is part of the unit's one transaction."""

    def plan_if_absent(self, specs: Sequence[JobSpec]) -> list[PlanAnswer]:
        """Insert the jobs that no row has yet; answer each in order. Only an equal key counts as present."""

    def add_finished(self, finished: Sequence[tuple[JobSpec, datetime | None]]) -> set[str]:
        """Write down jobs as done, without a run, and when they were; answer which are new. The others stay."""

    def claim(
        self, stage: StageRow, job_id: str, run: int, token: str, ttl_s: float, here: NodePolicy | None = None
    ) -> Claim:
        """Take the job for a stage in one guarded statement, which raises the fence.

        `here`: staging folders are not shared. What works on the part then gets only jobs of this node, and, if it
        takes any, those of no node, which are its from now on; where it takes none, such a job is due again.
        """

    def advance(self, job: ArtifactJob, stage: StageRow, target: State) -> None:
        """Enter `target` after the stage's effect, and free the lease.

        LeaseLost when the fence is no longer `job.fence`; IllegalTransition when the table has no such step.
        """

    def fail(self, job: ArtifactJob, write: FailureWrite) -> None:
        """End the run without success: wait for the next one, or for good. LeaseLost as above."""

    def has_room(self, job: ArtifactJob) -> None:
        """Its wait for room is over: a later one is counted from its own begin. Only for the holder of the fence."""

    def hand_back(self, job: ArtifactJob, *, waits: bool = True) -> bool:
        """Free a claim whose work was given up, due again at once; False when it is no longer ours.

        `waits`: it counts as a put-off, as the job may not be handed back for ever.
        """

    def renew(self, claims: Sequence[tuple[str, int]], ttl_s: float) -> set[str]:
        """Extend the mirrored leases of (job id, fence); answer the job ids that are no longer ours."""

    def get_current_state(self, job_id: str) -> State | None: ...

    def counts(self) -> Mapping[Status, int]:
        """Of all tenants: for operators, never for an owner."""


class Backlog(Protocol):
    """The jobs that wait for a message or for a holder: what dispatch and reconcile go by, across all tenants."""

    def take_due(self, limit: int, window: int, per_host: int) -> list[Hint]:
        """Mark due jobs as published, as far as the window allows, and answer what to send.

        The highest priority first; within one, tenants share the room, least in flight first; within a tenant, who
        waits longest, and of those in front such as were never put off before the others (HOST-3). The cost is
        that of the answer, however many jobs are planned and whatever host is full.
        """

    def in_flight(self) -> Mapping[str, int]:
        """How many jobs of each host are under way or have a message outstanding."""

    def waiting(self) -> Mapping[str, int]:
        """How many jobs wait for a message that was sent (published, held by nobody), by the stage that is next."""

    def take_lost(
        self, limit: int, lost_after_s: float, stages: Collection[str], on: Collection[str] | None = None
    ) -> list[Hint]:
        """Mark as published again the jobs whose message for one of these stages must be lost.

        That is: sent long ago, held by nobody; the oldest first. `on`: of those that are to work on their part only
        what is on these nodes; an empty name means on none.
        """

    def unpublish(self, job_ids: Sequence[str]) -> None:
        """The messages could not be sent: the jobs are as if never published."""

    def expired(self, limit: int, after: Held | None = None) -> list[Held]:
        """Jobs whose mirrored lease has run out, the longest ago first; `after`: the last of the page before."""

    def held(self, limit: int, after: Held | None = None) -> list[Held]:
        """Jobs whose mirrored lease is live; pages as above."""

    def orphan(self, held: Held, write: FailureWrite | None) -> bool:
        """Free the job from a dead holder: a new run is due (None), or it fails for good. Guarded by the fence."""

    def get(self, job_id: str) -> ArtifactJob | None:
        """The job as it stands; None for an unknown one, and for jobs of other kinds."""

    def clear_mirror(self, held: Held) -> bool:
        """Forget a lease that ran out on a job that nobody may work on any more, or whose run is over (HEAL-5)."""

    def wanted_parts(self, parts: Sequence[str], node: str | None = None) -> set[str]:
        """Which of these names of parts a job that is not at its end goes by; `node`: and may go on with there."""

    def known(self, job_ids: Sequence[str]) -> set[str]:
        """Which of these jobs there are at all, or were until they were purged."""

    def reopen(self, job_id: str, fence: int, fault: Fault) -> bool:
        """The job's file is at fault: a new run from the start is due at once, its purpose repair (HEAL-3).

        Done only to a job that the table lets be reopened (FINALIZED or later, not canceled), as long as its fence is
        the one that was seen when the file was looked for, nobody holds it, and no run from the start is due already.
        It raises the fence: of two that saw the same, one does it and the other is answered False.
        """


class Owned(Protocol):
    """What one tenant and project may see and wish. A foreign id is answered exactly as an unknown one."""

    def get(self, job_id: str) -> JobView | None: ...

    def get_many(self, job_ids: Sequence[str]) -> list[JobView]:
        """Those of these jobs that are the owner's, in no order."""

    def list_(self, only: JobFilter | Status | None, limit: int, after: str | None) -> list[JobView]:
        """The newest first; `after` is the last job id of the page before."""

    def tally(self, by: str, only: JobFilter, limit: int) -> list[Tally]:
        """The jobs by `code`, `host` or `status`, the most frequent first."""

    def counts(self) -> Mapping[Status, int]: ...

    def cancel(self, job_id: str) -> Status | None:
        """Cancel if the table allows it; the status afterwards; None for an unknown or foreign id.

        A further run of a job that had come to a good end is taken back, also when it has begun: the job is at that
        end again, with the results that it had. From FINALIZED on it goes through: a job that has a result is never
        canceled.
        """

    def retry(self, job_id: str) -> Status | None:
        """Make a job that failed for good due again, with its attempts given back; status as above.

        What the failed run was for, a refresh or a repair, the next one is for as well; after a replay that failed the
        file is to be right again whatever it takes, so that the next one is a repair.
        """

    def refresh(self, job_id: str) -> Status | None:
        """Make a finished job due again, its purpose to ask the server whether it has something newer (PLAN-6).

        A job on its way is left alone, and so is a canceled one; one that failed for good is due as by `retry`, and
        its next run asks the server as well. Status as above. What the job has registered stays registered.
        """

    def replay(self, job_id: str, from_stage: str) -> Status | None:
        """Make a job due again that has its file, to do its stages from that one on from the stored bytes (JOB-7).

        Done to jobs as by `refresh`, if they have a result, or failed after their file was in its place. Status as
        above.
        """

    def pause(self, job_id: str) -> JobView | None:
        """Let the job wait, with the bytes it has, until it is resumed; answer how it stands then.

        A run that is under way is over with that, and costs no attempt. A job at its end stays as it is.
        """

    def resume(self, job_id: str) -> JobView | None:
        """Let a paused job go on as soon as it is due; answer how it stands then."""

    def grant(self, wish: Wish, job_ids: Sequence[str], from_stage: str | None = None) -> list[str]:
        """Do to each of these what the wish says, where that is possible; answer which were changed.

        `from_stage`: where a replay begins to do things again.
        """

    def overview(self) -> Look:
        """How all of the owner's jobs stand at this moment; the cost is bounded, however many there are."""

    def standing(self, job_id: str) -> Standing | None:
        """The job with what its owner need not see, but an explanation of it must know."""

    def expired(self, only: PurgeFilter, limit: int, after: Expired | None = None) -> list[Expired]:
        """Jobs at their end that the filter means, with all their rows, the oldest first; `after`: the last of before.

        Not one that a further run is wanted of, nor one whose torrent the client has yet to be told to remove.
        """

    def count_expired(self, only: PurgeFilter) -> Mapping[Status, int]: ...

    def purge(self, archived: Sequence[Expired], file: ArchiveFile, *, retire: bool) -> list[str]:
        """Delete these jobs with all rows that are theirs alone; answer which.

        One that is not as it was read any more, or that somebody holds, stays. What they registered stays, and so does
        a tombstone of each. `retire`: what they made is wanted no more, so that its files may be collected.
        """

    def retire_superseded(self, only: PurgeFilter, limit: int) -> list[str]:
        """Give up at most so many results that a later run of their job, which the filter means, has replaced.

        Answers their uuids. The newest result of a job stays, and so does its record of the earlier ones.
        """

    def tombstone(self, job_id: str) -> Tombstone | None:
        """What is left of a purged job; it stays also when the job is planned again."""

    def ops(self, job_id: str) -> list[OpView]: ...

    def artifacts_of(self, job_id: str) -> list[ArtifactRecord]: ...

    def artifact(self, artifact_uuid: str) -> ArtifactRecord | None: ...

    def results(
        self, limit: int, after: str | None, *, newest_first: bool = False, job_id: str | None = None
    ) -> list[Told]:
        """The results, or those of one job, with what was measured, in the order in which their jobs were planned.

        `after` is the last artifact of the page before.
        """

    def measures_of(self, job_id: str) -> Mapping[str, Any] | None:
        """The manifest row of the job's newest result: the one that its latest run brought, or found unchanged."""
