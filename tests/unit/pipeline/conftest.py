"""A pipeline on a real SQLite ledger and a real local store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.db import SqlDatabase
from tests.torrent_world import TorrentWorld
from tests.world import World, template


@pytest.fixture(scope="session")
def ledger_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("ledger") / "template.db")


@pytest.fixture
def world(ledger_template: Path, tmp_path: Path) -> Iterator[World]:
    file = tmp_path / "ledger.db"
    shutil.copyfile(ledger_template, file)
    database = SqlDatabase(f"sqlite:///{file}")
    yield World(database, tmp_path / "store")
    database.close()


@pytest.fixture
def torrent(ledger_template: Path, tmp_path: Path) -> Iterator[TorrentWorld]:
    file = shutil.copyfile(ledger_template, tmp_path / "ledger.db")
    database = SqlDatabase(f"sqlite:///{file}")
    yield TorrentWorld(database, tmp_path)
    database.close()
