"""What a purge, a collection or a backfill does that is killed at a crash point, in a process of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from dlpipe.core.model import Scope
from dlpipe.core.purging import PurgeFilter
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import backfill, garbage, purge
from dlpipe.pipeline.backfill import Line
from dlpipe.store.archive import FileArchive
from dlpipe.store.trash import LocalTrash
from tests.crash.child import SURVIVED, _arm
from tests.world import make_deps


@dataclass(frozen=True)
class UpkeepSite:
    """Where the process works. `now` is what it takes for the time of the files."""

    database_url: str
    directory: Path
    now: float
    rows: tuple[tuple[str, str], ...] = ()

    @property
    def root(self) -> Path:
        return self.directory / "store"

    @property
    def archives(self) -> Path:
        return self.directory / "archive"

    @property
    def attic(self) -> Path:
        return self.directory / "attic"


def work(site: UpkeepSite, what: str) -> None:
    """One whole purge, collection or backfill, in batches of two."""
    database = SqlDatabase(site.database_url)
    deps = make_deps(database, site.root)
    deps = replace(deps, policy=replace(deps.policy, batch=2))
    match what:
        case "purge":
            archive = FileArchive(site.archives)
            for _ in purge.purge(deps, Scope(), PurgeFilter(0.0), archive, retire=True, volume=4):
                pass
        case "gc":
            store, trash = deps.store, LocalTrash(site.root, clock=lambda: site.now)
            store._clock = lambda: site.now  # type: ignore[attr-defined]
            garbage.collect(deps, trash, garbage.Asked(1.0), lambda *_: None)
        case "backfill":
            lines = (Line(n, {"url": url, "path": path}) for n, (url, path) in enumerate(site.rows, start=2))
            for _ in backfill.backfill(deps, Scope(), str(site.attic), lines):
                pass
        case _:
            raise ValueError(what)
    database.close()


def die(site: UpkeepSite, what: str, point: str, time: int) -> None:
    _arm(point, time)
    work(site, what)
    os._exit(SURVIVED)
