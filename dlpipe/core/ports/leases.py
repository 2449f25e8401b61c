"""Leases, messages, progress, reservations: what may vanish at any moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from dlpipe.core.ports.jobs import Hint
from dlpipe.core.top import LastRound, OriginState


class Lease(Protocol):
    @property
    def token(self) -> str: ...

    def bind(self, fence: int | None) -> None:
        """From now on the heartbeat also renews the mirror in the row, under this fence; None: it leaves it alone."""

    def may_go_on(self) -> bool:
        """May its holder begin another stage under it? Not when it is lost, nor when the process is to end."""

    def check(self) -> None:
        """Raise LeaseLost when the lease ran out, was taken, or its fence was overtaken.

        WorkerEnding, which is one, when the process is to end: nothing that takes long may begin or go on.
        """

    def check_held(self) -> None:
        """The same before a record, which an end of the process does not forbid: what is done would be done again."""


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


@dataclass(frozen=True, slots=True)
class Queued:
    """One queue: the stages whose messages go through it, and how many messages wait in it, of whatever kind."""

    stages: frozenset[str]
    messages: int
    node: str = ""
    """Whose it is; empty: it is for all."""


class Publisher(Protocol):
    """Sends hints. A hint may be lost or doubled without harm. BrokerUnavailable when it could not be sent."""

    def publish(self, hints: Sequence[Hint]) -> None: ...

    def waiting(self, nodes: Collection[str] = ()) -> Sequence[Queued] | None:
        """How many messages wait to be taken, queue by queue; None when the broker cannot tell.

        `nodes`: look also into the queues of these, from which nobody else takes.
        """


class Progress(Protocol):
    """Bytes so far, for people to watch. Best effort: it never fails and never decides anything."""

    def report(self, job_id: str, done: int, total: int | None) -> None: ...
    def clear(self, job_id: str) -> None: ...
    def get(self, job_ids: Sequence[str]) -> Mapping[str, tuple[int, int | None]]: ...


class Watch(Protocol):
    """How things stand beside the ledger, for people to watch. LeaseUnavailable when Redis does not answer."""

    def origins(self, origins: Sequence[str]) -> Mapping[str, OriginState]:
        """What keeps requests from each of these origins right now."""

    def put_round(self, found: Mapping[str, int]) -> None:
        """Remember for a day what a round of reconcile found."""

    def last_round(self) -> LastRound | None: ...


class Reservations(Protocol):
    """Room that running jobs have yet to fill, per volume and for all workers. What dead ones promised runs out."""

    def reserve(self, volume: str, job_id: str, size: int, at_most: int) -> int:
        """Put down `size` for the job, in place of what it had, if all others' promises are `at_most`.

        Answer the others' sum. One step: of two jobs that fit only one at a time, one is put down.
        """

    def release(self, volume: str, job_id: str) -> None:
        """The job needs no further room; one that never had any is no error."""
