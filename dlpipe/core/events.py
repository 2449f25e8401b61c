"""What is told of the work, once the ledger has it: small facts that are counted, never decided on (OPS-7).

No host, tenant, job or URL is among them: what a fact is counted under comes from a closed set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlpipe.core.results import Result


@dataclass(frozen=True, slots=True)
class StageRecorded:
    """A stage's effect is on record, for the first time; `elapsed_s` is from its claim to that."""

    stage: str
    result: Result
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class StageReplayed:
    """A stage was answered from the ledger: an earlier message, or an earlier run, had recorded its effect."""

    stage: str


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A failure is on record. `then`: `retried`, `postponed` (no attempt is used up) or `for_good`."""

    stage: str
    code: str
    then: str


@dataclass(frozen=True, slots=True)
class MessageDropped:
    """A message came to nothing, and nothing was changed for it. `lease_lost`: work that was begun was given up."""

    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """One round of reconcile, and what it found and healed."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HintsSent:
    count: int


Event = StageRecorded | StageReplayed | StageFailed | MessageDropped | RoundEnded | HintsSent


class Silent:
    """The port `Telemetry` where nobody listens."""

    def tell(self, event: Event) -> None:
        pass
