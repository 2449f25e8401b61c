"""The whole pipeline in one process with the real way to the network, and a look at what it leaves on the disk."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlpipe import wiring
from dlpipe.core.model import Scope
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.pipeline.deps import StreamPolicy
from dlpipe.settings import Settings
from dlpipe.sources.http import HttpSource
from dlpipe.store.sidecar import Sidecar
from tests.world import World, blobs, sha256, staged

NET = NetPolicy(
    connect_s=10.0, read_s=20.0, head_s=20.0, retries=1, max_retry_sleep_s=1.0, allow_private=True, max_redirects=4
)
POLICY = wiring.policy(Settings())
"""As shipped."""


class Pipeline(World):
    """It sleeps for nobody: what it would have slept is noted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hub: Hub | None = None
        self.slept: list[float] = []
        self.deps = replace(self.deps, policy=POLICY)
        self.surroundings()

    def surroundings(self, net: NetPolicy = NET, stream: StreamPolicy | None = None, **hub: Any) -> None:
        """From now on under these bounds."""
        self.close()
        # Its clock goes on by what it would have slept, or waits that were slept would not be over.
        clock = {"clock": lambda: time.monotonic() + sum(self.slept)} | hub
        self.hub = Hub(net, sleep=self.slept.append, chance=lambda: 0.5, **clock)
        policy = replace(self.deps.policy, stream=stream or POLICY.stream)
        self.deps = replace(self.deps, source=HttpSource(self.hub), policy=policy, clock=time.monotonic)

    def again(self, job_id: str) -> None:
        """The next run: by itself when one is due, by hand when the job had failed for good."""
        if self.row(job_id).due_at is None:
            (scope,) = self.sql("SELECT tenant_id, project_id FROM jobs WHERE job_id = :job", job=job_id)
            with self.database.write() as unit:
                unit.owned(Scope(scope.tenant_id, scope.project_id)).retry(job_id)
        self.make_due(job_id)
        self.drive()

    def error(self, job_id: str) -> str | None:
        (found,) = self.sql("SELECT error_code FROM jobs WHERE job_id = :job", job=job_id)
        code: str | None = found.error_code
        return code

    def close(self) -> None:
        if self.hub is not None:
            self.hub.close()


def assert_holds(world: World, *right: bytes, part: bytes | None = None) -> None:
    """The store has these files under their hashes and nothing else; the part, if any, is right as far as vouched."""
    _assert_held(world.blobs(), world.root, right, part)


def assert_folder_holds(root: Path, *right: bytes, part: bytes | None = None) -> None:
    """The same of a store in a folder."""
    _assert_held(blobs(root), root, right, part)


def _assert_held(found: Mapping[str, bytes], root: Path, right: Sequence[bytes], part: bytes | None) -> None:
    assert sorted(map(sha256, found.values())) == sorted(map(sha256, right)), f"other bytes: {sorted(found)}"
    left = staged(root)
    if part is None:
        assert left == [], "a stray part"
        return
    assert [Path(name).suffix for name in left] == [".json", ".part"], "a part and its sidecar, nothing else"
    good = vouched_for(root / ".staging" / left[0])
    assert (root / ".staging" / left[1]).read_bytes()[:good] == part[:good], "wrong bytes are vouched for"
    assert good > 0


def vouched_for(sidecar: Path) -> int:
    side = Sidecar.load(sidecar.read_bytes())
    assert side is not None
    return side.checkpoints[-1].offset
