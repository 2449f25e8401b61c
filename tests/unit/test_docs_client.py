"""The examples of docs/client.md, run one after the other as they stand (JOB-5, PLAN-2)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import dlpipe
from tests.world import World

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from dlpipe import tasks
    from dlpipe.db import SqlDatabase

    database = SqlDatabase(sqlite_url)
    made = World(database, tmp_path / "store")
    monkeypatch.setattr(tasks, "deps", lambda: made.deps)
    yield made
    database.close()


def test_the_examples_do_what_they_say(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.source.put("https://files.example/done", b"%PDF-bytes")
    done = world.fetch("https://files.example/done")
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(compile(example, str(PAGE), "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "pending 0 https://example.org/papers/a.pdf"
    assert said[1] == "3 0"
    assert "2" in said
    assert any(line.startswith("The job is paused since ") for line in said)
    assert names["artifact"].job_id == done
    assert names["head"] == b"%PDF"
    assert "paused https://example.org/2.pdf" in said
    assert len(EXAMPLES) == 8


def test_every_public_name_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    calls = {name for name in dlpipe.__all__ if name.islower() and name not in {"__version__", "app", "start_download"}}
    assert {name for name in calls if name not in page} == set()
