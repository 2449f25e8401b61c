"""A pipeline on a real SQLite ledger and a real local store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.db import SqlDatabase
from tests.torrent_world import TorrentWorld
from tests.world import World


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path) -> Iterator[World]:
    database = SqlDatabase(sqlite_url)
    yield World(database, tmp_path / "store")
    database.close()


@pytest.fixture
def torrent(sqlite_url: str, tmp_path: Path) -> Iterator[TorrentWorld]:
    database = SqlDatabase(sqlite_url)
    yield TorrentWorld(database, tmp_path)
    database.close()
