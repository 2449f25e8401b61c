"""A pipeline of torrents in one process: real ledger and store, a torrent client in memory, messages in a list."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dlpipe.core.downloads import DownloadView, StartAnswer
from dlpipe.core.errors import DlpipeError
from dlpipe.core.model import ArtifactRecord, Scope
from dlpipe.core.ports import TorrentClient
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import torrent_files, torrent_sync, torrents
from dlpipe.pipeline.torrents import DownloadPolicy, TorrentDeps
from tests.fakes.torrents import FakeTorrentClient
from tests.world import DEFAULT, make_deps

START = datetime(2040, 1, 1, tzinfo=UTC)
"""After every real clock, from which the rows of a start take their times."""


class FakeMessages:
    """The port `Messages`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.queue: list[tuple[str, str]] = []
        self.error: DlpipeError | None = None

    def enqueue(self, job_ids: Sequence[str]) -> None:
        self._put("enqueue", job_ids)

    def register(self, job_ids: Sequence[str]) -> None:
        self._put("register", job_ids)

    def _put(self, what: str, job_ids: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        self.sent += [(what, job_id) for job_id in job_ids]
        self.queue += [(what, job_id) for job_id in job_ids]


def magnet(number: int = 1) -> str:
    return f"magnet:?xt=urn:btih:{info_hash(number)}"


def info_hash(number: int = 1) -> str:
    return hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest()


@dataclass
class TorrentWorld:
    database: SqlDatabase
    root: Path
    client: FakeTorrentClient = field(default_factory=FakeTorrentClient)
    messages: FakeMessages = field(default_factory=FakeMessages)
    real: TorrentClient | None = None
    now: datetime = START

    def __post_init__(self) -> None:
        self.saved = self.root / "saved"
        self.saved.mkdir(parents=True, exist_ok=True)
        self.deps = TorrentDeps(
            base=make_deps(self.database, self.root / "store"),
            client=lambda: self.real or self.client,
            messages=self.messages,
            policy=DownloadPolicy(save_path=str(self.saved), local_path=str(self.saved)),
        )

    def policy(self, **changes: Any) -> None:
        self.deps = replace(self.deps, policy=replace(self.deps.policy, **changes))

    # ── doing ──

    def start(self, number: int = 1, **fields: Any) -> StartAnswer:
        asked = {"user_id": "u", "book_id": f"b{number}", "media_type": "ebook", "source": magnet(number), **fields}
        return torrents.start_download(self.deps, asked)

    def added(self, number: int = 1, **fields: Any) -> str:
        """A download that the client has; answers its job's id."""
        job_id = self.start(number, **fields).job_id
        assert torrents.enqueue(self.deps, job_id).startswith("enqueued")
        self.messages.queue.clear()
        return job_id

    def downloading(self, number: int = 1, **fields: Any) -> str:
        job_id = self.added(number, **fields)
        self.client.say(info_hash(number), "downloading")
        self.sync()
        assert self.state(job_id) == "downloading"
        return job_id

    def finish(self, number: int = 1, files: dict[str, bytes] | None = None, state: str = "stalledUP") -> None:
        self.client.complete(info_hash(number), files or {f"book{number}.epub": content(number)}, state)

    def sync(self, passed_s: float = 0.0, *, send: bool = True) -> torrent_sync.SyncReport:
        self.now += timedelta(seconds=passed_s)
        return torrent_sync.sync(self.deps, self.now, send=send)

    def register(self, job_id: str) -> str:
        return torrent_files.register(self.deps, job_id)

    def drive(self) -> list[str]:
        """Carry out every message that was sent."""
        said = []
        while self.messages.queue:
            what, job_id = self.messages.queue.pop(0)
            do = torrents.enqueue if what == "enqueue" else torrent_files.register
            said.append(do(self.deps, job_id))
        return said

    # ── looking ──

    def sql(self, text: str, **values: Any) -> list[Any]:
        with self.database.engine.begin() as connection:
            found = connection.execute(sa.text(text), values)
            return list(found.all()) if found.returns_rows else []

    def row(self, job_id: str) -> Any:
        return self.sql("SELECT * FROM download_jobs WHERE job_id = :job", job=job_id)[0]

    def job(self, job_id: str) -> Any:
        return self.sql("SELECT * FROM jobs WHERE job_id = :job", job=job_id)[0]

    def state(self, job_id: str) -> str:
        return str(self.row(job_id).status)

    def view(self, job_id: str, scope: Scope = DEFAULT) -> DownloadView | None:
        with self.database.read() as unit:
            return unit.torrents.get(scope, job_id)

    def artifacts(self, job_id: str) -> list[ArtifactRecord]:
        with self.database.read() as unit:
            return unit.owned(DEFAULT).artifacts_of(job_id)


def content(number: int = 1, size: int = 50_000) -> bytes:
    return random.Random(number).randbytes(size)
