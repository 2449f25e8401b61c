"""The client under a fuzzer: the real stages that ask, on the real hub, with a real part; how each download ended."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

from dlpipe.core.errors import Permanent, Postponed, StageFailure
from dlpipe.core.flow import OpType
from dlpipe.core.layout import part_slug
from dlpipe.core.model import ArtifactJob, Scope
from dlpipe.core.ports import StartedOp
from dlpipe.core.results import HeadResult, Results, StreamResult
from dlpipe.core.states import State
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.pipeline.deps import Policy, StreamPolicy
from dlpipe.pipeline.stages.head import Head
from dlpipe.pipeline.stages.resume import ResumeDecide
from dlpipe.pipeline.stages.stage import Grip, Work
from dlpipe.pipeline.stages.stream import Stream
from dlpipe.sources.http import HttpSource
from dlpipe.store.staging import STAGING
from tests.fakes.leases import FakeLease
from tests.fuzz.wire import Network
from tests.world import make_deps

RUNS = 3
"""So many runs a download has; in the ledger they are further attempts."""
PUT_OFF = 10
"""So many times it may be put off, which costs no attempt."""
NET = NetPolicy(
    connect_s=1.0, read_s=1.0, head_s=1.0, retries=1, max_retry_sleep_s=2.0, max_retry_after_s=10.0, allow_private=True,
    max_redirects=3, max_idle_connections=4,
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """`file`: the bytes of a download that is complete. `codes`: of what failed before that, or for good."""

    file: bytes | None
    codes: tuple[str, ...]
    for_good: bool = False


class Client:
    def __init__(self, network: Network, root: Path) -> None:
        self._root, self._network = root, network
        self._hub = Hub(
            NET,
            resolve=lambda _host, _port: ["127.0.0.1"],
            connect=network,
            sleep=network.wait,
            clock=lambda: network.now,
            chance=lambda: 0.5,
        )
        policy = Policy(stream=StreamPolicy(accept_unproven_length=True, max_restarts=1))
        deps = make_deps(Mock(), root, source=HttpSource(self._hub), policy=policy)
        self._deps = replace(deps, clock=lambda: network.now)
        self.counts: Counter[str] = Counter()

    def close(self) -> None:
        self._hub.close()

    def download(self, url: str, tenant: str, *, head: bool) -> Ended:
        codes: list[str] = []
        job = ArtifactJob("job", Scope(tenant), "work", "file", url, url, "host", State.PLANNED, 1, 1, 0)
        for run in range(1, RUNS + PUT_OFF + 1):
            try:
                done = self._run(replace(job, run=run, fence=run), head)
            except Postponed as failure:
                self.counts[f"put off: {failure.code}"] += 1
                self._network.now += failure.after_s
            except StageFailure as failure:
                codes.append(failure.code)
                if isinstance(failure, Permanent) or len(codes) == RUNS:
                    self._take(job)
                    return Ended(None, tuple(codes), for_good=isinstance(failure, Permanent))
            else:
                self.counts["resumed"] += done.resumed_from_bytes > 0
                return Ended(self._take(job), tuple(codes))
        self._take(job)
        return Ended(None, (*codes, "put off for ever"))

    def _run(self, job: ArtifactJob, head: bool) -> StreamResult:
        said = Head(self._deps)._ask(job) if head else HeadResult(http_status=None, final_url_sha256="")
        results = Results(job.run, {}).with_(OpType.HEAD, "head", said)
        decided = ResumeDecide(self._deps).perform(self._work(job, results, OpType.RESUME))
        return Stream(self._deps).perform(self._work(job, results.with_(OpType.RESUME, "r", decided), OpType.STREAM))

    def _work(self, job: ArtifactJob, results: Results, op: OpType) -> Work:
        started = StartedOp(op, op, job.run, job.fence, seen=False)
        return Work(job, results, started, FakeLease("fuzz"), Grip(self._deps))

    def _take(self, job: ArtifactJob) -> bytes | None:
        """What the part holds; it is no more afterwards."""
        folder = self._root / STAGING / job.scope.tenant_id
        name = part_slug(job.scope.tenant_id, job.canonical_url)
        try:
            found = (folder / f"{name}.part").read_bytes()
        except FileNotFoundError:
            return None
        for file in folder.glob(f"{name}.*"):
            os.unlink(file)
        return found
