"""The command in this process, on a ledger and a store of its own; nothing listens and nobody works unless told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dlpipe import cli
from dlpipe.db import SqlDatabase
from tests.world import World


@dataclass(frozen=True)
class Ran:
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        (only,) = self.records
        return only


@dataclass
class Desk(World):
    """A world, and the command on it."""

    run_command: Callable[..., Ran] = field(default=lambda *_: Ran(0, b"", ""))

    def command(self, *words: str) -> Ran:
        return self.run_command(*words)


@pytest.fixture
def desk(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Desk]:
    from dlpipe import tasks, wiring

    database = SqlDatabase(sqlite_url)
    made = Desk(database, tmp_path / "store")

    def run(*words: str) -> Ran:
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        said = capsysbinary.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err.decode())

    made.run_command = run
    monkeypatch.setattr(tasks, "deps", lambda: made.deps)
    monkeypatch.setattr(wiring, "database", lambda: database)
    monkeypatch.chdir(tmp_path)
    yield made
    database.close()
