"""What a fetch waits for has an end, also when its job is not there any more (OPS-8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.cli.ended import Ended
from dlpipe.cli.fetch import _Asked, _Fetch
from dlpipe.core.model import Scope
from dlpipe.db import SqlDatabase
from tests.world import World

URL, GONE = "https://files.example/a.bin", "00000000-0000-5000-8000-000000000000"


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path) -> Iterator[World]:
    database = SqlDatabase(sqlite_url)
    yield World(database, tmp_path / "store")
    database.close()


@pytest.mark.parametrize("timeout_s", [None, 0.0], ids=["as long as it takes", "no longer than this"])
def test_fetch_ends_as_failed_when_a_job_that_it_waits_for_was_purged(
    world: World, timeout_s: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    world.source.put(URL, b"abc")
    there = world.fetch(URL)
    fetch = _Fetch(out=None, timeout=timeout_s, retry=False, quiet=True, ended=Ended(as_json=False))
    fetch.deps = world.deps
    fetch.waiting = {
        GONE: Counter({_Asked(URL, Scope(), None): 2}),
        there: Counter({_Asked(URL, Scope(), None): 1}),
    }
    fetch._wait(None)
    assert (fetch._finish(), fetch.waiting, fetch.ended.count) == (1, {}, 3)
    said = capsys.readouterr()
    assert f"dlpipe show {GONE}" in said.err
    assert "[job_purged]" in said.err
