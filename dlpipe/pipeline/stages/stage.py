"""The shape of a stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar
from dlpipe.core.model import ArtifactJob, ArtifactRecord
from dlpipe.core.ports import Lease, Part, Registration, StartedOp, Unit
from dlpipe.core.results import Result, Results
from dlpipe.core.states import State
from dlpipe.pipeline.deps import Deps

R = TypeVar("R", bound=Result)


class OutOfOrder(Exception):
    """What this stage builds on has not been recorded: the message came too early."""


def part_of(deps: Deps, job: ArtifactJob) -> tuple[str, str, str, int, Callable[[], bool]]:
    """What the part of this claim goes by in the staging folder."""

    def is_newest() -> bool:
        with deps.database.read() as unit:
            row = unit.backlog.get(job.job_id)
        return row is not None and row.fence == job.fence

    return job.scope.tenant_id, job.canonical_url, job.job_id, job.fence, is_newest


class Grip:
    """The job's part, as one hand has hold of it: from one stage to the next, if both are done in that hand."""

    def __init__(self, deps: Deps, further: Sequence[str] = ()) -> None:
        self._deps, self._further = deps, further
        self._stack = ExitStack()
        self._part: Part | None = None

    @contextmanager
    def part(self, job: ArtifactJob, until: str = "") -> Iterator[Part]:
        """Claim it, or go on with it under the job's fence; let go at the end, but for a stage that this hand does."""
        try:
            if self._part is None:
                self._part = self._stack.enter_context(self._deps.staging.claim(*part_of(self._deps, job)))
            else:
                self._part.go_on(job.fence)
            yield self._part
        except BaseException:
            self.close()
            raise
        if until not in self._further:
            self.close()

    def close(self) -> None:
        self._part = None
        self._stack.close()


@dataclass(frozen=True, slots=True)
class Work:
    """One claim: the job under its fence, what was recorded before, and the op to be finished."""

    job: ArtifactJob
    results: Results
    op: StartedOp
    lease: Lease
    grip: Grip


class Stage(ABC):
    def __init__(self, deps: Deps) -> None:
        self.deps = deps

    @abstractmethod
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        """What names this effect beside the job (LEDGER-2); OutOfOrder when that is not known yet."""

    def probe(self, work: Work) -> Result | None:
        """Asked when the op was started before: did the effect happen already? None: perform it (again)."""
        return work.op.prior

    @abstractmethod
    def perform(self, work: Work) -> Result:
        """Do it. May be done again after a crash at any point; no transaction is open."""

    @abstractmethod
    def enters(self, result: Result) -> State:
        """The state that the job is in with this result."""

    def writes(self, result: Result) -> bool:
        """Has it database effects beside the record of the result?"""
        return type(self).record is not Stage.record

    def record(self, unit: Unit, work: Work, result: Result) -> None:  # noqa: B027 - most stages have none
        """The database effects, in the transaction that records the result."""

    def ahead(self, work: Work) -> Result | None:
        """Its result, before that of the stage in front of it is on record; None: it has to be claimed for that.

        Only what changes nothing anywhere may be done like that, and costs next to nothing to be done again: with a
        crash both are forgotten. No transaction is open.
        """
        return None

    def registers(self, work: Work, result: Result) -> Registration | None:
        """All that `record` writes, if it is no more than what is known of a new file."""
        return None

    def if_first(self, work: Work, new: Registration) -> tuple[Result, Registration] | None:
        """Its result in case that nobody has those bytes yet, and what is registered then, its own effects included."""
        return None

    def within(self, unit: Unit, work: Work) -> Result | None:
        """Its result by the database alone, in the transaction that records the stages in front of it; None: see above.

        What they write can be read here, and the network and the disk must not be touched.
        """
        return None


def in_run(results: Results, op: OpType, kind: type[R]) -> R:
    """The result that an earlier stage of this run must have left."""
    found = results.of_run(op)
    if not isinstance(found, kind):
        raise OutOfOrder(f"{op} is not recorded in this run")
    return found


def latest(results: Results, op: OpType, kind: type[R]) -> R:
    """The newest result of that kind; a run that does only what remains builds on an earlier run's."""
    found = results.latest(op)
    if not isinstance(found, kind):
        raise OutOfOrder(f"{op} is not recorded")
    return found


def registered(deps: Deps, job: ArtifactJob, sha256: str) -> ArtifactRecord | None:
    """The record that an earlier run of this job made of the same bytes."""
    if job.run == 1 and job.purpose is None:
        return None  # a first run, as nearly all are
    with deps.database.read() as unit:
        return unit.registry.result_of(job.job_id, sha256)


def expect(result: Result, kind: type[R]) -> R:
    if not isinstance(result, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(result).__name__}")
    return result
