"""Effects, artifacts, and the transaction that they share with the jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from dlpipe.core.downloads import Downloads
from dlpipe.core.figures import Totals, Waiting
from dlpipe.core.flow import OpType, Queue, StageRow
from dlpipe.core.model import ArtifactJob, ArtifactRecord, Fault, Scope
from dlpipe.core.nodes import Node, NodePolicy
from dlpipe.core.ports.jobs import Backlog, Jobs, Owned
from dlpipe.core.ports.trash import Garbage
from dlpipe.core.results import Result, Results
from dlpipe.core.states import State


@dataclass(frozen=True, slots=True)
class StartedOp:
    """An op that we hold. `seen`: somebody started it before us. `prior`: it was even finished, in `prior_run`."""

    op_key: str
    op_type: OpType
    run: int
    fence: int
    seen: bool
    prior: Result | None = None
    prior_run: int | None = None


@dataclass(frozen=True, slots=True)
class KnownBlob:
    sha256: str
    pointer: str
    size: int
    etag: str | None = None
    last_modified: str | None = None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class FirstCopy:
    """The earliest registered copy of some bytes in a dedupe scope."""

    pointer: str
    job_id: str


@dataclass(frozen=True, slots=True)
class Registration:
    """All that is written of a file that has just come."""

    record: ArtifactRecord
    dedupe_scope: str
    canonical_url: str
    blob: KnownBlob
    """What its URL gave."""
    facts: Mapping[str, Any]
    """A whole row of the manifest."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A further stage whose result goes on record with that of the one before: its op was never started by itself."""

    stage: StageRow
    op_key: str
    result: Result
    state: State
    """What it enters."""


@dataclass(frozen=True, slots=True)
class Onward:
    """The stage that the same holder claims next, whose op nobody has started yet."""

    stage: StageRow
    op_key: str
    lease_ttl_s: float


@dataclass(frozen=True, slots=True)
class Ending:
    """All that is said of a claim's end in one step: what came of it, and what its holder does next (ADR 42)."""

    job: ArtifactJob
    stage: StageRow
    op: StartedOp
    result: Result
    entered: State
    """By the stage that was claimed."""
    joined: tuple[Joined, ...] = ()
    onward: Onward | None = None
    registers: Registration | None = None
    """Written with it, if these bytes are the first in their dedupe scope. Only for an ending by itself (`single`)."""

    @property
    def state(self) -> State:
        """Where the job is then, but for what the next claim enters."""
        return self.joined[-1].state if self.joined else self.entered


class Endings(Protocol):
    """Where a claim's end is written."""

    def end(self, ending: Ending) -> bool:
        """Record the results and enter the state; the lease is free then, or claimed onward under the next fence.

        All of it or nothing. LeaseLost when the fence is no longer the job's, IllegalTransition when the table has no
        such step. Onward: answers False, and has changed nothing, when the job may not be claimed (it is paused, say);
        so does one that registers, whatever the reason.
        """


class Ledger(Protocol):
    """The exactly-once record of effects."""

    def results(self, job_id: str, run: int, *, first: bool = False) -> Results:
        """`first`: nobody has held the job before, so there are none."""

    def start(self, op_key: str, op_type: OpType, job: ArtifactJob) -> StartedOp:
        """Record that the effect is about to be performed by the holder of `job.fence`. LeaseLost if overtaken."""

    def finish(self, op: StartedOp, result: Result, code: str) -> None:
        """Store the result once; on an op that is finished already the first result stays. LeaseLost if overtaken."""

    def fail(self, op: StartedOp, code: str) -> None: ...

    def mark_abandoned(self, limit: int) -> int:
        """Mark started ops whose fence was overtaken."""

    def get_effect_result(self, op_key: str) -> Result | None:
        """The stored result of a finished op; None when it is not finished (a started op is no result)."""


class Known(Protocol):
    """What the registry can be asked."""

    def known_url(self, tenant_id: str, canonical_url: str, trust_s: float | None) -> KnownBlob | None:
        """What the URL gave when it was last seen, if that is at most `trust_s` ago; None: however long ago.

        Bytes whose file is marked as at fault are not known.
        """

    def first_copy(self, dedupe_scope: str, sha256: str) -> FirstCopy | None: ...

    def has_bytes(self, tenant_id: str, sha256: str, besides: str | None = None) -> bool:
        """Has the tenant registered these bytes, beside that one artifact?"""

    def result_of(self, job_id: str, sha256: str) -> ArtifactRecord | None:
        """The newest that the job has registered of these bytes, also before it was purged and planned again."""


class Glance(Protocol):
    """What may be asked without a transaction."""

    @property
    def registry(self) -> Known: ...


class Registry(Known, Protocol):
    """Artifacts and the indexes that find bytes again."""

    def register(self, new: Registration) -> None:
        """Write it down, as by the methods below: add_artifact, add_copy, mend, see_url and note."""

    def add_copy(self, dedupe_scope: str, sha256: str, pointer: str, size: int, job_id: str) -> None:
        """Remember the first copy of these bytes; a later one changes nothing."""

    def repoint(self, dedupe_scope: str, sha256: str, old: str, new: str, job_id: str) -> None:
        """The first copy is gone or damaged: this one takes its place."""

    def artifacts_after(self, artifact_uuid: str, limit: int) -> list[ArtifactRecord]:
        """All registered artifacts that are not retired in one order, whosever they are; empty: from the first one."""

    def registered(self, blobs: Sequence[tuple[str, str]]) -> set[str]:
        """Which of these (pointer, sha256) some artifact has; answers pointers."""

    def add_artifact(self, record: ArtifactRecord) -> None:
        """Register a result and link it to its job; the same record again changes nothing.

        One that was registered before its job was purged is the job's again, and retired no more.
        """

    def add_input(self, job_id: str, artifact_uuid: str) -> None:
        """The job goes by this registered file; said twice, it is said once."""

    def newest_result(self, job_id: str) -> ArtifactRecord | None:
        """The result that the job's latest run brought, or found unchanged."""

    def add_fault(self, artifact_uuid: str, fault: Fault) -> bool:
        """Mark the artifact's file as missing or damaged; False when it is marked already, which changes nothing."""

    def faulty(self, limit: int, after: str | None = None) -> list[ArtifactRecord]:
        """Artifacts that are marked, by their uuid; `after` is the last one of the page before."""

    def mend(self, sha256: str, pointer: str) -> int:
        """The file is there and right: no artifact whose file it is stays marked. Answer how many were."""

    def see_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob) -> None: ...

    def recall_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, artifact_uuid: str) -> None:
        """Know the URL by these bytes as when that artifact was made; a row that is there stays as it is."""

    def remember_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, seen_at: datetime) -> None:
        """The URL gave these bytes once; what is known of it already is known better, and stays."""

    def see_again(self, tenant_id: str, canonical_url: str, sha256: str) -> None:
        """The URL still gives these bytes, as of now; a row that tells of other bytes stays as it is."""

    def note(self, artifact_uuid: str, job_id: str, facts: Mapping[str, Any]) -> None:
        """Write what is measured of an artifact into its manifest row."""


class Cursors(Protocol):
    """Where rounds that see a part of everything go on. Losing one costs a walk from the start."""

    def get(self, name: str) -> str:
        """Empty at the start."""

    def put(self, name: str, position: str) -> None: ...


class Figures(Protocol):
    """How much there is, over all tenants."""

    def waiting(self) -> Waiting: ...

    def totals(self) -> Totals:
        """Reads whole tables: not to be asked for often."""


class Stores(Protocol):
    """Which store belongs to this ledger: the id in its marker, by backend (ADR 29)."""

    def get(self, backend: str) -> str | None: ...

    def add(self, backend: str, store_id: str) -> str:
        """Record it unless one is recorded; answer which one is."""

    def put(self, backend: str, store_id: str) -> None:
        """Record it instead of whatever was: only when somebody says so."""


class Nodes(Protocol):
    """Nodes whose staging folders are their own (OPS-4), and the jobs whose parts lie there."""

    def beat(self, here: NodePolicy, kinds: Collection[Queue], folder_id: str) -> Node | None:
        """This node takes from its queues of these kinds at this moment; answer how it stands.

        None, and nothing is changed: its name is that of another one, whose folder bears another id and who is alive.
        """

    def list_(self) -> list[Node]:
        """All that ever gave a sign, by name; times are those of the database's clock."""

    def drain(self, name: str, *, on: bool) -> bool:
        """Let it take no new jobs, or take them again; False: nobody knows that node."""

    def jobs_on(self, name: str) -> tuple[int, list[str]]:
        """How many runs are under way there, and which of them somebody holds."""

    def waiting(self) -> Mapping[tuple[str, str], int]:
        """How many jobs wait for a message that was sent, by the stage that is next and the node it is for.

        The node's name is empty where any node will do.
        """

    def hand_on(self, name: str) -> int:
        """What waits there for its next stage, held by nobody, is due at once for a fresh run anywhere; the number.

        It costs no attempt. The fence is raised, and what lies on the node counts for nothing.
        """

    def unpin(self, job_ids: Sequence[str]) -> None:
        """Let the next run of these jobs begin anywhere."""


class Unit(Protocol):
    """One transaction and the repositories that share it."""

    @property
    def jobs(self) -> Jobs: ...
    @property
    def backlog(self) -> Backlog: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def endings(self) -> Endings: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def stores(self) -> Stores: ...
    @property
    def nodes(self) -> Nodes: ...
    @property
    def torrents(self) -> Downloads: ...
    @property
    def figures(self) -> Figures: ...
    @property
    def garbage(self) -> Garbage: ...

    def owned(self, scope: Scope) -> Owned:
        """There is no other way to an owner's jobs, so that no query can forget whose they are."""

    def rollback(self) -> None:
        """Undo what this unit wrote; leaving it then commits nothing."""


class Database(Protocol):
    """Where the truth is. Leaving a unit commits it; an exception undoes it.

    LedgerUnavailable when the database does not answer, and LedgerConflict, which is one, when it undid the unit for
    the sake of others: then, and only then, it is certain that nothing of it was recorded.
    """

    def write(self) -> AbstractContextManager[Unit]: ...
    def read(self) -> AbstractContextManager[Unit]: ...

    def single(self) -> AbstractContextManager[Endings]:
        """For one ending that nothing else has to be committed with. A connection that was lost is no reason to fail:
        under the fence it can be said once more, and does nothing when it had got through.
        """

    def glance(self) -> AbstractContextManager[Glance]:
        """For questions that need not be answered as of one moment."""
