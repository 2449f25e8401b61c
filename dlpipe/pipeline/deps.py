"""What the pipeline works with: the ports, and the policies that settings decide."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from dlpipe.core.events import Silent
from dlpipe.core.model import ArtifactJob, Scope
from dlpipe.core.nodes import NodePolicy
from dlpipe.core.ports import (
    BlobStore,
    Database,
    Flips,
    Leases,
    Progress,
    Publisher,
    Reservations,
    Source,
    Staging,
    Telemetry,
)
from dlpipe.core.quota import QuotaPolicy
from dlpipe.core.resume import ResumePolicy
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.urls import ParseUrl


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """Bounds on what a server brings of a file, over all of its answers (STREAM-4, STREAM-5)."""

    max_bytes: int | None = None
    deadline_s: float = 6 * 3600.0
    min_rate_bytes_s: float = 1024.0
    min_rate_window_s: float = 60.0
    requests_per_mib: int = 64
    max_restarts: int = 2
    accept_unproven_length: bool = False
    sniff: bool = True
    overlap_bytes: int = 0
    """When going on from held bytes, ask again for so many of the last ones, to compare (row 37)."""


@dataclass(frozen=True, slots=True)
class HealPolicy:
    """Bounds on one round of reconcile, and how long things are left alone (HEAL-3, HEAL-4, HEAL-6)."""

    deadline_s: float = 30.0
    items: int = 2_000
    """How many rows, files and parts each walk of a round looks at."""
    rehash_bytes: int = 64 << 20
    grace_s: float = 3_600.0
    part_age_s: float = 3_600.0
    max_missing: int = 100


@dataclass(frozen=True, slots=True)
class Policy:
    retry: RetryPolicy = RetryPolicy()
    resume: ResumePolicy = ResumePolicy()
    stream: StreamPolicy = StreamPolicy()
    segments: SegmentPolicy = SegmentPolicy()
    quota: QuotaPolicy = QuotaPolicy()
    lease_ttl_s: float = 120.0
    dedupe_scope: str = "tenant"
    trust_s: float = 86_400.0
    window: int = 2_000
    window_per_host: int = 500
    lost_after_s: float = 20.0
    batch: int = 500
    heal: HealPolicy = HealPolicy()
    nodes: NodePolicy | None = None
    """Where staging folders are not shared."""

    @property
    def node(self) -> str | None:
        return self.nodes.name if self.nodes else None

    def scope_key(self, scope: Scope) -> str:
        """Within which bounds two equal files are one (DEDUPE-2)."""
        match self.dedupe_scope:
            case "global":
                return "*"
            case "project":
                return f"{scope.tenant_id}/{scope.project_id}"
            case _:
                return scope.tenant_id


def _debug_id() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True)
class Deps:
    database: Database
    leases: Leases
    store: BlobStore
    staging: Staging
    source: Source
    publisher: Publisher
    progress: Progress
    reservations: Reservations
    flips: Flips
    parse_url: ParseUrl
    policy: Policy = field(default_factory=Policy)
    forbidden: Callable[[str, int], str | None] = lambda host, port: None
    sniffs: Callable[[str], bool] = lambda host: True
    """Are first bytes from this host looked at? (STREAM-4)"""
    chance: Callable[[], float] = random.SystemRandom().random
    clock: Callable[[], float] = time.monotonic
    debug_id: Callable[[], str] = _debug_id
    telemetry: Telemetry = field(default_factory=Silent)
    unreturned: list[ArtifactJob] = field(default_factory=list)
    """Claims of this process that the ledger did not let us end."""
    known_stores: dict[str, str] = field(default_factory=dict)
    """The ids on record, by backend, once they were read."""
