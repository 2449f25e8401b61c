"""A whole pipeline in one process: real ledger and real store; network, broker and lease as the test wants."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from dlpipe.core import flow, keys
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob, ArtifactRecord, JobView, OpView, Scope
from dlpipe.core.ports import BlobStore, Claimed, Hint, Leases, Progress, Publisher, Reservations, Source
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import after
from dlpipe.db.rows import JOB_COLUMNS, job_from
from dlpipe.db.schema import artifact_jobs, jobs
from dlpipe.net import urls
from dlpipe.net.flips import LocalFlips
from dlpipe.pipeline import dispatch, planner, runner
from dlpipe.pipeline.deps import Deps, Policy
from dlpipe.pipeline.stages import STAGES
from dlpipe.store import LocalBlobStore, LocalStaging
from tests.fakes.leases import FakeLeases
from tests.fakes.progress import FakeProgress
from tests.fakes.publisher import FakePublisher
from tests.fakes.reservations import FakeReservations
from tests.fakes.source import FakeSource

if TYPE_CHECKING:
    from tests.shelf import Shelf

DEFAULT = Scope()
TABLES = (
    "manifest job_artifacts download_files artifact_faults artifact_retirements artifacts hash_index url_index "
    "artifact_ops artifact_jobs "
    "media_assets books torrent_clients download_jobs jobs purged_jobs cursors"
).split()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def some_bytes(size: int) -> bytes:
    """Without a pattern, and the same in every process."""
    return random.Random(size).randbytes(size)


def altered(data: bytes) -> bytes:
    """Other bytes of the same size, whatever they are."""
    return bytes([data[0] ^ 1]) + data[1:]


RETRY_S = 60.0
"""After so long a first retry is due: not before a test says so, however slowly it runs."""


def make_deps(
    database: SqlDatabase,
    root: Path,
    *,
    store: BlobStore | None = None,
    leases: Leases | None = None,
    source: Source | None = None,
    publisher: Publisher | None = None,
    progress: Progress | None = None,
    reservations: Reservations | None = None,
    policy: Policy | None = None,
) -> Deps:
    return Deps(
        database=database,
        leases=leases or FakeLeases(),
        store=store or LocalBlobStore(root),
        staging=LocalStaging(root),
        source=source or FakeSource(),
        publisher=publisher or FakePublisher(),
        progress=progress or FakeProgress(),
        reservations=reservations or FakeReservations(),
        flips=LocalFlips(),
        parse_url=urls.parse,
        policy=policy or Policy(),
        chance=lambda: 0.5,
        debug_id=lambda: "debug",
    )


@dataclass
class World:
    database: SqlDatabase
    root: Path
    shelf: Shelf | None = None
    source: FakeSource = field(default_factory=FakeSource)
    leases: FakeLeases = field(default_factory=FakeLeases)
    publisher: FakePublisher = field(default_factory=FakePublisher)
    progress: FakeProgress = field(default_factory=FakeProgress)
    reservations: FakeReservations = field(default_factory=FakeReservations)
    now: float = 1000.0
    in_hand: bool = False
    """Its worker goes on with the next stages itself, instead of taking a message for each."""

    def __post_init__(self) -> None:
        made = make_deps(
            self.database,
            self.root,
            store=self.shelf.store(self.root) if self.shelf else None,
            leases=self.leases,
            source=self.source,
            publisher=self.publisher,
            progress=self.progress,
            reservations=self.reservations,
            policy=Policy(retry=RetryPolicy(base_s=2 * RETRY_S)),
        )
        self.deps = replace(made, clock=lambda: self.now, flips=LocalFlips(lambda: self.now))

    def policy(self, **changes: Any) -> None:
        self.deps = replace(self.deps, policy=replace(self.deps.policy, **changes))

    def stream_policy(self, **changes: Any) -> None:
        self.policy(stream=replace(self.deps.policy.stream, **changes))

    # ── doing ──

    def plan(self, url: str, **fields: Any) -> str:
        """Plan without sending anything; answers the job's id."""
        with self.database.write() as unit:
            made = planner.spec(self.deps, {"url": url, **fields})
            return unit.jobs.plan_if_absent([made])[0].job_id

    def run(self, stage: str, job_id: str, run: int = 1, further: Sequence[str] = ()) -> runner.Outcome:
        return runner.run(self.deps, stage, job_id, run, further)

    def run_to(self, stage: str, job_id: str, run: int = 1) -> None:
        """Carry out all stages before that one."""
        for name in ("head", "resume_decide", "stream", "finalize", "index", "dedupe"):
            if name == stage:
                return
            outcome = self.run(name, job_id, run)
            assert isinstance(outcome, runner.Done), f"{name}: {outcome}"

    def try_stream(self, job_id: str, run: int = 1) -> runner.Outcome:
        """Carry out the stream stage, after those before it."""
        self.run_to("stream", job_id, run)
        return self.run("stream", job_id, run)

    def fetch(self, url: str, **fields: Any) -> str:
        job_id = self.plan(url, **fields)
        self.drive()
        return job_id

    def drive(self) -> None:
        """Send what is due and carry out what was sent, until nothing is left."""
        dispatch.dispatch(self.deps)
        while self.publisher.queue:
            carry_out(self.deps, self.publisher.queue.pop(0), in_hand=self.in_hand)
            dispatch.dispatch(self.deps)

    def make_due(self, job_id: str) -> None:
        """As if the time that the job waits for had come."""
        _set(self.database, job_id, artifact_jobs.c.due_at)

    def expire(self, job_id: str) -> None:
        """As if the time of the lease in the row had passed."""
        _set(self.database, job_id, artifact_jobs.c.lease_until)

    def age(self, job_id: str) -> None:
        """As if the message had been sent an hour ago."""
        _set(self.database, job_id, artifact_jobs.c.published_at)

    def leave_claimed(self, stage: str, job_id: str, run: int = 1) -> str:
        """Claim as a worker does that dies right after; answers its token."""
        token = f"dead.{stage}.{run}"
        row = flow.stage(stage)
        with self.database.write() as unit:
            claim = unit.jobs.claim(row, job_id, run, token, 120.0)
            assert isinstance(claim, Claimed), claim
            extras = STAGES[stage](self.deps).extras(claim.job, unit.ledger.results(job_id, run))
            unit.ledger.start(keys.op_key(row.op, job_id, **extras), row.op, claim.job)
        return token

    # ── looking ──

    def sql(self, text: str, **values: Any) -> list[Any]:
        with self.database._begun() as connection:  # as units begin: connections that a restart has cut are passed over
            found = connection.execute(sa.text(text), values)
            return list(found.all()) if found.returns_rows else []

    def row(self, job_id: str) -> Any:
        return self.sql("SELECT * FROM artifact_jobs WHERE job_id = :job", job=job_id)[0]

    def state(self, job_id: str) -> State:
        return State(self.row(job_id).state)

    def view(self, job_id: str, scope: Scope = DEFAULT) -> JobView:
        with self.database.read() as unit:
            found = unit.owned(scope).get(job_id)
        assert found is not None
        return found

    def ops(self, job_id: str, scope: Scope = DEFAULT) -> list[OpView]:
        with self.database.read() as unit:
            return unit.owned(scope).ops(job_id)

    def op(self, job_id: str, op: OpType, scope: Scope = DEFAULT) -> OpView:
        """The newest op of that kind."""
        return [one for one in self.ops(job_id, scope) if one.op_type == op][-1]

    def streamed(self, job_id: str) -> dict[str, Any]:
        """What the newest stream stage recorded."""
        found = self.op(job_id, OpType.STREAM).result
        assert found is not None
        return dict(found)

    def artifacts(self, job_id: str, scope: Scope = DEFAULT) -> list[ArtifactRecord]:
        with self.database.read() as unit:
            return unit.owned(scope).artifacts_of(job_id)

    def everything(self) -> dict[str, list[Any]]:
        """All rows of all tables, to tell whether anything changed."""
        return {table: sorted(map(repr, self.sql(f"SELECT * FROM {table}"))) for table in TABLES}

    def staged(self) -> list[str]:
        return staged(self.root)

    def blobs(self) -> dict[str, bytes]:
        return self.shelf.contents(self.root) if self.shelf else blobs(self.root)


def carry_out(deps: Deps, hint: Hint, *, in_hand: bool = False) -> list[runner.Outcome]:
    """What a worker makes of a chain; `in_hand`: it takes a message only where it could not go on by itself."""
    outcomes: list[runner.Outcome] = []
    left = [row.name for row in hint.stages]
    while left:
        outcome = runner.run(deps, left[0], hint.job_id, hint.run, left[1:] if in_hand else ())
        outcomes.append(outcome)
        if not outcome.goes_on:
            break
        left = left[max(1, len(outcome.stages)) :] if isinstance(outcome, runner.Done) else left[1:]
    return outcomes


def staged(root: Path) -> list[str]:
    """Whatever lies in the staging folders."""
    found = (root / ".staging").rglob("*")
    return sorted(str(path.relative_to(root / ".staging")) for path in found if not path.is_dir())


def blobs(root: Path) -> dict[str, bytes]:
    """Every file of the store by its relative path; each must be read-only and named by its hash."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_dir() or name.parts[0] in (".staging", ".dlpipe-store"):
            continue
        data = path.read_bytes()
        if ".damaged-" not in path.name:
            assert stat.S_IMODE(path.stat().st_mode) == 0o444, f"{name} may be written"
            assert path.name.partition(".")[0] == sha256(data), f"{name} holds other bytes"
        found[str(name)] = data
    return found


def job_of(world: World, job_id: str) -> ArtifactJob:
    """The row as the workers see it."""
    with world.database._begun(dlpipe_read=True) as connection:
        row = connection.execute(
            sa.select(*JOB_COLUMNS).join(jobs, jobs.c.job_id == artifact_jobs.c.job_id).where(jobs.c.job_id == job_id)
        ).one()
    return job_from(row, Scope(row.tenant_id, row.project_id))


def epoch(moment: Any) -> float:
    """Seconds since 1970, of a time as a raw row has it: each engine has a type of its own."""
    return moment.timestamp() if isinstance(moment, datetime) else moment / 1000


def no_links(code: int) -> Callable[..., None]:
    """An os.link of a file system that has none to give."""

    def link(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return link


def finished(ops: Iterable[OpView]) -> list[str]:
    return [one.op_type for one in ops if one.state == "finished"]


def _set(database: SqlDatabase, job_id: str, column: sa.Column[Any]) -> None:
    """Move a time that is set into the past."""
    with database._begun() as connection:
        connection.execute(
            sa.update(artifact_jobs)
            .where(artifact_jobs.c.job_id == job_id, column.is_not(None))
            .values({column: after(-3600.0)})
        )
