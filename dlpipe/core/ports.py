"""What the pipeline needs from the outside, as small protocols; each docstring is the contract.

One contract suite in tests/contract/ runs on every adapter and fake of a port.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from dlpipe.core.downloads import Downloads, Sharing
from dlpipe.core.flow import OpType, StageRow
from dlpipe.core.layout import Place
from dlpipe.core.model import ArtifactJob, ArtifactRecord, JobSpec, JobView, OpView, PlanAnswer, Scope
from dlpipe.core.quota import Room
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.remote import Headers, PartFacts, RemoteFacts
from dlpipe.core.results import DedupeAction, Result, Results
from dlpipe.core.states import State, Status
from dlpipe.core.torrents import Torrent, TorrentFile

# ── the ledger ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Claimed:
    """The job is ours under `job.fence`."""

    job: ArtifactJob


@dataclass(frozen=True, slots=True)
class Past:
    """This run has recorded that stage already; the chain may go on."""

    state: State


@dataclass(frozen=True, slots=True)
class Refused:
    """The message has nothing to say to the job as it is now; the chain ends. `reason` is for people."""

    reason: str


Claim = Claimed | Past | Refused


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
class Hint:
    """A message to be sent: the stages that this run has left to do."""

    job_id: str
    run: int
    stages: tuple[StageRow, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that the row still mirrors although its time, or its owner, is over."""

    job: ArtifactJob
    token: str


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


class Jobs(Protocol):
    """The rows of jobs. Every method is part of the unit's one transaction."""

    def plan_if_absent(self, specs: Sequence[JobSpec]) -> list[PlanAnswer]:
        """Insert the jobs that no row has yet; answer each in order. Only an equal key counts as present."""

    def claim(self, stage: StageRow, job_id: str, run: int, token: str, ttl_s: float) -> Claim:
        """Take the job for a stage in one guarded statement, which raises the fence."""

    def advance(self, job: ArtifactJob, stage: StageRow, target: State) -> None:
        """Enter `target` after the stage's effect, and free the lease.

        LeaseLost when the fence is no longer `job.fence`; IllegalTransition when the table has no such step.
        """

    def fail(self, job: ArtifactJob, write: FailureWrite) -> None:
        """End the run without success: wait for the next one, or for good. LeaseLost as above."""

    def hand_back(self, job: ArtifactJob) -> bool:
        """Free a claim whose work was given up, due again at once; False when it is no longer ours."""

    def renew(self, claims: Sequence[tuple[str, int]], ttl_s: float) -> set[str]:
        """Extend the mirrored leases of (job id, fence); answer the job ids that are no longer ours."""

    def take_due(self, limit: int, window: int, per_host: int) -> list[Hint]:
        """Mark due jobs as published, as far as the window allows, and answer what to send."""

    def waiting(self) -> int:
        """How many jobs wait for a message that was sent: published, held by nobody."""

    def take_lost(self, limit: int, lost_after_s: float) -> list[Hint]:
        """Mark as published again the jobs whose message must be lost: sent long ago, held by nobody."""

    def unpublish(self, job_ids: Sequence[str]) -> None:
        """The messages could not be sent: the jobs are as if never published."""

    def expired(self, limit: int) -> list[Held]:
        """Jobs whose mirrored lease has run out."""

    def held(self, limit: int) -> list[Held]:
        """Jobs whose mirrored lease is live."""

    def orphan(self, held: Held, write: FailureWrite | None) -> bool:
        """Free the job from a dead holder: a new run is due (None), or it fails for good. Guarded by the fence."""

    def cancel(self, scope: Scope, job_id: str) -> Status | None:
        """Cancel if the table allows it; the status afterwards; None for an unknown or foreign id."""

    def retry(self, scope: Scope, job_id: str) -> Status | None:
        """Make a job that failed for good due again, with its attempts given back; status as above."""

    def get_current_state(self, job_id: str) -> State | None: ...

    def get(self, scope: Scope, job_id: str) -> JobView | None: ...

    def get_many(self, scope: Scope, job_ids: Sequence[str]) -> list[JobView]:
        """Those of these jobs that the scope holds, in no order."""

    def list_(self, scope: Scope, status: Status | None, limit: int, after: str | None) -> list[JobView]:
        """The newest first; `after` is the last job id of the page before."""

    def counts(self, scope: Scope | None) -> Mapping[Status, int]: ...


class Ledger(Protocol):
    """The exactly-once record of effects."""

    def results(self, job_id: str, run: int) -> Results: ...

    def start(self, op_key: str, op_type: OpType, job: ArtifactJob) -> StartedOp:
        """Record that the effect is about to be performed by the holder of `job.fence`. LeaseLost if overtaken."""

    def finish(self, op: StartedOp, result: Result, code: str) -> None:
        """Store the result once; on an op that is finished already the first result stays. LeaseLost if overtaken."""

    def fail(self, op: StartedOp, code: str) -> None: ...

    def mark_abandoned(self, limit: int) -> int:
        """Mark started ops whose fence was overtaken."""

    def get_effect_result(self, op_key: str) -> Result | None:
        """The stored result of a finished op; None when it is not finished (a started op is no result)."""

    def ops(self, scope: Scope, job_id: str) -> list[OpView]: ...


class Registry(Protocol):
    """Artifacts and the indexes that find bytes again."""

    def known_url(self, tenant_id: str, canonical_url: str, trust_s: float | None) -> KnownBlob | None:
        """What the URL gave when it was last seen, if that is at most `trust_s` ago; None: however long ago."""

    def first_copy(self, dedupe_scope: str, sha256: str) -> FirstCopy | None: ...

    def add_copy(self, dedupe_scope: str, sha256: str, pointer: str, size: int, job_id: str) -> None:
        """Remember the first copy of these bytes; a later one changes nothing."""

    def repoint(self, dedupe_scope: str, sha256: str, old: str, new: str, job_id: str) -> None:
        """The first copy is gone or damaged: this one takes its place."""

    def add_artifact(self, record: ArtifactRecord) -> None:
        """Register a result and link it to its job; the same record again changes nothing."""

    def see_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob) -> None: ...

    def see_again(self, tenant_id: str, canonical_url: str, sha256: str) -> None:
        """The URL still gives these bytes, as of now; a row that tells of other bytes stays as it is."""

    def note(self, artifact_uuid: str, job_id: str, facts: Mapping[str, Any]) -> None:
        """Write what is measured of an artifact into its manifest row."""

    def artifacts_of(self, scope: Scope, job_id: str) -> list[ArtifactRecord]: ...

    def measures_of(self, scope: Scope, job_id: str) -> Mapping[str, Any] | None:
        """The manifest row of the job's newest result."""


class Unit(Protocol):
    """One transaction and the repositories that share it."""

    @property
    def jobs(self) -> Jobs: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def torrents(self) -> Downloads: ...

    def rollback(self) -> None:
        """Undo what this unit wrote; leaving it then commits nothing."""


class Database(Protocol):
    """Where the truth is. Leaving a unit commits it; an exception undoes it.

    LedgerUnavailable when the database does not answer.
    """

    def write(self) -> AbstractContextManager[Unit]: ...
    def read(self) -> AbstractContextManager[Unit]: ...


# ── leases, messages, progress ────────────────────────────────────────────────────────────────────


class Lease(Protocol):
    @property
    def token(self) -> str: ...

    def bind(self, fence: int) -> None:
        """From now on the heartbeat also renews the mirror in the row, under this fence."""

    def check(self) -> None:
        """Raise LeaseLost when the lease ran out, was taken, or its fence was overtaken."""


class Leases(Protocol):
    """One holder per job among all workers. LeaseUnavailable when Redis does not answer."""

    def hold(self, job_id: str) -> AbstractContextManager[Lease]:
        """Hold the job's lease, renewed in the background; LeaseBusy when somebody else has it."""

    def live(self, job_ids: Sequence[str]) -> set[str]:
        """Which of these jobs somebody holds right now."""

    def stop(self, job_id: str) -> bool:
        """Ask who holds the job now, and nobody later, to stop: its lease is soon lost. False: nobody holds it."""

    def owner_is_dead(self, token: str) -> bool:
        """Is it certain that the process behind this token is gone? Never a guess."""

    def release_dead(self, job_id: str, token: str) -> bool:
        """Release in the name of a holder that is certainly gone; a foreign lease stays untouched."""


class Publisher(Protocol):
    """Sends hints. A hint may be lost or doubled without harm. BrokerUnavailable when it could not be sent."""

    def publish(self, hints: Sequence[Hint]) -> None: ...

    def waiting(self) -> int | None:
        """How many messages wait to be taken; None when the broker cannot tell."""


class Progress(Protocol):
    """Bytes so far, for people to watch. Best effort: it never fails and never decides anything."""

    def report(self, job_id: str, done: int, total: int | None) -> None: ...
    def clear(self, job_id: str) -> None: ...
    def get(self, job_ids: Sequence[str]) -> Mapping[str, tuple[int, int | None]]: ...


class Reservations(Protocol):
    """Room that running jobs have yet to fill, per volume and for all workers. What dead ones promised runs out."""

    def reserve(self, volume: str, job_id: str, size: int, at_most: int) -> int:
        """Put down `size` for the job, in place of what it had, if all others' promises are `at_most`.

        Answer the others' sum. One step: of two jobs that fit only one at a time, one is put down.
        """

    def release(self, volume: str, job_id: str) -> None:
        """The job needs no further room; one that never had any is no error."""


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────


class Part(Protocol):
    """Bytes on their way, under an exclusive lock. Progress is what the sidecar vouches for, never the size."""

    @property
    def facts(self) -> PartFacts | None:
        """What the sidecar says is here; None for a new or unreadable one."""

    @property
    def offset(self) -> int:
        """Where the next byte goes."""

    @property
    def sha256(self) -> str:
        """The hash of everything before the offset."""

    @property
    def path(self) -> str: ...

    def begin(self, remote: RemoteFacts) -> None:
        """Throw away what is here (unlink, never truncate) and start at offset 0 under these validators."""

    def verify(self, upto: int) -> int:
        """Re-hash what is held, keep the furthest checkpoint that matches, at most `upto`; answer the offset."""

    def rewind(self, offset: int) -> int:
        """Go back to `offset`, which is at most what was verified or written; answer where that is."""

    def write(self, data: bytes | memoryview) -> None:
        """Append at the offset, and checkpoint now and then."""

    def flush(self) -> None:
        """Let the sidecar vouch for every byte written so far."""

    @property
    def begun(self) -> RemoteFacts | None:
        """The file that what is here was begun as, also when nothing is vouched for but pieces further on."""

    def put(self, offset: int, data: bytes | memoryview) -> None:
        """Write somewhere ahead of the offset. The only method that several threads may call."""

    def keep(self, start: int, end: int, sha256: str) -> None:
        """Let the sidecar vouch for a piece that was put; the offset moves over all pieces that join it."""

    def verify_pieces(self) -> list[tuple[int, int]]:
        """Re-hash the pieces ahead of the offset, forget those that are wrong; answer (start, end) of the others."""

    def finish(self) -> tuple[str, int, int]:
        """Make all bytes durable; answer (sha256, size, milliseconds of fsync)."""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes held, at most up to the offset where the next one goes."""

    def fileno(self) -> int: ...

    def remove(self) -> None:
        """Remove part and sidecar."""


class Staging(Protocol):
    def claim(self, tenant: str, canonical_url: str, job_id: str, fence: int) -> AbstractContextManager[Part]:
        """Lock the part of a URL. A holder of the same job with a lower fence is overtaken: the part is then new.

        Postponed(`part_busy`) when another job holds it; LeaseLost when a later fence of this job does.
        """

    def room(self, tenant: str, canonical_url: str) -> Room:
        """The volume that parts lie on, and what this URL's part takes of it. Makes and locks nothing."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file that somebody else keeps, and goes on keeping: a name under a root that the operator named."""

    root: str
    parts: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Adopted:
    sha256: str
    size: int
    pointer: str
    action: DedupeAction


class BlobStore(Protocol):
    """Bytes named by their sha256. Nothing is ever overwritten."""

    backend: str

    def place(self, tenant: str, project: str, sha256: str, ext: str) -> Place: ...

    def publish(self, part: Part, place: Place, size: int) -> bool:
        """Give the part's bytes, re-hashed, their final name, durably; True when they were there already.

        Retryable(`part_damaged`) when the bytes do not hash to the name.
        """

    def holds(self, pointer: str, size: int) -> bool:
        """Is the blob there with this size? (cheap)"""

    def is_right(self, pointer: str, sha256: str, size: int) -> bool:
        """Is the blob there and do its bytes hash to its name? (reads it all)"""

    def settle(self, pointer: str) -> None:
        """Make last what was found right: who put it there may have died before its name did."""

    def copy(self, pointer: str, place: Place) -> DedupeAction:
        """Put the same bytes at another place, by link where possible, else by copy."""

    def unify(self, pointer: str, twin: str) -> DedupeAction:
        """Make `pointer` share the bytes of `twin`, atomically; COPY when the file system cannot."""

    def adopt(
        self, file: Foreign, tenant: str, project: str, ext: str, sharing: Sharing, heard: Callable[[int], None]
    ) -> Adopted:
        """Take a foreign file in, hashed; it stays where it is. `heard` gets each number of bytes hashed.

        No symlink is followed on the way to it. Retryable(`torrent_file_missing`, `file_changed`) when it is not there,
        or not as it was announced; Permanent(`file_refused`) when what is there is not a plain file.
        """

    def shard(self, pointer: str) -> str:
        """The folder prefix that spreads blobs, for the manifest."""

    def path(self, pointer: str) -> str:
        """Where the owner of this machine finds the file."""


# ── the network ───────────────────────────────────────────────────────────────────────────────────


class Answer(Protocol):
    """The head of a GET answer, and its raw body."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def final_url_sha256(self) -> str: ...
    @property
    def framing(self) -> str:
        """`length`, `chunked`, `close` (ended only by closing the connection) or `none`."""

    def chunks(self) -> Iterator[bytes]:
        """The raw body. Retryable(`body_cut`) when it broke off, Permanent(`protocol_error`) when it is malformed."""


class Source(Protocol):
    """A server that we ask for files. Failures come as StageFailure with a code; redirects are followed inside."""

    def head(self, url: str) -> RemoteFacts | None:
        """What HEAD says; None when HEAD is of no use here and GET must tell."""

    def unchanged(self, url: str, etag: str | None, last_modified: str | None) -> bool | None:
        """Does the URL still give what came under these validators? None when that cannot be told.

        Reads no body. Raises only what `head` and `get` would raise as well: Permanent(`blocked_offline`),
        Postponed, a server out of reach; what else goes wrong is None, and for those two to tell.
        """

    def get(
        self, url: str, *, start: int = 0, end: int | None = None, if_range: str | None = None, unproven: bool = False
    ) -> AbstractContextManager[Answer]:
        """Ask for the bytes from `start` on, or to before `end`. Every status is handed out unless it is retryable.

        A range is asked for only under `if_range`, or `unproven`: then the caller compares bytes.
        """


# ── torrents ──────────────────────────────────────────────────────────────────────────────────────


class TorrentClient(Protocol):
    """A program that transfers torrents for us.

    Every method raises TorrentOutage when the client did not answer, or not as one who can be believed
    (unreachable, 5xx, login refused or banned), and changes nothing then as far as anybody can tell.
    A torrent is named by the info hash that `add` answered: 40 lowercase hex digits.
    """

    def add(self, source: str | bytes, *, save_path: str, tag: str) -> str:
        """Start a download into `save_path` and answer its info hash. Idempotent: one that is there is left as it is.

        `source` is a magnet link, the http(s) URL of a .torrent, or the bytes of one. Waits a few seconds for the
        client to list the torrent; one that is slower than that is answered all the same. TorrentRefused when the
        source is malformed or the client declines it; StageFailure when the .torrent could not be fetched.
        """

    def torrents(self, hashes: Collection[str]) -> Mapping[str, Torrent]:
        """What the client says of these, in one request for all; those that it does not have are absent."""

    def files(self, info_hash: str) -> list[TorrentFile]:
        """The files that are wanted of it. TorrentRefused(`torrent_not_found`) when it is not there."""

    def stop(self, info_hash: str) -> None:
        """Stop transferring. Nothing happens to one that is stopped already or not there; so for the next two."""

    def start(self, info_hash: str) -> None: ...

    def delete(self, info_hash: str, *, with_files: bool) -> None:
        """Forget the torrent, and remove its files if asked."""

    def free_space(self) -> int | None:
        """Bytes left where it downloads to; None when it cannot tell."""

    def version(self) -> str:
        """Its name for itself and its version, for people."""
