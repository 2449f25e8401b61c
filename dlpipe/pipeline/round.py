"""One round of reconcile: its bounds, what it found, and transactions that a dry run takes back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import InvalidInput, Postponed, StageFailure
from dlpipe.core.ports import Unit
from dlpipe.pipeline.deps import Deps, HealPolicy

log = logging.getLogger(__name__)

PAGE = 500
MAX_FINDINGS = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: its kind as in the report's counts, and which one. No paths, no addresses."""

    kind: str
    what: str
    did: str


@dataclass(frozen=True, slots=True)
class Report:
    """What one round found and did, by kind; of a dry run: what it would have done."""

    orphans_requeued: int = 0
    orphans_exhausted: int = 0
    dead_owners: int = 0
    mirrors_cleared: int = 0
    nodes_gone: int = 0
    jobs_handed_on: int = 0
    lost_messages: int = 0
    dispatched: int = 0
    ops_abandoned: int = 0
    files_missing: int = 0
    files_damaged: int = 0
    files_mended: int = 0
    jobs_reopened: int = 0
    files_adopted: int = 0
    files_quarantined: int = 0
    files_foreign: int = 0
    parts_removed: int = 0
    parts_unknown: int = 0
    unfinished: int = 0
    """Walks that the deadline, or something in the way, cut short; the next round goes on."""
    findings: tuple[Finding, ...] = field(default=(), compare=False)

    def counts(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "findings"}

    def __str__(self) -> str:
        return " ".join(f"{name}={count}" for name, count in self.counts().items() if count) or "nothing to do"


class Round:
    """What the steps of one round share."""

    def __init__(self, deps: Deps, *, dry_run: bool = False) -> None:
        self.deps = deps
        self.dry_run = dry_run
        self._counts: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._end = deps.clock() + deps.policy.heal.deadline_s

    @property
    def heal(self) -> HealPolicy:
        return self.deps.policy.heal

    @property
    def over(self) -> bool:
        """Asked between two items, so that one of them may take longer but a round does not."""
        return self.deps.clock() >= self._end

    @contextmanager
    def unit(self) -> Iterator[Unit]:
        """A transaction; a dry run makes every change in it, to see what it comes to, and undoes it."""
        before = self._counts.copy()
        try:
            with self.deps.database.write() as unit:
                yield unit
                if self.dry_run:
                    unit.rollback()
        except BaseException:
            self._counts = before  # what was counted in it did not happen
            raise

    def count(self, kind: str, number: int = 1) -> None:
        self._counts[kind] += number

    def found(self, kind: str, what: str, did: str) -> None:
        self.count(kind)
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(Finding(kind, what, f"would be: {did}" if self.dry_run else did))

    @contextmanager
    def passing_over(self, what: str) -> Iterator[None]:
        """One that cannot be read, or a row whose pointer leads nowhere, must not keep a walk from those behind it.

        A store that is away does: each of them would cost the time that it takes to find that out.
        """
        try:
            yield
        except Postponed:
            raise
        except (StageFailure, InvalidInput) as error:
            log.warning("reconcile: %s passed over: %s", what, error)
            self.found("unfinished", what, error.code)

    def cursor(self, name: str) -> str:
        with self.deps.database.read() as unit:
            return unit.cursors.get(name)

    def go_on_at(self, name: str, before: str, position: str) -> None:
        if position != before:
            with self.unit() as unit:
                unit.cursors.put(name, position)
                crash_point("heal.going_on")

    def report(self) -> Report:
        return Report(**self._counts, findings=tuple(self._findings))
