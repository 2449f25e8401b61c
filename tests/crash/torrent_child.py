"""What a worker on torrents does that is killed at a crash point. It runs in a process of its own, and ends there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dlpipe.core.downloads import Sharing
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import torrents
from tests.crash.child import SURVIVED, _arm
from tests.torrent_world import TorrentWorld, magnet
from tests.world import DEFAULT


@dataclass(frozen=True)
class TorrentSite:
    """Where the worker works, and what the torrent client has."""

    database_url: str
    root: Path
    files: dict[str, bytes]
    sharing: Sharing = Sharing.LINK

    def world(self) -> TorrentWorld:
        made = TorrentWorld(SqlDatabase(self.database_url), self.root)
        made.policy(sharing=self.sharing)
        return made


def die(site: TorrentSite, what: str, job_id: str, point: str, time: int) -> None:
    """Do one thing, and die when that point is passed for the `time`-th time."""
    world = site.world()
    if what not in ("start", "enqueue"):
        world.client.add(magnet(), save_path=str(world.saved), tag="dlpipe")
        world.finish(files=site.files)
    _arm(point, time)
    match what:
        case "start":
            world.start()
        case "enqueue":
            torrents.enqueue(world.deps, job_id)
        case "sync":
            world.sync(15)
        case "register":
            world.register(job_id)
        case "cancel":
            torrents.cancel(world.deps, DEFAULT, job_id)
        case _:
            raise ValueError(what)
    os._exit(SURVIVED)
